/*
 * mkmodel's parts: small model files with random weights, for tests, benches and demos.
 *
 * An architecture is an entry of the table in mk_archs.c: what it presets, its own keys, the tensors of a block. The
 * order in which tensors are made is the order of the random numbers, so it must not change: recorded results depend on
 * the bytes.
 */
#ifndef MK_H
#define MK_H

#include "gguf/gguf_source.h"
#include "gguf/gguf_writer.h"

#include <stdbool.h>
#include <stdint.h>

enum { MK_MAX_TENSORS = 1 << 14, MK_NO_LAYER = -1 };

/* 0 in a number means that the architecture's preset, or the common one, counts. */
struct mk_options {
    const char *out, *vocab_file, *name, *arch, *rope;
    const char *variant;  /* words for the architecture, or "" */
    const char *quantize; /* "TYPE,PART-OF-NAME=TYPE,...", or NULL: matrices as they are made */
    uint64_t seed;
    uint32_t layers, embd, heads, kv_heads, head_dim, n_rot, ff, ctx, window, alignment, type;
    uint32_t experts, experts_used, expert_ff, shared, dense_layers, nextn;
    uint32_t groups, groups_used, q_rank, kv_rank;
    uint32_t vocab_size; /* at least so many tokens; 0: no more than the built-in vocabulary has */
    int embd_type;       /* of token_embd and output; -1: as the others */
    bool spm, tied, bias, scales, rope_freqs;
    bool repeat; /* a matrix repeats its first rows: fast to make, for big models whose numbers do not matter */
};

struct mk_model {
    struct mk_options opt;
    struct gguf_writer *w;
    struct gguf_source *vocab; /* borrowed from by w */
    uint64_t rng;
    uint32_t n_vocab;
    void *payload[MK_MAX_TENSORS];
    char name[MK_MAX_TENSORS][64];
    size_t n;
};

struct mk_arch {
    const char *name;
    /* Fills in what the command line left 0. May be NULL. */
    void (*preset)(struct mk_options *o);
    /* Adds the keys beyond the common ones. May be NULL. */
    strata_err (*keys)(struct mk_model *m, struct strata_errmsg *em);
    /* Adds the tensors of a block; blocks from opt.layers on are prediction heads. */
    strata_err (*block)(struct mk_model *m, int il, struct strata_errmsg *em);
    const char *output_norm; /* NULL: output_norm.weight */
    bool hybrid;             /* its keys tell attention.head_count_kv for each block */
};

/* NULL when the name is not known. */
const struct mk_arch *mk_arch_find(const char *name);

/* ---- mk_pack.c ---- */

/* Nearly normal with mean 0 and variance 1. */
double mk_normal(uint64_t *state);
/* Packs n values that lie `dev` around 0 into a type; returns what is wrong, or NULL. */
const char *mk_pack(uint32_t type, const float *x, uint64_t n, double dev, uint64_t *rng, uint8_t *dst);

/* ---- mk_quant.c: quantizing with ggml ---- */

/* The type that opt.quantize has for a matrix with rows of n_in: the last rule that fits counts; `type` stays where
 * none does and where a row is not whole blocks. False when the rules cannot be read. */
bool mk_quant_type(const struct mk_options *o, const char *tensor, uint64_t n_in, uint32_t *type);
/* Quantizes a row; returns what is wrong, or NULL. */
const char *mk_quant_row(uint32_t type, const float *x, uint64_t n, uint8_t *dst);

/* ---- mk_vocab.c: adds the tokenizer's keys, sets n_vocab ---- */

strata_err mk_vocab_builtin(struct mk_model *m, struct strata_errmsg *em);
strata_err mk_vocab_copy(struct mk_model *m, struct strata_errmsg *em);

/* ---- mk_tensor.c: keys and tensors ---- */

/* Keys go by their name without the architecture in front. */
strata_err mk_u32(struct mk_model *m, const char *name, uint32_t v, struct strata_errmsg *em);
strata_err mk_f32(struct mk_model *m, const char *name, float v, struct strata_errmsg *em);
strata_err mk_bool(struct mk_model *m, const char *name, bool v, struct strata_errmsg *em);
strata_err mk_str(struct mk_model *m, const char *name, const char *v, struct strata_errmsg *em);
/* One number for each block. */
strata_err mk_i32s(struct mk_model *m, const char *name, const int32_t *v, struct strata_errmsg *em);

/* Names are completed to "blk.<il>.<name>" unless il is MK_NO_LAYER. Values are base + dev * normal. */

/* An F32 vector. */
strata_err mk_vector(struct mk_model *m, int il, const char *name, uint64_t n, double base, double dev,
                     struct strata_errmsg *em);
/* A matrix, or `count` of them, of the given type. */
strata_err mk_matrix(struct mk_model *m, int il, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
                     uint64_t count, double dev, struct strata_errmsg *em);
/* A norm's weight: around 1. */
strata_err mk_norm(struct mk_model *m, int il, const char *name, uint64_t n, struct strata_errmsg *em);
/* "<name>.weight" of --type, keeping the variance of what passes through, "<name>.bias" when asked for, and
 * "<name>.scale" with --scales. */
strata_err mk_linear(struct mk_model *m, int il, const char *name, uint64_t n_in, uint64_t n_out, bool bias,
                     struct strata_errmsg *em);
/* The same for each of opt.experts. */
strata_err mk_experts(struct mk_model *m, int il, const char *name, uint64_t n_in, uint64_t n_out, bool bias,
                      struct strata_errmsg *em);

#endif
