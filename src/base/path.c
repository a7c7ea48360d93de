/* Paths. See path.h. */
#include "base/path.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Names that are devices on Windows, with or without an extension: a package must be safe on every system. */
static bool is_reserved(const char *name, size_t len) {
    static const char *const names[] = {"con", "prn", "aux", "nul", "conin$", "conout$"};
    static const char *const ports[] = {"com", "lpt"};
    /* Superscript digits count as digits there. */
    static const char *const digits[] = {"0", "1", "2", "3",        "4",        "5",       "6",
                                         "7", "8", "9", "\xc2\xb9", "\xc2\xb2", "\xc2\xb3"};
    const char *dot = memchr(name, '.', len);
    size_t stem = dot ? (size_t)(dot - name) : len;
    while (stem > 0 && name[stem - 1] == ' ') stem--;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == stem && strncasecmp(names[i], name, stem) == 0) return true;
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++)
        for (size_t d = 0; d < sizeof digits / sizeof digits[0]; d++)
            if (stem == 3 + strlen(digits[d]) && strncasecmp(ports[i], name, 3) == 0 &&
                memcmp(name + 3, digits[d], stem - 3) == 0)
                return true;
    return false;
}

static const char *component_fault(const char *c, size_t len) {
    if (len == 0) return "an empty component";
    if (len > 255) return "a component longer than 255 bytes";
    if ((len == 1 && c[0] == '.') || (len == 2 && c[0] == '.' && c[1] == '.')) return "a '.' or '..' component";
    /* Windows takes them off, so that two names would be one file. */
    if (c[len - 1] == '.' || c[len - 1] == ' ') return "a component that ends in a dot or a space";
    if (is_reserved(c, len)) return "a reserved device name";
    return NULL;
}

static const char *relative_fault(const char *path, size_t len) {
    if (len == 0) return "it is empty";
    if (len >= PATH_MAX_LEN) return "it is too long";
    if (path[0] == '/') return "it is absolute";
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)path[i];
        if (ch < 0x20 || ch == 0x7f) return "a control character";
        if (ch == '\\') return "a backslash";
        if (ch == ':') return "a colon";
    }
    const char *fault = NULL;
    for (size_t start = 0; !fault && start <= len;) {
        const char *slash = memchr(path + start, '/', len - start);
        size_t end = slash ? (size_t)(slash - path) : len;
        fault = component_fault(path + start, end - start);
        start = end + 1;
    }
    return fault;
}

bool path_is_safe_relative(const char *path, size_t len, const char **why) {
    const char *fault = relative_fault(path, len);
    if (fault && why) *why = fault;
    return fault == NULL;
}

strata_err path_join(char *out, size_t cap, const char *dir, const char *name, struct strata_errmsg *em) {
    size_t dlen = strlen(dir);
    const char *sep = dlen && dir[dlen - 1] == '/' ? "" : "/";
    int n = snprintf(out, cap, "%s%s%s", dir, sep, name);
    if (n < 0 || (size_t)n >= cap) return err_set(em, STRATA_ELIMIT, "path too long: %.100s.../%.100s", dir, name);
    return STRATA_OK;
}

const char *path_basename(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

strata_err path_dirname(char *out, size_t cap, const char *path, struct strata_errmsg *em) {
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 1;
    const char *src = slash ? path : ".";
    if (slash && len == 0) len = 1;
    if (len >= cap) return err_set(em, STRATA_ELIMIT, "path too long: %.200s", path);
    memcpy(out, src, len);
    out[len] = '\0';
    return STRATA_OK;
}
