/* The GLM-DSA contract: metadata, and the report. See pkg_glm_dsa.h. Owns the report until it is handed over. */
#include "package/pkg_glm_dsa_priv.h"

#include "package/pkg_manifest.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 1000, MAX_LINE = 400 };

void pkg_glm_dsa_add(struct pkg_glm_dsa_report *r, enum pkg_glm_dsa_list list, const char *fmt, ...) {
    char text[MAX_LINE];
    struct strata_errmsg clean; /* err_set's rule: no control characters from foreign data */
    size_t n = json_array_size(r->list[list]);
    va_list ap;
    if (n > MAX_LINES) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&clean, STRATA_EFORMAT, "%s", n < MAX_LINES ? text : "there is more; this list ends here");
    if (json_array_append_new(r->list[list], jsonx_text(clean.text, strlen(clean.text)))) r->out_of_memory = true;
}

/* ---- metadata ---- */

/* "an array of u32" or "str": for messages. */
static void kind_text(const struct gguf_kv *kv, char *out, size_t cap) {
    bool array = kv->kind == GGUF_KIND_ARRAY;
    snprintf(out, cap, "%s%s", array ? "an array of " : "", gguf_types_kind_name(array ? kv->elem_kind : kv->kind));
}

/* A key that must be there and hold a number above 0. 0 when it does not; the breach is listed. */
static uint32_t need_u32(struct pkg_glm_dsa_check *c, const char *key) {
    const struct gguf_kv *kv = gguf_reader_find_kv(c->inv->meta, key);
    uint32_t v = 0;
    char kind[40];
    struct strata_errmsg em;
    if (!kv) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "missing %s", key);
    } else if (gguf_reader_get_u32(c->inv->meta, key, true, &v, &em)) {
        kind_text(kv, kind, sizeof kind);
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a number of 32 bits above 0; it is %s", key, kind);
    } else if (v == 0) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be > 0", key);
    }
    return v;
}

/* A key that may be absent, or 0, which means the same. */
static uint32_t optional_u32(const struct pkg_glm_dsa_check *c, const char *key) {
    uint32_t v = 0;
    struct strata_errmsg em;
    gguf_reader_get_u32(c->inv->meta, key, false, &v, &em);
    return v;
}

static void need_float_and_bool(struct pkg_glm_dsa_check *c) {
    static const char *const floats[] = {PKG_GLM_DSA_KEY("attention.layer_norm_rms_epsilon"),
                                         PKG_GLM_DSA_KEY("expert_weights_scale")};
    static const char norm[] = PKG_GLM_DSA_KEY("expert_weights_norm");
    struct strata_errmsg em;
    float f;
    bool b;
    for (size_t i = 0; i < 2; i++) {
        if (!gguf_reader_find_kv(c->inv->meta, floats[i]))
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "missing %s", floats[i]);
        else if (gguf_reader_get_f32(c->inv->meta, floats[i], true, &f, &em))
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a finite float", floats[i]);
    }
    if (!gguf_reader_find_kv(c->inv->meta, norm))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "missing %s", norm);
    else if (gguf_reader_get_bool(c->inv->meta, norm, true, &b, &em))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a bool", norm);
}

