/*
 * Loads a layer range and builds its graphs: what all architectures have in common. See model.h.
 *
 * Owns the hyper-parameters and the weights. Refuses unknown architectures, and metadata that does not fit the tensors.
 */
#include "model/model.h"

#include <string.h>

static strata_err find_arch(const struct gguf_reader *meta, const struct arch **out, struct strata_errmsg *em) {
    struct gguf_str name = {NULL, 0};
    strata_err rc = gguf_reader_get_str(meta, "general.architecture", true, &name, em);
    if (rc) return rc;
    *out = arch_find(name.data, name.len);
    if (*out) return STRATA_OK;
    return err_set(em, STRATA_EUNSUPPORTED, "architecture '%.*s' is not supported; Strata can run: %s",
                   (int)(name.len > 64 ? 64 : name.len), name.data, arch_names());
}

/* The vocabulary's size by the embedding when the metadata has no token list. */
static void vocab_from_embedding(struct model_hparams *hp, const struct pkg_model *pkg) {
    static const char *const names[] = {"token_embd.weight", "output.weight"};
    for (size_t i = 0; i < 2 && hp->n_vocab == 0; i++) {
        const struct gguf_tensor *t = pkg_model_find(pkg, names[i]);
        if (t && t->ne[1] <= MODEL_MAX_VOCAB) hp->n_vocab = (uint32_t)t->ne[1];
    }
}

/* Tensors outside the blocks. */
static strata_err load_ends(struct model_loader *ld, const struct arch *arch, struct strata_errmsg *em) {
    const char *output_norm = arch->output_norm ? arch->output_norm : "output_norm.weight";
    const struct model_hparams *hp = ld->hp;
    struct model_weights *w = ld->weights;
    uint64_t n_embd = hp->n_embd, n_vocab = hp->n_vocab;
    strata_err rc = STRATA_OK;
    if (ld->is_first)
        rc = model_weights_matrix(ld, MODEL_NO_LAYER, "token_embd.weight", n_embd, n_vocab, true, true, &w->token_embd,
                                  em);
    if (!rc && ld->is_last) {
        rc = model_weights_vector(ld, MODEL_NO_LAYER, output_norm, n_embd, true, &w->output_norm, em);
        if (!rc) rc = model_weights_linear(ld, MODEL_NO_LAYER, "output", n_embd, n_vocab, false, &w->output, em);
        if (!rc && !w->output.w)
            rc = model_weights_matrix(ld, MODEL_NO_LAYER, "token_embd.weight", n_embd, n_vocab, false, true,
                                      &w->output.w, em);
    }
    uint64_t pairs = hp->rope.n_rot / 2;
    if (!rc) rc = model_weights_vector(ld, MODEL_NO_LAYER, "rope_freqs.weight", pairs, false, &w->rope_freqs, em);
    if (!rc) rc = model_weights_vector(ld, MODEL_NO_LAYER, "rope_factors_long.weight", pairs, false, &w->rope_long, em);
    if (!rc)
        rc = model_weights_vector(ld, MODEL_NO_LAYER, "rope_factors_short.weight", pairs, false, &w->rope_short, em);
    /* A package may hand a stage these two for its neighbour's sake; they cost nothing unless they are read. */
    if (!rc) rc = model_weights_ignore(ld, MODEL_NO_LAYER, "token_embd.weight", em);
    if (!rc) rc = model_weights_ignore(ld, MODEL_NO_LAYER, output_norm, em);
    return rc;
}

static strata_err load_weights(struct model *m, const struct pkg_model *pkg, const struct model_backend *backend,
                               struct strata_errmsg *em) {
    struct model_loader ld = {.placed = NULL};
    strata_err rc = model_weights_begin(&ld, &m->weights, pkg, m->range, &m->hp, backend, em);
    if (!rc) rc = load_ends(&ld, m->arch, em);
    if (!rc && m->arch->load_ends) rc = m->arch->load_ends(&ld, em);
    for (uint32_t il = m->range.first; !rc && il < m->range.end; il++)
        rc = m->arch->load_layer(&ld, il, &m->weights.layer[il - m->range.first], em);
    if (!rc) rc = model_weights_finish(&ld, em);
    model_loader_deinit(&ld);
    return rc;
}

