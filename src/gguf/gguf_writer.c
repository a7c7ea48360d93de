/*
 * Deterministic GGUF writer. See gguf_writer.h.
 *
 * Owns the encoded tensor entries and those pairs that were made here, in two bounded buffers; pairs copied from a
 * reader stay where they are, so that a vocabulary of megabytes costs nothing. Refuses whatever gguf_reader would
 * refuse, so that everything it writes can be read back.
 */
#include "gguf/gguf_writer.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/file.h"
#include "gguf/gguf_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_MAX = 1 << 30, /* bytes of all pairs; of all tensor entries as well */
    PIECE = 1 << 20,      /* payload bytes handed to the sink at once */
    HEAD_BYTES = 24,
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32, /* of a file that does not say */
    MAX_NAME = 63
};

/* Copied pairs that stand side by side in the source: one run of borrowed bytes. */
struct view {
    size_t own_before; /* bytes of `kvs` that come before this run */
    const uint8_t *data;
    size_t len;
};

struct payload {
    const char *name; /* borrowed */
    const uint8_t *data;
    uint64_t bytes;
    uint64_t offset; /* from the start of the data section */
};

struct gguf_writer {
    uint32_t alignment;
    struct buf kvs;
    struct view *views;
    size_t n_views, cap_views;
    uint64_t view_bytes;
    char **keys; /* owned */
    size_t n_kvs, cap_keys;
    struct gguf_index key_index;
    struct buf infos;
    struct payload *payloads;
    size_t n_tensors, cap_tensors;
    struct gguf_index tensor_index;
    uint64_t tensor_bytes;
    uint64_t next_offset;
};

static void put_le(uint8_t *p, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static strata_err append_le(struct buf *b, uint64_t v, size_t bytes, struct strata_errmsg *em) {
    uint8_t p[8];
    put_le(p, v, bytes);
    return buf_append(b, p, bytes, em);
}

static strata_err append_str(struct buf *b, const char *s, size_t len, struct strata_errmsg *em) {
    strata_err rc = append_le(b, len, 8, em);
    return rc ? rc : buf_append(b, s, len, em);
}

/* Doubles the list of keys, and makes an index of that size, when the list is full. */
static strata_err grow_keys(struct gguf_writer *w, struct strata_errmsg *em) {
    if (w->n_kvs < w->cap_keys) return STRATA_OK;
    size_t cap = w->cap_keys ? w->cap_keys * 2 : 64;
    char **keys = reallocarray(w->keys, cap, sizeof *keys);
    if (!keys) return err_nomem(em, "a GGUF header");
    w->keys = keys;
    struct gguf_index index;
    strata_err rc = gguf_index_init(&index, cap, em);
    if (rc) return rc;
    gguf_index_deinit(&w->key_index);
    w->key_index = index;
    for (size_t i = 0; i < w->n_kvs; i++) gguf_index_put(&w->key_index, w->keys[i], i);
    w->cap_keys = cap;
    return STRATA_OK;
}

static strata_err grow_tensors(struct gguf_writer *w, struct strata_errmsg *em) {
    if (w->n_tensors < w->cap_tensors) return STRATA_OK;
    size_t cap = w->cap_tensors ? w->cap_tensors * 2 : 64;
    struct payload *payloads = reallocarray(w->payloads, cap, sizeof *payloads);
    if (!payloads) return err_nomem(em, "a GGUF header");
    w->payloads = payloads;
    struct gguf_index index;
    strata_err rc = gguf_index_init(&index, cap, em);
    if (rc) return rc;
    gguf_index_deinit(&w->tensor_index);
    w->tensor_index = index;
    for (size_t i = 0; i < w->n_tensors; i++) gguf_index_put(&w->tensor_index, w->payloads[i].name, i);
    w->cap_tensors = cap;
    return STRATA_OK;
}

/* Remembers a key, and refuses a second one of that name. */
static strata_err claim_key(struct gguf_writer *w, const char *key, struct strata_errmsg *em) {
    strata_err rc = grow_keys(w, em);
    if (rc) return rc;
    if (gguf_index_get(&w->key_index, key) != GGUF_INDEX_NONE)
        return err_set(em, STRATA_EINVAL, "metadata key '%s' would stand twice in the new file", key);
    char *own = strdup(key);
    if (!own) return err_nomem(em, "a metadata key");
    gguf_index_put(&w->key_index, own, w->n_kvs);
    w->keys[w->n_kvs++] = own;
    return STRATA_OK;
}

static strata_err begin_pair(struct gguf_writer *w, const char *key, uint32_t kind, struct strata_errmsg *em) {
    strata_err rc = claim_key(w, key, em);
    if (!rc) rc = append_str(&w->kvs, key, strlen(key), em);
    return rc ? rc : append_le(&w->kvs, kind, 4, em);
}

static strata_err add_number(struct gguf_writer *w, const char *key, uint32_t kind, uint64_t bits,
                             struct strata_errmsg *em) {
    strata_err rc = begin_pair(w, key, kind, em);
    return rc ? rc : append_le(&w->kvs, bits, gguf_types_kind_bytes(kind), em);
}

static strata_err begin_array(struct gguf_writer *w, const char *key, uint32_t kind, size_t n,
                              struct strata_errmsg *em) {
    strata_err rc = begin_pair(w, key, GGUF_KIND_ARRAY, em);
    if (!rc) rc = append_le(&w->kvs, kind, 4, em);
    return rc ? rc : append_le(&w->kvs, n, 8, em);
}

static uint32_t float_bits(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

strata_err gguf_writer_new_bare(uint32_t alignment, struct gguf_writer **out, struct strata_errmsg *em) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > MAX_ALIGNMENT)
        return err_set(em, STRATA_EINVAL, "alignment %" PRIu32 " is not a power of two up to %d", alignment,
                       MAX_ALIGNMENT);
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (!w) return err_nomem(em, "a GGUF writer");
    w->alignment = alignment;
    buf_init(&w->kvs, HEADER_MAX);
    buf_init(&w->infos, HEADER_MAX);
    *out = w;
    return STRATA_OK;
}

