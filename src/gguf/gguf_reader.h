/*
 * Bounded reader for one GGUF file (versions 2 and 3, little-endian) held in memory, usually a read-only map.
 *
 * A pure parser: bytes in, struct out, no I/O. Every count, length, offset and alignment is checked against the bytes
 * left before it is used, so that after gguf_reader_new each view below stays inside the given memory.
 * The reader borrows the bytes: they must outlive it. It refuses duplicate keys and tensor names, nested arrays,
 * overlapping or out-of-file tensors, unknown value kinds and tensor types, more than 4 dimensions, zero-sized
 * dimensions, names over 63 bytes, a bad alignment, big-endian files and version 1, each by name.
 */
#ifndef GGUF_READER_H
#define GGUF_READER_H

#include "base/err.h"
#include "gguf/gguf_types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A view of bytes that are not NUL-terminated and may hold any byte. */
struct gguf_str {
    const char *data;
    size_t len;
};

struct gguf_kv {
    const char *key;      /* NUL-terminated; owned by the reader */
    uint32_t kind;        /* enum gguf_kind */
    uint32_t elem_kind;   /* for arrays */
    uint64_t count;       /* elements of an array, else 1 */
    const uint8_t *value; /* first byte of the value (of the first element), little-endian, maybe unaligned */
    size_t value_bytes;   /* bytes of all elements, length prefixes of strings included */
    const uint8_t *raw;   /* the whole pair as it stands in the file, key included, for exact copies */
    size_t raw_bytes;
};

struct gguf_tensor {
    const char *name; /* NUL-terminated; owned by the reader */
    uint32_t n_dims;  /* 1 to 4 */
    uint64_t ne[4];   /* unused dimensions are 1 */
    uint32_t type;
    uint64_t offset;     /* from the start of the data section */
    uint64_t bytes;      /* payload without padding */
    const uint8_t *data; /* payload, inside the file; NULL when the file holds none (gguf_reader_new_header) */
};

struct gguf_reader;

/* `name` (a path) is used in messages only and is copied. */
strata_err gguf_reader_new(const void *data, size_t len, const char *name, struct gguf_reader **out,
                           struct strata_errmsg *em);
/*
 * As gguf_reader_new, for a file that lists tensors whose payloads lie elsewhere: their data is NULL, and their offsets
 * are not looked at. gguf_reader_data_offset tells where the payloads would start.
 */
strata_err gguf_reader_new_header(const void *data, size_t len, const char *name, struct gguf_reader **out,
                                  struct strata_errmsg *em);
void gguf_reader_free(struct gguf_reader *r);

const char *gguf_reader_name(const struct gguf_reader *r);
uint32_t gguf_reader_version(const struct gguf_reader *r);
uint32_t gguf_reader_alignment(const struct gguf_reader *r);
uint64_t gguf_reader_data_offset(const struct gguf_reader *r);

size_t gguf_reader_kv_count(const struct gguf_reader *r);
const struct gguf_kv *gguf_reader_kv(const struct gguf_reader *r, size_t i);
/* NULL when there is no such key. Constant time. */
const struct gguf_kv *gguf_reader_find_kv(const struct gguf_reader *r, const char *key);

size_t gguf_reader_tensor_count(const struct gguf_reader *r);
const struct gguf_tensor *gguf_reader_tensor(const struct gguf_reader *r, size_t i);
const struct gguf_tensor *gguf_reader_find_tensor(const struct gguf_reader *r, const char *name);

/*
 * Typed getters. An absent key is an error only when `required`; otherwise *out is left untouched, so that the caller
 * presets the default. A key of the wrong kind is always an error that names the key and both kinds. Integers accept
 * every integer kind and refuse negative values; floats accept f32 and f64 and refuse values that are not finite.
 */
strata_err gguf_reader_get_u64(const struct gguf_reader *r, const char *key, bool required, uint64_t *out,
                               struct strata_errmsg *em);
/* As get_u64, and refuses values over UINT32_MAX. */
strata_err gguf_reader_get_u32(const struct gguf_reader *r, const char *key, bool required, uint32_t *out,
                               struct strata_errmsg *em);
strata_err gguf_reader_get_f32(const struct gguf_reader *r, const char *key, bool required, float *out,
                               struct strata_errmsg *em);
strata_err gguf_reader_get_bool(const struct gguf_reader *r, const char *key, bool required, bool *out,
                                struct strata_errmsg *em);
strata_err gguf_reader_get_str(const struct gguf_reader *r, const char *key, bool required, struct gguf_str *out,
                               struct strata_errmsg *em);
/* The pair of an array whose elements have the given kind; *out is NULL (when not required) if absent. */
strata_err gguf_reader_get_array(const struct gguf_reader *r, const char *key, bool required, uint32_t elem_kind,
                                 const struct gguf_kv **out, struct strata_errmsg *em);

/* Walks an array of strings in order: start with *cursor = 0; false at the end. */
bool gguf_reader_next_str(const struct gguf_kv *array, size_t *cursor, struct gguf_str *out);
/* Element i of a numeric array as a number; the index must be below count. Any integer kind / any float kind. */
int64_t gguf_reader_int_at(const struct gguf_kv *array, uint64_t i);
double gguf_reader_float_at(const struct gguf_kv *array, uint64_t i);

#endif
