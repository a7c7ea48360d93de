/* Which kernel of attention rounds as ggml does here. See model_attn.h. Owns nothing. */
#include "model/model_attn_kernel.h"
#include "model/model_backend.h"
#include "model/model_own.h"

#include <string.h>

/* As few queries as ggml takes its tiles for, some more cells, and two heads. */
enum { DIM = 32, N = 64, N_KV = 2 * MODEL_ATTN_CELLS, HEADS = 2 };

/* The same attention, ours and ggml's. */
struct trial {
    struct ggml_context *ctx;
    struct model_attn_args args;
    struct ggml_tensor *ours, *theirs;
    ggml_backend_buffer_t buffer;
};

static bool begin_trial(struct trial *t, const struct model_attn *a, const struct model_backend *b) {
    struct ggml_init_params params = {
        .mem_size = 16 * ggml_tensor_overhead() + model_attn_overhead() + ggml_graph_overhead(), .no_alloc = true};
    struct model_attn_args *x = &t->args;
    t->ctx = ggml_init(params);
    if (!t->ctx) return false;
    *x = (struct model_attn_args){.scale = 1.0f / 3.0f};
    x->q = ggml_new_tensor_3d(t->ctx, GGML_TYPE_F32, DIM, N, HEADS);
    x->k = ggml_new_tensor_2d(t->ctx, GGML_TYPE_F16, DIM, N_KV);
    x->v = ggml_new_tensor_2d(t->ctx, GGML_TYPE_F16, DIM, N_KV);
    x->mask = ggml_new_tensor_2d(t->ctx, GGML_TYPE_F16, N_KV, N);
    x->sinks = ggml_new_tensor_1d(t->ctx, GGML_TYPE_F32, HEADS);
    t->ours = model_attn(t->ctx, a, x);
    t->theirs = ggml_flash_attn_ext(t->ctx, x->q, x->k, x->v, x->mask, x->scale, 0.0f, 0.0f);
    ggml_prec_set_acc(t->theirs, GGML_PREC_F32);
    ggml_flash_attn_ext_add_sinks(t->theirs, x->sinks);
    t->buffer = ggml_backend_alloc_ctx_tensors(t->ctx, b->handle);
    return t->ours && t->buffer;
}

/* Scores range from what counts nothing to what counts alone. */
static void fill(const struct model_attn_args *x) {
    uint32_t seed = 1;
    float *q = x->q->data, *sinks = x->sinks->data;
    ggml_fp16_t *rows[] = {x->k->data, x->v->data};
    uint16_t *mask = x->mask->data;
    for (int i = 0; i < DIM * N * HEADS; i++) q[i] = 32.0f * model_own_number(&seed);
    for (int i = 0; i < 2 * DIM * N_KV; i++)
        rows[i / (DIM * N_KV)][i % (DIM * N_KV)] = ggml_fp32_to_fp16(model_own_number(&seed));
    for (int i = 0; i < N * N_KV; i++) mask[i] = i % N_KV <= MODEL_ATTN_CELLS + i / N_KV - 5 ? 0 : 0xfc00;
    for (int i = 0; i < HEADS; i++) sinks[i] = i ? 100.0f : 25.0f; /* above and below the largest scores */
}

/* Whether a's kernel gives ggml's result, to the last bit. */
static bool same_result(const struct model_attn *a, const struct model_backend *b) {
    struct trial t = {.ctx = NULL};
    bool same = false;
    if (!begin_trial(&t, a, b)) goto out;
    fill(&t.args);
    struct ggml_cgraph *graph = ggml_new_graph(t.ctx);
    ggml_build_forward_expand(graph, t.ours);
    ggml_build_forward_expand(graph, t.theirs);
    same = ggml_backend_graph_compute(b->handle, graph) == GGML_STATUS_SUCCESS &&
           memcmp(t.ours->data, t.theirs->data, ggml_nbytes(t.theirs)) == 0;
out:
    if (t.buffer) ggml_backend_buffer_free(t.buffer);
    if (t.ctx) ggml_free(t.ctx);
    return same;
}

void model_attn_find(struct model_attn *out, const struct model_backend *b) {
    struct model_attn a = {.n_threads = b->n_threads};
    int i = 0;
    while ((a.kernel = model_attn_kernel(i)) && !same_result(&a, b)) i++;
    *out = a;
}