strata_err gguf_writer_new(uint32_t alignment, struct gguf_writer **out, struct strata_errmsg *em) {
    struct gguf_writer *w = NULL;
    strata_err rc = gguf_writer_new_bare(alignment, &w, em);
    if (!rc) rc = gguf_writer_add_u32(w, "general.alignment", alignment, em);
    if (rc) goto out;
    *out = w;
    w = NULL;
out:
    gguf_writer_free(w);
    return rc;
}

void gguf_writer_free(struct gguf_writer *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n_kvs; i++) free(w->keys[i]);
    free(w->keys);
    buf_deinit(&w->kvs);
    free(w->views);
    buf_deinit(&w->infos);
    free(w->payloads);
    gguf_index_deinit(&w->key_index);
    gguf_index_deinit(&w->tensor_index);
    free(w);
}

strata_err gguf_writer_copy_kv(struct gguf_writer *w, const struct gguf_kv *kv, struct strata_errmsg *em) {
    strata_err rc = claim_key(w, kv->key, em);
    if (rc) return rc;
    struct view *last = w->n_views ? &w->views[w->n_views - 1] : NULL;
    if (last && last->own_before == w->kvs.len && last->data + last->len == kv->raw) {
        last->len += kv->raw_bytes;
    } else {
        if (w->n_views == w->cap_views) {
            size_t cap = w->cap_views ? w->cap_views * 2 : 16;
            struct view *grown = reallocarray(w->views, cap, sizeof *grown);
            if (!grown) return err_nomem(em, "a GGUF header");
            w->views = grown;
            w->cap_views = cap;
        }
        w->views[w->n_views++] = (struct view){w->kvs.len, kv->raw, kv->raw_bytes};
    }
    w->view_bytes += kv->raw_bytes;
    return STRATA_OK;
}

