/* Who owns which tensor. See pkg_tally.h. Owns the counts. */
#include "package/pkg_tally.h"

#include "package/pkg_json.h"

#include <stdlib.h>
#include <string.h>

strata_err pkg_tally_init(struct pkg_tally *t, const struct pkg_inventory *source, struct strata_errmsg *em) {
    *t = (struct pkg_tally){.source = source, .count = calloc(source->n_tensors + 1, sizeof *t->count)};
    return t->count ? STRATA_OK : err_nomem(em, "the list of tensors");
}

void pkg_tally_deinit(struct pkg_tally *t) {
    if (!t) return;
    free(t->count);
    *t = (struct pkg_tally){0};
}

void pkg_tally_add(struct pkg_tally *t, const struct pkg_compared *file) {
    for (size_t i = 0; i < file->n_owned; i++) t->count[file->owned[i]]++;
}

static bool is_required(const struct pkg_tally *t, size_t i, unsigned classes) {
    return (classes >> t->source->tensors[i].class & 1) != 0;
}

size_t pkg_tally_required(const struct pkg_tally *t, unsigned classes) {
    size_t n = 0;
    for (size_t i = 0; i < t->source->n_tensors; i++) n += is_required(t, i, classes);
    return n;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A sorted array; NULL without memory. */
static json_t *sorted(const char **names, size_t n) {
    json_t *list = json_array();
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && list; i++)
        if (json_array_append_new(list, pkg_json_text(names[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

strata_err pkg_tally_lists(const struct pkg_tally *t, unsigned classes, json_t **missing, json_t **duplicate,
                           struct strata_errmsg *em) {
    size_t n = t->source->n_tensors, n_missing = 0, n_twice = 0;
    const char **names = calloc(2 * n + 1, sizeof *names);
    if (!names) return err_nomem(em, "the list of tensors");
    const char **twice = names + n;
    for (size_t i = 0; i < n; i++) {
        const char *name = t->source->tensors[i].t->name;
        if (t->count[i] == 0 && is_required(t, i, classes)) names[n_missing++] = name;
        if (t->count[i] > 1) twice[n_twice++] = name;
    }
    json_t *absent = sorted(names, n_missing), *several = absent ? sorted(twice, n_twice) : NULL;
    free(names);
    if (!several) {
        json_decref(absent);
        return err_nomem(em, "a report");
    }
    *missing = absent;
    *duplicate = several;
    return STRATA_OK;
}
