/* Writes snapshots. See engine_snapshot.h. Owns a header and a piece of rows while it works. */
#include "base/digest.h"
#include "base/file.h"
#include "engine/engine_internal.h"
#include "engine/engine_snapshot.h"
#include "engine/engine_snapshot_format.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* bytes of rows that are moved at a time, or one row */

struct writer {
    const struct engine *e;
    uint32_t seq, n_positions, reach;
    uint8_t *header;
    size_t header_bytes;
    uint8_t sum[DIGEST_BYTES]; /* of the header */
    char *piece;
    size_t piece_bytes;
    struct digest *digest;
    engine_snapshot_sink sink;
    void *user;
};

/* Layers that keep a window: what is needed to go on from anywhere that can be gone back to. */
static uint32_t first_of(const struct writer *w, const struct model_plane *p) {
    return p->window ? model_state_needed_from(p, 0, w->reach) : 0;
}

static uint64_t plane_bytes(const struct writer *w, const struct model_plane *p) {
    return p->t ? (uint64_t)(w->n_positions - first_of(w, p)) * p->t->nb[1] : 0;
}

static void put_entry(const struct writer *w, uint8_t *at, uint32_t i, uint64_t offset, uint64_t *bytes) {
    const struct model_state *st = engine_state(w->e);
    snapshot_put32(at, st->range.first + i);
    *bytes = 0;
    for (int k = 0; k < MODEL_STATE_PLANES; k++) {
        const struct model_plane *p = &st->layer[i][k];
        uint8_t *q = at + 4 + SNAPSHOT_ENTRY_PLANE * (size_t)k;
        if (!p->t) continue; /* zeros */
        snapshot_put32(q, (uint32_t)p->t->ne[0]);
        snapshot_put32(q + 4, (uint32_t)p->t->type);
        snapshot_put32(q + 8, first_of(w, p));
        *bytes += plane_bytes(w, p);
    }
    snapshot_put64(at + SNAPSHOT_ENTRY_OFFSET, offset);
    snapshot_put64(at + SNAPSHOT_ENTRY_BYTES, *bytes);
}

static strata_err make_header(struct writer *w, const int32_t *tokens, struct strata_errmsg *em) {
    const struct engine_info *info = engine_info(w->e);
    const struct model_state *st = engine_state(w->e);
    uint32_t n_tokens = tokens ? w->n_positions : 0, n_sections = st->range.end - st->range.first;
    w->header_bytes = (size_t)snapshot_header_bytes(n_tokens, n_sections);
    w->header = calloc(1, w->header_bytes);
    if (!w->header) return err_nomem(em, "the header of a snapshot");
    uint8_t *h = w->header;
    memcpy(h, SNAPSHOT_MAGIC, strlen(SNAPSHOT_MAGIC));
    snapshot_put32(h + SNAPSHOT_AT_VERSION, SNAPSHOT_VERSION);
    snapshot_put32(h + SNAPSHOT_AT_HEADER_BYTES, (uint32_t)w->header_bytes);
    memcpy(h + SNAPSHOT_AT_ARCH, info->arch, strnlen(info->arch, SNAPSHOT_ARCH_BYTES));
    snapshot_put32(h + SNAPSHOT_AT_TYPE, (uint32_t)st->type);
    snapshot_put32(h + SNAPSHOT_AT_POSITIONS, w->n_positions);
    snapshot_put32(h + SNAPSHOT_AT_EMBD, info->n_embd);
    snapshot_put32(h + SNAPSHOT_AT_LAYERS, info->layer_count);
    snapshot_put32(h + SNAPSHOT_AT_ROTATION, model_rotates_long(engine_model(w->e), info->n_ctx));
    snapshot_put32(h + SNAPSHOT_AT_TOKENS, n_tokens);
    snapshot_put32(h + SNAPSHOT_AT_SECTIONS, n_sections);
    uint8_t *at = h + SNAPSHOT_FIXED;
    for (uint32_t i = 0; i < n_tokens; i++, at += 4) snapshot_put32(at, (uint32_t)tokens[i]);
    uint64_t offset = w->header_bytes + DIGEST_BYTES, bytes;
    for (uint32_t i = 0; i < n_sections; i++, at += SNAPSHOT_ENTRY) {
        put_entry(w, at, i, offset, &bytes);
        offset += snapshot_pad(bytes) + DIGEST_BYTES;
    }
    strata_err rc = pkg_model_identity(engine_package(w->e), h + SNAPSHOT_AT_MODEL, em);
    return rc ? rc : digest_of(h, w->header_bytes, w->sum, em);
}