strata_err gguf_writer_copy_kvs(struct gguf_writer *w, const struct gguf_reader *r, struct strata_errmsg *em) {
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        if (strcmp(kv->key, "general.alignment") == 0 || strncmp(kv->key, "split.", 6) == 0) continue;
        strata_err rc = gguf_writer_copy_kv(w, kv, em);
        if (rc) return rc;
    }
    return STRATA_OK;
}

strata_err gguf_writer_add_bool(struct gguf_writer *w, const char *key, bool v, struct strata_errmsg *em) {
    return add_number(w, key, GGUF_KIND_BOOL, v ? 1 : 0, em);
}

strata_err gguf_writer_add_u32(struct gguf_writer *w, const char *key, uint32_t v, struct strata_errmsg *em) {
    return add_number(w, key, GGUF_KIND_U32, v, em);
}

strata_err gguf_writer_add_i32(struct gguf_writer *w, const char *key, int32_t v, struct strata_errmsg *em) {
    return add_number(w, key, GGUF_KIND_I32, (uint32_t)v, em);
}

strata_err gguf_writer_add_u64(struct gguf_writer *w, const char *key, uint64_t v, struct strata_errmsg *em) {
    return add_number(w, key, GGUF_KIND_U64, v, em);
}

strata_err gguf_writer_add_f32(struct gguf_writer *w, const char *key, float v, struct strata_errmsg *em) {
    return add_number(w, key, GGUF_KIND_F32, float_bits(v), em);
}

strata_err gguf_writer_add_str(struct gguf_writer *w, const char *key, const char *v, struct strata_errmsg *em) {
    strata_err rc = begin_pair(w, key, GGUF_KIND_STRING, em);
    return rc ? rc : append_str(&w->kvs, v, strlen(v), em);
}

strata_err gguf_writer_add_strs(struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n,
                                struct strata_errmsg *em) {
    strata_err rc = begin_array(w, key, GGUF_KIND_STRING, n, em);
    for (size_t i = 0; i < n && !rc; i++) rc = append_str(&w->kvs, v[i].data, v[i].len, em);
    return rc;
}

strata_err gguf_writer_add_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n,
                                struct strata_errmsg *em) {
    strata_err rc = begin_array(w, key, GGUF_KIND_U32, n, em);
    for (size_t i = 0; i < n && !rc; i++) rc = append_le(&w->kvs, v[i], 4, em);
    return rc;
}

strata_err gguf_writer_add_u64s(struct gguf_writer *w, const char *key, const uint64_t *v, size_t n,
                                struct strata_errmsg *em) {
    strata_err rc = begin_array(w, key, GGUF_KIND_U64, n, em);
    for (size_t i = 0; i < n && !rc; i++) rc = append_le(&w->kvs, v[i], 8, em);
    return rc;
}

strata_err gguf_writer_add_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n,
                                struct strata_errmsg *em) {
    strata_err rc = begin_array(w, key, GGUF_KIND_I32, n, em);
    for (size_t i = 0; i < n && !rc; i++) rc = append_le(&w->kvs, (uint32_t)v[i], 4, em);
    return rc;
}

strata_err gguf_writer_add_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n,
                                struct strata_errmsg *em) {
    strata_err rc = begin_array(w, key, GGUF_KIND_F32, n, em);
    for (size_t i = 0; i < n && !rc; i++) rc = append_le(&w->kvs, float_bits(v[i]), 4, em);
    return rc;
}