/* The required numbers; those that shapes are made of are kept. */
static const struct {
    const char *key;
    enum pkg_glm_dsa_dim dim; /* DIM_NONE: required, but no shape shows it */
} numbers[] = {
    {PKG_GLM_DSA_KEY("context_length"), DIM_NONE},
    {PKG_GLM_DSA_KEY("embedding_length"), DIM_EMBD},
    {PKG_GLM_DSA_KEY("feed_forward_length"), DIM_FF},
    {PKG_GLM_DSA_KEY("attention.head_count"), DIM_HEADS},
    {PKG_GLM_DSA_KEY("attention.head_count_kv"), DIM_NONE},
    {PKG_GLM_DSA_KEY("attention.key_length"), DIM_NONE},
    {PKG_GLM_DSA_KEY("attention.value_length"), DIM_NONE},
    {PKG_GLM_DSA_KEY("attention.q_lora_rank"), DIM_Q_RANK},
    {PKG_GLM_DSA_KEY("attention.kv_lora_rank"), DIM_KV_RANK},
    {PKG_GLM_DSA_KEY("expert_count"), DIM_EXPERTS},
    {PKG_GLM_DSA_KEY("expert_feed_forward_length"), DIM_EXPERT_FF},
    {PKG_GLM_DSA_KEY("attention.indexer.head_count"), DIM_INDEX_HEADS},
    {PKG_GLM_DSA_KEY("attention.indexer.key_length"), DIM_INDEX_KEY},
    {PKG_GLM_DSA_KEY("attention.indexer.top_k"), DIM_NONE},
};

/* Sizes that follow from others. A query head is a plain part and a rotated one; key_length_mla is both together. */
static void derive_dims(struct pkg_glm_dsa_check *c, uint64_t rope, uint64_t experts_shared) {
    uint64_t *d = c->dim;
    uint64_t query = optional_u32(c, PKG_GLM_DSA_KEY("attention.key_length_mla"));
    uint64_t shared_ff = optional_u32(c, PKG_GLM_DSA_KEY("expert_shared_feed_forward_length"));
    d[DIM_V] = optional_u32(c, PKG_GLM_DSA_KEY("attention.value_length_mla"));
    d[DIM_EMBD2] = 2 * d[DIM_EMBD];
    if (d[DIM_KV_RANK] && rope) d[DIM_KV_ROPE] = d[DIM_KV_RANK] + rope;
    if (query && rope && query <= rope)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                        PKG_GLM_DSA_KEY("attention.key_length_mla") " %" PRIu64
                                                                    " must be greater than " PKG_GLM_DSA_KEY(
                                                                        "rope.dimension_count") " %" PRIu64,
                        query, rope);
    else if (query && rope)
        d[DIM_NOPE] = query - rope;
    /* All factors are of 32 bits, so products fit. */
    d[DIM_Q_ALL] = d[DIM_HEADS] * query;
    d[DIM_V_ALL] = d[DIM_HEADS] * d[DIM_V];
    d[DIM_SHARED_FF] = shared_ff ? shared_ff : d[DIM_EXPERT_FF] * experts_shared;
    d[DIM_INDEX_ALL] = d[DIM_INDEX_HEADS] * d[DIM_INDEX_KEY];
}

static void check_numbers(struct pkg_glm_dsa_check *c) {
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint32_t v = need_u32(c, numbers[i].key);
        if (numbers[i].dim != DIM_NONE) c->dim[numbers[i].dim] = v;
    }
    c->dense_layers = need_u32(c, PKG_GLM_DSA_KEY("leading_dense_block_count"));
    uint32_t rope = need_u32(c, PKG_GLM_DSA_KEY("rope.dimension_count"));
    uint32_t used = need_u32(c, PKG_GLM_DSA_KEY("expert_used_count"));
    uint32_t shared = need_u32(c, PKG_GLM_DSA_KEY("expert_shared_count"));
    uint64_t key = c->dim[DIM_INDEX_KEY], experts = c->dim[DIM_EXPERTS];
    if (key && rope && key <= rope)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s %" PRIu64 " must be greater than %s %" PRIu32,
                        PKG_GLM_DSA_KEY("attention.indexer.key_length"), key, PKG_GLM_DSA_KEY("rope.dimension_count"),
                        rope);
    if (used && experts && used > experts)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s %" PRIu32 " must not exceed %s %" PRIu64,
                        PKG_GLM_DSA_KEY("expert_used_count"), used, PKG_GLM_DSA_KEY("expert_count"), experts);
    derive_dims(c, rope, shared);
}

