/*
 * The tensors of a GLM-DSA model: one table says which layers hold what, in which shape. Owns nothing.
 *
 * A shape is compared where the metadata states the sizes; the names are compared always.
 */
#include "package/pkg_glm_dsa_priv.h"

#include "package/pkg_generation.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum group {
    BASE,    /* every layer */
    DENSE,   /* the first layers */
    MOE,     /* the others */
    INDEXER, /* Full layers and NextN layers */
    NEXTN,   /* NextN layers */
    OPTIONAL /* may be absent; its shape counts */
};

static const struct row {
    const char *suffix;
    enum group group;
    enum pkg_glm_dsa_dim shape[3];
} rows[] = {
    {"attn_norm.weight", BASE, {DIM_EMBD}},
    {"attn_q_a_norm.weight", BASE, {DIM_Q_RANK}},
    {"attn_kv_a_norm.weight", BASE, {DIM_KV_RANK}},
    {"attn_q_a.weight", BASE, {DIM_EMBD, DIM_Q_RANK}},
    {"attn_q_b.weight", BASE, {DIM_Q_RANK, DIM_Q_ALL}},
    {"attn_kv_a_mqa.weight", BASE, {DIM_EMBD, DIM_KV_ROPE}},
    {"attn_k_b.weight", BASE, {DIM_NOPE, DIM_KV_RANK, DIM_HEADS}},
    {"attn_v_b.weight", BASE, {DIM_KV_RANK, DIM_V, DIM_HEADS}},
    {"attn_output.weight", BASE, {DIM_V_ALL, DIM_EMBD}},
    {"ffn_norm.weight", BASE, {DIM_EMBD}},
    {"ffn_gate.weight", DENSE, {DIM_EMBD, DIM_FF}},
    {"ffn_down.weight", DENSE, {DIM_FF, DIM_EMBD}},
    {"ffn_up.weight", DENSE, {DIM_EMBD, DIM_FF}},
    {"ffn_gate_inp.weight", MOE, {DIM_EMBD, DIM_EXPERTS}},
    {"ffn_gate_exps.weight", MOE, {DIM_EMBD, DIM_EXPERT_FF, DIM_EXPERTS}},
    {"ffn_down_exps.weight", MOE, {DIM_EXPERT_FF, DIM_EMBD, DIM_EXPERTS}},
    {"ffn_up_exps.weight", MOE, {DIM_EMBD, DIM_EXPERT_FF, DIM_EXPERTS}},
    {"ffn_gate_shexp.weight", MOE, {DIM_EMBD, DIM_SHARED_FF}},
    {"ffn_down_shexp.weight", MOE, {DIM_SHARED_FF, DIM_EMBD}},
    {"ffn_up_shexp.weight", MOE, {DIM_EMBD, DIM_SHARED_FF}},
    {"indexer.k_norm.weight", INDEXER, {DIM_INDEX_KEY}},
    {"indexer.k_norm.bias", INDEXER, {DIM_INDEX_KEY}},
    {"indexer.proj.weight", INDEXER, {DIM_EMBD, DIM_INDEX_HEADS}},
    {"indexer.attn_k.weight", INDEXER, {DIM_EMBD, DIM_INDEX_KEY}},
    {"indexer.attn_q_b.weight", INDEXER, {DIM_Q_RANK, DIM_INDEX_ALL}},
    {"nextn.eh_proj.weight", NEXTN, {DIM_EMBD2, DIM_EMBD}},
    {"nextn.enorm.weight", NEXTN, {DIM_EMBD}},
    {"nextn.hnorm.weight", NEXTN, {DIM_EMBD}},
    {"exp_probs_b.bias", OPTIONAL, {DIM_EXPERTS}},
    {"nextn.embed_tokens.weight", OPTIONAL, {DIM_EMBD, DIM_ANY}},
    {"nextn.shared_head_head.weight", OPTIONAL, {DIM_EMBD, DIM_ANY}},
    {"nextn.shared_head_norm.weight", OPTIONAL, {DIM_EMBD}},
};
enum { N_ROWS = sizeof rows / sizeof rows[0], N_INDEXER = 5, NAME_MAX_LEN = 80 };

static const struct gguf_tensor *find(const struct pkg_inventory *inv, uint32_t layer, const char *suffix,
                                      char name[NAME_MAX_LEN]) {
    snprintf(name, NAME_MAX_LEN, "blk.%" PRIu32 ".%s", layer, suffix);
    const struct pkg_tensor *x = pkg_inventory_find(inv, name);
    return x ? x->t : NULL;
}

/* "64 x 16" */
static void shape_text(const uint64_t *ne, size_t n, char *out, size_t cap) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRIu64, i ? " x " : "", ne[i]);
}

static void check_shape(struct pkg_glm_dsa_check *c, const struct gguf_tensor *t, const enum pkg_glm_dsa_dim shape[3]) {
    uint64_t want[3] = {0};
    size_t n = 0;
    bool same = t->ne[3] == 1;
    char have_text[100], want_text[100];
    for (size_t i = 0; i < 3; i++) {
        uint64_t d = shape[i] == DIM_NONE ? 1 : c->dim[shape[i]];
        want[i] = d ? d : t->ne[i]; /* not stated: whatever it is */
        if (shape[i] != DIM_NONE) n = i + 1;
        if (want[i] != t->ne[i]) same = false;
    }
    if (same) return;
    shape_text(t->ne, t->n_dims, have_text, sizeof have_text);
    shape_text(want, n, want_text, sizeof want_text);
    pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "%s is %s; the metadata asks for %s", t->name, have_text, want_text);
}

