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
    const char *fail_load;
};

struct fake_unit {
    struct fake *fake;
    struct stage_load load;
    uint32_t pos;
    float sum;
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
    u->out = calloc((size_t)req->n_batch * FAKE_VOCAB, sizeof *u->out);
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

static inline strata_err fake_run(void *unit, const struct engine_batch *b, const float **out,
                                  struct strata_errmsg *em) {
    struct fake_unit *u = unit;
    struct fake *f = u->fake;
    float layers = 0;
    bool last = u->load.end == FAKE_LAYERS;
    if (f->run_us) usleep((useconds_t)f->run_us);
    atomic_fetch_add(&f->runs, 1);
    if (atomic_exchange(&f->fail_run, 0)) return err_set(em, STRATA_EINTERNAL, "the fake engine was told to fail");
    if (b->pos != u->pos) return err_set(em, STRATA_EINTERNAL, "position %u, not %u", b->pos, u->pos);
    if ((b->tokens != NULL) != (u->load.first == 0)) return err_set(em, STRATA_EINTERNAL, "wrong kind of input");
    for (uint32_t l = u->load.first; l < u->load.end; l++) layers += (float)(l + 1);
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        float *row = u->out + (size_t)i * FAKE_EMBD, in[FAKE_EMBD] = {0};
        if (b->tokens) {
            u->sum += (float)b->tokens[i];
            in[0] = (float)b->tokens[i];
            in[1] = (float)(b->pos + i);
            in[2] = u->sum;
        } else {
            memcpy(in, b->hidden + (size_t)i * FAKE_EMBD, sizeof in);
        }
        in[3] += layers;
        if (!last) memcpy(row, in, sizeof in);
        if (last && i + 1 == b->n_tokens && b->want == ENGINE_OUT_LAST) {
            memset(u->out, 0, FAKE_VOCAB * sizeof *u->out);
            u->out[fake_token((int32_t)in[0], (uint32_t)in[1], in[2], in[3])] = 5;
        }
    }
    if (atomic_exchange(&f->nan_next, 0)) u->out[0] = NAN;
    u->pos += b->n_tokens;
    *out = u->out;
    return STRATA_OK;
}

static inline strata_err fake_truncate(void *unit, uint32_t pos, struct strata_errmsg *em) {
    struct fake_unit *u = unit;
    (void)em;
    u->pos = pos;
    u->sum = 0;
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
                                  .run = fake_run,
                                  .truncate = fake_truncate,
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
