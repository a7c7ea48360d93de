/*
 * Reads snapshots: bytes in, views out. See engine_snapshot.h. Owns nothing and allocates nothing but running hashes.
 *
 * Refuses bytes that are not exactly what the header says, numbers beyond the bounds of models, and headers whose
 * digest differs, so that after engine_snapshot_open every place that a section names is inside the bytes.
 */
#include "engine/engine_snapshot.h"

#include "engine/engine_snapshot_format.h"
#include "gguf/gguf_types.h"
#include "model/model_numbers.h"

#include <string.h>

static strata_err bad(const struct engine_snapshot *s, const char *what, struct strata_errmsg *em) {
    return err_set(em, STRATA_EFORMAT, "%s is no sound snapshot: %s", s->name, what);
}

/* The types that rows can have. */
static bool is_row_type(uint32_t type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0 ||
           type == GGML_TYPE_Q4_0;
}

/* ---- the header ---- */

static strata_err check_start(const struct engine_snapshot *s, struct strata_errmsg *em) {
    if (s->len < SNAPSHOT_FIXED + DIGEST_BYTES || memcmp(s->data, SNAPSHOT_MAGIC, strlen(SNAPSHOT_MAGIC)) != 0)
        return err_set(em, STRATA_EFORMAT, "%s is no snapshot of Strata's, or only the start of one", s->name);
    uint32_t version = snapshot_get32(s->data + SNAPSHOT_AT_VERSION);
    if (version == SNAPSHOT_VERSION) return STRATA_OK;
    return err_set(em, STRATA_EUNSUPPORTED,
                   "%s is a snapshot of version %u, and this program reads version %d; delete it and compute afresh",
                   s->name, (unsigned)version, SNAPSHOT_VERSION);
}

static strata_err read_counts(struct engine_snapshot *s, struct strata_errmsg *em) {
    const uint8_t *h = s->data;
    s->type = snapshot_get32(h + SNAPSHOT_AT_TYPE);
    s->n_positions = snapshot_get32(h + SNAPSHOT_AT_POSITIONS);
    s->n_embd = snapshot_get32(h + SNAPSHOT_AT_EMBD);
    s->n_layer = snapshot_get32(h + SNAPSHOT_AT_LAYERS);
    s->rotates_long = snapshot_get32(h + SNAPSHOT_AT_ROTATION) == 1;
    s->n_tokens = snapshot_get32(h + SNAPSHOT_AT_TOKENS);
    s->n_sections = snapshot_get32(h + SNAPSHOT_AT_SECTIONS);
    memcpy(s->arch, h + SNAPSHOT_AT_ARCH, SNAPSHOT_ARCH_BYTES);
    s->arch[SNAPSHOT_ARCH_BYTES] = '\0';
    if (s->n_positions == 0 || s->n_positions > MODEL_MAX_CTX) return bad(s, "number of positions", em);
    if (s->n_tokens != 0 && s->n_tokens != s->n_positions) return bad(s, "number of tokens", em);
    if (s->n_layer == 0 || s->n_layer > MODEL_MAX_LAYERS) return bad(s, "number of layers", em);
    if (s->n_sections == 0 || s->n_sections > s->n_layer) return bad(s, "number of sections", em);
    if (s->n_embd == 0 || s->n_embd > MODEL_MAX_EMBD) return bad(s, "width of hidden states", em);
    if (snapshot_get32(h + SNAPSHOT_AT_ROTATION) > 1) return bad(s, "rotation", em);
    if (!is_row_type(s->type)) return bad(s, "type of the cache", em);
    if (snapshot_get32(h + SNAPSHOT_AT_SECTIONS + 4) != 0) return bad(s, "reserved number", em);
    uint64_t bytes = snapshot_header_bytes(s->n_tokens, s->n_sections);
    if (snapshot_get32(h + SNAPSHOT_AT_HEADER_BYTES) != bytes) return bad(s, "bytes of the header", em);
    if (bytes + DIGEST_BYTES > s->len)
        return err_set(em, STRATA_EFORMAT, "%s is cut short: %zu bytes, and its header alone has %llu", s->name, s->len,
                       (unsigned long long)bytes + DIGEST_BYTES);
    s->header_bytes = (size_t)bytes;
    return STRATA_OK;
}

static strata_err check_header_digest(const struct engine_snapshot *s, struct strata_errmsg *em) {
    uint8_t sum[DIGEST_BYTES];
    strata_err rc = digest_of(s->data, s->header_bytes, sum, em);
    if (rc || memcmp(sum, s->data + s->header_bytes, sizeof sum) == 0) return rc;
    return err_set(em, STRATA_EDIGEST, "%s is damaged: its header differs from its digest", s->name);
}

/* ---- sections ---- */

static const uint8_t *entry_of(const struct engine_snapshot *s, uint32_t i) {
    return s->data + SNAPSHOT_FIXED + 4 * (size_t)s->n_tokens + SNAPSHOT_ENTRY * (size_t)i;
}

