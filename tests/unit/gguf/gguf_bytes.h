/* Builds GGUF bytes by hand for tests: every field as given, right or wrong. */
#ifndef GGUF_BYTES_H
#define GGUF_BYTES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t d[1 << 16];
    size_t n;
};

static inline void put(struct bytes *b, const void *p, size_t n) {
    if (n > sizeof b->d - b->n) abort(); /* a test that outgrew its buffer */
    if (n) memcpy(b->d + b->n, p, n);
    b->n += n;
}

static inline void put_le(struct bytes *b, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)(v >> (8 * i));
        put(b, &byte, 1);
    }
}

static inline void put_u32(struct bytes *b, uint32_t v) {
    put_le(b, v, 4);
}

static inline void put_u64(struct bytes *b, uint64_t v) {
    put_le(b, v, 8);
}

static inline void put_str(struct bytes *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static inline void put_head(struct bytes *b, uint32_t version, uint64_t tensors, uint64_t pairs) {
    b->n = 0;
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, pairs);
}

static inline void put_key(struct bytes *b, const char *key, uint32_t kind) {
    put_str(b, key);
    put_u32(b, kind);
}

static inline void put_kv_u32(struct bytes *b, const char *key, uint32_t v) {
    put_key(b, key, 4);
    put_u32(b, v);
}

static inline void put_kv_str(struct bytes *b, const char *key, const char *v) {
    put_key(b, key, 8);
    put_str(b, v);
}

static inline void put_kv_array(struct bytes *b, const char *key, uint32_t elem_kind, uint64_t count) {
    put_key(b, key, 9);
    put_u32(b, elem_kind);
    put_u64(b, count);
}

static inline void put_tensor(struct bytes *b, const char *name, uint32_t dims, const uint64_t *ne, uint32_t type,
                              uint64_t offset) {
    put_str(b, name);
    put_u32(b, dims);
    for (uint32_t i = 0; i < dims && i < 8; i++) put_u64(b, ne[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

/* Zeros up to a multiple of align. */
static inline void put_pad(struct bytes *b, size_t align) {
    while (b->n % align) put(b, "", 1);
}

/* n payload bytes that differ from place to place. */
static inline void put_payload(struct bytes *b, size_t n, uint8_t seed) {
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)(seed + i * 7);
        put(b, &byte, 1);
    }
}

#endif
