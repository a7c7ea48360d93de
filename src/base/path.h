/* Paths: safe joining, and the rule for relative paths that come from foreign data. */
#ifndef BASE_PATH_H
#define BASE_PATH_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { PATH_MAX_LEN = 4096 };

/*
 * Whether a relative path from a manifest may be opened below a folder: not empty, not absolute, no ".", ".." or
 * empty component, no backslash, colon or control character, no component that is longer than 255 bytes or ends in a
 * dot or a space, and no device name that other systems reserve. *why (may be NULL) gets a short reason on refusal.
 */
bool path_is_safe_relative(const char *path, size_t len, const char **why);

/* dir + "/" + name into out; ELIMIT when it does not fit. */
strata_err path_join(char *out, size_t cap, const char *dir, const char *name, struct strata_errmsg *em);

/* The part after the last '/', a view into path. */
const char *path_basename(const char *path);

/* Copies the folder part of path into out: "." when there is none, "/" for the root. */
strata_err path_dirname(char *out, size_t cap, const char *path, struct strata_errmsg *em);

#endif
