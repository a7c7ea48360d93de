/* The keys of a slice. See pkg_slice.h. Owns nothing. */
#include "package/pkg_slice.h"

#include <inttypes.h>
#include <string.h>

bool pkg_slice_holds(const struct pkg_slice *s, const char *name, enum pkg_class class, uint32_t layer) {
    switch (class) {
    case PKG_CLASS_LAYER: return layer >= s->range.first && layer < s->range.end;
    case PKG_CLASS_EMBEDDING: return s->embeddings && (!s->tokens_only || strcmp(name, "token_embd.weight") == 0);
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: return s->output;
    default: return true;
    }
}

strata_err pkg_slice_read(const struct gguf_reader *r, struct pkg_slice *out, bool *complete,
                          struct strata_errmsg *em) {
    static const char *const keys[] = {"skippy.slice.stage_index", "skippy.slice.layer_start", "skippy.slice.layer_end",
                                       "skippy.slice.include_embeddings", "skippy.slice.include_output"};
    struct pkg_slice s = {0};
    bool all = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) all = all && gguf_reader_find_kv(r, keys[i]);
    strata_err rc = gguf_reader_get_u32(r, keys[0], false, &s.stage_index, em);
    if (!rc) rc = gguf_reader_get_u32(r, keys[1], false, &s.range.first, em);
    if (!rc) rc = gguf_reader_get_u32(r, keys[2], false, &s.range.end, em);
    if (!rc) rc = gguf_reader_get_bool(r, keys[3], false, &s.embeddings, em);
    if (!rc) rc = gguf_reader_get_bool(r, keys[4], false, &s.output, em);
    if (!rc && all && s.range.first > s.range.end)
        rc = err_set(em, STRATA_EFORMAT, "%s: its slice keys name the layers %" PRIu32 "..%" PRIu32,
                     gguf_reader_name(r), s.range.first, s.range.end);
    if (rc) return rc;
    *complete = all;
    if (all) *out = s;
    return STRATA_OK;
}

bool pkg_slice_fits(const struct pkg_slice *s, const struct pkg_artifact *a) {
    bool flags = s->embeddings == (a->role == PKG_ROLE_EMBEDDINGS) && s->output == (a->role == PKG_ROLE_OUTPUT);
    if (a->role == PKG_ROLE_LAYER) return flags && s->range.first == a->layer && s->range.end == a->layer + 1;
    return flags && s->range.first == s->range.end;
}