struct engine_snapshot_section engine_snapshot_section(const struct engine_snapshot *s, uint32_t i) {
    const uint8_t *at = entry_of(s, i);
    struct engine_snapshot_section x = {.layer = snapshot_get32(at),
                                        .offset = snapshot_get64(at + SNAPSHOT_ENTRY_OFFSET),
                                        .bytes = snapshot_get64(at + SNAPSHOT_ENTRY_BYTES)};
    for (int p = 0; p < MODEL_STATE_PLANES; p++) {
        const uint8_t *q = at + 4 + SNAPSHOT_ENTRY_PLANE * (size_t)p;
        struct engine_snapshot_plane *plane = &x.plane[p];
        plane->width = snapshot_get32(q);
        plane->type = snapshot_get32(q + 4);
        plane->first = snapshot_get32(q + 8);
        const uint64_t ne[4] = {plane->width, 1, 1, 1};
        if (plane->width) (void)gguf_types_tensor_bytes(plane->type, ne, &plane->row_bytes);
    }
    return x;
}

static strata_err check_plane(const struct engine_snapshot *s, const struct engine_snapshot_plane *p,
                              struct strata_errmsg *em) {
    if (p->width == 0) return p->type == 0 && p->first == 0 ? STRATA_OK : bad(s, "a plane without rows", em);
    if (p->width > (uint32_t)MODEL_MAX_HEADS * MODEL_MAX_HEAD_DIM) return bad(s, "width of a plane", em);
    if (!is_row_type(p->type)) return bad(s, "type of a plane", em);
    if (p->row_bytes == 0) return bad(s, "a row that is no whole number of blocks", em);
    return p->first <= s->n_positions ? STRATA_OK : bad(s, "first position of a plane", em);
}

/* Widths are at most 2^26 and positions 2^24: a plane is at most 2^52 bytes, and `at` stops at the length. */
static strata_err check_sections(const struct engine_snapshot *s, struct strata_errmsg *em) {
    uint64_t at = s->header_bytes + DIGEST_BYTES;
    for (uint32_t i = 0, layer = 0; i < s->n_sections; i++) {
        struct engine_snapshot_section x = engine_snapshot_section(s, i);
        uint64_t bytes = 0;
        if (x.layer >= s->n_layer || (i > 0 && x.layer <= layer)) return bad(s, "order of the layers", em);
        layer = x.layer;
        if (snapshot_get32(entry_of(s, i) + 4 + SNAPSHOT_ENTRY_PLANE * MODEL_STATE_PLANES) != 0)
            return bad(s, "a section's reserved number", em);
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            strata_err rc = check_plane(s, &x.plane[p], em);
            if (rc) return rc;
            bytes += x.plane[p].row_bytes * (s->n_positions - x.plane[p].first);
        }
        if (x.offset != at || x.bytes != bytes) return bad(s, "place of a section", em);
        at += snapshot_pad(bytes) + DIGEST_BYTES;
        if (at > s->len)
            return err_set(em, STRATA_EFORMAT, "%s is cut short: it has %zu bytes, and layer %u ends at %llu", s->name,
                           s->len, (unsigned)layer, (unsigned long long)at);
    }
    return at == s->len ? STRATA_OK : bad(s, "something follows its last section", em);
}

strata_err engine_snapshot_open(struct engine_snapshot *out, const void *data, size_t len, const char *name,
                                struct strata_errmsg *em) {
    struct engine_snapshot s = {.name = name, .data = data, .len = len};
    strata_err rc = check_start(&s, em);
    if (!rc) rc = read_counts(&s, em);
    if (!rc) rc = check_header_digest(&s, em);
    if (!rc) rc = check_sections(&s, em);
    if (!rc) *out = s;
    return rc;
}

bool engine_snapshot_find(const struct engine_snapshot *s, uint32_t layer, uint32_t *i) {
    for (uint32_t k = 0; k < s->n_sections; k++)
        if (snapshot_get32(entry_of(s, k)) == layer) {
            *i = k;
            return true;
        }
    return false;
}

strata_err engine_snapshot_check(const struct engine_snapshot *s, uint32_t i, struct strata_errmsg *em) {
    struct engine_snapshot_section x = engine_snapshot_section(s, i);
    uint8_t sum[DIGEST_BYTES], number[4];
    struct digest *d = NULL;
    size_t bytes = (size_t)snapshot_pad(x.bytes);
    snapshot_put32(number, i);
    strata_err rc = digest_new(&d, em);
    if (!rc) rc = digest_update(d, s->data + s->header_bytes, DIGEST_BYTES, em);
    if (!rc) rc = digest_update(d, number, sizeof number, em);
    if (!rc) rc = digest_update(d, s->data + x.offset, bytes, em);
    if (!rc) rc = digest_final(d, sum, em);
    digest_free(d);
    if (rc) return rc;
    if (memcmp(sum, s->data + x.offset + bytes, sizeof sum) != 0)
        return err_set(em, STRATA_EDIGEST, "%s is damaged: the section of layer %u differs from its digest", s->name,
                       (unsigned)x.layer);
    const uint8_t *rows = s->data + x.offset;
    for (int p = 0; p < MODEL_STATE_PLANES; p++) {
        size_t n = (size_t)(x.plane[p].row_bytes * (s->n_positions - x.plane[p].first));
        if (n && !model_numbers_finite(x.plane[p].type, rows, n))
            return err_set(em, STRATA_EFORMAT, "%s holds values of layer %u that are no numbers (NaN or infinite)",
                           s->name, (unsigned)x.layer);
        rows += n;
    }
    return STRATA_OK;
}

uint32_t engine_snapshot_common(const struct engine_snapshot *s, const int32_t *tokens, uint32_t n) {
    uint32_t i = 0;
    while (i < n && i < s->n_tokens && snapshot_get32(s->data + SNAPSHOT_FIXED + 4 * (size_t)i) == (uint32_t)tokens[i])
        i++;
    return i;
}
