/* Opens and checks one artifact. See pkg_part.h. Owns the map and the reader of each part. */
#include "package/pkg_part.h"

#include "base/path.h"
#include "package/pkg_class.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { PIECE = 4 << 20 };

/* Whether a part of this role may hold a tensor of this class. Replicated tensors may be anywhere. */
static bool may_hold(const struct pkg_artifact *a, const char *name) {
    uint32_t layer = 0;
    enum pkg_class class = pkg_class_of(name, &layer);
    if (class == PKG_CLASS_METADATA || a->role == PKG_ROLE_PROJECTOR) return true;
    switch (a->role) {
    case PKG_ROLE_EMBEDDINGS: return class == PKG_CLASS_EMBEDDING;
    case PKG_ROLE_OUTPUT: return class == PKG_CLASS_FINAL_NORM || class == PKG_CLASS_OUTPUT;
    case PKG_ROLE_LAYER: return class == PKG_CLASS_LAYER && layer == a->layer;
    default: return false;
    }
}

static void check_tensors(const struct pkg_part *p, struct pkg_faults *faults) {
    const struct pkg_artifact *a = p->artifact;
    size_t count = gguf_reader_tensor_count(p->reader);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(p->reader, i);
        bytes += t->bytes; /* all lie inside one file and do not overlap: no wrap */
        if (!may_hold(a, t->name))
            pkg_faults_add(faults, PKG_FAULT_FOREIGN_TENSOR, a->path,
                           "%.200s holds tensor '%s', which does not belong to this part", a->path, t->name);
    }
    if (count != a->tensor_count)
        pkg_faults_add(faults, PKG_FAULT_TENSOR_COUNT_MISMATCH, a->path,
                       "%.200s holds %zu tensors; the manifest says %" PRIu64, a->path, count, a->tensor_count);
    if (bytes != a->tensor_bytes)
        pkg_faults_add(faults, PKG_FAULT_TENSOR_BYTES_MISMATCH, a->path,
                       "the tensors of %.200s have %" PRIu64 " bytes; the manifest says %" PRIu64, a->path, bytes,
                       a->tensor_bytes);
    if (a->role == PKG_ROLE_EMBEDDINGS && !gguf_reader_find_tensor(p->reader, "token_embd.weight"))
        pkg_faults_add(faults, PKG_FAULT_MISSING_TENSOR, a->path, "%.200s does not hold token_embd.weight", a->path);
}

static strata_err verify_digest(struct pkg_part *p, struct progress *progress, struct pkg_faults *faults,
                                struct strata_errmsg *em) {
    uint8_t sum[DIGEST_BYTES];
    struct digest *d = NULL;
    strata_err rc = digest_new(&d, em);
    for (size_t at = 0; at < p->map.size && !rc; at += PIECE) {
        size_t n = p->map.size - at < PIECE ? p->map.size - at : PIECE;
        rc = digest_update(d, p->map.data + at, n, em);
        if (progress) progress_add(progress, n);
    }
    if (!rc) rc = digest_final(d, sum, em);
    digest_free(d);
    if (rc) return rc;
    p->digest_checked = true;
    p->digest_ok = memcmp(sum, p->artifact->sha256, sizeof sum) == 0;
    if (!p->digest_ok) {
        char hex[DIGEST_HEX];
        digest_to_hex(sum, sizeof sum, hex);
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, p->artifact->path,
                       "%.200s was altered or damaged: its SHA-256 is %.16s..., not the manifest's", p->artifact->path,
                       hex);
    }
    return STRATA_OK;
}

/* The file itself: there, regular, of the right size. True when it was mapped. */
static bool map_file(const char *path, struct pkg_part *p, struct pkg_faults *faults) {
    const struct pkg_artifact *a = p->artifact;
    struct strata_errmsg em;
    struct stat st;
    if (stat(path, &st) != 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        pkg_faults_add(faults, absent ? PKG_FAULT_MISSING_ARTIFACT : PKG_FAULT_ARTIFACT_UNREADABLE, a->path,
                       "%.200s %s", a->path, absent ? "is missing" : strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode)) {
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_NOT_FILE, a->path, "%.200s is not a regular file", a->path);
        return false;
    }
    p->present = true;
    p->actual_bytes = (uint64_t)st.st_size;
    if (file_map_open(path, &p->map, &em)) {
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_UNREADABLE, a->path, "%s", em.text);
        return false;
    }
    p->actual_bytes = p->map.size;
    if (p->map.size != a->artifact_bytes) {
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_SIZE_MISMATCH, a->path,
                       "%.200s has %zu bytes; the manifest says %" PRIu64, a->path, p->map.size, a->artifact_bytes);
        return false;
    }
    return true;
}

strata_err pkg_part_open(const char *dir, const struct pkg_artifact *artifact, bool verify, struct progress *progress,
                         struct pkg_faults *faults, struct pkg_part *out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct strata_errmsg why;
    *out = (struct pkg_part){.artifact = artifact};
    if (!artifact->path) return STRATA_OK; /* the manifest's own fault, reported there */
    strata_err rc = path_join(path, sizeof path, dir, artifact->path, em);
    if (rc) return rc;
    if (!map_file(path, out, faults)) return STRATA_OK;
    if (verify && artifact->has_sha256) rc = verify_digest(out, progress, faults, em);
    if (rc) return rc;
    rc = gguf_reader_new(out->map.data, out->map.size, path, &out->reader, &why);
    if (rc == STRATA_ENOMEM) return err_nomem(em, "a GGUF header");
    if (rc)
        pkg_faults_add(faults, PKG_FAULT_INVALID_ARTIFACT_GGUF, artifact->path, "%s", why.text);
    else
        check_tensors(out, faults);
    return STRATA_OK;
}

void pkg_part_close(struct pkg_part *p) {
    if (!p) return;
    gguf_reader_free(p->reader);
    file_map_close(&p->map);
    *p = (struct pkg_part){0};
}

void pkg_part_release_pages(const struct pkg_part *p) {
    /* Advice only: if the system declines, the pages simply stay. */
    if (p->map.data) (void)madvise((void *)(uintptr_t)p->map.data, p->map.size, MADV_DONTNEED);
}

bool pkg_part_folder(const char *path, char *dir, size_t cap) {
    if (file_is_dir(path)) {
        size_t len = strlen(path);
        if (len >= cap) return false;
        memcpy(dir, path, len + 1);
        return true;
    }
    if (strcmp(path_basename(path), PKG_MANIFEST_FILE) != 0) return false;
    return path_dirname(dir, cap, path, NULL) == STRATA_OK;
}
