/*
 * The publisher's own program, run after each file has been written (--after-artifact-command): to upload it, say.
 *
 * It is run without arguments, one at a time, with the environment variables SKIPPY_PACKAGE_ARTIFACT_PATH (absolute)
 * and SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH; its stdout goes to our stderr. It may remove the file.
 */
#ifndef PKG_HOOK_H
#define PKG_HOOK_H

#include "base/err.h"

#include <stdbool.h>

/* Fails when the program cannot be started, or ends with another status than 0. cancelled may be NULL; when it becomes
 * true the program is sent SIGTERM and waited for. */
strata_err pkg_hook_run(const char *program, const char *dir, const char *relative, bool (*cancelled)(void),
                        struct strata_errmsg *em);

#endif
