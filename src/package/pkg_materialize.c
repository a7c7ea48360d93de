/* One GGUF file of a range. See pkg_materialize.h. Owns nothing between calls. */
#include "package/pkg_materialize.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_source.h"
#include "gguf/gguf_writer.h"
#include "package/pkg_apart.h"
#include "package/pkg_carrier.h"
#include "package/pkg_part.h"

#include <string.h>

/* ---- where it may be written ---- */

static strata_err check_out(const char *out, struct strata_errmsg *em) {
    if (gguf_source_is_split_name(out))
        return err_set(
            em, STRATA_EINVAL,
            "%s is named like a part of a split model: loaders would look for its siblings; name it otherwise", out);
    if (file_is_dir(out)) return err_set(em, STRATA_EINVAL, "%s is a folder: name a file", out);
    char dir[PATH_MAX_LEN];
    strata_err rc = path_dirname(dir, sizeof dir, out, em);
    if (!rc && !file_is_dir(dir)) rc = err_set(em, STRATA_ENOENT, "there is no folder %s to write into", dir);
    return rc ? rc : pkg_apart_check(out, em);
}

/* ---- what is written ---- */

static bool is_own(const char *key) {
    return strncmp(key, "skippy.slice.", 13) == 0 ||
           strncmp(key, PKG_CARRIER_PREFIX, sizeof PKG_CARRIER_PREFIX - 1) == 0;
}

static strata_err compose(const struct pkg_model *m, struct gguf_writer **out, struct strata_errmsg *em) {
    const struct gguf_reader *meta = pkg_model_meta(m);
    struct gguf_writer *w = NULL;
    strata_err rc = gguf_writer_new_bare(gguf_reader_alignment(meta), &w, em);
    for (size_t i = 0; i < gguf_reader_kv_count(meta) && !rc; i++)
        if (!is_own(gguf_reader_kv(meta, i)->key)) rc = gguf_writer_copy_kv(w, gguf_reader_kv(meta, i), em);
    if (!rc) rc = gguf_writer_add_bool(w, PKG_CARRIER_PREFIX "materialized", true, em);
    if (!rc) rc = gguf_writer_add_u32(w, PKG_CARRIER_COUNT, (uint32_t)pkg_model_part_count(m), em);
    for (size_t i = 0; i < pkg_model_tensor_count(m) && !rc; i++) {
        const struct gguf_tensor *t = pkg_model_tensor(m, i);
        rc = gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data, em);
    }
    if (rc) {
        gguf_writer_free(w);
        return rc;
    }
    *out = w;
    return STRATA_OK;
}

struct sink {
    const struct pkg_materialize_options *opt;
    struct file_atomic file;
    struct digest *digest;
    struct progress progress;
};

static strata_err take(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct sink *s = user;
    if (s->opt->cancelled && s->opt->cancelled()) return err_set(em, STRATA_ECANCELLED, "interrupted");
    strata_err rc = file_atomic_write(&s->file, data, len, em);
    if (!rc) rc = digest_update(s->digest, data, len, em);
    progress_add(&s->progress, len);
    return rc;
}

static strata_err write_file(const struct gguf_writer *w, const struct pkg_materialize_options *opt,
                             char sha256[DIGEST_HEX], struct strata_errmsg *em) {
    struct sink s = {.opt = opt, .file.fd = -1};
    uint8_t sum[DIGEST_BYTES];
    strata_err rc = digest_new(&s.digest, em);
    if (!rc) rc = file_atomic_begin(&s.file, opt->out, 0644, em);
    progress_begin(&s.progress, opt->progress, "writing", gguf_writer_file_size(w));
    if (!rc) rc = gguf_writer_emit(w, take, &s, em);
    progress_end(&s.progress);
    if (!rc) rc = digest_final(s.digest, sum, em);
    if (!rc) rc = file_atomic_commit(&s.file, em);
    if (!rc) digest_to_hex(sum, sizeof sum, sha256);
    file_atomic_abort(&s.file);
    digest_free(s.digest);
    return rc;
}

strata_err pkg_materialize(const char *package, const struct pkg_materialize_options *opt,
                           struct pkg_materialize_result *out, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct pkg_materialize_result res = {0};
    struct pkg_model *m = NULL;
    struct gguf_writer *w = NULL;
    const struct pkg_model_options open = {.range = opt->range, .flags = PKG_MODEL_VERIFY, .progress = opt->progress};
    if (!pkg_part_folder(package, dir, sizeof dir))
        return err_set(em, STRATA_EINVAL, "%s is not a layer package: give its folder or its %s", package,
                       PKG_MANIFEST_FILE);
    strata_err rc = check_out(opt->out, em);
    if (!rc) rc = pkg_model_open(dir, &open, &m, em);
    if (!rc) rc = compose(m, &w, em);
    if (!rc) rc = write_file(w, opt, res.sha256, em);
    if (rc) goto out;
    res.range = pkg_model_range(m);
    res.part_count = pkg_model_part_count(m);
    res.tensor_count = gguf_writer_tensor_count(w);
    res.tensor_bytes = gguf_writer_tensor_bytes(w);
    res.file_bytes = gguf_writer_file_size(w);
    *out = res;
out:
    gguf_writer_free(w);
    pkg_model_free(m);
    return rc;
}
