/*
 * Runs one layer range of a model on ggml, for one or many sequences.
 *
 * The first stage takes token ids, every other one takes hidden states; the last stage gives logits, every other one
 * gives hidden states. Hidden states are f32, row-major [n_tokens][n_embd]: the frame format between stages.
 * An engine is used by one thread at a time. A model cut at any layer computes bit for bit what the uncut model
 * computes, provided that the same tokens are fed in the same batches.
 *
 * Sequences are numbered from 0 to n_seq - 1; each has its own positions and its own memory, which becomes resident as
 * positions are used and is given back by engine_truncate to 0. What a sequence computes does not depend on its number.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "package/pkg_model.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Types of the cache of keys and values, from exact and large to coarse and small. */
enum engine_kv_type { ENGINE_KV_F16, ENGINE_KV_F32, ENGINE_KV_BF16, ENGINE_KV_Q8_0, ENGINE_KV_Q4_0, ENGINE_KV_COUNT };

/* "f16", "f32", "bf16", "q8_0", "q4_0". */
const char *engine_kv_name(enum engine_kv_type t);
/* False when the name is none of these. */
bool engine_kv_parse(const char *name, enum engine_kv_type *out);

struct engine_options {
    uint32_t n_ctx;      /* positions of a sequence; 0: the model's context length, at most 4096 */
    uint32_t n_seq;      /* sequences; 0: 1 */
    uint32_t n_pool;     /* positions of all sequences together; 0: n_ctx * n_seq, which is the most */
    uint32_t n_batch;    /* most tokens in one run; 0: 512 */
    uint32_t max_logits; /* most rows of logits from one run of the last stage; 0: n_batch. 1 saves scratch memory */
    uint32_t n_threads;  /* 0: all cores */
    enum engine_kv_type kv_type;
    bool keep_mapped;        /* weights stay in the file's pages: less private memory, slower products */
    bool settle_later;       /* the engine is made sooner, and engine_settle is called between runs */
    const char *backend_dir; /* folder with ggml's backends; NULL: the one Strata was built with */
    bool profile;            /* time every operation: slower; see engine_profile */
    bool over_memory; /* load even weights that do not fit the memory: they are read from the disk over and over */
    /* What computes: "cpu" (NULL), "auto" or a device's name; see model_device.h, which lists them. */
    const char *device;
    FILE *progress; /* where the loading of weights shows how far it is; NULL: nowhere */
};

/* What a loaded range is and what it costs, in bytes. */
struct engine_info {
    char arch[32];
    uint32_t layer_count; /* layers of the whole model that are run (trunk) */
    struct pkg_range range;
    bool is_first, is_last;
    uint32_t n_embd, n_vocab, n_ctx, n_ctx_train, n_seq, n_pool, n_batch, n_threads;
    uint64_t weight_bytes;   /* tensors of this range, mapped or copied */
    uint64_t copied_bytes;   /* of these, copied as they are: for large pages, or for their alignment */
    uint64_t repacked_bytes; /* of these, copied in the order that the processor's kernels like best */
    uint64_t device_bytes;   /* of these, copied to a device with memory of its own */
    uint64_t both_bytes;     /* of these, on both sides: the table of a tied model, counted once in weight_bytes */
    uint64_t token_bytes;    /* of the weights, read to compute one token: of experts only those that it uses */
    uint64_t kv_bytes;       /* state of all sequences when n_pool positions are used; on a device: all of it */
    uint64_t scratch_bytes;  /* compute buffers, and where inputs and results are made ready for either side */
    uint64_t device_scratch_bytes; /* of these, on a device with memory of its own */
    /* Whether that memory is another than main memory, and how much of it was free before anything was taken:
     * UINT64_MAX when the device does not tell. */
    bool is_apart;
    uint64_t device_free;
    char device[64]; /* what computes: "CPU", "Vulkan0" */
    /* Operations of the batch that was run last, and those of them that the CPU computes for the device. */
    uint32_t ops, host_ops;
    /* The device and the instruction sets that its kernels were built for, such as "CPU AVX2=1 FMA=1", or its make:
     * those for which this text is the same round the same way. */
    char backend[256];
};

struct engine;
struct engine_profile;

/*
 * What an engine of these options would be and cost: exactly what engine_info says after engine_new. Of the model's
 * file only headers are read, and no memory is taken, so that it takes milliseconds whatever the size. Refuses what
 * engine_new refuses, but for weights whose values are no numbers, and for memory that is not there.
 * On a device too: it is opened and asked, and nothing is taken of its memory. How it rounds the size of tensors up is
 * not counted with the weights, and with several sequences scratch can grow there when batches mix in a way that needs
 * more than the largest ones (engine_info tells; a batch that finds no room is refused).
 */
