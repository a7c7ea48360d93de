/* What the parsers of both schema versions share: typed access that adds a fault instead of failing. */
#ifndef PKG_CHECKER_H
#define PKG_CHECKER_H

#include "package/pkg_manifest.h"

struct pkg_checker {
    struct pkg_manifest *m;
    struct pkg_faults *faults;
    struct strata_errmsg *em;
};

/* A string that must say something. Absent is the fault `blank` only when required; an empty one always is. */
const char *pkg_checker_text(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                             bool required, enum pkg_fault_code blank);
/* 0 when absent or wrong. */
uint64_t pkg_checker_number(struct pkg_checker *c, const json_t *obj, const char *where, const char *key, bool required,
                            uint64_t max);
/* NULL when absent or wrong. */
const json_t *pkg_checker_object(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                                 bool required);
const json_t *pkg_checker_array(struct pkg_checker *c, const json_t *obj, const char *where, const char *key,
                                bool required);
/* Adds the fault `code` for each key of obj that is not in the NULL-terminated list. */
void pkg_checker_keys(struct pkg_checker *c, const json_t *obj, const char *where, const char *const *known,
                      enum pkg_fault_code code);
/* "major.minor[.patch]" under key: equal majors, and a minor not above ours. NULL when absent. */
const char *pkg_checker_abi(struct pkg_checker *c, const char *key);
/* Two artifacts under one path, or under paths that differ in case alone. */
strata_err pkg_checker_paths(struct pkg_checker *c);
/* Fills m->layer_at from the ordered list of artifacts. */
strata_err pkg_checker_index_layers(struct pkg_checker *c);

/* Schema 2: pkg_manifest2.c. Fills c->m; faults go into c->faults. Fails only without memory. */
strata_err pkg_manifest2_check(struct pkg_checker *c);

#endif