/* How many blocks there are, and how many of the last ones are NextN layers. False: nothing can be said of layers. */
static bool count_layers(struct pkg_glm_dsa_check *c) {
    static const char blocks_key[] = PKG_GLM_DSA_KEY("block_count"),
                      nextn_key[] = PKG_GLM_DSA_KEY("nextn_predict_layers");
    struct strata_errmsg em;
    uint32_t blocks = need_u32(c, blocks_key);
    if (gguf_reader_get_u32(c->inv->meta, nextn_key, false, &c->r->nextn_layers, &em)) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a number of 32 bits", nextn_key);
        return false;
    }
    c->r->layer_count = blocks;
    if (blocks == 0) return false;
    if (blocks > PKG_MANIFEST_MAX_LAYERS) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s %" PRIu32 " is more than %d", blocks_key, blocks,
                        PKG_MANIFEST_MAX_LAYERS);
        return false;
    }
    if (c->r->nextn_layers >= blocks) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s %" PRIu32 " must be less than %s %" PRIu32, nextn_key,
                        c->r->nextn_layers, blocks_key, blocks);
        return false;
    }
    c->r->decoder_layers = blocks - c->r->nextn_layers;
    return true;
}

/* ---- the whole ---- */

/* False: a model of another kind, of which nothing more need be said. */
static bool check_architecture(struct pkg_glm_dsa_check *c) {
    struct gguf_str s = {0};
    struct strata_errmsg em;
    if (gguf_reader_get_str(c->inv->meta, "general.architecture", true, &s, &em)) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                        "general.architecture must be " PKG_GLM_DSA_ARCH "; it is missing or no string");
        return false;
    }
    c->r->architecture = strndup(s.data, s.len);
    if (!c->r->architecture) {
        c->r->out_of_memory = true;
        return false;
    }
    if (s.len == strlen(PKG_GLM_DSA_ARCH) && memcmp(s.data, PKG_GLM_DSA_ARCH, s.len) == 0) return true;
    pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                    "general.architecture must be " PKG_GLM_DSA_ARCH
                    "; it is %.60s, and this contract is for GLM-DSA models (GLM-5 and later) alone",
                    c->r->architecture);
    return false;
}

static strata_err check_model(struct pkg_glm_dsa_check *c, struct strata_errmsg *em) {
    if (!check_architecture(c)) return STRATA_OK;
    check_numbers(c);
    need_float_and_bool(c);
    if (!count_layers(c)) return STRATA_OK;
    c->full = calloc(c->r->decoder_layers, sizeof *c->full);
    if (!c->full) return err_nomem(em, "a report");
    pkg_glm_dsa_find_roles(c);
    for (uint32_t i = 0; i < c->r->decoder_layers; i++)
        if (json_array_append_new(c->full[i] ? c->r->full_layers : c->r->shared_layers, json_integer(i)))
            c->r->out_of_memory = true;
    pkg_glm_dsa_check_tensors(c);
    return STRATA_OK;
}

strata_err pkg_glm_dsa_check(const struct pkg_inventory *inv, const json_t *generation,
                             const struct pkg_glm_dsa_options *opt, struct pkg_glm_dsa_report *out,
                             struct strata_errmsg *em) {
    struct pkg_glm_dsa_report r = {.tensor_count = inv->n_tensors,
                                   .policy_required = opt->require_generation_policy,
                                   .full_layers = json_array(),
                                   .shared_layers = json_array()};
    struct pkg_glm_dsa_check c = {.inv = inv, .r = &r};
    for (size_t i = 0; i < PKG_GLM_DSA_LISTS; i++) r.list[i] = json_array();
    strata_err rc = check_model(&c, em);
    free(c.full);
    pkg_glm_dsa_check_policy(&r, generation);
    if (!r.full_layers || !r.shared_layers) r.out_of_memory = true;
    for (size_t i = 0; i < PKG_GLM_DSA_LISTS; i++)
        if (!r.list[i]) r.out_of_memory = true;
    if (!rc && r.out_of_memory) rc = err_nomem(em, "a report");
    if (rc) {
        pkg_glm_dsa_deinit(&r);
        return rc;
    }
    r.valid = pkg_glm_dsa_first_error(&r, NULL) == NULL;
    *out = r;
    return STRATA_OK;
}

