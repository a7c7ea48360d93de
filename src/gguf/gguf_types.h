/* Names, block sizes and byte sizes of GGUF tensor types and metadata value kinds. One table; needs no ggml. */
#ifndef GGUF_TYPES_H
#define GGUF_TYPES_H

#include <stdbool.h>
#include <stdint.h>

/* Metadata value kinds, as numbered in the file. */
enum gguf_kind {
    GGUF_KIND_U8 = 0,
    GGUF_KIND_I8 = 1,
    GGUF_KIND_U16 = 2,
    GGUF_KIND_I16 = 3,
    GGUF_KIND_U32 = 4,
    GGUF_KIND_I32 = 5,
    GGUF_KIND_F32 = 6,
    GGUF_KIND_BOOL = 7,
    GGUF_KIND_STRING = 8,
    GGUF_KIND_ARRAY = 9,
    GGUF_KIND_U64 = 10,
    GGUF_KIND_I64 = 11,
    GGUF_KIND_F64 = 12,
    GGUF_KIND_COUNT
};

/* Tensor types that our own code names; every other id is known only to the table. */
enum { GGUF_TENSOR_F32 = 0, GGUF_TENSOR_F16 = 1, GGUF_TENSOR_Q8_0 = 8, GGUF_TENSOR_I32 = 26, GGUF_TENSOR_BF16 = 30 };

struct gguf_tensor_type {
    const char *name;     /* "Q4_K", NULL for an unused id */
    uint32_t block_elems; /* elements per block; ne[0] must be a multiple */
    uint32_t block_bytes;
};

/* The table row of a tensor type id, or NULL when the id is unknown or was removed from the format. */
const struct gguf_tensor_type *gguf_types_tensor(uint32_t id);
/* "Q4_K", or "type 77" style text is the caller's: NULL for an unknown id. */
const char *gguf_types_tensor_name(uint32_t id);
/* The id of a name such as "q4_1" (any case), or -1. */
int gguf_types_tensor_id(const char *name);
/* Bytes of a tensor; false when the type is unknown, ne[0] is not a multiple of the block, or the size overflows. */
bool gguf_types_tensor_bytes(uint32_t id, const uint64_t ne[4], uint64_t *bytes);

/* Bytes of a fixed-size kind, 0 for strings, arrays and unknown kinds. */
uint32_t gguf_types_kind_bytes(uint32_t kind);
const char *gguf_types_kind_name(uint32_t kind);

#endif