/* The largest row, if that is more than a piece. */
static strata_err make_piece(struct writer *w, struct strata_errmsg *em) {
    const struct model_state *st = engine_state(w->e);
    w->piece_bytes = PIECE;
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++)
            if (st->layer[i][k].t && st->layer[i][k].t->nb[1] > w->piece_bytes)
                w->piece_bytes = st->layer[i][k].t->nb[1];
    w->piece = malloc(w->piece_bytes);
    return w->piece ? digest_new(&w->digest, em) : err_nomem(em, "a piece of a snapshot");
}

/* Hashes and hands on. */
static strata_err emit(struct writer *w, const void *data, size_t len, struct strata_errmsg *em) {
    strata_err rc = digest_update(w->digest, data, len, em);
    return rc ? rc : w->sink(w->user, data, len, em);
}

static strata_err write_plane(struct writer *w, const struct model_plane *p, struct strata_errmsg *em) {
    uint32_t step = (uint32_t)(w->piece_bytes / p->t->nb[1]);
    strata_err rc = STRATA_OK;
    for (uint32_t pos = first_of(w, p), end; pos < w->n_positions && !rc; pos = end) {
        end = w->n_positions - pos < step ? w->n_positions : pos + step;
        const char *last = model_state_save_rows(p, w->seq, pos, end, w->piece);
        rc = emit(w, w->piece, (size_t)(last - w->piece), em);
    }
    return rc;
}

static strata_err write_section(struct writer *w, uint32_t i, struct strata_errmsg *em) {
    const struct model_plane *planes = engine_state(w->e)->layer[i];
    static const uint8_t zeros[SNAPSHOT_ALIGN];
    uint8_t number[4], sum[DIGEST_BYTES];
    uint64_t bytes = 0;
    snapshot_put32(number, i);
    strata_err rc = digest_update(w->digest, w->sum, sizeof w->sum, em);
    if (!rc) rc = digest_update(w->digest, number, sizeof number, em);
    for (int k = 0; k < MODEL_STATE_PLANES && !rc; k++) {
        bytes += plane_bytes(w, &planes[k]);
        if (planes[k].t) rc = write_plane(w, &planes[k], em);
    }
    if (!rc) rc = emit(w, zeros, (size_t)(snapshot_pad(bytes) - bytes), em);
    if (!rc) rc = digest_final(w->digest, sum, em);
    return rc ? rc : w->sink(w->user, sum, sizeof sum, em);
}

strata_err engine_snapshot_write(const struct engine *e, uint32_t seq, const int32_t *tokens, engine_snapshot_sink sink,
                                 void *user, struct strata_errmsg *em) {
    struct writer w = {.e = e, .seq = seq, .n_positions = engine_pos(e, seq), .sink = sink, .user = user};
    if (w.n_positions == 0)
        return err_set(em, STRATA_EINVAL, "sequence %u has no positions that could be saved", (unsigned)seq);
    w.reach = engine_reach(e, seq);
    const struct model_state *st = engine_state(e);
    strata_err rc = make_header(&w, tokens, em);
    if (!rc) rc = make_piece(&w, em);
    if (!rc) rc = sink(user, w.header, w.header_bytes, em);
    if (!rc) rc = sink(user, w.sum, sizeof w.sum, em);
    for (uint32_t i = 0; i < st->range.end - st->range.first && !rc; i++) rc = write_section(&w, i, em);
    digest_free(w.digest);
    free(w.piece);
    free(w.header);
    return rc;
}

static strata_err to_file(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return file_atomic_write(user, data, len, em);
}

strata_err engine_snapshot_save(const struct engine *e, uint32_t seq, const int32_t *tokens, const char *path,
                                struct strata_errmsg *em) {
    struct file_atomic f;
    strata_err rc = file_atomic_begin(&f, path, 0600, em);
    if (rc) return rc;
    rc = engine_snapshot_write(e, seq, tokens, to_file, &f, em);
    if (!rc) rc = file_atomic_commit(&f, em);
    file_atomic_abort(&f);
    return rc;
}