void pkg_glm_dsa_deinit(struct pkg_glm_dsa_report *r) {
    if (!r) return;
    free(r->path);
    free(r->architecture);
    json_decref(r->gguf_files);
    json_decref(r->full_layers);
    json_decref(r->shared_layers);
    json_decref(r->policy);
    json_decref(r->thresholds);
    for (size_t i = 0; i < PKG_GLM_DSA_LISTS; i++) json_decref(r->list[i]);
    *r = (struct pkg_glm_dsa_report){0};
}

const char *pkg_glm_dsa_first_error(const struct pkg_glm_dsa_report *r, size_t *more) {
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < PKG_GLM_DSA_WARNINGS; i++) {
        if (!first) first = json_string_value(json_array_get(r->list[i], 0));
        n += json_array_size(r->list[i]);
    }
    if (more) *more = n > 0 ? n - 1 : 0;
    return first;
}

bool pkg_glm_dsa_errors_text(const struct pkg_glm_dsa_report *r, char *out, size_t cap) {
    size_t more;
    const char *first = pkg_glm_dsa_first_error(r, &more);
    if (first && more)
        snprintf(out, cap, "%s (and %zu more)", first, more);
    else if (first)
        snprintf(out, cap, "%s", first);
    return first != NULL;
}

const char *pkg_glm_dsa_roles_name(enum pkg_glm_dsa_roles source) {
    static const char *const names[] = {NULL, "metadata_types", "metadata_frequency", "tensor_presence"};
    return names[source];
}

const char *pkg_glm_dsa_list_name(enum pkg_glm_dsa_list list) {
    static const char *const names[PKG_GLM_DSA_LISTS] = {"metadata_errors", "tensor_errors", "generation_policy_errors",
                                                         "generation_threshold_errors", "warnings"};
    return names[list];
}

/* A new value for a text that may be NULL. */
static json_t *text_or_null(const char *s) {
    return s ? jsonx_text(s, strlen(s)) : json_null();
}

static json_t *number_or_null(uint32_t v) {
    return v ? json_integer(v) : json_null();
}

strata_err pkg_glm_dsa_to_json(const struct pkg_glm_dsa_report *r, json_t **out, struct strata_errmsg *em) {
    json_t *o =
        json_pack("{s:b, s:o, s:o, s:O?, s:o, s:I, s:o, s:o, s:I, s:o, s:O, s:O, s:b, s:O?, s:O?}", "valid", r->valid,
                  "path", text_or_null(r->path), "artifact_kind", text_or_null(r->artifact_kind), "gguf_files",
                  r->gguf_files, "architecture", text_or_null(r->architecture), "tensor_count",
                  (json_int_t)r->tensor_count, "layer_count", number_or_null(r->layer_count),
                  "effective_decoder_layers", number_or_null(r->decoder_layers), "nextn_predict_layers",
                  (json_int_t)r->nextn_layers, "role_source", text_or_null(pkg_glm_dsa_roles_name(r->role_source)),
                  "full_layers", r->full_layers, "shared_layers", r->shared_layers, "generation_policy_required",
                  r->policy_required, "generation_policy", r->policy, "generation_thresholds", r->thresholds);
    int bad = o ? 0 : -1;
    for (size_t i = 0; i < PKG_GLM_DSA_LISTS && !bad; i++)
        bad = json_object_set(o, pkg_glm_dsa_list_name((enum pkg_glm_dsa_list)i), r->list[i]);
    if (bad) {
        json_decref(o);
        return err_nomem(em, "a report");
    }
    *out = o;
    return STRATA_OK;
}
