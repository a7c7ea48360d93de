/*
 * A model as files: one GGUF file, or a split set (<prefix>-00001-of-0000N.gguf), mapped read-only and checked as one.
 *
 * Any member of the set may be named; the siblings must stand beside it and agree (split.count, split.no,
 * split.tensors.count, distinct tensor names). Metadata is that of the first shard.
 */
#ifndef GGUF_SOURCE_H
#define GGUF_SOURCE_H

#include "gguf/gguf_reader.h"

struct gguf_source;

/* Whether a file's name ends like a split set's member (-00001-of-00002.gguf): programs look for the others then. */
bool gguf_source_is_split_name(const char *path);

strata_err gguf_source_open(const char *path, struct gguf_source **out, struct strata_errmsg *em);
void gguf_source_free(struct gguf_source *s);

size_t gguf_source_shard_count(const struct gguf_source *s);
const struct gguf_reader *gguf_source_shard(const struct gguf_source *s, size_t i);
/* File size in bytes and whole content of shard i. */
const void *gguf_source_shard_bytes(const struct gguf_source *s, size_t i, size_t *len);
const char *gguf_source_shard_path(const struct gguf_source *s, size_t i);

/* The reader whose metadata describes the model. */
const struct gguf_reader *gguf_source_meta(const struct gguf_source *s);

/* All tensors, in shard order, then file order. */
size_t gguf_source_tensor_count(const struct gguf_source *s);
const struct gguf_tensor *gguf_source_tensor(const struct gguf_source *s, size_t i, size_t *shard /* may be NULL */);
const struct gguf_tensor *gguf_source_find_tensor(const struct gguf_source *s, const char *name);

#endif
