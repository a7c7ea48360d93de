/*
 * Parses one GGUF file. See gguf_reader.h for the contract.
 *
 * Owns the tables of pairs and tensors and their names; borrows the bytes. Every number read from the file passes
 * through a check against the bytes left (struct cursor) before it is used as a length, a count or an offset.
 */
#include "gguf/gguf_reader.h"

#include "base/checked.h"
#include "gguf/gguf_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PAIRS = 1 << 20,
    MAX_TENSORS = 1 << 20,
    MAX_KEY = 65535, /* the format's own limit */
    MAX_NAME = 63,   /* ggml keeps names in 64 bytes */
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
    MIN_PAIR_BYTES = 8 + 1 + 4 + 1,          /* key length, a key, kind, a value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8 /* name length, a name, dimensions, one of them, type, offset */
};

struct gguf_reader {
    char *name;
    const uint8_t *data;
    size_t len;
    uint32_t version;
    uint32_t alignment;
    bool header_only; /* payloads lie elsewhere */
    uint64_t data_offset;
    struct gguf_kv *kvs;
    size_t n_kvs; /* those whose key is owned */
    struct gguf_tensor *tensors;
    char (*tensor_names)[MAX_NAME + 1];
    size_t n_tensors;
    struct gguf_index kv_index;
    struct gguf_index tensor_index;
};

/* Where parsing stands. `what` names the thing being read, for messages. */
struct cursor {
    const struct gguf_reader *r;
    const uint8_t *p;
    size_t left;
    struct strata_errmsg *em;
};

static strata_err truncated(const struct cursor *c, const char *what) {
    (void)err_set(c->em, STRATA_EFORMAT,
                  "%s: truncated or damaged GGUF: %s at byte %zu goes beyond the end of the file (%zu bytes)",
                  c->r->name, what, (size_t)(c->p - c->r->data), c->r->len);
    return STRATA_EFORMAT;
}

static strata_err take(struct cursor *c, uint64_t n, const char *what, const uint8_t **out) {
    if (n > c->left) return truncated(c, what);
    if (out) *out = c->p;
    c->p += n;
    c->left -= (size_t)n;
    return STRATA_OK;
}

