/* Layer ranges to parts and tensors. See pkg_select.h. Owns nothing. */
#include "package/pkg_select.h"

#include <inttypes.h>
#include <string.h>

enum { TAIL = 64 }; /* bits of the masks: MTP layers are a model's last ones, and few */

void pkg_select_init(struct pkg_select *s, uint32_t layer_count) {
    *s = (struct pkg_select){.layer_count = layer_count, .tied = true};
}

/* The bit of a layer in the masks; 0 for layers that are too far from the end to be MTP layers. */
static uint64_t tail_bit(const struct pkg_select *s, uint32_t layer) {
    uint32_t back = s->layer_count - 1 - layer;
    return layer < s->layer_count && back < TAIL ? UINT64_C(1) << back : 0;
}

void pkg_select_note(struct pkg_select *s, const char *name) {
    uint32_t layer = 0;
    enum pkg_class class = pkg_class_of(name, &layer);
    if (class == PKG_CLASS_OUTPUT && strcmp(name, "output.weight") == 0) s->tied = false;
    if (class != PKG_CLASS_LAYER || strncmp(name, "blk.", 4) != 0) return;
    const char *rest = strchr(name + 4, '.');
    if (!rest || strncmp(rest, ".nextn.", 7) != 0) return;
    s->mtp |= tail_bit(s, layer);
    if (strcmp(rest, ".nextn.embed_tokens.weight") == 0) s->mtp_own |= tail_bit(s, layer);
}

bool pkg_select_is_mtp(const struct pkg_select *s, uint32_t layer) {
    return (s->mtp & tail_bit(s, layer)) != 0;
}

bool pkg_select_borrows(const struct pkg_select *s, uint32_t layer) {
    return (s->mtp & ~s->mtp_own & tail_bit(s, layer)) != 0;
}

static bool has_borrower(const struct pkg_select *s) {
    uint32_t layer = s->range.end, far = s->layer_count > TAIL ? s->layer_count - TAIL : 0;
    while (layer > s->range.first && layer > far)
        if (pkg_select_borrows(s, --layer)) return true;
    return false;
}

strata_err pkg_select_resolve(struct pkg_range want, uint32_t layer_count, const char *name, struct pkg_range *out,
                              struct strata_errmsg *em) {
    if (layer_count == 0)
        return err_set(em, STRATA_EUNSUPPORTED, "%s has no transformer layers (no tensor is named blk.N...)", name);
    if (want.end == PKG_RANGE_ALL) want.end = layer_count;
    if (want.first >= layer_count || want.end > layer_count)
        return err_set(em, STRATA_EINVAL,
                       "layer range %" PRIu32 "..%" PRIu32 " is out of bounds: %s has %" PRIu32 " layers (0..%" PRIu32
                       ")",
                       want.first, want.end, name, layer_count, layer_count);
    if (want.first >= want.end)
        return err_set(em, STRATA_EINVAL,
                       "layer range %" PRIu32 "..%" PRIu32
                       " is empty: give FIRST..END with FIRST below END, at most %" PRIu32,
                       want.first, want.end, layer_count);
    *out = want;
    return STRATA_OK;
}

bool pkg_select_is_first(const struct pkg_select *s) {
    return s->range.first == 0;
}

bool pkg_select_is_last(const struct pkg_select *s) {
    return s->range.end == s->layer_count;
}

bool pkg_select_embeddings(const struct pkg_select *s) {
    return pkg_select_is_first(s) || (pkg_select_is_last(s) && s->tied) || has_borrower(s);
}

bool pkg_select_output(const struct pkg_select *s) {
    return pkg_select_is_last(s);
}

bool pkg_select_layer(const struct pkg_select *s, uint32_t layer) {
    return layer >= s->range.first && layer < s->range.end;
}

bool pkg_select_artifact(const struct pkg_select *s, const struct pkg_artifact *a) {
    switch (a->role) {
    case PKG_ROLE_METADATA:
    case PKG_ROLE_COMMON: return true;
    case PKG_ROLE_EMBEDDINGS: return pkg_select_embeddings(s);
    case PKG_ROLE_OUTPUT: return pkg_select_output(s);
    case PKG_ROLE_LAYER: return pkg_select_layer(s, a->layer);
    default: return false;
    }
}

bool pkg_select_tensor(const struct pkg_select *s, const char *name) {
    uint32_t layer = 0;
    switch (pkg_class_of(name, &layer)) {
    case PKG_CLASS_LAYER: return pkg_select_layer(s, layer);
    case PKG_CLASS_EMBEDDING:
        /* Logits and MTP layers use the token embeddings; the other input tables are the first stage's alone. */
        return pkg_select_is_first(s) || (pkg_select_embeddings(s) && strcmp(name, "token_embd.weight") == 0);
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: return pkg_select_output(s);
    default: return true;
    }
}
