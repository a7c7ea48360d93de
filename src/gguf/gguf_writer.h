/*
 * Writes a GGUF version 3 file: the same input gives the same bytes, always.
 *
 * Life cycle: gguf_writer_new, any number of pairs and tensors, then gguf_writer_emit (or gguf_writer_to_file) as often
 * as wanted, gguf_writer_free; after a failed addition only gguf_writer_free may follow. Pairs and tensors stand in the
 * order in which they were added. Neither payloads nor pairs of a reader are copied: the tensor data, their names, and
 * the bytes of every reader that pairs were copied from must outlive the writer. What is held in memory is the tensor
 * list and the pairs that were added one by one.
 */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include "base/digest.h"
#include "base/progress.h"
#include "gguf/gguf_reader.h"

struct gguf_writer;

/* alignment: a power of two up to 2^20. It is recorded as general.alignment, the first pair. */
strata_err gguf_writer_new(uint32_t alignment, struct gguf_writer **out, struct strata_errmsg *em);
/* As gguf_writer_new, without that pair: the caller copies or adds general.alignment where it belongs. */
strata_err gguf_writer_new_bare(uint32_t alignment, struct gguf_writer **out, struct strata_errmsg *em);
void gguf_writer_free(struct gguf_writer *w);

/*
 * Copies every pair of r byte for byte, except general.alignment (this file has its own) and the split.* keys
 * (they would make the new file a member of a set). Keys that were added before are an error.
 */
strata_err gguf_writer_copy_kvs(struct gguf_writer *w, const struct gguf_reader *r, struct strata_errmsg *em);

/* One pair byte for byte, whatever its key: a view into the reader's bytes. */
strata_err gguf_writer_copy_kv(struct gguf_writer *w, const struct gguf_kv *kv, struct strata_errmsg *em);

/* Single pairs. A key that is there already is an error. */
strata_err gguf_writer_add_bool(struct gguf_writer *w, const char *key, bool v, struct strata_errmsg *em);
strata_err gguf_writer_add_u32(struct gguf_writer *w, const char *key, uint32_t v, struct strata_errmsg *em);
strata_err gguf_writer_add_i32(struct gguf_writer *w, const char *key, int32_t v, struct strata_errmsg *em);
strata_err gguf_writer_add_u64(struct gguf_writer *w, const char *key, uint64_t v, struct strata_errmsg *em);
strata_err gguf_writer_add_f32(struct gguf_writer *w, const char *key, float v, struct strata_errmsg *em);
strata_err gguf_writer_add_str(struct gguf_writer *w, const char *key, const char *v, struct strata_errmsg *em);
/* Arrays of n elements; the strings may hold any byte. */
strata_err gguf_writer_add_strs(struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n,
                                struct strata_errmsg *em);
strata_err gguf_writer_add_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n,
                                struct strata_errmsg *em);
strata_err gguf_writer_add_u64s(struct gguf_writer *w, const char *key, const uint64_t *v, size_t n,
                                struct strata_errmsg *em);
strata_err gguf_writer_add_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n,
                                struct strata_errmsg *em);
strata_err gguf_writer_add_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n,
                                struct strata_errmsg *em);

/*
 * Adds a tensor; its payload size follows from type and shape. data holds that many bytes. Refuses what the reader
 * would refuse: bad names, shapes, types, a name that is there already.
 */
strata_err gguf_writer_add_tensor(struct gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                                  uint32_t type, const void *data, struct strata_errmsg *em);

size_t gguf_writer_tensor_count(const struct gguf_writer *w);
/* Payload bytes without padding. */
uint64_t gguf_writer_tensor_bytes(const struct gguf_writer *w);
/*
 * Bytes of the whole file, of its header (padded: where the data section starts), and where tensor i (in the order of
 * addition) starts, counted from the start of the file. They hold as long as nothing more is added.
 */
uint64_t gguf_writer_file_size(const struct gguf_writer *w);
uint64_t gguf_writer_data_offset(const struct gguf_writer *w);
uint64_t gguf_writer_tensor_offset(const struct gguf_writer *w, size_t i);

/* Takes the next bytes of the file; an error stops the writing and is passed on. */
typedef strata_err (*gguf_writer_sink)(void *user, const void *data, size_t len, struct strata_errmsg *em);

/* Streams the file: header, then each payload in pieces, padded with zeros to the alignment, the last one too. */
strata_err gguf_writer_emit(const struct gguf_writer *w, gguf_writer_sink sink, void *user, struct strata_errmsg *em);
/* The header alone, padded: a file that ends where the data section would start. */
strata_err gguf_writer_emit_header(const struct gguf_writer *w, gguf_writer_sink sink, void *user,
                                   struct strata_errmsg *em);

/*
 * Writes the file at path, atomically (see file_atomic_begin), hashing in the same pass. *size is the file's size in
 * bytes. progress (may be NULL) is advanced by the bytes written.
 */
strata_err gguf_writer_to_file(const struct gguf_writer *w, const char *path, struct progress *progress,
                               uint8_t sha256[DIGEST_BYTES], uint64_t *size, struct strata_errmsg *em);

#endif