/* Little-endian by construction, whatever the machine. */
static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p) {
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static strata_err take_u32(struct cursor *c, const char *what, uint32_t *out) {
    const uint8_t *p;
    strata_err rc = take(c, 4, what, &p);
    if (!rc) *out = load_u32(p);
    return rc;
}

static strata_err take_u64(struct cursor *c, const char *what, uint64_t *out) {
    const uint8_t *p;
    strata_err rc = take(c, 8, what, &p);
    if (!rc) *out = load_u64(p);
    return rc;
}

static strata_err take_str(struct cursor *c, const char *what, struct gguf_str *out) {
    uint64_t len;
    const uint8_t *p;
    strata_err rc = take_u64(c, what, &len);
    if (!rc) rc = take(c, len, what, &p);
    if (!rc) *out = (struct gguf_str){.data = (const char *)p, .len = (size_t)len};
    return rc;
}

static strata_err read_header(struct cursor *c, struct gguf_reader *r, uint64_t *n_tensors, uint64_t *n_kvs) {
    const uint8_t *magic;
    if (c->left < 4 || memcmp(c->p, "GGUF", 4) != 0)
        return err_set(c->em, STRATA_EFORMAT, "%s is not a GGUF file (it does not start with the letters GGUF)",
                       r->name);
    strata_err rc = take(c, 4, "the magic", &magic);
    if (!rc) rc = take_u32(c, "the version", &r->version);
    if (rc) return rc;
    if (r->version != 0 && (r->version & 0xffff) == 0)
        return err_set(c->em, STRATA_EUNSUPPORTED,
                       "%s is a big-endian GGUF file; only little-endian ones can be read: convert it first", r->name);
    if (r->version == 1)
        return err_set(c->em, STRATA_EUNSUPPORTED,
                       "%s is a GGUF version 1 file; versions 2 and 3 can be read: convert the model again", r->name);
    if (r->version != 2 && r->version != 3)
        return err_set(c->em, STRATA_EUNSUPPORTED,
                       "%s is a GGUF version %" PRIu32 " file; versions 2 and 3 can be read", r->name, r->version);
    rc = take_u64(c, "the number of tensors", n_tensors);
    if (!rc) rc = take_u64(c, "the number of metadata pairs", n_kvs);
    if (rc) return rc;
    if (*n_kvs > MAX_PAIRS || *n_kvs > c->left / MIN_PAIR_BYTES)
        return err_set(c->em, STRATA_EFORMAT,
                       "%s: damaged GGUF: it claims %" PRIu64 " metadata pairs, too many for its %zu bytes", r->name,
                       *n_kvs, r->len);
    if (*n_tensors > MAX_TENSORS || *n_tensors > c->left / MIN_TENSOR_BYTES)
        return err_set(c->em, STRATA_EFORMAT,
                       "%s: damaged GGUF: it claims %" PRIu64 " tensors, too many for its %zu bytes", r->name,
                       *n_tensors, r->len);
    return STRATA_OK;
}

static strata_err read_array(struct cursor *c, struct gguf_kv *kv) {
    strata_err rc = take_u32(c, "the kind of an array", &kv->elem_kind);
    if (!rc) rc = take_u64(c, "the length of an array", &kv->count);
    if (rc) return rc;
    kv->value = c->p;
    if (kv->elem_kind == GGUF_KIND_ARRAY)
        return err_set(c->em, STRATA_EUNSUPPORTED, "%s: key '%s' is an array of arrays, which GGUF models do not use",
                       c->r->name, kv->key);
    if (kv->elem_kind >= GGUF_KIND_COUNT)
        return err_set(c->em, STRATA_EFORMAT, "%s: key '%s' is an array of unknown kind %" PRIu32, c->r->name, kv->key,
                       kv->elem_kind);
    if (kv->elem_kind == GGUF_KIND_STRING) {
        /* Each string takes 8 bytes at least: refusing early keeps the message about the count, not about the end. */
        if (kv->count > c->left / 8) return truncated(c, "an array of strings");
        struct gguf_str s;
        for (uint64_t i = 0; i < kv->count; i++)
            if ((rc = take_str(c, "a string in an array", &s))) return rc;
        return STRATA_OK;
    }
    uint64_t bytes;
    if (!checked_mul(kv->count, gguf_types_kind_bytes(kv->elem_kind), &bytes)) return truncated(c, "an array");
    return take(c, bytes, "an array", NULL);
}

static strata_err read_value(struct cursor *c, struct gguf_kv *kv) {
    strata_err rc = take_u32(c, "the kind of a value", &kv->kind);
    if (rc) return rc;
    kv->value = c->p;
    kv->count = 1;
    kv->elem_kind = kv->kind;
    if (kv->kind >= GGUF_KIND_COUNT)
        return err_set(c->em, STRATA_EFORMAT, "%s: key '%s' has unknown kind %" PRIu32, c->r->name, kv->key, kv->kind);
    struct gguf_str s;
    if (kv->kind == GGUF_KIND_ARRAY)
        rc = read_array(c, kv);
    else if (kv->kind == GGUF_KIND_STRING)
        rc = take_str(c, "a string value", &s);
    else
        rc = take(c, gguf_types_kind_bytes(kv->kind), "a value", NULL);
    if (!rc) kv->value_bytes = (size_t)(c->p - kv->value);
    return rc;
}

static strata_err check_name(const struct cursor *c, const char *what, struct gguf_str s, size_t max) {
    if (s.len == 0) return err_set(c->em, STRATA_EFORMAT, "%s: %s is empty", c->r->name, what);
    if (s.len > max)
        return err_set(c->em, STRATA_EFORMAT, "%s: %s has %zu bytes; at most %zu are allowed", c->r->name, what, s.len,
                       max);
    if (memchr(s.data, '\0', s.len)) return err_set(c->em, STRATA_EFORMAT, "%s: %s holds a NUL byte", c->r->name, what);
    return STRATA_OK;
}

static strata_err read_pairs(struct cursor *c, struct gguf_reader *r, size_t n) {
    strata_err rc = gguf_index_init(&r->kv_index, n, c->em);
    if (rc) return rc;
    r->kvs = calloc(n ? n : 1, sizeof *r->kvs);
    if (!r->kvs) return err_nomem(c->em, "metadata");
    for (size_t i = 0; i < n; i++) {
        struct gguf_kv *kv = &r->kvs[i];
        struct gguf_str key;
        kv->raw = c->p;
        if ((rc = take_str(c, "a metadata key", &key))) return rc;
        if ((rc = check_name(c, "a metadata key", key, MAX_KEY))) return rc;
        kv->key = strndup(key.data, key.len);
        if (!kv->key) return err_nomem(c->em, "metadata");
        r->n_kvs = i + 1;
        if ((rc = read_value(c, kv))) return rc;
        kv->raw_bytes = (size_t)(c->p - kv->raw);
        if (!gguf_index_put(&r->kv_index, kv->key, i))
            return err_set(c->em, STRATA_EFORMAT, "%s: key '%s' appears twice", r->name, kv->key);
    }
    return STRATA_OK;
}

static strata_err find_alignment(struct gguf_reader *r, struct strata_errmsg *em) {
    r->alignment = DEFAULT_ALIGNMENT;
    const struct gguf_kv *kv = gguf_reader_find_kv(r, "general.alignment");
    if (!kv) return STRATA_OK;
    if (kv->kind != GGUF_KIND_U32)
        return err_set(em, STRATA_EFORMAT, "%s: general.alignment must be a u32, not %s", r->name,
                       gguf_types_kind_name(kv->kind));
    uint32_t a = load_u32(kv->value);
    if (a == 0 || (a & (a - 1)) != 0 || a > MAX_ALIGNMENT)
        return err_set(em, STRATA_EFORMAT, "%s: general.alignment is %" PRIu32 "; it must be a power of two up to %d",
                       r->name, a, MAX_ALIGNMENT);
    r->alignment = a;
    return STRATA_OK;
}

static strata_err read_shape(struct cursor *c, struct gguf_tensor *t) {
    strata_err rc = take_u32(c, "the dimensions of a tensor", &t->n_dims);
    if (rc) return rc;
    if (t->n_dims < 1 || t->n_dims > 4)
        return err_set(c->em, STRATA_EFORMAT, "%s: tensor '%s' has %" PRIu32 " dimensions; 1 to 4 are allowed",
                       c->r->name, t->name, t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d < t->n_dims && (rc = take_u64(c, "a dimension of a tensor", &t->ne[d]))) return rc;
        if (t->ne[d] == 0)
            return err_set(c->em, STRATA_EFORMAT, "%s: tensor '%s' has a dimension of size 0", c->r->name, t->name);
    }
    return STRATA_OK;
}

