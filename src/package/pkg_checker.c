/* Typed access to a manifest's fields, for the parsers of both schemas. See pkg_checker.h. Owns nothing. */
#include "package/pkg_checker.h"

#include "gguf/gguf_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(const char *s) {
    return s[strspn(s, " \t\r\n")] == '\0';
}

const char *pkg_checker_text(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                             bool required, enum pkg_fault_code blank) {
    const char *s = NULL;
    struct strata_errmsg em;
    if (jsonx_get_str(obj, where, key, false, &s, &em)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
        return NULL;
    }
    if (!s && !required) return NULL;
    if (!s || is_blank(s)) {
        pkg_faults_add(c->faults, blank, NULL, "%s%s%s is %s", where, *where ? "." : "", key, s ? "empty" : "missing");
        return NULL;
    }
    return s;
}

uint64_t pkg_checker_number(struct pkg_checker *c, const json_t *obj, const char *where, const char *key, bool required,
                            uint64_t max) {
    uint64_t v = 0;
    struct strata_errmsg em;
    if (jsonx_get_u64(obj, where, key, required, max, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

const json_t *pkg_checker_object(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                                 bool required) {
    json_t *v = NULL;
    struct strata_errmsg em;
    if (jsonx_get_obj(obj, where, key, required, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

const json_t *pkg_checker_array(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                                bool required) {
    json_t *v = NULL;
    struct strata_errmsg em;
    if (jsonx_get_array(obj, where, key, required, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

void pkg_checker_keys(struct pkg_checker *c, const json_t *obj, const char *where, const char *const *known,
                      enum pkg_fault_code code) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)obj, key, value) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i])
            pkg_faults_add(c->faults, code, NULL, "%s%s%.60s is not a key of this schema", where, *where ? "." : "",
                           key);
    }
}

const char *pkg_checker_abi(struct pkg_checker *c, const char *key) {
    const char *v = pkg_checker_text(c, c->m->root, "", key, true, PKG_FAULT_MISSING_SKIPPY_ABI_VERSION);
    if (!v) return NULL;
    unsigned part[3] = {0};
    int n = 0;
    const char *p = v;
    while (n < 3) {
        size_t digits = strspn(p, "0123456789");
        if (digits == 0 || digits > 6) break;
        part[n++] = (unsigned)strtoul(p, NULL, 10);
        p += digits;
        if (*p != '.') break;
        p++;
    }
    bool well_formed = n >= 2 && *p == '\0' && p[-1] != '.';
    if (!well_formed)
        pkg_faults_add(c->faults, PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION, NULL,
                       "%s '%.60s' is not of the form major.minor.patch", key, v);
    else if (part[0] != PKG_MANIFEST_ABI_MAJOR || part[1] > PKG_MANIFEST_ABI_MINOR)
        pkg_faults_add(c->faults, PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION, NULL,
                       "%s %.60s cannot be read; this version reads %d.0 to %d.%d", key, v, PKG_MANIFEST_ABI_MAJOR,
                       PKG_MANIFEST_ABI_MAJOR, PKG_MANIFEST_ABI_MINOR);
    return v;
}

/* Lower-case copies of all paths, one after the other; NULL without memory. Letters beyond ASCII are left alone. */
static char *fold_paths(const struct pkg_manifest *m) {
    size_t total = 1, at = 0;
    for (size_t i = 0; i < m->n_artifacts; i++) total += m->artifacts[i].path ? strlen(m->artifacts[i].path) + 1 : 0;
    char *text = malloc(total);
    for (size_t i = 0; text && i < m->n_artifacts; i++)
        for (const char *p = m->artifacts[i].path; p; p++) {
            text[at++] = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
            if (!*p) break;
        }
    return text;
}

/* On some file systems two paths that differ in case alone are one file. */
strata_err pkg_checker_paths(struct pkg_checker *c) {
    const struct pkg_manifest *m = c->m;
    struct gguf_index seen = {0};
    char *folded = fold_paths(m), *p = folded;
    strata_err rc = folded ? gguf_index_init(&seen, m->n_artifacts, c->em) : err_nomem(c->em, "a manifest");
    for (size_t i = 0; i < m->n_artifacts && !rc; i++) {
        const char *path = m->artifacts[i].path;
        if (!path) continue;
        if (!gguf_index_put(&seen, p, i)) {
            const char *other = m->artifacts[gguf_index_get(&seen, p)].path;
            bool same = strcmp(other, path) == 0;
            pkg_faults_add(c->faults, same ? PKG_FAULT_DUPLICATE_ARTIFACT_PATH : PKG_FAULT_ARTIFACT_PATH_CASE_CLASH,
                           path, same ? "two entries name the file %.200s" : "%.200s differs from %.200s in case alone",
                           path, other);
        }
        p += strlen(p) + 1;
    }
    gguf_index_deinit(&seen);
    free(folded);
    return rc;
}

strata_err pkg_checker_index_layers(struct pkg_checker *c) {
    struct pkg_manifest *m = c->m;
    size_t i = 0;
    m->layer_at = calloc((size_t)m->layer_count + 1, sizeof *m->layer_at);
    if (!m->layer_at) return err_nomem(c->em, "a manifest");
    while (i < m->n_artifacts && m->artifacts[i].role < PKG_ROLE_LAYER) i++;
    for (uint32_t layer = 0; layer <= m->layer_count; layer++) {
        m->layer_at[layer] = i;
        while (i < m->n_artifacts && m->artifacts[i].role == PKG_ROLE_LAYER && m->artifacts[i].layer == layer) i++;
    }
    return STRATA_OK;
}
