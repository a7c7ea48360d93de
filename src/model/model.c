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
static strata_err load_ends(struct model_loader *ld, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    struct model_weights *w = ld->weights;
    uint64_t n_embd = hp->n_embd, n_vocab = hp->n_vocab;
    strata_err rc = STRATA_OK;
    if (ld->is_first)
        rc = model_weights_matrix(ld, MODEL_NO_LAYER, "token_embd.weight", n_embd, n_vocab, true, true, &w->token_embd,
                                  em);
    if (!rc && ld->is_last) {
        rc = model_weights_vector(ld, MODEL_NO_LAYER, "output_norm.weight", n_embd, true, &w->output_norm, em);
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
    /* A package may hand a stage the embedding for its neighbour's sake; it costs nothing unless it is read. */
    if (!rc) rc = model_weights_ignore(ld, MODEL_NO_LAYER, "token_embd.weight", em);
    return rc;
}

static strata_err load_weights(struct model *m, const struct pkg_model *pkg, const struct model_backend *backend,
                               struct strata_errmsg *em) {
    struct model_loader ld = {.placed = NULL};
    strata_err rc = model_weights_begin(&ld, &m->weights, pkg, &m->hp, backend, em);
    if (!rc) rc = load_ends(&ld, em);
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
    if (!rc) rc = model_hparams_init(&m.hp, meta, m.arch->name, em);
    if (!rc) rc = m.arch->check(&m.hp, meta, em);
    if (rc) goto out;
    if (pkg_model_layer_count(pkg) != m.hp.n_block) {
        rc = err_set(em, STRATA_EFORMAT, "%s.block_count is %u, but the model holds %u blocks", m.hp.arch,
                     (unsigned)m.hp.n_block, (unsigned)pkg_model_layer_count(pkg));
        goto out;
    }
    if (m.range.first >= m.range.end || m.range.end > m.hp.n_layer) {
        rc = err_set(em, STRATA_EINVAL, "layers [%u, %u) cannot be run; the model has %u", (unsigned)m.range.first,
                     (unsigned)m.range.end, (unsigned)m.hp.n_layer);
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

void model_deinit(struct model *m) {
    model_weights_deinit(&m->weights);
    model_hparams_deinit(&m->hp);
}

/* The richest layer (biases and scales everywhere) takes under 60 tensors, views included. */
enum { TENSORS_PER_LAYER = 80, TENSORS_AROUND = 64 };

size_t model_graph_tensors(const struct model *m) {
    return (size_t)(m->range.end - m->range.first) * TENSORS_PER_LAYER + TENSORS_AROUND;
}

size_t model_graph_nodes(const struct model *m) {
    return model_graph_tensors(m);
}

static struct ggml_tensor *input(struct model_build *b, enum ggml_type type, int64_t ne0, int64_t ne1,
                                 const char *name) {
    struct ggml_tensor *t = ggml_new_tensor_2d(b->ctx, type, ne0, ne1);
    ggml_set_name(t, name);
    ggml_set_input(t);
    return t;
}

/* The file's own factors, or the pair that long-context models bring: long ones when the run exceeds their training. */
static struct ggml_tensor *rope_factors(const struct model *m, uint32_t n_ctx) {
    const struct model_weights *w = &m->weights;
    if (w->rope_freqs) return w->rope_freqs;
    return n_ctx > m->hp.rope.n_ctx_orig ? w->rope_long : w->rope_short;
}

strata_err model_graph(const struct model *m, struct model_build *b, uint32_t n_ctx, struct ggml_tensor **out,
                       struct strata_errmsg *em) {
    int64_t n = b->n_tokens;
    struct ggml_tensor *x;
    b->hp = &m->hp;
    b->w = &m->weights;
    b->rope_mode = m->arch->rope_mode;
    b->factors = rope_factors(m, n_ctx);
    if (m->is_first) {
        b->tokens = input(b, GGML_TYPE_I32, n, 1, "tokens");
        x = ggml_get_rows(b->ctx, m->weights.token_embd, b->tokens);
    } else {
        b->hidden = input(b, GGML_TYPE_F32, m->hp.n_embd, n, "hidden");
        x = b->hidden;
    }
    b->pos = input(b, GGML_TYPE_I32, n, 1, "pos");
    b->cells = input(b, GGML_TYPE_I64, n, 1, "cells");
    b->mask = input(b, GGML_TYPE_F16, b->n_kv, n, "mask");
    for (uint32_t il = m->range.first; il < m->range.end && x; il++) x = m->arch->build_layer(b, il, x);
    if (x && m->is_last) x = model_build_linear(b, &m->weights.output, model_build_norm(b, x, m->weights.output_norm));
    if (x) {
        ggml_set_output(x);
        ggml_build_forward_expand(b->graph, x);
    }
    if (ggml_graph_n_nodes(b->graph) >= (int)model_graph_nodes(m))
        return err_set(em, STRATA_EINTERNAL, "the graph of %s outgrew its bound", m->hp.arch);
    *out = x;
    return STRATA_OK;
}