static strata_err read_type(struct cursor *c, struct gguf_tensor *t) {
    strata_err rc = take_u32(c, "the type of a tensor", &t->type);
    if (rc) return rc;
    const struct gguf_tensor_type *type = gguf_types_tensor(t->type);
    if (!type)
        return err_set(c->em, STRATA_EUNSUPPORTED, "%s: tensor '%s' has type %" PRIu32 ", which Strata does not know",
                       c->r->name, t->name, t->type);
    if (t->ne[0] % type->block_elems != 0)
        return err_set(c->em, STRATA_EFORMAT,
                       "%s: tensor '%s' has rows of %" PRIu64 " elements; type %s needs a multiple of %" PRIu32,
                       c->r->name, t->name, t->ne[0], type->name, type->block_elems);
    if (!gguf_types_tensor_bytes(t->type, t->ne, &t->bytes))
        return err_set(c->em, STRATA_EFORMAT, "%s: the size of tensor '%s' does not fit in 63 bits", c->r->name,
                       t->name);
    return STRATA_OK;
}

static strata_err read_tensors(struct cursor *c, struct gguf_reader *r, size_t n) {
    strata_err rc = gguf_index_init(&r->tensor_index, n, c->em);
    if (rc) return rc;
    r->tensors = calloc(n ? n : 1, sizeof *r->tensors);
    r->tensor_names = calloc(n ? n : 1, sizeof *r->tensor_names);
    if (!r->tensors || !r->tensor_names) return err_nomem(c->em, "the list of tensors");
    for (size_t i = 0; i < n; i++) {
        struct gguf_tensor *t = &r->tensors[i];
        struct gguf_str name;
        if ((rc = take_str(c, "a tensor name", &name))) return rc;
        if ((rc = check_name(c, "a tensor name", name, MAX_NAME))) return rc;
        memcpy(r->tensor_names[i], name.data, name.len);
        t->name = r->tensor_names[i];
        if ((rc = read_shape(c, t)) || (rc = read_type(c, t))) return rc;
        if ((rc = take_u64(c, "the offset of a tensor", &t->offset))) return rc;
        if (t->offset % r->alignment != 0 && !r->header_only)
            return err_set(c->em, STRATA_EFORMAT,
                           "%s: tensor '%s' lies at offset %" PRIu64 ", not a multiple of the alignment %" PRIu32,
                           r->name, t->name, t->offset, r->alignment);
        if (!gguf_index_put(&r->tensor_index, t->name, i))
            return err_set(c->em, STRATA_EFORMAT, "%s: tensor '%s' appears twice", r->name, t->name);
    }
    r->n_tensors = n;
    return STRATA_OK;
}

static int by_offset(const void *a, const void *b) {
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Offsets and sizes have been found to lie inside the file, so their sums cannot wrap here. */
static strata_err check_overlaps(const struct gguf_reader *r, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    bool sorted = true;
    for (size_t i = 1; sorted && i < r->n_tensors; i++)
        sorted = r->tensors[i - 1].offset + r->tensors[i - 1].bytes <= r->tensors[i].offset;
    if (sorted) return STRATA_OK;
    const struct gguf_tensor **order = calloc(r->n_tensors, sizeof *order);
    if (!order) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < r->n_tensors; i++) order[i] = &r->tensors[i];
    qsort(order, r->n_tensors, sizeof *order, by_offset);
    for (size_t i = 1; i < r->n_tensors && !rc; i++)
        if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
            rc = err_set(em, STRATA_EFORMAT, "%s: tensors '%s' and '%s' overlap", r->name, order[i - 1]->name,
                         order[i]->name);
    free(order);
    return rc;
}

