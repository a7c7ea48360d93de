/*
 * What a layer range remembers of its sequences: rows of numbers, one for each position, in planes.
 *
 * An attention layer has two planes, keys and values (one, where values are a part of the keys' rows). A layer that
 * looks back over a window only keeps a ring of rows, and so does a convolution over the last few positions: nothing
 * else is needed to go on from any position, to go back some positions, or to copy a sequence, so that one mechanism
 * serves every kind of state.
 *
 * A sequence lives in a slot. A plane is [width, rows * n_slots]; position p of slot s is in row s * rows + p % rows,
 * where rows is the context length for planes that keep everything, and the window plus a batch for rings. The memory
 * is mapped from the system and reads as zeros until written; it becomes resident as positions are used and is given
 * back when a slot is cleared. On a device with memory of its own all of it is taken at the start. A row that is masked
 * must never hold a NaN.
 */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model/model_backend.h"
#include "model/model_hparams.h"
#include "package/pkg_model.h"

#include <ggml.h>

enum { MODEL_STATE_STEP = 256, MODEL_STATE_PLANES = 2, MODEL_STATE_MAX_SLOTS = 256, MODEL_STATE_ZEROS = 1 << 20 };

/* What an architecture asks for. */
struct model_plane_dims {
    uint32_t width;  /* numbers in a row; 0: there is no such plane */
    uint32_t part;   /* numbers that are read on their own, such as a head's; divides the row or starts it */
    uint32_t window; /* positions that are looked back over, the current one included; 0: all */
    bool exact;      /* F32 whatever the type of the cache */
};

struct model_plane {
    struct ggml_tensor *t; /* NULL: there is no such plane */
    uint32_t rows;         /* of one slot */
    uint32_t window;       /* 0: all */
};

struct model_state {
    struct pkg_range range;
    struct model_plane (*layer)[MODEL_STATE_PLANES]; /* range.end - range.first entries */
    uint32_t n_slots;
    uint32_t n_rows; /* of a plane that keeps everything: n_ctx rounded up to MODEL_STATE_STEP */
    uint32_t slack;  /* positions beyond its window that a ring keeps: what can be gone back */
    enum ggml_type type;
    uint64_t bytes;      /* of address space, or of a device's memory */
    uint64_t pool_bytes; /* that can become resident: rings, and n_pool positions of the other planes; or all of it */
    /* Owned: */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    void *memory; /* mapped; NULL on a device with memory of its own */
    void *zeros;  /* MODEL_STATE_ZEROS bytes to write there; NULL in mapped memory */
};

struct model_state_options {
    uint32_t n_ctx;      /* positions of a sequence */
    uint32_t n_slots;    /* sequences; at least 1 */
    uint32_t n_batch;    /* most tokens of one sequence in one batch */
    uint32_t n_pool;     /* positions of all sequences together, by which the memory is judged */
    enum ggml_type type; /* F32, F16, BF16, Q8_0 or Q4_0 */
};

struct arch;

/* Fails with EINVAL, naming the layer, when rows are not whole blocks of a quantized type; with ENOMEM, telling how
 * much is asked for, when the system gives no address space. Whether the memory is there is for the caller to ask, who
 * knows what else is wanted. With a backend that only measures, the planes have their sizes and nothing behind them. */
strata_err model_state_init(struct model_state *st, const struct arch *arch, const struct model_hparams *hp,
                            struct pkg_range range, const struct model_backend *backend,
                            const struct model_state_options *opt, struct strata_errmsg *em);
void model_state_deinit(struct model_state *st);

/* Rows of a plane that a batch looks at when its last token stands at position end - 1: a multiple of the step, at most
 * the plane's rows. */
uint32_t model_state_visible(const struct model_plane *p, uint32_t end);

/* Gives a slot's memory back; its rows, of which those of positions below `end` may have been written, read as zeros
 * then. */
void model_state_clear(struct model_state *st, uint32_t slot, uint32_t end);

/* Makes the rows of positions [first, end) zeros again: after a batch that went wrong. */
void model_state_wipe(struct model_state *st, uint32_t slot, uint32_t first, uint32_t end);

/*
 * One plane's rows of positions [from, end), from a slot to a contiguous buffer and back. A ring holds the last `rows`
 * positions that were written to it. Returns the end of the buffer's part.
 */
char *model_state_save_rows(const struct model_plane *p, uint32_t slot, uint32_t from, uint32_t end, char *out);
const char *model_state_load_rows(const struct model_plane *p, uint32_t slot, uint32_t from, uint32_t end,
                                  const char *in);
/* The first position of [first, end) that a plane needs for going on from `end`. */
uint32_t model_state_needed_from(const struct model_plane *p, uint32_t first, uint32_t end);

/*
 * Copies rows of positions [first, end) between a slot and a contiguous buffer, plane after plane, layer by layer from
 * the range's first. Positions that a ring no longer holds, or does not need for going on from `end`, are left out:
 * model_state_rows_bytes counts exactly what is copied.
 */
uint64_t model_state_rows_bytes(const struct model_state *st, uint32_t first, uint32_t end);
void model_state_save(const struct model_state *st, uint32_t slot, uint32_t first, uint32_t end, void *out);
/* The first position to go on from once rows [first, end) are loaded: `first` when nothing of them was left out, so
 * that any position of them will do, else `end`. */
uint32_t model_state_whole_from(const struct model_state *st, uint32_t first, uint32_t end);
void model_state_load(struct model_state *st, uint32_t slot, uint32_t first, uint32_t end, const void *in);

#endif
