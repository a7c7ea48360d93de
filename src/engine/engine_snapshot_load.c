/*
 * Puts the layers of snapshots into an engine. See engine_snapshot.h. Owns a table of sections while it works.
 *
 * Everything is compared and every digest checked before the first row is written.
 */
#include "engine/engine_internal.h"
#include "engine/engine_snapshot.h"
#include "engine/engine_snapshot_format.h"

#include <stdlib.h>
#include <string.h>

/* Where the layers of an engine come from. */
struct source {
    const struct engine_snapshot *s;
    uint32_t i; /* section */
};

/* Whether the snapshot is of this engine's model, and of a state that this engine would have computed. */
static strata_err check_model(const struct engine *e, const struct engine_snapshot *s, const uint8_t *identity,
                              struct strata_errmsg *em) {
    const struct engine_info *info = engine_info(e);
    const struct model_state *st = engine_state(e);
    if (strcmp(s->arch, info->arch) != 0)
        return err_set(em, STRATA_EINVAL, "%s is of a model of the architecture '%.32s', and this one is %s", s->name,
                       s->arch, info->arch);
    if (memcmp(s->data + SNAPSHOT_AT_MODEL, identity, DIGEST_BYTES) != 0 || s->n_layer != info->layer_count ||
        s->n_embd != info->n_embd) {
        char theirs[DIGEST_HEX], ours[DIGEST_HEX];
        digest_to_hex(s->data + SNAPSHOT_AT_MODEL, DIGEST_BYTES, theirs);
        digest_to_hex(identity, DIGEST_BYTES, ours);
        return err_set(em, STRATA_EINVAL, "%s is of another model (%.12s...; this one is %.12s...)", s->name, theirs,
                       ours);
    }
    if (s->type != (uint32_t)st->type)
        return err_set(em, STRATA_EINVAL,
                       "%s has a KV cache of type %s, and the engine one of type %s; choose the same type, or compute "
                       "afresh",
                       s->name, ggml_type_name((enum ggml_type)s->type), ggml_type_name(st->type));
    if (s->rotates_long != model_rotates_long(engine_model(e), info->n_ctx))
        return err_set(em, STRATA_EINVAL,
                       "%s was computed with the rotation for %s contexts, and a context of %u has the other one; "
                       "choose a %s context, or compute afresh",
                       s->name, s->rotates_long ? "long" : "short", (unsigned)info->n_ctx,
                       s->rotates_long ? "longer" : "shorter");
    return STRATA_OK;
}

static strata_err check_planes(const struct source *from, const struct model_plane *planes, struct strata_errmsg *em) {
    struct engine_snapshot_section x = engine_snapshot_section(from->s, from->i);
    for (int k = 0; k < MODEL_STATE_PLANES; k++) {
        uint32_t width = planes[k].t ? (uint32_t)planes[k].t->ne[0] : 0;
        uint32_t type = planes[k].t ? (uint32_t)planes[k].t->type : 0;
        if (x.plane[k].width != width || x.plane[k].type != type)
            return err_set(em, STRATA_EINVAL, "%s has rows of %u numbers of type %s for layer %u, which has %u of %s",
                           from->s->name, (unsigned)x.plane[k].width, ggml_type_name((enum ggml_type)x.plane[k].type),
                           (unsigned)x.layer, (unsigned)width, ggml_type_name((enum ggml_type)type));
    }
    return STRATA_OK;
}

/* Snapshots that are used together must be of one text. */
static strata_err check_tokens(const struct engine_snapshot *a, const struct engine_snapshot *b, uint32_t end,
                               struct strata_errmsg *em) {
    uint32_t n = a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
    if (n > end) n = end;
    if (memcmp(a->data + SNAPSHOT_FIXED, b->data + SNAPSHOT_FIXED, 4 * (size_t)n) == 0) return STRATA_OK;
    return err_set(em, STRATA_EINVAL, "%s and %s are of different texts", a->name, b->name);
}

