/* Inputs of graphs. See engine_input.h. Owns the staging memory. */
#include "engine/engine_input.h"

#include <stdlib.h>
#include <string.h>

struct sizes {
    size_t ids, cells, mask, hidden;
};

/* All numbers are bounded (batches by 2^14, rows and embeddings by 2^24): nothing wraps. */
static struct sizes sizes_of(uint32_t n_batch, uint32_t n_rows, uint32_t n_embd, bool is_first) {
    return (struct sizes){.ids = n_batch * sizeof(int32_t),
                          .cells = n_batch * sizeof(int64_t),
                          .mask = (size_t)n_batch * n_rows * sizeof(ggml_fp16_t),
                          .hidden = is_first ? 0 : (size_t)n_batch * n_embd * sizeof(float)};
}

uint64_t engine_inputs_bytes(uint32_t n_batch, uint32_t n_rows, uint32_t n_embd, bool is_first) {
    struct sizes s = sizes_of(n_batch, n_rows, n_embd, is_first);
    return (uint64_t)s.ids + s.cells + s.mask + s.hidden;
}

strata_err engine_inputs_init(struct engine_inputs *in, uint32_t n_batch, uint32_t n_rows, uint32_t n_embd,
                              bool is_first, struct strata_errmsg *em) {
    struct sizes s = sizes_of(n_batch, n_rows, n_embd, is_first);
    *in = (struct engine_inputs){.ids = malloc(s.ids),
                                 .cells = malloc(s.cells),
                                 .mask = malloc(s.mask),
                                 .hidden = is_first ? NULL : malloc(s.hidden)};
    if (in->ids && in->cells && in->mask && (is_first || in->hidden)) return STRATA_OK;
    engine_inputs_deinit(in);
    return err_nomem(em, "the inputs of a batch");
}

void engine_inputs_deinit(struct engine_inputs *in) {
    free(in->ids);
    free(in->cells);
    free(in->mask);
    free(in->hidden);
    *in = (struct engine_inputs){.ids = NULL};
}

/* An input that no operation uses (a one-layer range that only stores needs no mask) has no memory. */
static void set(struct ggml_tensor *t, const void *data, size_t bytes) {
    if (t && t->buffer) ggml_backend_tensor_set(t, data, 0, bytes);
}

static void set_tokens(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->b.n_spans; n += batches[i++].n_tokens)
        memcpy(in->ids + n, batches[i].tokens, batches[i].n_tokens * sizeof *in->ids);
    set(g->b.tokens, in->ids, n * sizeof *in->ids);
}

static void set_hidden(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches) {
    size_t width = (size_t)g->b.hidden->ne[0], n = 0;
    if (g->b.n_spans == 1) {
        set(g->b.hidden, batches[0].hidden, batches[0].n_tokens * width * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < g->b.n_spans; n += batches[i++].n_tokens)
        memcpy(in->hidden + n * width, batches[i].hidden, batches[i].n_tokens * width * sizeof(float));
    set(g->b.hidden, in->hidden, n * width * sizeof(float));
}

static void set_positions(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->b.n_spans; i++)
        for (uint32_t t = 0; t < batches[i].n_tokens; t++) in->ids[n++] = (int32_t)(batches[i].pos + t);
    set(g->b.pos, in->ids, n * sizeof *in->ids);
}

/* The kept rows are the last ones of each span: their numbers in the batch, then their positions. */
static void set_kept(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches) {
    if (!g->b.out_rows) return;
    for (int positions = 0; positions < 2; positions++) {
        uint32_t n = 0, first = 0;
        for (uint32_t i = 0; i < g->b.n_spans; first += g->b.span[i++].n)
            for (uint32_t k = g->b.span[i].n - g->b.span[i].n_out; k < g->b.span[i].n; k++)
                in->ids[n++] = (int32_t)(positions ? batches[i].pos + k : first + k);
        set(positions ? g->b.out_pos : g->b.out_rows, in->ids, n * sizeof *in->ids);
    }
}

/*
 * What the token at `pos` sees of a plane's rows: those of the last positions, its own included, up to the window. They
 * lie in a row, or in two pieces where a ring wraps, and a ring still holds all of them: it has room for a window and a
 * batch, and nobody goes back further than that. Rows of positions that were taken back are among the others.
 */
static void fill_row(ggml_fp16_t *row, const struct model_window *w, uint32_t n_rows, uint32_t pos) {
    const ggml_fp16_t hidden = 0xFC00; /* minus infinity */
    uint32_t n = w->window && w->window <= pos ? w->window : pos + 1;
    uint32_t first = (pos + 1 - n) % w->rows, head = w->rows - first;
    if (head > n) head = n;
    for (uint32_t r = 0; r < n_rows; r++) row[r] = hidden;
    memset(row + first, 0, head * sizeof *row);
    memset(row, 0, (n - head) * sizeof *row);
}

static void set_cells(struct engine_inputs *in, const struct engine_graph *g, const struct model_window *w,
                      const struct engine_batch *batches) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->b.n_spans; i++)
        for (uint32_t t = 0; t < batches[i].n_tokens; t++)
            in->cells[n++] = (int64_t)batches[i].seq * w->rows + (batches[i].pos + t) % w->rows;
    set(w->cells, in->cells, n * sizeof *in->cells);
}

/* Windows of convolutions have no masks in memory. */
static void set_masks(struct engine_inputs *in, const struct engine_graph *g, const struct model_window *w,
                      const struct engine_batch *batches) {
    for (uint32_t k = 0; k < g->b.n_groups; k++) {
        const struct model_group *group = &g->b.group[k];
        uint32_t n_rows = (uint32_t)w->mask[k]->ne[0];
        ggml_fp16_t *row = in->mask;
        if (!w->mask[k]->buffer) continue;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            for (uint32_t t = 0; t < batches[i].n_tokens; t++, row += n_rows)
                fill_row(row, w, n_rows, batches[i].pos + t);
        set(w->mask[k], in->mask, (size_t)(row - in->mask) * sizeof *row);
    }
}

/* Rows of the convolution's plane just before each span; those before the first position count as zeros. */
static void set_conv(const struct engine_graph *g, const struct engine_batch *batches) {
    int32_t rows[MODEL_MAX_CONV];
    float keep[MODEL_MAX_CONV];
    uint32_t past = g->b.conv_plane_rows ? g->b.hp->conv_len - 1 : 0;
    for (uint32_t i = 0; i < g->b.n_spans && past; i++) {
        for (uint32_t k = 0; k < past; k++) {
            int64_t pos = (int64_t)batches[i].pos - past + k;
            keep[k] = pos < 0 ? 0.0f : 1.0f;
            rows[k] = (int32_t)(batches[i].seq * g->b.conv_plane_rows + (pos < 0 ? 0 : pos % g->b.conv_plane_rows));
        }
        set(g->b.conv_rows[i], rows, past * sizeof *rows);
        set(g->b.conv_keep[i], keep, past * sizeof *keep);
    }
}

void engine_inputs_set(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches) {
    if (g->b.tokens) set_tokens(in, g, batches);
    if (g->b.hidden) set_hidden(in, g, batches);
    set_positions(in, g, batches);
    set_kept(in, g, batches);
    set_conv(g, batches);
    for (uint32_t k = 0; k < g->b.n_windows; k++) {
        set_cells(in, g, &g->b.window[k], batches);
        set_masks(in, g, &g->b.window[k], batches);
    }
}
