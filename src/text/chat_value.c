/* Values of chat templates: arena, containers, equality, truth, and values from JSON. See chat_value.h. */
#include "text/chat_value.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 * 1024, ALIGN = 16 };

struct chat_arena_block {
    struct chat_arena_block *next;
    size_t used, cap;
    unsigned char *marks; /* one for each byte of data; NULL: none is marked */
    _Alignas(16) unsigned char data[];
};

void chat_arena_init(struct chat_arena *a, size_t max) {
    *a = (struct chat_arena){.max = max};
}

void chat_arena_deinit(struct chat_arena *a) {
    while (a->block) {
        struct chat_arena_block *next = a->block->next;
        free(a->block->marks);
        free(a->block);
        a->block = next;
    }
    free(a->sorted);
    *a = (struct chat_arena){.max = a->max, .marking = a->marking};
}

/* How many blocks begin at or before an address. */
static size_t blocks_before(const struct chat_arena *a, const void *ptr) {
    size_t lo = 0, hi = a->n_blocks;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uintptr_t)a->sorted[mid] <= (uintptr_t)ptr) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static struct chat_arena_block *block_of(const struct chat_arena *a, const char *ptr) {
    size_t n = blocks_before(a, ptr);
    struct chat_arena_block *b = n > 0 ? a->sorted[n - 1] : NULL;
    return b && (uintptr_t)ptr >= (uintptr_t)b->data && (uintptr_t)ptr < (uintptr_t)(b->data + b->used) ? b : NULL;
}

static struct chat_arena_block *new_block(struct chat_arena *a, size_t cap) {
    if (a->n_blocks == a->blocks_cap) {
        size_t more = a->blocks_cap ? 2 * a->blocks_cap : 64;
        struct chat_arena_block **p = realloc(a->sorted, more * sizeof *p);
        if (!p) return NULL;
        a->sorted = p;
        a->blocks_cap = more;
    }
    struct chat_arena_block *b = calloc(1, sizeof *b + cap);
    if (!b) return NULL;
    b->cap = cap;
    b->next = a->block;
    a->block = b;
    size_t at = blocks_before(a, b);
    memmove(a->sorted + at + 1, a->sorted + at, (a->n_blocks - at) * sizeof *a->sorted);
    a->sorted[at] = b;
    a->n_blocks++;
    return b;
}

void *chat_arena_alloc(struct chat_arena *a, size_t n, struct strata_errmsg *em) {
    if (n > a->max || a->used > a->max - n) {
        err_set(em, STRATA_ELIMIT, "it needs more memory than the limit of %zu bytes", a->max);
        return NULL;
    }
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    struct chat_arena_block *b = a->block;
    if (!b || b->cap - b->used < n) {
        b = new_block(a, n > BLOCK ? n : BLOCK);
        if (!b) {
            err_nomem(em, "a chat template");
            return NULL;
        }
    }
    void *p = b->data + b->used;
    b->used += n;
    a->used += n;
    return p;
}

const unsigned char *chat_arena_marks(const struct chat_arena *a, const char *ptr) {
    if (!a->marking) return NULL;
    const struct chat_arena_block *b = block_of(a, ptr);
    return b && b->marks ? b->marks + ((const unsigned char *)ptr - b->data) : NULL;
}

strata_err chat_arena_mark(struct chat_arena *a, const char *ptr, const unsigned char *marks, size_t len,
                           struct strata_errmsg *em) {
    struct chat_arena_block *b = len && a->marking ? block_of(a, ptr) : NULL;
    if (!b) return STRATA_OK;
    if (!b->marks) b->marks = calloc(b->cap, 1);
    if (!b->marks) return err_nomem(em, "the marks of a text");
    unsigned char *at = b->marks + ((const unsigned char *)ptr - b->data);
    if (marks) {
        memcpy(at, marks, len);
    } else {
        memset(at, 1, len);
    }
    return STRATA_OK;
}

bool chat_str_eq(struct chat_str s, const char *text) {
    return strlen(text) == s.len && memcmp(s.ptr, text, s.len) == 0;
}

strata_err chat_string_copy(struct chat_arena *a, const char *ptr, size_t len, struct chat_value *out,
                            struct strata_errmsg *em) {
    char *copy = chat_arena_alloc(a, len + 1, em);
    if (!copy) return em->code;
    if (len) memcpy(copy, ptr, len);
    *out = chat_string(copy, len);
    const unsigned char *marks = len ? chat_arena_marks(a, ptr) : NULL;
    return marks ? chat_arena_mark(a, copy, marks, len, em) : STRATA_OK;
}

strata_err chat_list_new(struct chat_arena *a, struct chat_value *out, struct strata_errmsg *em) {
    struct chat_list *l = chat_arena_alloc(a, sizeof *l, em);
    if (!l) return em->code;
    *out = (struct chat_value){.kind = CHAT_LIST, .list = l};
    return STRATA_OK;
}