strata_err model_init(struct model *out, const struct pkg_model *pkg, const struct model_backend *backend,
                      struct strata_errmsg *em) {
    struct model m = {.range = pkg_model_range(pkg)};
    const struct gguf_reader *meta = pkg_model_meta(pkg);
    strata_err rc = find_arch(meta, &m.arch, em);
    if (!rc) rc = model_hparams_init(&m.hp, meta, m.arch->name, &m.arch->rules, em);
    if (!rc) rc = m.arch->check(&m.hp, meta, em);
    if (rc) goto out;
    if (pkg_model_layer_count(pkg) != m.hp.n_block) {
        rc = err_set(em, STRATA_EFORMAT, "%s.block_count is %u, but the model holds %u blocks", m.hp.arch,
                     (unsigned)m.hp.n_block, (unsigned)pkg_model_layer_count(pkg));
        goto out;
    }
    /* Blocks behind the trunk predict further tokens; they belong to the last range, and are not run by it. */
    if (m.range.end > m.hp.n_layer) m.range.end = m.hp.n_layer;
    if (m.range.first >= m.range.end) {
        rc = err_set(em, STRATA_EINVAL, "layers %u..%u cannot be run; the model has %u in its trunk",
                     (unsigned)pkg_model_range(pkg).first, (unsigned)pkg_model_range(pkg).end, (unsigned)m.hp.n_layer);
        goto out;
    }
    m.is_first = m.range.first == 0;
    m.is_last = m.range.end == m.hp.n_layer;
    vocab_from_embedding(&m.hp, pkg);
    if ((m.is_first || m.is_last) && m.hp.n_vocab == 0) {
        rc = err_set(em, STRATA_EFORMAT, "neither the metadata nor token_embd.weight tells the size of the vocabulary");
        goto out;
    }
    rc = load_weights(&m, pkg, backend, em);
    if (rc) goto out;
    *out = m;
out:
    if (rc) model_deinit(&m);
    return rc;
}

uint64_t model_token_bytes(const struct model *m) {
    const struct model_weights *w = &m->weights;
    uint64_t n = w->bytes;
    if (w->token_embd && w->token_embd != w->output.w)
        n -= ggml_nbytes(w->token_embd) - ggml_row_size(w->token_embd->type, w->token_embd->ne[0]);
    for (uint32_t i = 0; i < m->range.end - m->range.first; i++) {
        const struct model_layer *l = &w->layer[i];
        const struct ggml_tensor *experts[] = {l->gate_exps.w, l->up_exps.w, l->down_exps.w, l->gate_up_exps.w};
        for (size_t k = 0; k < sizeof experts / sizeof experts[0]; k++)
            if (experts[k]) n -= ggml_nbytes(experts[k]) / m->hp.moe.n_expert * (m->hp.moe.n_expert - m->hp.moe.n_used);
    }
    return n;
}

void model_deinit(struct model *m) {
    model_weights_deinit(&m->weights);
    model_hparams_deinit(&m->hp);
}

/*
 * Bounds of a graph. The richest layer (latent attention and grouped experts with biases and scales) takes under 160
 * tensors, views included, and 3 for each expert that is used; each further span adds under 30 to a layer.
 */
enum { TENSORS_PER_LAYER = 180, TENSORS_PER_EXPERT = 3, TENSORS_PER_SPAN = 32, TENSORS_AROUND = 64 };

size_t model_graph_tensors(const struct model *m, uint32_t n_spans) {
    size_t per_layer = TENSORS_PER_LAYER + (size_t)m->hp.moe.n_used * TENSORS_PER_EXPERT;
    per_layer += (size_t)n_spans * TENSORS_PER_SPAN;
    return (m->range.end - m->range.first) * per_layer + TENSORS_AROUND + (size_t)n_spans * (MODEL_BUILD_WINDOWS + 2);
}

size_t model_graph_nodes(const struct model *m, uint32_t n_spans) {
    return model_graph_tensors(m, n_spans);
}

static struct ggml_tensor *as_input(struct ggml_tensor *t, const char *name) {
    ggml_set_name(t, name);
    ggml_set_input(t);
    return t;
}

static struct ggml_tensor *input(struct model_build *b, enum ggml_type type, int64_t ne0, int64_t ne1,
                                 const char *name) {
    return as_input(ggml_new_tensor_2d(b->ctx, type, ne0, ne1), name);
}

/* The file's own factors, or the pair that long-context models bring: long ones when the run exceeds their training. */
static struct ggml_tensor *rope_factors(const struct model *m, uint32_t n_ctx) {
    const struct model_weights *w = &m->weights;
    if (w->rope_freqs) return w->rope_freqs;
    return n_ctx > m->hp.rope.n_ctx_orig ? w->rope_long : w->rope_short;
}

bool model_rotates_long(const struct model *m, uint32_t n_ctx) {
    struct ggml_tensor *f = rope_factors(m, n_ctx);
    return f && f == m->weights.rope_long;
}

/* One set of cells and masks for each kind of plane that the range has. */
static strata_err window_inputs(struct model_build *b, struct strata_errmsg *em) {
    const struct model_state *st = b->state;
    for (size_t i = 0; i < (size_t)(st->range.end - st->range.first) * MODEL_STATE_PLANES; i++) {
        const struct model_plane *p = &st->layer[i / MODEL_STATE_PLANES][i % MODEL_STATE_PLANES];
        uint32_t k = 0;
        while (k < b->n_windows && (b->window[k].window != p->window || b->window[k].rows != p->rows)) k++;
        if (!p->t || k < b->n_windows) continue;
        if (k == MODEL_BUILD_WINDOWS)
            return err_set(em, STRATA_EUNSUPPORTED, "layers with more than %d different windows", MODEL_BUILD_WINDOWS);
        struct model_window *w = &b->window[b->n_windows++];
        *w = (struct model_window){.window = p->window, .rows = p->rows};
        w->cells = input(b, GGML_TYPE_I64, b->n_tokens, 1, "cells");
        for (uint32_t g = 0; g < b->n_groups; g++) {
            const struct model_span *s = &b->span[b->group[g].first];
            uint32_t rows = model_state_visible(p, s->end);
            w->mask[g] = as_input(ggml_new_tensor_4d(b->ctx, GGML_TYPE_F16, rows, s->n, 1, b->group[g].n), "mask");
        }
    }
    return STRATA_OK;
}

