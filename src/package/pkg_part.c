/* Opens and checks one artifact. See pkg_part.h. Owns the map and the reader of each part. */
#include "package/pkg_part.h"

#include "base/path.h"
#include "package/pkg_class.h"
#include "package/pkg_inside.h"
#include "package/pkg_scan.h"
#include "package/pkg_slice.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool pkg_part_is_fragment(const struct pkg_artifact *a) {
    return a->role != PKG_ROLE_PROJECTOR && a->role != PKG_ROLE_PUBLISHER;
}

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

/* Schema 2 states no counts, and its carrier alone says which tensor is taken from where: what else a part holds does
 * not matter. */
static void check_tensors(const struct pkg_part *p, struct pkg_faults *faults) {
    const struct pkg_artifact *a = p->artifact;
    if (!a->has_counts) return;
    size_t count = gguf_reader_tensor_count(p->reader), own = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(p->reader, i);
        bytes += t->bytes; /* all lie inside one file and do not overlap: no wrap */
        own += pkg_class_is_owned(pkg_class_of(t->name, NULL)) && may_hold(a, t->name);
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
    if (a->role == PKG_ROLE_LAYER && own == 0)
        pkg_faults_add(faults, PKG_FAULT_MISSING_TENSOR, a->path, "%.200s holds no tensor of layer %" PRIu32, a->path,
                       a->layer);
}

/* A fragment that says of itself that it is another one: files were exchanged, or the manifest was edited. */
static void check_slice(struct pkg_part *p, struct pkg_faults *faults) {
    const struct pkg_artifact *a = p->artifact;
    struct pkg_slice slice;
    struct strata_errmsg why;
    if (!a->has_counts || !pkg_part_is_fragment(a)) return;
    if (pkg_slice_read(p->reader, &slice, &p->has_slice_keys, &why))
        pkg_faults_add(faults, PKG_FAULT_SLICE_KEYS_MISMATCH, a->path, "%s", why.text);
    else if (p->has_slice_keys && !pkg_slice_fits(&slice, a))
        pkg_faults_add(faults, PKG_FAULT_SLICE_KEYS_MISMATCH, a->path,
                       "%.200s says of itself that it is layers %" PRIu32 "..%" PRIu32 "%s%s, but the manifest has it "
                       "as %s",
                       a->path, slice.range.first, slice.range.end, slice.embeddings ? " with embeddings" : "",
                       slice.output ? " with output" : "", pkg_role_name(a->role));
}

void pkg_part_judge(struct pkg_part *p, const uint8_t sha256[DIGEST_BYTES], const char *why,
                    struct pkg_faults *faults) {
    const struct pkg_artifact *a = p->artifact;
    p->digest_checked = true;
    p->digest_ok = sha256 && memcmp(sha256, a->sha256, DIGEST_BYTES) == 0;
    if (!sha256) {
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_SHA256_UNREADABLE, a->path, "%s", why);
    } else if (!p->digest_ok) {
        char hex[DIGEST_HEX];
        digest_to_hex(sha256, DIGEST_BYTES, hex);
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, a->path,
                       "%.200s was altered or damaged: its SHA-256 is %.16s..., not the manifest's", a->path, hex);
    }
}

static strata_err verify_digest(struct pkg_part *p, struct progress *progress, struct pkg_faults *faults,
                                struct strata_errmsg *em) {
    struct strata_errmsg why;
    struct pkg_scan scan = {.map = p->map, .name = p->artifact->path, .hash = true, .progress = progress};
    strata_err rc = pkg_scan_run(&scan, &why);
    if (rc == STRATA_OK || rc == STRATA_EIO) {
        pkg_part_judge(p, rc ? NULL : scan.sha256, why.text, faults);
        return STRATA_OK;
    }
    if (em) *em = why;
    return rc;
}

static void refuse_file(const struct pkg_artifact *a, strata_err rc, const struct strata_errmsg *why,
                        struct pkg_faults *faults) {
    switch (rc) {
    case STRATA_ENOENT:
        pkg_faults_add(faults, PKG_FAULT_MISSING_ARTIFACT, a->path, "%.200s is missing", a->path);
        break;
    case STRATA_EINVAL:
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_NOT_FILE, a->path, "%.200s is not a regular file", a->path);
        break;
    case STRATA_EAUTH: pkg_faults_add(faults, PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE, a->path, "%s", why->text); break;
    default: pkg_faults_add(faults, PKG_FAULT_ARTIFACT_UNREADABLE, a->path, "%s", why->text); break;
    }
}