/* The data section starts at the first aligned byte after the tensor list. */
static strata_err place_data(struct cursor *c, struct gguf_reader *r) {
    uint64_t start;
    if (!checked_align((uint64_t)(c->p - r->data), r->alignment, &start)) return truncated(c, "the data section");
    r->data_offset = start;
    if (r->header_only) return STRATA_OK;
    for (size_t i = 0; i < r->n_tensors; i++) {
        struct gguf_tensor *t = &r->tensors[i];
        uint64_t begin, end;
        if (!checked_add(start, t->offset, &begin) || !checked_add(begin, t->bytes, &end) || end > r->len)
            return err_set(c->em, STRATA_EFORMAT,
                           "%s: truncated or damaged GGUF: tensor '%s' (offset %" PRIu64 ", %" PRIu64
                           " bytes) goes beyond the end of the file (%zu bytes)",
                           r->name, t->name, t->offset, t->bytes, r->len);
        t->data = r->data + begin;
    }
    return check_overlaps(r, c->em);
}

static strata_err parse(const void *data, size_t len, const char *name, bool header_only, struct gguf_reader **out,
                        struct strata_errmsg *em) {
    uint64_t n_tensors = 0, n_kvs = 0;
    strata_err rc;
    struct gguf_reader *r = calloc(1, sizeof *r);
    if (!r) return err_nomem(em, "a GGUF reader");
    r->name = strdup(name);
    if (!r->name) {
        rc = err_nomem(em, "a GGUF reader");
        goto out;
    }
    r->data = data;
    r->len = len;
    r->header_only = header_only;
    struct cursor c = {.r = r, .p = data, .left = len, .em = em};
    rc = read_header(&c, r, &n_tensors, &n_kvs);
    if (!rc) rc = read_pairs(&c, r, (size_t)n_kvs);
    if (!rc) rc = find_alignment(r, em);
    if (!rc) rc = read_tensors(&c, r, (size_t)n_tensors);
    if (!rc) rc = place_data(&c, r);
    if (rc) goto out;
    *out = r;
    r = NULL;
out:
    gguf_reader_free(r);
    return rc;
}

strata_err gguf_reader_new(const void *data, size_t len, const char *name, struct gguf_reader **out,
                           struct strata_errmsg *em) {
    return parse(data, len, name, false, out, em);
}

strata_err gguf_reader_new_header(const void *data, size_t len, const char *name, struct gguf_reader **out,
                                  struct strata_errmsg *em) {
    return parse(data, len, name, true, out, em);
}

void gguf_reader_free(struct gguf_reader *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_kvs; i++) free((char *)(uintptr_t)r->kvs[i].key);
    free(r->kvs);
    free(r->tensors);
    free(r->tensor_names);
    gguf_index_deinit(&r->kv_index);
    gguf_index_deinit(&r->tensor_index);
    free(r->name);
    free(r);
}

const char *gguf_reader_name(const struct gguf_reader *r) {
    return r->name;
}

uint32_t gguf_reader_version(const struct gguf_reader *r) {
    return r->version;
}

uint32_t gguf_reader_alignment(const struct gguf_reader *r) {
    return r->alignment;
}

uint64_t gguf_reader_data_offset(const struct gguf_reader *r) {
    return r->data_offset;
}

size_t gguf_reader_kv_count(const struct gguf_reader *r) {
    return r->n_kvs;
}

const struct gguf_kv *gguf_reader_kv(const struct gguf_reader *r, size_t i) {
    return &r->kvs[i];
}

const struct gguf_kv *gguf_reader_find_kv(const struct gguf_reader *r, const char *key) {
    size_t i = gguf_index_get(&r->kv_index, key);
    return i == GGUF_INDEX_NONE ? NULL : &r->kvs[i];
}

size_t gguf_reader_tensor_count(const struct gguf_reader *r) {
    return r->n_tensors;
}

const struct gguf_tensor *gguf_reader_tensor(const struct gguf_reader *r, size_t i) {
    return &r->tensors[i];
}

const struct gguf_tensor *gguf_reader_find_tensor(const struct gguf_reader *r, const char *name) {
    size_t i = gguf_index_get(&r->tensor_index, name);
    return i == GGUF_INDEX_NONE ? NULL : &r->tensors[i];
}
