/*
 * Writes pieces and copies in parallel. See pkg_emit.h.
 *
 * Owns nothing between calls. One task is one file: its writer is made, run and freed by one thread, so that memory
 * depends on the number of threads and on the metadata, never on the size of the model.
 */

#include "package/pkg_emit.h"

#include "base/checked.h"
#include "base/cpus.h"
#include "base/file.h"
#include "base/path.h"
#include "base/pool.h"
#include "package/pkg_hasher.h"
#include "package/pkg_hook.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { COPY_PIECE = 1 << 20 };

struct emitter {
    const struct pkg_emit_job *job;
    const struct pkg_emit_options *opt;
    struct progress progress;
    struct pkg_hasher hasher;
    pthread_mutex_t hook_lock; /* one hook at a time */
};

/* ---- where bytes go ---- */

/* A new file, or one that is there already and is compared. */
struct sink {
    struct emitter *e;
    struct file_atomic *file;    /* to write, else NULL */
    const struct file_map *have; /* to compare with, else NULL */
    struct digest *digest;
    uint64_t size;
    bool differs;
};

static strata_err take(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct sink *s = user;
    if (s->e->opt->cancelled && s->e->opt->cancelled()) return err_set(em, STRATA_ECANCELLED, "interrupted");
    strata_err rc = STRATA_OK;
    if (s->file) {
        rc = file_atomic_write(s->file, data, len, em);
        progress_add(&s->e->progress, len);
    } else if (len > s->have->size - s->size || memcmp(s->have->data + s->size, data, len) != 0) {
        s->differs = true;
        rc = err_set(em, STRATA_EDIGEST, "the file differs"); /* ends the emission; never shown */
    }
    if (!rc) rc = digest_update(s->digest, data, len, em);
    if (!rc) s->size += len;
    if (!rc && s->file && s->e->hasher.running) pkg_hasher_advance(&s->e->hasher, len);
    return rc;
}

/* One file's content as a stream. */
typedef strata_err (*emit_fn)(const void *content, struct sink *s, struct strata_errmsg *em);

static strata_err emit_piece(const void *content, struct sink *s, struct strata_errmsg *em) {
    return gguf_writer_emit(content, take, s, em);
}

static strata_err emit_header(const void *content, struct sink *s, struct strata_errmsg *em) {
    return gguf_writer_emit_header(content, take, s, em);
}

static strata_err emit_copy(const void *content, struct sink *s, struct strata_errmsg *em) {
    const struct file_map *from = content;
    strata_err rc = STRATA_OK;
    for (size_t at = 0; at < from->size && !rc; at += COPY_PIECE)
        rc = take(s, from->data + at, from->size - at < COPY_PIECE ? from->size - at : COPY_PIECE, em);
    return rc;
}

/* ---- one file ---- */

/* Whether the file at path is what would be written. Its digest goes into out. */
static strata_err compare(struct emitter *e, const char *path, emit_fn emit, const void *content,
                          struct pkg_emitted *out, bool *same, struct strata_errmsg *em) {
    struct file_map have = {0};
    struct sink s = {.e = e, .have = &have};
    struct strata_errmsg why;
    *same = false;
    if (file_map_open(path, &have, &why) != STRATA_OK) return STRATA_OK; /* absent or strange: written anew */
    strata_err rc = digest_new(&s.digest, em);
    if (!rc) rc = emit(content, &s, em);
    if (s.differs) rc = STRATA_OK;
    *same = !rc && !s.differs && s.size == have.size;
    if (*same) rc = digest_final(s.digest, out->sha256, em);
    if (*same) {
        out->artifact_bytes = s.size;
        out->kept = true;
        progress_add(&e->progress, s.size);
        if (e->hasher.running) pkg_hasher_advance(&e->hasher, s.size);
    }
    digest_free(s.digest);
    file_map_close(&have);
    return rc;
}

static strata_err write_new(struct emitter *e, const char *path, emit_fn emit, const void *content,
                            struct pkg_emitted *out, struct strata_errmsg *em) {
    struct file_atomic file = {.fd = -1};
    struct sink s = {.e = e, .file = &file};
    strata_err rc = digest_new(&s.digest, em);
    if (!rc) rc = file_atomic_begin(&file, path, 0644, em);
    if (!rc) rc = emit(content, &s, em);
    if (!rc) rc = digest_final(s.digest, out->sha256, em);
    if (!rc) rc = file_atomic_commit(&file, em);
    if (!rc) out->artifact_bytes = s.size;
    file_atomic_abort(&file);
    digest_free(s.digest);
    return rc;
}

static strata_err run_hook(struct emitter *e, const char *relative, struct strata_errmsg *em) {
    if (!e->opt->after_command) return STRATA_OK;
    pthread_mutex_lock(&e->hook_lock);
    strata_err rc = pkg_hook_run(e->opt->after_command, e->opt->out_dir, relative, e->opt->cancelled, em);
    pthread_mutex_unlock(&e->hook_lock);
    return rc;
}

static strata_err emit_file(struct emitter *e, const char *relative, emit_fn emit, const void *content,
                            struct pkg_emitted *out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    bool same = false;
    strata_err rc = path_join(path, sizeof path, e->opt->out_dir, relative, em);
    if (!rc && e->opt->resume) rc = compare(e, path, emit, content, out, &same, em);
    if (!rc && !same) rc = write_new(e, path, emit, content, out, em);
    return rc ? rc : run_hook(e, relative, em);
}

