/* Places and numbers of the snapshot format, for those who write and read it. See engine_snapshot.h. */
#ifndef ENGINE_SNAPSHOT_FORMAT_H
#define ENGINE_SNAPSHOT_FORMAT_H

#include <stdint.h>

#define SNAPSHOT_MAGIC "STRATASQ"

enum {
    SNAPSHOT_VERSION = 1,
    SNAPSHOT_AT_VERSION = 8,
    SNAPSHOT_AT_HEADER_BYTES = 12,
    SNAPSHOT_AT_MODEL = 16,
    SNAPSHOT_AT_ARCH = 48,
    SNAPSHOT_AT_TYPE = 80,
    SNAPSHOT_AT_POSITIONS = 84,
    SNAPSHOT_AT_EMBD = 88,
    SNAPSHOT_AT_LAYERS = 92,
    SNAPSHOT_AT_ROTATION = 96,
    SNAPSHOT_AT_TOKENS = 100,
    SNAPSHOT_AT_SECTIONS = 104,
    SNAPSHOT_FIXED = 112,
    SNAPSHOT_ARCH_BYTES = 32,
    SNAPSHOT_ENTRY = 48,
    SNAPSHOT_ENTRY_PLANE = 12,
    SNAPSHOT_ENTRY_OFFSET = 32,
    SNAPSHOT_ENTRY_BYTES = 40,
    SNAPSHOT_ALIGN = 32,
};

static inline void snapshot_put32(uint8_t *at, uint32_t v) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> 8 * i);
}

static inline void snapshot_put64(uint8_t *at, uint64_t v) {
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> 8 * i);
}

static inline uint32_t snapshot_get32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t snapshot_get64(const uint8_t *at) {
    return snapshot_get32(at) | (uint64_t)snapshot_get32(at + 4) << 32;
}

static inline uint64_t snapshot_pad(uint64_t n) {
    return (n + SNAPSHOT_ALIGN - 1) / SNAPSHOT_ALIGN * SNAPSHOT_ALIGN;
}

/* Bytes of a header; the counts must be bounded by 2^24 and 2^12. */
static inline uint64_t snapshot_header_bytes(uint32_t n_tokens, uint32_t n_sections) {
    return snapshot_pad(SNAPSHOT_FIXED + 4 * (uint64_t)n_tokens + SNAPSHOT_ENTRY * (uint64_t)n_sections);
}

#endif
