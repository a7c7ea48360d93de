/*
 * ggml's backends: found at run time, one device chosen, threads set.
 *
 * ggml keeps its list of backends for the whole process; the first model_backend_init loads it, later ones reuse it.
 * A model_backend is one computing stream: it belongs to one engine and is used by one thread at a time.
 */
#ifndef MODEL_BACKEND_H
#define MODEL_BACKEND_H

#include "base/err.h"

#include <ggml-backend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_BACKEND_MAX_THREADS = 512 };

struct model_backend {
    ggml_backend_dev_t dev;
    ggml_backend_t handle;
    ggml_backend_buffer_type_t buft;
    size_t alignment; /* that an address of a tensor must have */
    uint32_t n_threads;
    /* Only to measure: tensors of weights and state get addresses, but nothing is read, mapped or taken for them. Set
     * by the caller after model_backend_init. */
    bool dry;
    bool keep_mapped; /* matrices stay as they are in the file; see model_repack.h. Set by the owner */
};

/*
 * Call at the start of a program that computes, before anything else. ggml's threads wait for each other several
 * hundred times per token, and OpenMP's default is to wait by spinning for long: on cores that are shared with anything
 * else (a second stage, say) that costs up to ten times the speed. The length of the spin is read from the environment
 * when the program is loaded, so this sets it and starts the program anew, once. A user's own OMP_WAIT_POLICY or
 * GOMP_SPINCOUNT is left alone. Returns when there is nothing to do or when it cannot be done.
 */
void model_backend_tune_process(char **argv);

/* dir: folder with ggml's backend libraries, or NULL for the one Strata was built with. n_threads 0: every core that
 * this process may use. */
strata_err model_backend_init(struct model_backend *b, const char *dir, uint32_t n_threads, struct strata_errmsg *em);
void model_backend_deinit(struct model_backend *b);

/* Writes the device's name and its features ("CPU AVX2=1 ...") into out, cut to fit. Returns out. */
const char *model_backend_describe(const struct model_backend *b, char *out, size_t cap);

/*
 * Whether weights of a type can be multiplied with (rows false) or looked up in by row (rows true). ggml aborts on a
 * type that it cannot compute with, so this is asked for every matrix before any graph is built.
 */
bool model_backend_can_use(const struct model_backend *b, uint32_t type, bool rows);

/* Bytes of main memory that could be had now without swapping (see base/memory.h). */
uint64_t model_backend_memory_available(void);

#endif
