/*
 * Which layers of a GLM-DSA model are Full and which are Shared.
 *
 * The metadata says it in one of two ways: a list of types (strings "full" and "shared", or numbers or bools, where 1
 * is Full; one scalar stands for every layer), or a frequency with an offset. When both are there they must agree. The
 * tensors are the last resort, and the contract counts that as a breach. Owns nothing.
 */
#include "package/pkg_glm_dsa_priv.h"

#include <inttypes.h>
#include <string.h>

static const char types_key[] = PKG_GLM_DSA_KEY("attention.indexer.types");
static const char frequency_key[] = PKG_GLM_DSA_KEY("attention.indexer.top_k_frequency");
static const char offset_key[] = PKG_GLM_DSA_KEY("attention.indexer.skip_top_k_offset");

static bool is_text(const struct gguf_str *s, const char *text) {
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}

/* Element i of the key, whether it is an array or a scalar. cursor walks strings. False: no role; it is listed. */
static bool role_at(struct pkg_glm_dsa_check *c, const struct gguf_kv *kv, uint64_t i, size_t *cursor, bool *full) {
    struct gguf_str s = {0};
    int64_t n;
    switch (kv->kind == GGUF_KIND_ARRAY ? kv->elem_kind : kv->kind) {
    case GGUF_KIND_STRING:
        gguf_reader_next_str(kv, cursor, &s);
        *full = is_text(&s, "full");
        if (*full || is_text(&s, "shared")) return true;
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s[%" PRIu64 "] must be full or shared", types_key, i);
        return false;
    case GGUF_KIND_BOOL: *full = kv->value[i] != 0; return true;
    case GGUF_KIND_F32:
    case GGUF_KIND_F64:
        if (i == 0)
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must hold strings, bools or whole numbers", types_key);
        return false;
    default:
        n = gguf_reader_int_at(kv, i);
        *full = n == 1;
        if (n == 0 || n == 1) return true;
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s[%" PRIu64 "] is %" PRId64 "; it must be 0 (shared) or 1 (full)",
                        types_key, i, n);
        return false;
    }
}

/* Whether a scalar says nothing: writers that put every known key into a file write 0 for "not there". */
static bool is_zero(const struct gguf_kv *kv) {
    if (kv->kind == GGUF_KIND_ARRAY || kv->kind == GGUF_KIND_STRING) return false;
    for (size_t i = 0; i < kv->value_bytes; i++)
        if (kv->value[i] != 0) return false;
    return true;
}

/* Roles by type. False when the list is of no use; what is wrong with it is in the report. */
static bool by_types(struct pkg_glm_dsa_check *c, const struct gguf_kv *kv) {
    uint32_t layers = c->r->decoder_layers;
    size_t cursor = 0;
    bool array = kv->kind == GGUF_KIND_ARRAY, good = true;
    if (array && kv->count != layers) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                        "%s length %" PRIu64 " must match effective decoder layers %" PRIu32, types_key, kv->count,
                        layers);
        return false;
    }
    for (uint32_t i = 0; i < (array ? layers : 1); i++)
        if (!role_at(c, kv, i, &cursor, &c->full[i])) good = false;
    if (!array)
        for (uint32_t i = 1; i < layers; i++) c->full[i] = c->full[0];
    return good;
}

struct frequency {
    bool declared; /* the key is there */
    uint32_t every, offset;
};

static bool is_full_by_frequency(const struct frequency *f, uint32_t layer) {
    return layer < f->offset || ((uint64_t)layer - f->offset + 1) % f->every == 0;
}

/* every is 0 when there is no usable frequency. */
static struct frequency read_frequency(struct pkg_glm_dsa_check *c) {
    struct frequency f = {.declared = gguf_reader_find_kv(c->inv->meta, frequency_key) != NULL};
    struct strata_errmsg em;
    if (!f.declared) return f;
    if (gguf_reader_get_u32(c->inv->meta, frequency_key, true, &f.every, &em))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a number of 32 bits", frequency_key);
    else if (f.every == 0)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be positive when present", frequency_key);
    if (!gguf_reader_find_kv(c->inv->meta, offset_key))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s is required when %s is present", offset_key, frequency_key);
    else if (gguf_reader_get_u32(c->inv->meta, offset_key, true, &f.offset, &em))
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA, "%s must be a number of 32 bits", offset_key);
    return f;
}

static void compare(struct pkg_glm_dsa_check *c, const struct frequency *f) {
    for (uint32_t i = 0; i < c->r->decoder_layers; i++) {
        bool full = is_full_by_frequency(f, i);
        if (full != c->full[i])
            pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                            "%s conflicts with top_k_frequency at layer %" PRIu32 ": types=%s, frequency=%s", types_key,
                            i, c->full[i] ? "full" : "shared", full ? "full" : "shared");
    }
}

static void by_presence(struct pkg_glm_dsa_check *c, bool silent) {
    c->r->role_source = PKG_GLM_DSA_PRESENCE;
    if (!silent)
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                        "missing IndexShare role metadata; expected indexer.types or "
                        "top_k_frequency/skip_top_k_offset");
    pkg_glm_dsa_add(c->r, PKG_GLM_DSA_WARNINGS, "using indexer tensor presence as IndexShare role fallback");
    for (uint32_t i = 0; i < c->r->decoder_layers; i++) c->full[i] = pkg_glm_dsa_has_indexer(c->inv, i);
}

void pkg_glm_dsa_find_roles(struct pkg_glm_dsa_check *c) {
    const struct gguf_kv *types = gguf_reader_find_kv(c->inv->meta, types_key);
    if (types && is_zero(types)) {
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_WARNINGS, "%s is 0, which is read as not there", types_key);
        types = NULL;
    }
    struct frequency f = read_frequency(c);
    if (types && by_types(c, types)) {
        c->r->role_source = PKG_GLM_DSA_TYPES;
        if (f.every) compare(c, &f);
    } else if (f.every) {
        c->r->role_source = PKG_GLM_DSA_FREQUENCY;
        for (uint32_t i = 0; i < c->r->decoder_layers; i++) c->full[i] = is_full_by_frequency(&f, i);
    } else {
        by_presence(c, types || f.declared);
    }
    if (!c->full[0])
        pkg_glm_dsa_add(c->r, PKG_GLM_DSA_METADATA,
                        "layer 0 is Shared, but there is no Full layer before it whose choice it could use");
}
