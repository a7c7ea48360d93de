/*
 * One artifact of a package, opened: mapped read-only, its size (and digest, when asked) compared with the manifest,
 * its GGUF header read and its tensors compared with what the manifest says and what its role allows.
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
    struct gguf_reader *reader; /* NULL when the part could not be opened */
    bool present;               /* a regular file stands under its path */
    uint64_t actual_bytes;
    bool digest_checked, digest_ok;
};

/*
 * Opens dir/<artifact path>. What is wrong goes into faults; the result is an error only when memory runs out or the
 * work was cancelled. verify: also hash the file, advancing progress (may be NULL). *out must be closed in any case.
 */
strata_err pkg_part_open(const char *dir, const struct pkg_artifact *artifact, bool verify, struct progress *progress,
                         struct pkg_faults *faults, struct pkg_part *out, struct strata_errmsg *em);
void pkg_part_close(struct pkg_part *p);

/*
 * Gives back the memory that reading and hashing made resident. The bytes stay mapped and come back when touched; each
 * fragment repeats the whole vocabulary, which a stage must not pay for once per layer.
 */
void pkg_part_release_pages(const struct pkg_part *p);

/* Resolves what a user names (a package's folder, or its model-package.json) into the folder. False: not a package. */
bool pkg_part_folder(const char *path, char *dir, size_t cap);

#endif
