/*
 * Snapshots: the state of a sequence as bytes, layer by layer.
 *
 * A snapshot has a section for each layer of the range that wrote it. An engine takes its layers from whichever
 * snapshots hold them, so that a model that is cut anew goes on from the snapshots of the old cut. Going on from
 * restored positions gives bit for bit what going on from computed ones gives.
 *
 * Reading: engine_snapshot_open looks at bytes that come from outside (the file as it is mapped, say) and trusts none
 * of them; engine_snapshot_restore takes what the engine needs. The bytes belong to the caller and must outlive the
 * view.
 *
 * Format, version 1, all numbers little-endian:
 *   0    8  "STRATASQ"
 *   8    4  version
 *   12   4  bytes of the header, without its digest
 *   16  32  identity of the model (pkg_model_identity)
 *   48  32  architecture, padded with zeros
 *   80   4  type of the cache of keys and values, as numbered in GGUF files
 *   84   4  positions
 *   88   4  width of hidden states
 *   92   4  layers of the whole model
 *   96   4  1: rotated by the factors for long contexts, else 0
 *   100  4  token ids: as many as positions, or 0 when they are not known
 *   104  4  sections
 *   108  4  0
 *   112     the token ids, 4 bytes each; then for each section 48 bytes:
 *             layer, which rises from section to section (4); for each of two planes: numbers in a row (0: there is no
 *             such plane), their type, the first position whose row is there (4 each); 0 (4); place in the file, bytes
 * (8 each) zeros up to a multiple of 32 32  SHA-256 of the header then the sections one after the other: rows of
 * positions [first, positions) of plane 0, then of plane 1; zeros up to a multiple of 32; SHA-256 of the header's
 * digest, the section's number (4 bytes), and these bytes.
 */
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include "base/digest.h"
#include "engine/engine.h"
#include "model/model_state.h"

#include <stddef.h>

/* ---- writing ---- */

/* Takes the next bytes of a snapshot. */
typedef strata_err (*engine_snapshot_sink)(void *user, const void *data, size_t len, struct strata_errmsg *em);

/*
 * Writes all positions of a sequence, which must have some. tokens: the ids of these positions, or NULL when they are
 * not known, as on a stage after the first. Layers that keep a window are saved as far back as the sequence could be
 * truncated.
 */
strata_err engine_snapshot_write(const struct engine *e, uint32_t seq, const int32_t *tokens, engine_snapshot_sink sink,
                                 void *user, struct strata_errmsg *em);
/* The same into a file, readable by its owner alone, which appears under its name only when it is whole. */
strata_err engine_snapshot_save(const struct engine *e, uint32_t seq, const int32_t *tokens, const char *path,
                                struct strata_errmsg *em);

/* ---- reading ---- */

/* A view of a snapshot whose header is sound; its sections are checked when they are used. */
struct engine_snapshot {
    const char *name; /* for messages */
    const uint8_t *data;
    size_t len;
    char arch[33];
    uint32_t type; /* of the cache */
    uint32_t n_positions, n_embd, n_layer, n_tokens, n_sections;
    bool rotates_long;
    size_t header_bytes; /* without the digest */
};

struct engine_snapshot_plane {
    uint32_t width, type, first;
    uint64_t row_bytes;
};

struct engine_snapshot_section {
    uint32_t layer;
    struct engine_snapshot_plane plane[MODEL_STATE_PLANES];
    uint64_t offset, bytes; /* of the rows */
};

/* EFORMAT, EDIGEST or EUNSUPPORTED (another version) with the name. */
strata_err engine_snapshot_open(struct engine_snapshot *s, const void *data, size_t len, const char *name,
                                struct strata_errmsg *em);
/* Section i, below n_sections. */
struct engine_snapshot_section engine_snapshot_section(const struct engine_snapshot *s, uint32_t i);
/* The section of a layer; false when there is none. */
bool engine_snapshot_find(const struct engine_snapshot *s, uint32_t layer, uint32_t *i);
/* Compares the digest of section i, and looks for rows that are no numbers. */
strata_err engine_snapshot_check(const struct engine_snapshot *s, uint32_t i, struct strata_errmsg *em);
/* How many of the tokens are the snapshot's first ones; 0 when it does not know its tokens. */
uint32_t engine_snapshot_common(const struct engine_snapshot *s, const int32_t *tokens, uint32_t n);

/* ---- restoring ---- */

/*
 * The least number of positions that can be restored: layers that keep a window are saved from some position on, and
 * going on from a position needs those before it. Refuses what engine_snapshot_restore refuses, but for digests.
 */
strata_err engine_snapshot_least(const struct engine *e, const struct engine_snapshot *const *from, size_t n,
                                 uint32_t *out, struct strata_errmsg *em);
/*
 * Makes positions [0, end) of the snapshots those of a sequence, instead of what it has. A layer is taken from the
 * first of the n snapshots that has it. Refuses, with the sequence left as it was: snapshots of another model, type of
 * cache or rotation, or with other tokens than the others; layers that none has, or not in the right shape; fewer
 * positions than `end`, more than it could be gone back to (engine_snapshot_least); damage.
 */
strata_err engine_snapshot_restore(struct engine *e, uint32_t seq, const struct engine_snapshot *const *from, size_t n,
                                   uint32_t end, struct strata_errmsg *em);

#endif
