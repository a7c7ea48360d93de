/*
 * One device of ggml's, opened for an engine: what computes, and where weights, state and results lie.
 *
 * On the CPU everything lies in main memory, in place: weights stay in the mapped file and results are read where they
 * were computed. Any other device has memory of its own: weights are copied there once, and the CPU stands by for the
 * operations that the device cannot compute.
 * A model_backend is one computing stream: it belongs to one engine and is used by one thread at a time.
 */
#ifndef MODEL_BACKEND_H
#define MODEL_BACKEND_H

#include "base/err.h"
#include "model/model_attn.h"
#include "model/model_rows.h"

#include <ggml-backend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { MODEL_BACKEND_MAX_THREADS = 512 };

/* What is copied to memory of our own when the CPU computes; see model_repack.h. */
enum model_backend_copies {
    MODEL_BACKEND_MAPPED, /* nothing: all stays in the file's pages */
    MODEL_BACKEND_PACKED, /* matrices for which the processor's kernels have an order of their own */
    MODEL_BACKEND_COPIED  /* all that every token reads */
};

struct model_backend {
    ggml_backend_dev_t dev;
    ggml_backend_t handle;
    ggml_backend_buffer_type_t buft;
    bool in_place;    /* tensors lie in main memory, where they can be read and written without ggml */
    size_t alignment; /* that an address in main memory must have to be that of a tensor */
    uint32_t n_threads;
    ggml_backend_dev_t host_dev; /* the CPU: dev itself when in_place */
    ggml_backend_t host;         /* NULL when in_place */
    struct model_rows rows;      /* the CPU's kernels; empty unless in_place */
    struct model_attn attn;      /* the same */
    /* Set by the owner after model_backend_init: */
    bool dry; /* only to measure: tensors of weights and state get addresses, but nothing is read or taken */
    enum model_backend_copies copies;
    bool settle_later; /* copies that change no number wait until model_weights_settle makes them */
    FILE *progress;    /* where the loading of weights shows how far it is; NULL: nowhere */
};

/*
 * Call at the start of a program that computes, before anything else. ggml's threads wait for each other several
 * hundred times per token, and OpenMP's default is to wait by spinning for long: on cores that are shared with anything
 * else (a second stage, say) that costs up to ten times the speed. The length of the spin is read from the environment
 * when the program is loaded, so this sets it and starts the program anew, once. A user's own setting of how
 * OpenMP's threads wait or where they run is left alone. Returns when there is nothing to do or when it cannot be done.
 */
void model_backend_tune_process(char **argv);

/* dir: folder with ggml's backend libraries, or NULL for the one Strata was built with. device: a name for
 * model_device_find, or NULL for the CPU. n_threads 0: every core that this process may use. */
strata_err model_backend_init(struct model_backend *b, const char *dir, const char *device, uint32_t n_threads,
                              struct strata_errmsg *em);
void model_backend_deinit(struct model_backend *b);

/* Writes what computes into out, cut to fit: a processor's features ("CPU AVX2=1 ..."), a card's make. Returns out. */
const char *model_backend_describe(const struct model_backend *b, char *out, size_t cap);

enum model_backend_use {
    MODEL_BACKEND_MULTIPLY, /* with a vector */
    MODEL_BACKEND_EXPERTS,  /* one of a stack, chosen for each vector */
    MODEL_BACKEND_LOOK_UP,  /* by row */
    MODEL_BACKEND_STORE     /* rows of F32 are written to it */
};

/*
 * Whether the device (on_host: the CPU that stands by) can use tensors of a type in this way. ggml aborts on a type
 * that it cannot compute with, so this is asked for every matrix before any graph is built.
 */
bool model_backend_can_use(const struct model_backend *b, uint32_t type, enum model_backend_use use, bool on_host);

/* Bytes of the device's memory that are free; UINT64_MAX when it does not tell. */
uint64_t model_backend_memory_free(const struct model_backend *b);

/* Bytes of main memory that could be had now without swapping (see base/memory.h). */
uint64_t model_backend_memory_available(void);

#endif