/* Layers without attention are those that convolve. */
static void conv_inputs(struct model_build *b) {
    for (uint32_t il = b->state->range.first; il < b->state->range.end && b->hp->conv_len; il++)
        if (b->hp->layer[il].n_head_kv == 0) b->conv_plane_rows = b->state->layer[il - b->state->range.first][0].rows;
    if (b->conv_plane_rows == 0) return;
    for (uint32_t s = 0; s < b->n_spans; s++) {
        b->conv_rows[s] = input(b, GGML_TYPE_I32, b->hp->conv_len - 1, 1, "conv_rows");
        b->conv_keep[s] = input(b, GGML_TYPE_F32, 1, b->hp->conv_len - 1, "conv_keep");
    }
}

static strata_err make_inputs(const struct model *m, struct model_build *b, struct strata_errmsg *em) {
    b->pos = input(b, GGML_TYPE_I32, b->n_tokens, 1, "pos");
    if (m->is_last && b->n_out && b->n_out < b->n_tokens) {
        b->out_rows = input(b, GGML_TYPE_I32, b->n_out, 1, "out_rows");
        b->out_pos = input(b, GGML_TYPE_I32, b->n_out, 1, "out_pos");
    }
    model_build_group(b);
    conv_inputs(b);
    return window_inputs(b, em);
}

/* Logits of hidden states. */
static struct ggml_tensor *head(const struct model *m, struct model_build *b, struct ggml_tensor *x) {
    float cap = m->hp.logit_softcap;
    x = model_build_linear(b, &m->weights.output, model_build_norm(b, x, m->weights.output_norm));
    if (cap == 0) return x;
    return ggml_scale(b->ctx, ggml_tanh(b->ctx, ggml_scale(b->ctx, x, 1.0f / cap)), cap);
}

/* Names the tensors that were made since *last, so that it can be told where each belongs. */
static void name_part(const struct model_build *b, const char *part, uint32_t il, struct ggml_tensor **last) {
    if (!b->name_parts) return;
    struct ggml_tensor *t = *last ? ggml_get_next_tensor(b->ctx, *last) : ggml_get_first_tensor(b->ctx);
    for (; t; t = ggml_get_next_tensor(b->ctx, t)) {
        if (il == MODEL_NO_LAYER)
            ggml_set_name(t, part);
        else
            ggml_format_name(t, "%s.%u", part, (unsigned)il);
        *last = t;
    }
}

strata_err model_graph(const struct model *m, struct model_build *b, uint32_t n_ctx, struct ggml_tensor **out,
                       struct strata_errmsg *em) {
    struct ggml_tensor *x, *named = NULL;
    b->hp = &m->hp;
    b->w = &m->weights;
    b->rope_mode = m->arch->rope_mode;
    b->factors = rope_factors(m, n_ctx);
    if (m->is_first) {
        b->tokens = input(b, GGML_TYPE_I32, b->n_tokens, 1, "tokens");
        x = ggml_get_rows(b->ctx, m->weights.token_embd, b->tokens);
        if (m->hp.embd_scale != 1.0f) x = ggml_scale(b->ctx, x, m->hp.embd_scale);
    } else {
        b->hidden = input(b, GGML_TYPE_F32, m->hp.n_embd, b->n_tokens, "hidden");
        x = b->hidden;
    }
    strata_err rc = make_inputs(m, b, em);
    if (rc) return rc;
    name_part(b, "input", MODEL_NO_LAYER, &named);
    for (uint32_t il = m->range.first; il < m->range.end && x; il++) {
        if (b->borders) x = ggml_reshape_2d(b->ctx, x, x->ne[0], x->ne[1]);
        x = m->arch->build_layer(b, il, x);
        name_part(b, "blk", il, &named);
        if (!x || !b->layer_out) continue;
        b->layer_out[il - m->range.first] = x;
        ggml_set_output(x);
    }
    if (x && m->is_last) x = head(m, b, x);
    name_part(b, "output", MODEL_NO_LAYER, &named);
    if (x) {
        ggml_set_output(x);
        ggml_build_forward_expand(b->graph, x);
    }
    if (ggml_graph_n_nodes(b->graph) >= (int)model_graph_nodes(m, b->n_spans))
        return err_set(em, STRATA_EINTERNAL, "the graph of %s outgrew its bound", m->hp.arch);
    *out = x;
    return STRATA_OK;
}
