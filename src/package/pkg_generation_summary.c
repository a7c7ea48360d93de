/* The generation block as reports show it. See pkg_generation.h. Owns the new document until it is handed over. */
#include "package/pkg_generation.h"

#include <stdlib.h>
#include <string.h>

/* jansson iterates over and copies non-const objects only; nothing is changed. */
static json_t *readable(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sets key to v itself, which both documents own then: jansson's copies lose members when memory runs out. */
static int share(json_t *obj, const char *key, const json_t *v) {
    return json_object_set(obj, key, readable(v)); /* fails on NULL */
}

/* {name, type, and all other keys as they stand}. NULL without memory. */
static json_t *named(const char *name, const json_t *value) {
    const char *key;
    json_t *v, *o = json_object();
    const json_t *type = json_object_get(value, "type");
    int bad = json_object_set_new(o, "name", json_string(name));
    if (!bad && type) bad = share(o, "type", type);
    json_object_foreach(readable(value), key, v) {
        if (!bad && strcmp(key, "name") != 0 && strcmp(key, "type") != 0) bad = share(o, key, v);
    }
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

/* A map from names to objects as a list. NULL without memory. */
static json_t *listed(const json_t *map) {
    size_t n = 0;
    const char *key;
    json_t *v, *list = json_array();
    const char **names = calloc(json_object_size(map) + 1, sizeof *names);
    int bad = !list || !names;
    if (!bad) {
        json_object_foreach(readable(map), key, v) {
            if (json_is_object(v)) names[n++] = key;
        }
        qsort(names, n, sizeof *names, by_text);
    }
    for (size_t i = 0; i < n && !bad; i++)
        bad = json_array_append_new(list, named(names[i], json_object_get(map, names[i])));
    free(names);
    if (!bad) return list;
    json_decref(list);
    return NULL;
}

static json_t *speculation(const json_t *block) {
    const char *key;
    json_t *v, *o = json_object();
    int bad = o ? 0 : -1;
    json_object_foreach(readable(block), key, v) {
        bool map = strcmp(key, "proposers") == 0 || strcmp(key, "strategies") == 0;
        if (bad) break;
        if (!map)
            bad = share(o, key, v);
        else if (json_is_object(v))
            bad = json_object_set_new(o, key, listed(v));
    }
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

strata_err pkg_generation_summary(const json_t *generation, json_t **out, struct strata_errmsg *em) {
    const char *key;
    json_t *v, *o = json_object();
    int bad = o ? 0 : -1;
    json_object_foreach(readable(generation), key, v) {
        if (bad) break;
        if (strcmp(key, "speculative_decoding") == 0 && json_is_object(v))
            bad = json_object_set_new(o, key, speculation(v));
        else
            bad = share(o, key, v);
    }
    if (bad) {
        json_decref(o);
        return err_nomem(em, "a report");
    }
    *out = o;
    return STRATA_OK;
}