static strata_err check_tensor(const struct gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                               uint32_t type, uint64_t *bytes, struct strata_errmsg *em) {
    size_t len = strlen(name);
    if (len == 0 || len > MAX_NAME)
        return err_set(em, STRATA_EINVAL, "tensor name '%.80s' must have 1 to %d bytes", name, MAX_NAME);
    if (gguf_index_get(&w->tensor_index, name) != GGUF_INDEX_NONE)
        return err_set(em, STRATA_EINVAL, "tensor '%s' would stand twice in the new file", name);
    if (n_dims < 1 || n_dims > 4)
        return err_set(em, STRATA_EINVAL, "tensor '%s' has %" PRIu32 " dimensions; 1 to 4 are allowed", name, n_dims);
    uint64_t full[4] = {1, 1, 1, 1};
    for (uint32_t d = 0; d < n_dims; d++) {
        if (ne[d] == 0) return err_set(em, STRATA_EINVAL, "tensor '%s' has a dimension of size 0", name);
        full[d] = ne[d];
    }
    if (!gguf_types_tensor_bytes(type, full, bytes))
        return err_set(em, STRATA_EINVAL, "tensor '%s': type %" PRIu32 " and its shape do not fit together", name,
                       type);
    return STRATA_OK;
}

strata_err gguf_writer_add_tensor(struct gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                                  uint32_t type, const void *data, struct strata_errmsg *em) {
    uint64_t bytes = 0, end, next = 0;
    strata_err rc = check_tensor(w, name, n_dims, ne, type, &bytes, em);
    if (!rc &&
        (!checked_add(w->next_offset, bytes, &end) || !checked_align(end, w->alignment, &next) || next > INT64_MAX))
        rc = err_set(em, STRATA_ELIMIT, "tensor '%s' would make the file larger than a file can be", name);
    if (!rc) rc = grow_tensors(w, em);
    if (rc) return rc;
    size_t keep = w->infos.len;
    rc = append_str(&w->infos, name, strlen(name), em);
    if (!rc) rc = append_le(&w->infos, n_dims, 4, em);
    for (uint32_t d = 0; d < n_dims && !rc; d++) rc = append_le(&w->infos, ne[d], 8, em);
    if (!rc) rc = append_le(&w->infos, type, 4, em);
    if (!rc) rc = append_le(&w->infos, w->next_offset, 8, em);
    if (rc) {
        w->infos.len = keep;
        return rc;
    }
    gguf_index_put(&w->tensor_index, name, w->n_tensors);
    w->payloads[w->n_tensors++] =
        (struct payload){.name = name, .data = data, .bytes = bytes, .offset = w->next_offset};
    w->tensor_bytes += bytes;
    w->next_offset = next;
    return STRATA_OK;
}

size_t gguf_writer_tensor_count(const struct gguf_writer *w) {
    return w->n_tensors;
}

uint64_t gguf_writer_tensor_bytes(const struct gguf_writer *w) {
    return w->tensor_bytes;
}

/* The parts are bounded (see add_tensor), so that these sums cannot wrap. */
static uint64_t header_bytes(const struct gguf_writer *w) {
    return HEAD_BYTES + w->kvs.len + w->view_bytes + w->infos.len;
}

uint64_t gguf_writer_data_offset(const struct gguf_writer *w) {
    uint64_t a = w->alignment;
    return (header_bytes(w) + a - 1) & ~(a - 1);
}

uint64_t gguf_writer_tensor_offset(const struct gguf_writer *w, size_t i) {
    return gguf_writer_data_offset(w) + w->payloads[i].offset;
}

uint64_t gguf_writer_file_size(const struct gguf_writer *w) {
    return gguf_writer_data_offset(w) + w->next_offset;
}

static strata_err emit_padding(const struct gguf_writer *w, uint64_t pos, gguf_writer_sink sink, void *user,
                               struct strata_errmsg *em) {
    static const uint8_t zeros[4096];
    uint64_t left = (w->alignment - pos % w->alignment) % w->alignment;
    strata_err rc = STRATA_OK;
    while (left > 0 && !rc) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        rc = sink(user, zeros, n, em);
        left -= n;
    }
    return rc;
}

