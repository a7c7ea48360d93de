/*
 * One artifact of a package, opened: found to lie inside the package, mapped read-only, its size (and digest, when
 * asked) compared with the manifest, its GGUF header read, its tensors and slice keys compared with what the manifest
 * says and what its role allows. The carrier of a schema-2 package lists tensors that it does not hold (see
 * pkg_carrier.h); a publisher's file is no GGUF file at all.
 *
 * The file is opened once: what was looked at is what is mapped, whatever happens to its name meanwhile.
 */
#ifndef PKG_PART_H
#define PKG_PART_H

#include "base/file.h"
#include "base/progress.h"
#include "gguf/gguf_reader.h"
#include "package/pkg_manifest.h"

struct pkg_part {
    const struct pkg_artifact *artifact; /* view into the manifest */
    struct file_map map;
    struct gguf_reader *reader; /* NULL when the part could not be opened, or is a publisher's file */
    bool present;               /* a regular file of the package stands under its path */
    bool has_slice_keys;        /* schema 1: it says which part it is */
    uint64_t actual_bytes;
    bool digest_checked, digest_ok;
};

/* Whether an artifact holds a part of the model: no projector, no file of the publisher's. */
bool pkg_part_is_fragment(const struct pkg_artifact *a);

/*
 * Opens dir/<artifact path>. What is wrong goes into faults; the result is an error only when memory runs out or the
 * work was cancelled. verify: also hash the file, advancing progress (may be NULL). *out must be closed in any case.
 */
strata_err pkg_part_open(const char *dir, const struct pkg_artifact *artifact, bool verify, struct progress *progress,
                         struct pkg_faults *faults, struct pkg_part *out, struct strata_errmsg *em);
void pkg_part_close(struct pkg_part *p);

/*
 * Records the SHA-256 that the part's bytes turned out to have (NULL: they could not be read, for the reason in `why`):
 * for callers that hash it in a pass of their own (pkg_scan), having opened it without `verify`.
 */
void pkg_part_judge(struct pkg_part *p, const uint8_t sha256[DIGEST_BYTES], const char *why, struct pkg_faults *faults);

/*
 * Gives back the memory that reading and hashing made resident. The bytes stay mapped and come back when touched; each
 * fragment repeats the whole vocabulary, which a stage must not pay for once per layer.
 */
void pkg_part_release_pages(const struct pkg_part *p);

/* Resolves what a user names (a package's folder, or its model-package.json) into the folder. False: not a package. */
bool pkg_part_folder(const char *path, char *dir, size_t cap);

#endif