static strata_err do_piece(struct emitter *e, size_t i, struct strata_errmsg *em) {
    struct gguf_writer *w = NULL;
    struct pkg_emitted *out = &e->job->pieces[i];
    bool header = pkg_cut_is_header_only(e->job->cut, i);
    strata_err rc = pkg_cut_writer(e->job->cut, i, &w, em);
    if (!rc && !header) {
        out->tensor_count = gguf_writer_tensor_count(w);
        out->tensor_bytes = gguf_writer_tensor_bytes(w);
    }
    if (!rc) rc = emit_file(e, e->job->cut->pieces[i].path, header ? emit_header : emit_piece, w, out, em);
    gguf_writer_free(w);
    return rc;
}

static strata_err do_copy(struct emitter *e, size_t i, struct strata_errmsg *em) {
    const struct pkg_copy *c = &e->job->copies[i];
    struct pkg_emitted *out = &e->job->copied[i];
    struct file_map from = {0};
    struct gguf_reader *r = NULL;
    strata_err rc = file_map_open(c->from, &from, em);
    if (!rc) rc = gguf_reader_new(from.data, from.size, c->from, &r, em);
    if (!rc) {
        out->tensor_count = gguf_reader_tensor_count(r);
        for (size_t k = 0; k < out->tensor_count; k++) out->tensor_bytes += gguf_reader_tensor(r, k)->bytes;
        rc = emit_file(e, c->path, emit_copy, &from, out, em);
    }
    gguf_reader_free(r);
    file_map_close(&from);
    return rc;
}

/* Pieces first: they keep step with the hasher. */
static strata_err do_task(void *user, size_t i, struct strata_errmsg *em) {
    struct emitter *e = user;
    size_t n = e->job->cut->n_pieces;
    return i < n ? do_piece(e, i, em) : do_copy(e, i - n, em);
}

/* ---- all together ---- */

strata_err pkg_emit_size(const struct pkg_emit_job *job, uint64_t *bytes, struct strata_errmsg *em) {
    uint64_t sum = 0;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < job->cut->n_pieces && !rc; i++) {
        struct gguf_writer *w = NULL;
        rc = pkg_cut_writer(job->cut, i, &w, em);
        uint64_t size = rc                                    ? 0
                        : pkg_cut_is_header_only(job->cut, i) ? gguf_writer_data_offset(w)
                                                              : gguf_writer_file_size(w);
        if (!rc && !checked_add(sum, size, &sum))
            rc = err_set(em, STRATA_ELIMIT, "the files would be larger than 64 bits can say");
        gguf_writer_free(w);
    }
    for (size_t i = 0; i < job->n_copies && !rc; i++) {
        struct file_map from = {0};
        rc = file_map_open(job->copies[i].from, &from, em);
        if (!rc && !checked_add(sum, from.size, &sum))
            rc = err_set(em, STRATA_ELIMIT, "the files would be larger than 64 bits can say");
        file_map_close(&from);
    }
    if (!rc) *bytes = sum;
    return rc;
}

/* Bytes that stand under final names already; a resumed job needs room for the rest alone. */
static uint64_t bytes_there(const struct pkg_emit_job *job, const char *dir) {
    uint64_t sum = 0;
    char path[PATH_MAX_LEN];
    struct file_map have = {0};
    for (size_t i = 0; i < job->cut->n_pieces + job->n_copies; i++) {
        const char *name = i < job->cut->n_pieces ? job->cut->pieces[i].path : job->copies[i - job->cut->n_pieces].path;
        if (path_join(path, sizeof path, dir, name, NULL) || file_map_open(path, &have, NULL)) continue;
        sum += have.size;
        file_map_close(&have);
    }
    return sum;
}

static strata_err check_space(const struct pkg_emit_job *job, const struct pkg_emit_options *opt, uint64_t total,
                              struct strata_errmsg *em) {
    struct statvfs fs;
    /* A file system that cannot say how much room it has gets the benefit of the doubt. */
    if (statvfs(opt->out_dir, &fs) != 0 || fs.f_blocks == 0) return STRATA_OK;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize, have = opt->resume ? bytes_there(job, opt->out_dir) : 0;
    uint64_t need = total > have ? total - have : 0;
    if (need <= room) return STRATA_OK;
    char a[32], b[32];
    return err_set(em, STRATA_ELIMIT,
                   "%s: %s are needed, and the disk has %s free: make room, or name a folder elsewhere", opt->out_dir,
                   progress_bytes(a, sizeof a, need), progress_bytes(b, sizeof b, room));
}

strata_err pkg_emit_run(const struct pkg_emit_job *job, const struct pkg_emit_options *opt, struct strata_errmsg *em) {
    struct emitter e = {.job = job, .opt = opt, .hook_lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t total = 0;
    strata_err rc = pkg_emit_size(job, &total, em);
    if (!rc) rc = check_space(job, opt, total, em);
    if (!rc && job->hash_source) rc = pkg_hasher_start(&e.hasher, job->hash_source, job->source_sha256, em);
    if (rc) goto out;
    progress_begin(&e.progress, opt->progress, "writing", total);
    rc = pool_run(opt->jobs ? opt->jobs : cpus_count(), job->cut->n_pieces + job->n_copies, do_task, &e, em);
    progress_end(&e.progress);
    if (!rc) rc = pkg_hasher_join(&e.hasher, false, em);
out:
    pkg_hasher_join(&e.hasher, true, NULL);
    pthread_mutex_destroy(&e.hook_lock);
    return rc;
}
