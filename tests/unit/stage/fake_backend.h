/*
 * A scripted backend for tests of stages and chains: no weights, but the arithmetic of one, so that a test can tell
 * whether every layer ran once, in order, on the right rows.
 *
 * The first stage turns token t at position p into a row of N_EMBD floats, row[0] = t, row[1] = p, row[2] = the sum of
 * all ids so far; every layer l adds (l + 1) to row[3]. The last stage gives logits whose highest entry is (t * 7 + p +
 * row[2] + row[3]) mod N_VOCAB.
 */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include "stage/stage_backend.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAKE_EMBD = 8, FAKE_VOCAB = 97, FAKE_LAYERS = 6 };

struct fake {
    const char *manifest;
    atomic_int units; /* loaded now */
    atomic_int loads; /* since the start */
    atomic_int runs;
    atomic_int run_us; /* each run takes this long */
    int load_us;
    atomic_int fail_run; /* the next run fails */
    atomic_int nan_next; /* the next run gives a value that is not finite */
    atomic_int poison;   /* the first stage fails whenever this token, if not 0, is in a batch */
    atomic_int most;     /* sequences in one run, so far */
    atomic_int loaded_rows, saved_rows;
    atomic_int lose; /* kept rows have another size from now on, so that none of those before fits */
    const char *fail_load;
};

enum { FAKE_SEQ = 8, FAKE_CTX = 1024 };

struct fake_unit {
    struct fake *fake;
    struct stage_load load;
    struct {
        uint32_t pos;
        float sum[FAKE_CTX + 1]; /* of the first i ids */
    } seq[FAKE_SEQ];
    float *out;
};

static inline strata_err fake_probe(void *self, struct stage_probe *out, struct strata_errmsg *em) {
    struct fake *f = self;
    (void)em;
    *out = (struct stage_probe){.model_id = "fake", .layer_count = FAKE_LAYERS};
    snprintf(out->manifest_sha256, sizeof out->manifest_sha256, "%s", f->manifest);
    return STRATA_OK;
}

static inline strata_err fake_load(void *self, const struct stage_load *req, void **unit, struct stage_unit_info *info,
                                   struct strata_errmsg *em) {
    struct fake *f = self;
    if (f->load_us) usleep((useconds_t)f->load_us);
    if (f->fail_load) return err_set(em, STRATA_EDIGEST, "%s", f->fail_load);
    struct fake_unit *u = calloc(1, sizeof *u);
    u->fake = f;
    u->load = *req;
    u->out = calloc((size_t)(req->n_batch + req->n_seq) * FAKE_VOCAB, sizeof *u->out);
    atomic_fetch_add(&f->units, 1);
    atomic_fetch_add(&f->loads, 1);
    *info = (struct stage_unit_info){.n_embd = FAKE_EMBD,
                                     .n_vocab = FAKE_VOCAB,
                                     .n_ctx = req->n_ctx,
                                     .n_batch = req->n_batch,
                                     .n_threads = 1,
                                     .weight_bytes = 1000 * (req->end - req->first),
                                     .kv_bytes = 10,
                                     .scratch_bytes = 1};
    *unit = u;
    return STRATA_OK;
}

static inline int32_t fake_token(int32_t t, uint32_t p, float sum, float layers) {
    return (int32_t)fmodf((float)t * 7 + (float)p + sum + layers, FAKE_VOCAB);
}

/* One sequence of a batch; the rows, or logits after the last one, go to `out`. */
static inline strata_err fake_run(struct fake_unit *u, const struct engine_batch *b, float *out,
                                  struct strata_errmsg *em) {
    float layers = 0, *sum = u->seq[b->seq].sum;
    bool last = u->load.end == FAKE_LAYERS;
    for (uint32_t l = u->load.first; l < u->load.end; l++) layers += (float)(l + 1);
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        float in[FAKE_EMBD] = {0};
        uint32_t pos = b->pos + i;
        if (b->tokens) {
            if (u->fake->poison && b->tokens[i] == u->fake->poison)
                return err_set(em, STRATA_EINTERNAL, "the fake engine was told to fail at token %d", b->tokens[i]);
            in[0] = (float)b->tokens[i];
            in[1] = (float)pos;
            in[2] = sum[pos] + in[0];
        } else {
            memcpy(in, b->hidden + (size_t)i * FAKE_EMBD, sizeof in);
        }
        /* Later stages follow the sum, too: a row that is missing or comes twice shows. */
        if (in[2] != sum[pos] + in[0])
            return err_set(em, STRATA_EINTERNAL, "sequence %u does not add up at position %u", b->seq, pos);
        sum[pos + 1] = in[2];
        in[3] += layers;
        if (!last) memcpy(out + (size_t)i * FAKE_EMBD, in, sizeof in);
        if (last && i + 1 == b->n_tokens && b->want == ENGINE_OUT_LAST) {
            memset(out, 0, FAKE_VOCAB * sizeof *out);
            out[fake_token((int32_t)in[0], (uint32_t)in[1], in[2], in[3])] = 5;
        }
    }
    return STRATA_OK;
}