static size_t indexer_count(const struct pkg_inventory *inv, uint32_t layer) {
    char name[NAME_MAX_LEN];
    size_t n = 0;
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].group == INDEXER && find(inv, layer, rows[i].suffix, name)) n++;
    return n;
}

bool pkg_glm_dsa_has_indexer(const struct pkg_inventory *inv, uint32_t layer) {
    return indexer_count(inv, layer) == N_INDEXER;
}

static bool is_needed(const struct pkg_glm_dsa_check *c, uint32_t layer, enum group g) {
    bool nextn = layer >= c->r->decoder_layers;
    switch (g) {
    case BASE: return true;
    case DENSE: return !nextn && layer < c->dense_layers;
    case MOE: return nextn || layer >= c->dense_layers;
    case NEXTN: return nextn;
    default: return false; /* the indexer has rules of its own */
    }
}

static void check_indexer(struct pkg_glm_dsa_check *c, uint32_t layer) {
    size_t n = indexer_count(c->inv, layer);
    if (layer >= c->r->decoder_layers) {
        if (n != N_INDEXER)
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                            "blk.%" PRIu32 " is a NextN layer but lacks complete indexer tensors (%zu/%d)", layer, n,
                            N_INDEXER);
        return;
    }
    if (n != 0 && n != N_INDEXER)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "blk.%" PRIu32 " has a partial group of indexer tensors (%zu/%d)",
                        layer, n, N_INDEXER);
    if (c->full[layer] && n != N_INDEXER)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "blk.%" PRIu32 " is a Full layer but lacks complete indexer tensors",
                        layer);
    if (!c->full[layer] && n == N_INDEXER)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                        "blk.%" PRIu32 " is declared Shared but contains complete indexer tensors", layer);
}

static void check_layer(struct pkg_glm_dsa_check *c, uint32_t layer) {
    char name[NAME_MAX_LEN];
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct gguf_tensor *t = find(c->inv, layer, rows[i].suffix, name);
        if (t)
            check_shape(c, t, rows[i].shape);
        else if (is_needed(c, layer, rows[i].group))
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "missing tensor %s", name);
    }
    if (find(c->inv, layer, "attn_kv_b.weight", name))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                        "%s is the unsplit form; sparse attention needs attn_k_b and attn_v_b alone", name);
    check_indexer(c, layer);
}

static void check_shared(struct pkg_glm_dsa_check *c, const char *name, enum pkg_glm_dsa_dim second) {
    const enum pkg_glm_dsa_dim shape[3] = {DIM_EMBD, second};
    const struct pkg_tensor *x = pkg_inventory_find(c->inv, name);
    if (x)
        check_shape(c, x->t, shape);
    else
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "missing tensor %s", name);
}

/* Layers without any tensor, as runs: a wrong block_count must not make thousands of lines. */
static void check_absent(struct pkg_glm_dsa_check *c, const bool *present, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks;) {
        uint32_t first = i;
        while (i < blocks && !present[i]) i++;
        if (i == first + 1)
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS, "missing tensors: blk.%" PRIu32 " has none at all", first);
        else if (i > first)
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                            "missing tensors: blk.%" PRIu32 " to blk.%" PRIu32 " have none at all", first, i - 1);
        else
            i++;
    }
}

/* Marks the layers that hold something, and lists tensors that stand where the metadata has no place for them. */
static void survey(struct pkg_glm_dsa_check *c, bool *present, uint32_t blocks) {
    for (size_t i = 0; i < c->inv->n_tensors; i++) {
        const struct pkg_tensor *x = &c->inv->tensors[i];
        if (x->class != PKG_CLASS_LAYER) continue;
        if (x->layer >= blocks) {
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                            "%s is beyond the model: " PKG_GLM_DSA_KEY("block_count") " is %" PRIu32, x->t->name,
                            blocks);
            continue;
        }
        present[x->layer] = true;
        if (x->layer < c->r->decoder_layers && strstr(x->t->name, ".nextn."))
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_TENSORS,
                            "%s stands in a decoder layer: " PKG_GLM_DSA_KEY("nextn_predict_layers") " is %" PRIu32
                                                                                                     " of %" PRIu32,
                            x->t->name, c->r->nextn_layers, blocks);
    }
}

void pkg_glm_dsa_check_tensors(struct pkg_glm_dsa_check *c) {
    uint32_t blocks = c->r->layer_count;
    bool *present = calloc(blocks, sizeof *present);
    if (!present) {
        c->r->out_of_memory = true;
        return;
    }
    check_shared(c, "token_embd.weight", DIM_ANY);
    check_shared(c, "output_norm.weight", DIM_NONE);
    survey(c, present, blocks);
    for (uint32_t i = 0; i < blocks; i++)
        if (present[i]) check_layer(c, i);
    check_absent(c, present, blocks);
    free(present);
}
