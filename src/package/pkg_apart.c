/* Keeps output out of packages. See pkg_apart.h. Owns nothing. */
#include "package/pkg_apart.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_manifest.h"

#include <stdlib.h>
#include <string.h>

/* The nearest folder above path that exists, resolved; freed by the caller. NULL when there is none. */
static char *nearest(const char *path) {
    char here[PATH_MAX_LEN], above[PATH_MAX_LEN];
    size_t len = strlen(path);
    if (len >= sizeof here) return NULL;
    memcpy(here, path, len + 1);
    for (;;) {
        if (path_dirname(above, sizeof above, here, NULL) != STRATA_OK) return NULL;
        char *real = realpath(above, NULL);
        if (real || strcmp(above, here) == 0) return real;
        memcpy(here, above, strlen(above) + 1);
    }
}

strata_err pkg_apart_check(const char *path, struct strata_errmsg *em) {
    char manifest[PATH_MAX_LEN], *folder = nearest(path);
    strata_err rc = STRATA_OK;
    for (char *end = folder ? folder + strlen(folder) : NULL; end && !rc;) {
        const char *name = *folder ? folder : "/";
        rc = path_join(manifest, sizeof manifest, name, PKG_MANIFEST_FILE, em);
        if (!rc && file_is_regular(manifest))
            rc = err_set(em, STRATA_EINVAL,
                         "%s would lie inside the package %s, which holds nothing but what its manifest lists: name a "
                         "place elsewhere",
                         path, name);
        end = strrchr(folder, '/');
        if (end) *end = '\0';
    }
    free(folder);
    return rc;
}