/* The file itself: inside the package, regular, of the right size. *mapped tells that it is. */
static strata_err map_file(const char *dir, struct pkg_part *p, bool *mapped, struct pkg_faults *faults,
                           struct strata_errmsg *em) {
    const struct pkg_artifact *a = p->artifact;
    struct strata_errmsg why;
    struct stat st;
    int fd = -1;
    strata_err rc = pkg_inside_open(dir, a->path, &fd, &why);
    if (!rc && fstat(fd, &st) != 0) rc = err_sys(&why, STRATA_EIO, errno, "cannot look at %.200s", a->path);
    if (rc) goto out;
    p->present = true;
    p->actual_bytes = (uint64_t)st.st_size;
    if (p->actual_bytes == a->artifact_bytes)
        rc = file_map_fd(fd, a->path, &p->map, &why);
    else
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_SIZE_MISMATCH, a->path,
                       "%.200s has %" PRIu64 " bytes; the manifest says %" PRIu64, a->path, p->actual_bytes,
                       a->artifact_bytes);
out:
    if (fd >= 0) close(fd);
    if (rc == STRATA_ENOMEM) return err_nomem(em, "a part of the package");
    if (rc) refuse_file(a, rc, &why, faults);
    *mapped = !rc && p->actual_bytes == a->artifact_bytes;
    return STRATA_OK;
}

/* Reads the bytes before the payload, so that a disk that fails there is told here. */
static strata_err fetch_header(const struct pkg_part *p, struct strata_errmsg *em) {
    enum { UNKNOWN = 1 << 20, MOST = 16 << 20 };
    const struct pkg_artifact *a = p->artifact;
    size_t size = p->map.size, n = a->has_counts && a->tensor_bytes < size ? size - (size_t)a->tensor_bytes : UNKNOWN;
    if (n > MOST) n = MOST;
    return file_map_fetch(p->map.data, n < size ? n : size, a->path, em);
}

static strata_err read_header(struct pkg_part *p, struct pkg_faults *faults, struct strata_errmsg *em) {
    const struct pkg_artifact *a = p->artifact;
    struct strata_errmsg why;
    bool carrier = a->role == PKG_ROLE_METADATA && a->id;
    strata_err rc = fetch_header(p, &why);
    if (!rc)
        rc = carrier ? gguf_reader_new_header(p->map.data, p->map.size, a->path, &p->reader, &why)
                     : gguf_reader_new(p->map.data, p->map.size, a->path, &p->reader, &why);
    if (rc == STRATA_ENOMEM) return err_nomem(em, "a GGUF header");
    if (rc == STRATA_EIO)
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_UNREADABLE, a->path, "%s", why.text);
    else if (rc)
        pkg_faults_add(faults, PKG_FAULT_INVALID_ARTIFACT_GGUF, a->path, "%s", why.text);
    return STRATA_OK;
}

strata_err pkg_part_open(const char *dir, const struct pkg_artifact *artifact, bool verify, struct progress *progress,
                         struct pkg_faults *faults, struct pkg_part *out, struct strata_errmsg *em) {
    *out = (struct pkg_part){.artifact = artifact};
    if (!artifact->path) return STRATA_OK; /* the manifest's own fault, reported there */
    bool mapped;
    strata_err rc = map_file(dir, out, &mapped, faults, em);
    if (rc || !mapped) return rc;
    if (verify && artifact->has_sha256) rc = verify_digest(out, progress, faults, em);
    if (!rc && artifact->role != PKG_ROLE_PUBLISHER) rc = read_header(out, faults, em);
    if (rc || !out->reader) return rc;
    check_tensors(out, faults);
    check_slice(out, faults);
    return STRATA_OK;
}

void pkg_part_close(struct pkg_part *p) {
    if (!p) return;
    gguf_reader_free(p->reader);
    file_map_close(&p->map);
    *p = (struct pkg_part){0};
}

void pkg_part_release_pages(const struct pkg_part *p) {
    if (p->map.data) file_map_drop(p->map.data, p->map.size);
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