/* Room for one more element in an array of the arena; the old array stays where it is, unused. */
static strata_err grow(struct chat_arena *a, void **array, size_t len, size_t *cap, size_t size,
                       struct strata_errmsg *em) {
    if (len < *cap) return STRATA_OK;
    size_t more = *cap ? *cap * 2 : 8;
    void *p = chat_arena_alloc(a, more * size, em);
    if (!p) return em->code;
    if (len) memcpy(p, *array, len * size);
    *array = p;
    *cap = more;
    return STRATA_OK;
}

strata_err chat_list_add(struct chat_arena *a, struct chat_list *l, struct chat_value v, struct strata_errmsg *em) {
    void *array = l->item;
    strata_err rc = grow(a, &array, l->len, &l->cap, sizeof *l->item, em);
    if (rc != STRATA_OK) return rc;
    l->item = array;
    l->item[l->len++] = v;
    return STRATA_OK;
}

strata_err chat_dict_new(struct chat_arena *a, enum chat_kind kind, struct chat_value *out, struct strata_errmsg *em) {
    struct chat_dict *d = chat_arena_alloc(a, sizeof *d, em);
    if (!d) return em->code;
    *out = (struct chat_value){.kind = kind, .dict = d};
    return STRATA_OK;
}

static struct chat_entry *find(const struct chat_dict *d, const struct chat_value *key) {
    for (size_t i = 0; i < d->len; i++) {
        if (chat_value_equal(&d->entry[i].key, key)) return &d->entry[i];
    }
    return NULL;
}

const struct chat_value *chat_dict_get(const struct chat_dict *d, struct chat_value key) {
    struct chat_entry *e = find(d, &key);
    return e ? &e->value : NULL;
}

const struct chat_value *chat_dict_get_str(const struct chat_dict *d, struct chat_str key) {
    return chat_dict_get(d, chat_string(key.ptr, key.len));
}

strata_err chat_dict_set(struct chat_arena *a, struct chat_dict *d, struct chat_value key, struct chat_value v,
                         struct strata_errmsg *em) {
    if (key.kind != CHAT_STRING && key.kind != CHAT_NONE && !chat_value_is_number(&key)) {
        return err_set(em, STRATA_EINVAL, "a %s cannot be the key of a dict", chat_value_kind_name(&key));
    }
    struct chat_entry *e = find(d, &key);
    if (e) {
        e->value = v;
        return STRATA_OK;
    }
    void *array = d->entry;
    strata_err rc = grow(a, &array, d->len, &d->cap, sizeof *d->entry, em);
    if (rc != STRATA_OK) return rc;
    d->entry = array;
    d->entry[d->len++] = (struct chat_entry){key, v};
    return STRATA_OK;
}

/* A string of the JSON: borrowed, or a marked copy. */
static strata_err text(struct chat_arena *a, const char *s, size_t len, bool mark, struct chat_value *out,
                       struct strata_errmsg *em) {
    *out = chat_string(s, len);
    if (!mark) return STRATA_OK;
    strata_err rc = chat_string_copy(a, s, len, out, em);
    return rc == STRATA_OK ? chat_arena_mark(a, out->s.ptr, NULL, len, em) : rc;
}

static strata_err from_json(struct chat_arena *a, const json_t *json, bool mark, int depth, struct chat_value *out,
                            struct strata_errmsg *em);

static strata_err from_array(struct chat_arena *a, const json_t *json, bool mark, int depth, struct chat_value *out,
                             struct strata_errmsg *em) {
    strata_err rc = chat_list_new(a, out, em);
    for (size_t i = 0; i < json_array_size(json) && rc == STRATA_OK; i++) {
        struct chat_value v;
        rc = from_json(a, json_array_get(json, i), mark, depth + 1, &v, em);
        if (rc == STRATA_OK) rc = chat_list_add(a, out->list, v, em);
    }
    return rc;
}

/* Keys of a JSON object are distinct already, so that they need no search. */
static strata_err from_object(struct chat_arena *a, const json_t *json, bool mark, int depth, struct chat_value *out,
                              struct strata_errmsg *em) {
    strata_err rc = chat_dict_new(a, CHAT_DICT, out, em);
    if (rc != STRATA_OK) return rc;
    struct chat_dict *d = out->dict;
    size_t n = json_object_size(json);
    d->entry = n ? chat_arena_alloc(a, n * sizeof *d->entry, em) : NULL;
    if (n && !d->entry) return em->code;
    d->cap = n;
    for (void *it = json_object_iter((json_t *)(uintptr_t)json); it && d->len < n && rc == STRATA_OK;
         it = json_object_iter_next((json_t *)(uintptr_t)json, it)) {
        const char *key = json_object_iter_key(it);
        struct chat_entry *e = &d->entry[d->len];
        rc = text(a, key, strlen(key), mark, &e->key, em);
        if (rc == STRATA_OK) rc = from_json(a, json_object_iter_value(it), mark, depth + 1, &e->value, em);
        d->len++;
    }
    return rc;
}