static strata_err emit_bytes(const void *data, uint64_t len, gguf_writer_sink sink, void *user,
                             struct strata_errmsg *em) {
    const uint8_t *p = data;
    strata_err rc = STRATA_OK;
    for (uint64_t at = 0; at < len && !rc; at += PIECE)
        rc = sink(user, p + at, (size_t)(len - at < PIECE ? len - at : PIECE), em);
    return rc;
}

/* Own pairs and borrowed ones, in the order in which they were added. */
static strata_err emit_pairs(const struct gguf_writer *w, gguf_writer_sink sink, void *user, struct strata_errmsg *em) {
    size_t own = 0;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < w->n_views && !rc; i++) {
        const struct view *v = &w->views[i];
        if (v->own_before > own) rc = emit_bytes(w->kvs.data + own, v->own_before - own, sink, user, em);
        own = v->own_before;
        if (!rc) rc = emit_bytes(v->data, v->len, sink, user, em);
    }
    return rc || w->kvs.len == own ? rc : emit_bytes(w->kvs.data + own, w->kvs.len - own, sink, user, em);
}

strata_err gguf_writer_emit_header(const struct gguf_writer *w, gguf_writer_sink sink, void *user,
                                   struct strata_errmsg *em) {
    if (w->alignment != DEFAULT_ALIGNMENT && gguf_index_get(&w->key_index, "general.alignment") == GGUF_INDEX_NONE)
        return err_set(em, STRATA_EINTERNAL, "the new file lacks general.alignment, which is %" PRIu32, w->alignment);
    uint8_t head[HEAD_BYTES] = {'G', 'G', 'U', 'F'};
    put_le(head + 4, 3, 4);
    put_le(head + 8, w->n_tensors, 8);
    put_le(head + 16, w->n_kvs, 8);
    strata_err rc = sink(user, head, sizeof head, em);
    if (!rc) rc = emit_pairs(w, sink, user, em);
    if (!rc && w->infos.len) rc = emit_bytes(w->infos.data, w->infos.len, sink, user, em);
    return rc ? rc : emit_padding(w, header_bytes(w), sink, user, em);
}

strata_err gguf_writer_emit(const struct gguf_writer *w, gguf_writer_sink sink, void *user, struct strata_errmsg *em) {
    strata_err rc = gguf_writer_emit_header(w, sink, user, em);
    for (size_t i = 0; i < w->n_tensors && !rc; i++) {
        const struct payload *p = &w->payloads[i];
        rc = emit_bytes(p->data, p->bytes, sink, user, em);
        if (!rc) rc = emit_padding(w, p->bytes, sink, user, em);
    }
    return rc;
}

struct file_sink {
    struct file_atomic file;
    struct digest *digest;
    struct progress *progress;
    uint64_t size;
};

static strata_err to_file(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct file_sink *s = user;
    strata_err rc = file_atomic_write(&s->file, data, len, em);
    if (!rc) rc = digest_update(s->digest, data, len, em);
    if (rc) return rc;
    s->size += len;
    if (s->progress) progress_add(s->progress, len);
    return STRATA_OK;
}

strata_err gguf_writer_to_file(const struct gguf_writer *w, const char *path, struct progress *progress,
                               uint8_t sha256[DIGEST_BYTES], uint64_t *size, struct strata_errmsg *em) {
    struct file_sink s = {.file.fd = -1, .progress = progress};
    uint8_t sum[DIGEST_BYTES];
    strata_err rc = digest_new(&s.digest, em);
    if (!rc) rc = file_atomic_begin(&s.file, path, 0644, em);
    if (!rc) rc = gguf_writer_emit(w, to_file, &s, em);
    if (!rc) rc = digest_final(s.digest, sum, em);
    if (!rc) rc = file_atomic_commit(&s.file, em);
    if (!rc) {
        memcpy(sha256, sum, sizeof sum);
        *size = s.size;
    }
    file_atomic_abort(&s.file);
    digest_free(s.digest);
    return rc;
}