strata_err engine_measure(const struct pkg_model *m, const struct engine_options *opt, struct engine_info *out,
                          struct strata_errmsg *em);
/* Weights, state and scratch together, on all sides. */
uint64_t engine_info_bytes(const struct engine_info *i);
/* Whether copies of all weights fit beside the file's pages, which a program that starts anew then finds in memory. */
bool engine_info_fits_twice(const struct engine_info *i, uint64_t available);
/* ENOMEM when what lies in main memory is more than the `available` bytes of it, or what lies on a device apart is more
 * than it had free: it tells of each, and what to lower. over_memory as in the options: it helps mapped weights only.
 */
strata_err engine_info_fits(const struct engine_info *i, bool over_memory, uint64_t available,
                            struct strata_errmsg *em);

/*
 * Borrows m, which must outlive the engine. Everything is validated before ggml is called, and engine_info_fits is
 * asked before any weight is read.
 */
strata_err engine_new(const struct pkg_model *m, const struct engine_options *opt, struct engine **out,
                      struct strata_errmsg *em);
void engine_free(struct engine *e);
const struct engine_info *engine_info(const struct engine *e);
/* Where time went so far, to be read with engine_profile.h; NULL unless the engine was made with options.profile. */
struct engine_profile *engine_profile(const struct engine *e);

/*
 * With options.settle_later: weights that are copied as they are, not repacked, are still in the file's pages when the
 * engine is made, so that a first result need not wait for their copies. They settle into memory of their own, where
 * they are read faster, by calls of engine_settle, each of which copies about `bytes` more and takes a few milliseconds
 * for each 64 MiB, or ten times that where the system has to find fresh memory. Results are the same, bit for bit,
 * whatever has settled; engine_info tells what the engine takes when all has. Returns whether something is left to do;
 * when nothing is, a call costs nothing.
 */
bool engine_settle(struct engine *e, uint64_t bytes);

enum engine_output { ENGINE_OUT_NONE, ENGINE_OUT_LAST, ENGINE_OUT_ALL };

/* Tokens of one sequence. */
struct engine_batch {
    uint32_t seq;
    uint32_t pos;          /* position of the first token; must be the number of positions the sequence has */
    uint32_t n_tokens;     /* at least 1 */
    const int32_t *tokens; /* n_tokens ids, first stage only; else NULL */
    const float *hidden;   /* n_tokens * n_embd floats, other stages only; else NULL */
    enum engine_output
        want; /* last stage: logits of no, the last or every token. Other stages always give all hidden states. */
};

/*
 * Runs a batch. *out is a view into the engine, valid until the next call: logits [rows][n_vocab] on the last stage
 * (rows is 0, 1 or n_tokens), hidden states [n_tokens][n_embd] elsewhere. Results that are no numbers are an error that
 * names the layer they come from; the sequence is then as it was before.
 */
strata_err engine_run(struct engine *e, const struct engine_batch *b, const float **out, struct strata_errmsg *em);

/* Most sequences in one run. */
enum { ENGINE_MAX_BATCHES = 64 };

/*
 * Runs several batches, of different sequences, in one graph: at most n_batch tokens together. out[i] belongs to
 * batches[i], and is NULL where no rows were wanted.
 */
strata_err engine_run_many(struct engine *e, const struct engine_batch *batches, uint32_t n, const float **out,
                           struct strata_errmsg *em);

/* Positions that a sequence has. */
uint32_t engine_pos(const struct engine *e, uint32_t seq);
/* Forgets the positions from `pos` on (0: starts afresh and gives the memory back). Layers that keep only a window can
 * go back by as many positions as a batch may have, counted from the last one ever computed, and not behind the end of
 * rows that were loaded; EINVAL beyond that. */
strata_err engine_truncate(struct engine *e, uint32_t seq, uint32_t pos, struct strata_errmsg *em);

/*
 * The state of positions [first, end) of a sequence as bytes: what engine_load_rows needs, after the state of [0,
 * first), to go on from `end` as if the tokens had been run here. Only the last n_batch positions of a sequence can be
 * saved from layers that keep a window.
 */
uint64_t engine_rows_bytes(const struct engine *e, uint32_t first, uint32_t end);
strata_err engine_save_rows(const struct engine *e, uint32_t seq, uint32_t first, uint32_t end, void *out,
                            struct strata_errmsg *em);
/* Puts saved rows back: first must be the number of positions the sequence has; afterwards it has `end`. */
strata_err engine_load_rows(struct engine *e, uint32_t seq, uint32_t first, uint32_t end, const void *in,
                            struct strata_errmsg *em);

/* Names of the architectures that can be run, comma-separated. */
const char *engine_architectures(void);

#endif
