/* Runs a model cut into ranges, in one process, with plain arrays between them. */
#ifndef TEST_CHAIN_H
#define TEST_CHAIN_H

#include "engine/engine.h"

#include "model_file.h"

enum { CHAIN_MAX = 4 };

struct test_chain {
    struct pkg_model *pkg[CHAIN_MAX];
    struct engine *engine[CHAIN_MAX];
    uint32_t n;
};

/* cuts: rising layer numbers, ended by 0. */
static inline void chain_open(struct test_chain *c, const char *path, const uint32_t *cuts,
                              const struct engine_options *opt) {
    struct strata_errmsg em;
    uint32_t first = 0;
    *c = (struct test_chain){.n = 0};
    for (;;) {
        uint32_t end = cuts && cuts[c->n] ? cuts[c->n] : PKG_RANGE_ALL;
        struct pkg_model_options po = {.range = {first, end}};
        mf_ok(pkg_model_open(path, &po, &c->pkg[c->n], &em), &em);
        mf_ok(engine_new(c->pkg[c->n], opt, &c->engine[c->n], &em), &em);
        c->n++;
        if (end == PKG_RANGE_ALL) return;
        assert_true(c->n < CHAIN_MAX);
        first = end;
    }
}

static inline void chain_close(struct test_chain *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        engine_free(c->engine[i]);
        pkg_model_free(c->pkg[i]);
    }
}

static inline const float *chain_step(struct test_chain *c, uint32_t pos, const int32_t *tokens, uint32_t n,
                                      enum engine_output want) {
    struct strata_errmsg em;
    const float *x = NULL;
    for (uint32_t i = 0; i < c->n; i++) {
        struct engine_batch b = {
            .pos = pos, .n_tokens = n, .tokens = i ? NULL : tokens, .hidden = i ? x : NULL, .want = want};
        mf_ok(engine_run(c->engine[i], &b, &x, &em), &em);
    }
    return x;
}

/* Logits of all tokens, in batches of the sizes in `split`, whose last one is repeated. Result: malloc'ed. */
static inline float *chain_logits(struct test_chain *c, const int32_t *tokens, uint32_t n, const uint32_t *split) {
    uint32_t n_vocab = engine_info(c->engine[c->n - 1])->n_vocab;
    float *all = malloc((size_t)n * n_vocab * sizeof *all);
    assert_non_null(all);
    for (uint32_t pos = 0; pos < n;) {
        uint32_t step = n - pos < *split ? n - pos : *split;
        const float *x = chain_step(c, pos, tokens + pos, step, ENGINE_OUT_ALL);
        memcpy(all + (size_t)pos * n_vocab, x, (size_t)step * n_vocab * sizeof *all);
        pos += step;
        if (split[1]) split++;
    }
    return all;
}

#endif
