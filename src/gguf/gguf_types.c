/*
 * The table of tensor types and metadata kinds of the GGUF format. See gguf_types.h. Owns nothing.
 * Ids that were removed from the format have no row: a file that uses one is refused by the reader.
 */
#include "gguf/gguf_types.h"

#include "base/checked.h"

#include <stddef.h>
#include <strings.h>

/* Block sizes are part of the file format; the unit test compares them with those of the ggml we link. */
static const struct gguf_tensor_type tensor_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},      [3] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},
    [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},    [41] = {"Q1_0", 128, 18},    [42] = {"Q2_0", 64, 18},
};

enum { TENSOR_TYPES = sizeof tensor_types / sizeof tensor_types[0] };

const struct gguf_tensor_type *gguf_types_tensor(uint32_t id) {
    if (id >= TENSOR_TYPES || !tensor_types[id].name) return NULL;
    return &tensor_types[id];
}

const char *gguf_types_tensor_name(uint32_t id) {
    const struct gguf_tensor_type *t = gguf_types_tensor(id);
    return t ? t->name : NULL;
}

int gguf_types_tensor_id(const char *name) {
    for (int i = 0; i < TENSOR_TYPES; i++)
        if (tensor_types[i].name && strcasecmp(tensor_types[i].name, name) == 0) return i;
    return -1;
}

bool gguf_types_tensor_bytes(uint32_t id, const uint64_t ne[4], uint64_t *bytes) {
    const struct gguf_tensor_type *t = gguf_types_tensor(id);
    if (!t || ne[0] % t->block_elems != 0) return false;
    uint64_t elems = 1;
    for (int i = 0; i < 4; i++)
        if (!checked_mul(elems, ne[i], &elems)) return false;
    uint64_t n;
    if (!checked_mul(elems / t->block_elems, t->block_bytes, &n)) return false;
    /* ggml counts elements and bytes in signed 64-bit numbers. */
    if (elems > INT64_MAX || n > INT64_MAX) return false;
    *bytes = n;
    return true;
}

static const struct {
    const char *name;
    uint32_t bytes;
} kinds[GGUF_KIND_COUNT] = {
    [GGUF_KIND_U8] = {"u8", 1},       [GGUF_KIND_I8] = {"i8", 1},     [GGUF_KIND_U16] = {"u16", 2},
    [GGUF_KIND_I16] = {"i16", 2},     [GGUF_KIND_U32] = {"u32", 4},   [GGUF_KIND_I32] = {"i32", 4},
    [GGUF_KIND_F32] = {"f32", 4},     [GGUF_KIND_BOOL] = {"bool", 1}, [GGUF_KIND_STRING] = {"string", 0},
    [GGUF_KIND_ARRAY] = {"array", 0}, [GGUF_KIND_U64] = {"u64", 8},   [GGUF_KIND_I64] = {"i64", 8},
    [GGUF_KIND_F64] = {"f64", 8},
};

uint32_t gguf_types_kind_bytes(uint32_t kind) {
    return kind < GGUF_KIND_COUNT ? kinds[kind].bytes : 0;
}

const char *gguf_types_kind_name(uint32_t kind) {
    return kind < GGUF_KIND_COUNT ? kinds[kind].name : "unknown";
}
