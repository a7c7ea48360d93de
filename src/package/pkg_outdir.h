/*
 * The rules for an output folder: nothing of anybody's is overwritten, and what a broken-off run leaves can be
 * finished.
 */
#ifndef PKG_OUTDIR_H
#define PKG_OUTDIR_H

#include "gguf/gguf_source.h"

#include <stdbool.h>

/* The folder must be absent or empty (resume: or hold a part of the work), and must not be the source or its folder. */
strata_err pkg_outdir_check(const char *dir, const struct gguf_source *src, bool resume, struct strata_errmsg *em);
/* Refuses to write over one of the source's own files. src may be NULL. */
strata_err pkg_outdir_not_source(const char *path, const struct gguf_source *src, struct strata_errmsg *em);
/* Makes dir/name; refuses a link, which could lead elsewhere. */
strata_err pkg_outdir_sub(const char *dir, const char *name, struct strata_errmsg *em);
/* Before a resumed run: takes away the manifest, so that a folder with one is a complete package at every moment, and
 * the temporary files that a killed run could not remove. */
strata_err pkg_outdir_reopen(const char *dir, struct strata_errmsg *em);
/* Adds to a message of failure how to go on. */
void pkg_outdir_explain(const char *dir, strata_err rc, struct strata_errmsg *em);
/* After a failure: removes sub-folders that hold nothing, and the output folder itself unless it was there before. */
void pkg_outdir_tidy(const char *dir, bool existed);

#endif