static inline strata_err fake_run_many(void *unit, const struct engine_batch *b, uint32_t n, const float **out,
                                       struct strata_errmsg *em) {
    struct fake_unit *u = unit;
    struct fake *f = u->fake;
    float *at = u->out;
    uint32_t rows = 0;
    if (f->run_us) usleep((useconds_t)f->run_us);
    atomic_fetch_add(&f->runs, 1);
    if ((int)n > f->most) f->most = (int)n;
    if (atomic_exchange(&f->fail_run, 0)) return err_set(em, STRATA_EINTERNAL, "the fake engine was told to fail");
    for (uint32_t i = 0; i < n; i++) {
        rows += b[i].n_tokens;
        if (b[i].seq >= u->load.n_seq || b[i].pos != u->seq[b[i].seq].pos)
            return err_set(em, STRATA_EINTERNAL, "sequence %u at position %u", b[i].seq, b[i].pos);
        if ((b[i].tokens != NULL) != (u->load.first == 0)) return err_set(em, STRATA_EINTERNAL, "wrong kind of input");
        strata_err rc = fake_run(u, &b[i], at, em);
        if (rc) return rc;
        out[i] = at;
        at += u->load.end == FAKE_LAYERS ? FAKE_VOCAB : b[i].n_tokens * FAKE_EMBD;
    }
    if (rows > u->load.n_batch) return err_set(em, STRATA_EINTERNAL, "%u rows in a batch", rows);
    if (atomic_exchange(&f->nan_next, 0)) u->out[0] = NAN;
    for (uint32_t i = 0; i < n; i++) u->seq[b[i].seq].pos += b[i].n_tokens;
    return STRATA_OK;
}

static inline strata_err fake_truncate(void *unit, uint32_t seq, uint32_t pos, struct strata_errmsg *em) {
    struct fake_unit *u = unit;
    (void)em;
    u->seq[seq].pos = pos;
    return STRATA_OK;
}

static inline uint64_t fake_rows_bytes(const void *unit, uint32_t first, uint32_t end) {
    const struct fake_unit *u = unit;
    return (end - first + (uint32_t)u->fake->lose) * sizeof(float);
}

static inline strata_err fake_save_rows(const void *unit, uint32_t seq, uint32_t first, uint32_t end, void *out,
                                        struct strata_errmsg *em) {
    const struct fake_unit *u = unit;
    if (end > u->seq[seq].pos) return err_set(em, STRATA_EINTERNAL, "rows that are not there were to be saved");
    memcpy(out, u->seq[seq].sum + first + 1, (end - first) * sizeof(float));
    atomic_fetch_add(&u->fake->saved_rows, (int)(end - first));
    return STRATA_OK;
}

static inline strata_err fake_load_rows(void *unit, uint32_t seq, uint32_t first, uint32_t end, const void *in,
                                        struct strata_errmsg *em) {
    struct fake_unit *u = unit;
    if (first != u->seq[seq].pos) return err_set(em, STRATA_EINTERNAL, "rows were to be loaded out of order");
    memcpy(u->seq[seq].sum + first + 1, in, (end - first) * sizeof(float));
    u->seq[seq].pos = end;
    atomic_fetch_add(&u->fake->loaded_rows, (int)(end - first));
    return STRATA_OK;
}

static inline void fake_free(void *unit) {
    struct fake_unit *u = unit;
    if (!u) return;
    atomic_fetch_sub(&u->fake->units, 1);
    free(u->out);
    free(u);
}

static inline struct stage_backend fake_backend(struct fake *f) {
    return (struct stage_backend){.probe = fake_probe,
                                  .load = fake_load,
                                  .run_many = fake_run_many,
                                  .truncate = fake_truncate,
                                  .rows_bytes = fake_rows_bytes,
                                  .save_rows = fake_save_rows,
                                  .load_rows = fake_load_rows,
                                  .free = fake_free,
                                  .self = f};
}

/* What the whole model answers, token by token. history has n ids and gets the next one. */
static inline int32_t fake_expect(const int32_t *ids, uint32_t n) {
    float sum = 0, layers = 0;
    for (uint32_t i = 0; i < n; i++) sum += (float)ids[i];
    for (int l = 0; l < FAKE_LAYERS; l++) layers += (float)(l + 1);
    return fake_token(ids[n - 1], n - 1, sum, layers);
}

#endif
