/*
 * Any bytes into the GGUF reader. Whatever it accepts is then used to the full: every view is touched at both ends,
 * every array walked, and the file is written anew and read back, which must give the same pairs and tensors.
 */
#include "gguf/gguf_reader.h"
#include "gguf/gguf_writer.h"
#include "package/pkg_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void touch(const void *p, size_t n) {
    const uint8_t *b = p;
    if (n) sink += b[0] + b[n - 1];
}

/* A broken promise of the reader or the writer: stop where the fuzzer can see it. */
static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void walk_pair(const struct gguf_reader *r, const struct gguf_kv *kv) {
    struct gguf_str s = {0};
    struct strata_errmsg em;
    const struct gguf_kv *array = NULL;
    uint64_t u = 0;
    uint32_t w = 0;
    float f = 0;
    bool b = false;
    size_t cursor = 0, strings = 0;
    touch(kv->key, strlen(kv->key) + 1);
    touch(kv->raw, kv->raw_bytes);
    touch(kv->value, kv->value_bytes);
    require(gguf_reader_find_kv(r, kv->key) == kv, "a key is not found under its own name");
    for (; gguf_reader_next_str(kv, &cursor, &s); strings++) touch(s.data, s.len);
    if (kv->elem_kind == GGUF_KIND_STRING) {
        require(strings == kv->count && cursor == kv->value_bytes, "strings do not add up");
    } else if (kv->count > 0) {
        bool real = kv->elem_kind == GGUF_KIND_F32 || kv->elem_kind == GGUF_KIND_F64;
        for (uint64_t i = 0; i<kv->count; i += kv->count> 1 ? kv->count - 1 : 1)
            sink += real ? gguf_reader_float_at(kv, i) > 0 : gguf_reader_int_at(kv, i) > 0;
    }
    gguf_reader_get_u64(r, kv->key, true, &u, &em);
    gguf_reader_get_u32(r, kv->key, true, &w, &em);
    gguf_reader_get_f32(r, kv->key, true, &f, &em);
    gguf_reader_get_bool(r, kv->key, true, &b, &em);
    if (gguf_reader_get_str(r, kv->key, true, &s, &em) == STRATA_OK) touch(s.data, s.len);
    gguf_reader_get_array(r, kv->key, true, kv->elem_kind, &array, &em);
}

struct copy {
    uint8_t *data;
    size_t len, cap;
};

static strata_err append(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct copy *c = user;
    if (len > c->cap - c->len) {
        size_t cap = (c->len + len) * 2;
        uint8_t *p = realloc(c->data, cap);
        if (!p) return err_set(em, STRATA_ENOMEM, "memory");
        c->data = p;
        c->cap = cap;
    }
    memcpy(c->data + c->len, data, len);
    c->len += len;
    return STRATA_OK;
}

static void compare(const struct gguf_reader *a, const struct gguf_reader *b) {
    require(gguf_reader_tensor_count(a) == gguf_reader_tensor_count(b), "tensors were lost in a copy");
    for (size_t i = 0; i < gguf_reader_tensor_count(a); i++) {
        const struct gguf_tensor *x = gguf_reader_tensor(a, i), *y = gguf_reader_tensor(b, i);
        require(strcmp(x->name, y->name) == 0 && x->type == y->type && x->bytes == y->bytes &&
                    memcmp(x->ne, y->ne, sizeof x->ne) == 0 && memcmp(x->data, y->data, x->bytes) == 0,
                "a tensor changed in a copy");
    }
    for (size_t i = 0; i < gguf_reader_kv_count(b); i++) {
        const struct gguf_kv *y = gguf_reader_kv(b, i), *x = gguf_reader_find_kv(a, y->key);
        if (strcmp(y->key, "general.alignment") == 0) continue;
        require(x && x->raw_bytes == y->raw_bytes && memcmp(x->raw, y->raw, x->raw_bytes) == 0,
                "a pair changed in a copy");
    }
}

static void rewrite(const struct gguf_reader *r) {
    struct gguf_writer *w = NULL;
    struct gguf_reader *back = NULL;
    struct copy c = {0};
    struct strata_errmsg em;
    strata_err rc = gguf_writer_new(gguf_reader_alignment(r), &w, &em);
    if (!rc) rc = gguf_writer_copy_kvs(w, r, &em);
    for (size_t i = 0; i < gguf_reader_tensor_count(r) && !rc; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(r, i);
        rc = gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data, &em);
    }
    if (!rc) rc = gguf_writer_emit(w, append, &c, &em);
    if (!rc) rc = gguf_reader_new(c.data, c.len, "copy", &back, &em);
    require(rc == STRATA_OK, "what was read cannot be written and read again");
    compare(r, back);
    gguf_reader_free(back);
    gguf_writer_free(w);
    free(c.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf_reader *r = NULL;
    struct strata_errmsg em = {0};
    if (gguf_reader_new(data, size, "fuzz", &r, &em)) {
        require(r == NULL && em.text[0] != '\0', "a failure without a message");
        return 0;
    }
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) walk_pair(r, gguf_reader_kv(r, i));
    for (size_t i = 0; i < gguf_reader_tensor_count(r); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(r, i);
        uint32_t layer = 0;
        touch(t->data, t->bytes);
        require(t->data >= data && t->bytes <= (size_t)(data + size - t->data), "a tensor lies outside the file");
        require(gguf_reader_find_tensor(r, t->name) == t, "a tensor is not found under its own name");
        sink += pkg_class_of(t->name, &layer) + layer;
    }
    /* A 1 MiB alignment makes big copies of small files; they would only slow the search down. */
    if (gguf_reader_alignment(r) <= 4096 && gguf_reader_tensor_count(r) < 64) rewrite(r);
    gguf_reader_free(r);
    return 0;
}
