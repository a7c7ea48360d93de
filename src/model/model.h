/*
 * A layer range of a model, ready to build graphs from: hyper-parameters, architecture and weights.
 *
 * Life cycle: model_init, model_graph any number of times, model_deinit. The package must outlive the model.
 */
#ifndef MODEL_H
#define MODEL_H

#include "model/arch.h"

struct model {
    const struct arch *arch;
    struct model_hparams hp;
    struct model_weights weights;
    struct pkg_range range;
    bool is_first, is_last;
};

/* Reads, checks and wraps everything that pkg's range needs. Errors name the key or the tensor. */
strata_err model_init(struct model *m, const struct pkg_model *pkg, const struct model_backend *backend,
                      struct strata_errmsg *em);
void model_deinit(struct model *m);

/* Bytes of the weights that computing one token reads: of experts only those that it uses, of the embedding a row. */
uint64_t model_token_bytes(const struct model *m);

/* Upper bounds for a graph of this range with n_spans sequences: tensors (nodes, inputs and views), and nodes. */
size_t model_graph_tensors(const struct model *m, uint32_t n_spans);
size_t model_graph_nodes(const struct model *m, uint32_t n_spans);

/*
 * Builds the graph of a batch into b, whose ctx, graph, state, spans, n_tokens and n_out the caller has set; fills in
 * the rest, inputs included. n_ctx is the run's context length, by which long-context models choose their rotation.
 * *out is the hidden states, the logits, or NULL when the last stage is asked for no rows. It is marked as an output.
 */
strata_err model_graph(const struct model *m, struct model_build *b, uint32_t n_ctx, struct ggml_tensor **out,
                       struct strata_errmsg *em);

/* Whether a run of this context length rotates by the factors for long contexts, which change what a state means. */
bool model_rotates_long(const struct model *m, uint32_t n_ctx);

#endif
