/*
 * Claims of weights that many architectures share: one rule for each part of a layer.
 *
 * All names are those of GGUF files, all shapes follow from hp. See model_weights.h for what a claim is.
 */
#ifndef MODEL_LOAD_H
#define MODEL_LOAD_H

#include "model/model_weights.h"

/* attn_norm, and attn_q, attn_k, attn_v (or attn_qkv), attn_output, with biases and scales where there are any. */
strata_err model_load_attention(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em);
/* attn_q_norm and attn_k_norm, one weight for each dimension of a head. */
strata_err model_load_head_norms(struct model_loader *ld, uint32_t il, struct model_layer *l, bool required,
                                 struct strata_errmsg *em);
/* ffn_gate, ffn_up, ffn_down. */
strata_err model_load_ffn(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em);
/*
 * Forgets the scales of a layer's feed-forward products, routed and shared ones included, after they were claimed: for
 * architectures whose files are run without them elsewhere. Matrices of type NVFP4 keep theirs, which is a part of the
 * numbers.
 */
void model_load_no_ffn_scales(struct model_layer *l);
/* ffn_gate_inp, exp_probs_b, ffn_{gate,up,down}_exps (or ffn_gate_up_exps), and ffn_{gate,up,down}_shexp when hp->moe
 * has a shared expert. */
strata_err model_load_moe(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em);

#endif