static strata_err from_json(struct chat_arena *a, const json_t *json, bool mark, int depth, struct chat_value *out,
                            struct strata_errmsg *em) {
    if (depth > CHAT_VALUE_DEPTH_MAX) {
        return err_set(em, STRATA_ELIMIT, "a message is nested more than %d levels deep", CHAT_VALUE_DEPTH_MAX);
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_object(a, json, mark, depth, out, em);
    case JSON_ARRAY: return from_array(a, json, mark, depth, out, em);
    case JSON_STRING: return text(a, json_string_value(json), json_string_length(json), mark, out, em);
    case JSON_INTEGER: *out = chat_int(json_integer_value(json)); break;
    case JSON_REAL: *out = chat_float(json_real_value(json)); break;
    case JSON_TRUE: *out = chat_bool(true); break;
    case JSON_FALSE: *out = chat_bool(false); break;
    case JSON_NULL: *out = chat_none(); break;
    }
    return STRATA_OK;
}

strata_err chat_value_from_json(struct chat_arena *a, const json_t *json, bool mark, struct chat_value *out,
                                struct strata_errmsg *em) {
    return from_json(a, json, mark, 0, out, em);
}

bool chat_value_is_number(const struct chat_value *v) {
    return v->kind == CHAT_INT || v->kind == CHAT_FLOAT || v->kind == CHAT_BOOL;
}

double chat_value_number(const struct chat_value *v) {
    return v->kind == CHAT_FLOAT ? v->f : v->kind == CHAT_INT ? (double)v->i : v->b;
}

bool chat_value_truthy(const struct chat_value *v) {
    switch (v->kind) {
    case CHAT_UNDEFINED:
    case CHAT_NONE: return false;
    case CHAT_BOOL: return v->b;
    case CHAT_INT: return v->i != 0;
    case CHAT_FLOAT: return v->f != 0;
    case CHAT_STRING: return v->s.len > 0;
    case CHAT_LIST: return v->list->len > 0;
    case CHAT_DICT: return v->dict->len > 0;
    default: return true;
    }
}

static bool equal(const struct chat_value *a, const struct chat_value *b, int depth);

static bool equal_dicts(const struct chat_dict *a, const struct chat_dict *b, int depth) {
    if (a->len != b->len) return false;
    for (size_t i = 0; i < a->len; i++) {
        const struct chat_entry *e = find(b, &a->entry[i].key);
        if (!e || !equal(&a->entry[i].value, &e->value, depth + 1)) return false;
    }
    return true;
}

static bool equal(const struct chat_value *a, const struct chat_value *b, int depth) {
    if (depth > CHAT_VALUE_DEPTH_MAX) return false;
    if (a->kind != CHAT_FLOAT && b->kind != CHAT_FLOAT && chat_value_is_number(a) && chat_value_is_number(b)) {
        return (a->kind == CHAT_INT ? a->i : a->b) == (b->kind == CHAT_INT ? b->i : b->b);
    }
    if (chat_value_is_number(a) && chat_value_is_number(b)) return chat_value_number(a) == chat_value_number(b);
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case CHAT_UNDEFINED:
    case CHAT_NONE: return true;
    case CHAT_STRING: return a->s.len == b->s.len && (a->s.len == 0 || memcmp(a->s.ptr, b->s.ptr, a->s.len) == 0);
    case CHAT_LIST:
        if (a->list->len != b->list->len || a->list->tuple != b->list->tuple) return false;
        for (size_t i = 0; i < a->list->len; i++) {
            if (!equal(&a->list->item[i], &b->list->item[i], depth + 1)) return false;
        }
        return true;
    case CHAT_DICT: return equal_dicts(a->dict, b->dict, depth);
    case CHAT_NAMESPACE: return a->dict == b->dict;
    case CHAT_LOOP: return a->loop == b->loop;
    case CHAT_MACRO: return a->macro == b->macro;
    case CHAT_FUNCTION: return a->function == b->function;
    default: return false;
    }
}

bool chat_value_equal(const struct chat_value *a, const struct chat_value *b) {
    return equal(a, b, 0);
}

const char *chat_value_kind_name(const struct chat_value *v) {
    static const char *const names[] = {
        [CHAT_UNDEFINED] = "undefined value",
        [CHAT_NONE] = "none",
        [CHAT_BOOL] = "boolean",
        [CHAT_INT] = "integer",
        [CHAT_FLOAT] = "float",
        [CHAT_STRING] = "string",
        [CHAT_LIST] = "list",
        [CHAT_DICT] = "dict",
        [CHAT_NAMESPACE] = "namespace",
        [CHAT_LOOP] = "loop",
        [CHAT_MACRO] = "macro",
        [CHAT_FUNCTION] = "function",
        [CHAT_METHOD] = "method",
    };
    return names[v->kind];
}