/* Finds a section for each layer; `least` is the fewest positions that they have in common. */
static strata_err match(const struct engine *e, const struct engine_snapshot *const *from, size_t n,
                        struct source *sources, uint32_t *least, struct strata_errmsg *em) {
    const struct model_state *st = engine_state(e);
    uint8_t identity[DIGEST_BYTES];
    *least = 1;
    strata_err rc = pkg_model_identity(engine_package(e), identity, em);
    for (size_t k = 0; k < n && !rc; k++) rc = check_model(e, from[k], identity, em);
    for (uint32_t il = st->range.first; il < st->range.end && !rc; il++) {
        struct source *src = &sources[il - st->range.first];
        const struct model_plane *planes = st->layer[il - st->range.first];
        size_t k = 0;
        while (k < n && !engine_snapshot_find(from[k], il, &src->i)) k++;
        if (k == n && n == 1) return err_set(em, STRATA_ENOENT, "layer %u is not in %s", (unsigned)il, from[0]->name);
        if (k == n) return err_set(em, STRATA_ENOENT, "layer %u is in none of the %zu snapshots", (unsigned)il, n);
        src->s = from[k];
        rc = check_planes(src, planes, em);
        struct engine_snapshot_section x = engine_snapshot_section(src->s, src->i);
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            if (x.plane[p].first == 0) continue;
            /* Without a window everything is needed, which is not there. */
            uint32_t need = planes[p].window ? x.plane[p].first + planes[p].window - 1 : UINT32_MAX;
            if (need > *least) *least = need;
        }
    }
    return rc;
}

static struct source *new_sources(const struct engine *e) {
    const struct model_state *st = engine_state(e);
    return calloc(st->range.end - st->range.first, sizeof(struct source));
}

strata_err engine_snapshot_least(const struct engine *e, const struct engine_snapshot *const *from, size_t n,
                                 uint32_t *out, struct strata_errmsg *em) {
    struct source *sources = new_sources(e);
    uint32_t least;
    if (!sources) return err_nomem(em, "a snapshot");
    strata_err rc = match(e, from, n, sources, &least, em);
    if (!rc) *out = least;
    free(sources);
    return rc;
}

/* Positions, texts and digests. */
static strata_err check_content(const struct engine *e, const struct source *sources, uint32_t least, uint32_t end,
                                struct strata_errmsg *em) {
    const struct model_state *st = engine_state(e);
    const struct engine_snapshot *known = NULL; /* one that has the text */
    strata_err rc = STRATA_OK;
    if (end < least)
        return err_set(em, STRATA_EINVAL,
                       "position %u is out of reach: layers with a window were saved for going on from %u or later",
                       (unsigned)end, (unsigned)least);
    for (size_t i = 0; i < st->range.end - st->range.first && !rc; i++) {
        const struct engine_snapshot *s = sources[i].s;
        if (s->n_positions < end)
            return err_set(em, STRATA_EINVAL, "%s has %u positions, and %u are asked for", s->name,
                           (unsigned)s->n_positions, (unsigned)end);
        if (known && known != s) rc = check_tokens(known, s, end, em);
        if (!known && s->n_tokens) known = s;
        if (!rc) rc = engine_snapshot_check(s, sources[i].i, em);
    }
    return rc;
}

/* Returns the position from which on the layer is whole. */
static uint32_t load_layer(const struct source *from, const struct model_plane *planes, uint32_t seq, uint32_t end) {
    struct engine_snapshot_section x = engine_snapshot_section(from->s, from->i);
    const uint8_t *rows = from->s->data + x.offset;
    uint32_t whole = 0;
    for (int k = 0; k < MODEL_STATE_PLANES; k++) {
        const struct model_plane *p = &planes[k];
        if (!p->t) continue;
        uint32_t first = x.plane[k].first;
        if (end - first > p->rows) first = end - p->rows; /* what a ring holds */
        const uint8_t *at = rows + (first - x.plane[k].first) * x.plane[k].row_bytes;
        model_state_load_rows(p, seq, first, end, (const char *)at);
        if (first > 0 && first + p->window - 1 > whole) whole = first + p->window - 1;
        rows += (from->s->n_positions - x.plane[k].first) * x.plane[k].row_bytes;
    }
    return whole;
}

strata_err engine_snapshot_restore(struct engine *e, uint32_t seq, const struct engine_snapshot *const *from, size_t n,
                                   uint32_t end, struct strata_errmsg *em) {
    struct model_state *st = engine_state_mut(e);
    struct source *sources = new_sources(e);
    uint32_t least, low = 0;
    if (!sources) return err_nomem(em, "a snapshot");
    strata_err rc = n ? engine_check_restore(e, seq, 0, end, em) : err_set(em, STRATA_EINVAL, "no snapshot is given");
    if (!rc) rc = match(e, from, n, sources, &least, em);
    if (!rc) rc = check_content(e, sources, least, end, em);
    if (!rc) rc = engine_truncate(e, seq, 0, em);
    if (rc) goto out;
    for (size_t i = 0; i < st->range.end - st->range.first; i++) {
        uint32_t whole = load_layer(&sources[i], st->layer[i], seq, end);
        if (whole > low) low = whole;
    }
    engine_note_restored(e, seq, end, low);
out:
    free(sources);
    return rc;
}
