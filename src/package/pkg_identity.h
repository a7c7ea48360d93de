/*
 * What a package says about where it comes from: the model's coordinate and the source file's place in its repository.
 *
 * A publisher states them, or the source lies in a hub cache, whose folder names state them; for a package that stays
 * private they may be derived from the file's name. Never from other folders: no path of the packager's machine gets
 * into a published file.
 */
#ifndef PKG_IDENTITY_H
#define PKG_IDENTITY_H

#include "base/err.h"
#include "gguf/gguf_source.h"

#include <stdbool.h>

enum { PKG_IDENTITY_MAX = 512 };

/* What the user said; each may be NULL. */
struct pkg_identity_request {
    const char *model_id;        /* org/repo[:variant][@revision] */
    const char *source_repo;     /* org/repo; default: taken from model_id */
    const char *source_revision; /* a commit or a tag */
    const char *source_file;     /* the first file's path inside the repository; default: its name */
    bool local;                  /* the package stays private: what was not said may be missing, or made up */
};

/* What goes into the manifest; absent texts are empty. */
struct pkg_identity {
    char model_id[PKG_IDENTITY_MAX];
    char repo[PKG_IDENTITY_MAX];
    char revision[PKG_IDENTITY_MAX];
    char primary_file[PKG_IDENTITY_MAX];
    char canonical_ref[3 * PKG_IDENTITY_MAX]; /* repo@revision/file, when all three are known */
    char distribution_id[PKG_IDENTITY_MAX];   /* the first file's name without shard numbers and ".gguf" */
    bool derived;                             /* model_id was made up from the file's name: "local/<stem>" */
};

/*
 * path is the source as the user named it. A path .../models--NS--NAME/snapshots/REVISION/FILE supplies repository,
 * revision, file and model id; what the user said goes before it. EINVAL names each option that is missing.
 */
strata_err pkg_identity_resolve(const struct pkg_identity_request *want, const char *path,
                                const struct gguf_source *src, struct pkg_identity *out, struct strata_errmsg *em);

/* The path of shard i inside the repository: the folder of primary_file, and the shard's own name. */
strata_err pkg_identity_shard(const struct pkg_identity *id, const struct gguf_source *src, size_t i,
                              char out[PKG_IDENTITY_MAX], struct strata_errmsg *em);

/* Whether text is a model coordinate (org/repo[:variant][@revision]) rather than a path. */
bool pkg_identity_is_coordinate(const char *text);

#endif
