/* The chain with real links and stages in this process, on a scripted engine: tokens, queue, cancel, loss, rebuild. */
#include "../stage/fake_backend.h"
#include "base/clock.h"
#include "plan/plan_cut.h"
#include "serve/chain.h"
#include "stage/stage_server.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "ffff456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
enum { MAX_STAGES = 3, CTX = 64, BATCH = 4, SLOTS = 3 };

static struct fake fakes[MAX_STAGES];
static struct wire_key *stage_keys[MAX_STAGES], *own_key;
static struct wire_trust stage_trust, own_trust;
static struct stage_server *servers[MAX_STAGES];
static struct chain *chain;
static struct gen *gen;
static uint32_t n_stages;
static struct strata_errmsg em;
/* What start_chain gives the chain; setup puts the usual ones back. */
static struct { uint32_t ctx, batch, slots, pool, cache, in_flight; } with;

static void start_stage(uint32_t i, uint16_t port) {
    struct stage_server_options opt = {.backend = fake_backend(&fakes[i]),
                                       .key = stage_keys[i],
                                       .trust = &stage_trust,
                                       .listen = {.host = "127.0.0.1", .port = port}};
    for (int tries = 0; stage_server_start(&opt, &servers[i], &em); tries++) {
        if (tries > 50) fail_msg("%s", em.text);
        usleep(20000);
    }
}

static void start_stages(uint32_t n) {
    n_stages = n;
    for (uint32_t i = 0; i < n; i++) start_stage(i, 0);
}

static strata_err start_chain(void) {
    struct plan_range ranges[MAX_STAGES];
    struct chain_stage stages[MAX_STAGES];
    uint64_t bytes[FAKE_LAYERS];
    for (int i = 0; i < FAKE_LAYERS; i++) bytes[i] = 100;
    struct plan_load load = {
        .layer_bytes = bytes, .n_layers = FAKE_LAYERS, .n_trunk = FAKE_LAYERS, .first_extra = 10, .last_extra = 10};
    assert_int_equal(plan_bytes(&load, n_stages, ranges, &em), 0);
    for (uint32_t i = 0; i < n_stages; i++)
        stages[i] = (struct chain_stage){
            .addr = *stage_server_addr(servers[i]), .first = ranges[i].first, .end = ranges[i].end};
    struct chain_options opt = {.stages = stages,
                                .n_stages = n_stages,
                                .key = own_key,
                                .trust = &own_trust,
                                .manifest_sha256 = D64,
                                .layer_count = FAKE_LAYERS,
                                .n_ctx = with.ctx,
                                .n_batch = with.batch,
                                .n_seq = with.slots,
                                .n_pool = with.pool ? with.pool : with.ctx * with.slots,
                                .cache_blocks = with.cache,
                                .n_in_flight = with.in_flight};
    assert_int_equal(chain_start(&opt, &chain, &em), 0);
    gen = chain_gen(chain);
    return chain_wait(chain, clock_now_ns() + 10 * CLOCK_NS_PER_S, &em);
}

static void stand(uint32_t n) {
    start_stages(n);
    if (start_chain()) fail_msg("%s", em.text);
}

static int setup(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    memset(fakes, 0, sizeof fakes);
    memset(&with, 0, sizeof with);
    with.ctx = CTX;
    with.batch = BATCH;
    with.slots = SLOTS;
    with.in_flight = 1;
    assert_int_equal(wire_key_generate(&own_key, &em), 0);
    wire_trust_add(&stage_trust, &own_key->pub, "boss", &em);
    for (int i = 0; i < MAX_STAGES; i++) {
        fakes[i].manifest = D64;
        assert_int_equal(wire_key_generate(&stage_keys[i], &em), 0);
        wire_trust_add(&own_trust, &stage_keys[i]->pub, NULL, &em);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    chain_stop(chain);
    chain = NULL;
    for (int i = 0; i < MAX_STAGES; i++) {
        assert_true(stage_server_stop(servers[i]));
        servers[i] = NULL;
        wire_key_free(stage_keys[i]);
        /* Whatever happened, nothing stays loaded. */
        assert_int_equal(fakes[i].units, 0);
    }
    wire_key_free(own_key);
    wire_trust_deinit(&stage_trust);
    wire_trust_deinit(&own_trust);
    return 0;
}

static struct gen_request request(const int32_t *prompt, size_t n, uint32_t max_tokens) {
    return (struct gen_request){
        .id = "test", .prompt = prompt, .n_prompt = n, .max_tokens = max_tokens, .sampling = sampler_defaults()};
}

static uint32_t n_cached; /* of the latest request that drain saw the end of */

/* Takes events to the end; returns how it ended, *n tokens in out. */
static strata_err drain(struct gen_job *job, int32_t *out, uint32_t cap, uint32_t *n, enum gen_finish *finish) {
    struct gen_event ev;
    *n = 0;
    for (;;) {
        strata_err rc = gen->ops->next(gen, job, clock_now_ns() + 10 * CLOCK_NS_PER_S, &ev, &em);
        if (rc) return rc;
        if (ev.kind == GEN_DONE) {
            *finish = ev.finish;
            n_cached = ev.n_cached;
            return STRATA_OK;
        }
        assert_true(*n < cap);
        out[(*n)++] = ev.token;
    }
}

static void check_answer(const int32_t *prompt, uint32_t n_prompt, const int32_t *got, uint32_t n) {
    int32_t ids[FAKE_CTX];
    memcpy(ids, prompt, n_prompt * sizeof *ids);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(got[i], fake_expect(ids, n_prompt + i));
        ids[n_prompt + i] = got[i];
    }
}

static void ask(const int32_t *prompt, uint32_t n_prompt, uint32_t max_tokens, uint32_t want) {
    struct gen_request req = request(prompt, n_prompt, max_tokens);
    struct gen_job *job;
    int32_t out[FAKE_CTX];
    uint32_t n;
    enum gen_finish finish;
    if (gen->ops->submit(gen, &req, &job, &em)) fail_msg("%s", em.text);
    if (drain(job, out, FAKE_CTX, &n, &finish)) fail_msg("%s", em.text);
    assert_int_equal(n, want);
    assert_int_equal(finish, GEN_FINISH_LENGTH);
    check_answer(prompt, n_prompt, out, n);
    gen->ops->job_free(gen, job);
}

static void test_tokens(void **state) {
    static const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        stand(n);
        ask(prompt, 1, 1, 1);
        ask(prompt, 4, 5, 5);            /* one full batch */
        ask(prompt, 10, 20, 20);         /* three chunks, the last one short */
        ask(prompt, 10, 1000, CTX - 10); /* until the context is full */
        teardown(NULL);
        setup(NULL);
    }
    n_stages = 0;
}

static void test_stop_ids(void **state) {
    static const int32_t prompt[] = {3, 1, 4};
    struct gen_request req = request(prompt, 3, 20);
    struct gen_job *job;
    int32_t out[CTX], ids[8] = {3, 1, 4};
    uint32_t n;
    enum gen_finish finish;
    (void)state;
    stand(3);
    for (uint32_t i = 3; i < 6; i++) ids[i] = fake_expect(ids, i);
    req.stop_ids = &ids[5];
    req.n_stop_ids = 1;
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
    assert_int_equal(drain(job, out, CTX, &n, &finish), 0);
    assert_int_equal(finish, GEN_FINISH_STOP);
    assert_true(n >= 1 && n <= 3);
    assert_int_equal(out[n - 1], ids[5]);
    gen->ops->job_free(gen, job);
}

static void test_limits(void **state) {
    int32_t prompt[CTX] = {0};
    struct gen_job *job;
    (void)state;
    stand(1);
    struct gen_request req = request(prompt, CTX, 1);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), STRATA_ELIMIT);
    assert_non_null(strstr(em.text, "64 tokens"));
    req = request(prompt, 0, 1);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), STRATA_EINVAL);
    req = request(prompt, 1, 0);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), STRATA_EINVAL);
    ask(prompt, CTX - 1, 5, 1);
    assert_int_equal(gen->ops->n_ctx(gen), CTX);
}

static void test_queue(void **state) {
    static const int32_t prompt[] = {7, 7};
    struct gen_job *jobs[CHAIN_QUEUE_MAX + SLOTS + 1];
    struct gen_request req = request(prompt, 2, 3);
    int32_t out[CTX];
    uint32_t n, accepted = 0;
    enum gen_finish finish;
    (void)state;
    fakes[0].run_us = 20000;
    stand(2);
    while (accepted < CHAIN_QUEUE_MAX + SLOTS + 1 && gen->ops->submit(gen, &req, &jobs[accepted], &em) == STRATA_OK)
        accepted++;
    assert_in_range(accepted, CHAIN_QUEUE_MAX, CHAIN_QUEUE_MAX + SLOTS);
    assert_int_equal(em.code, STRATA_ELIMIT);
    fakes[0].run_us = 0;
    /* Letting go of a waiting job and of the running one disturbs nobody. */
    gen->ops->job_free(gen, jobs[0]);
    gen->ops->job_free(gen, jobs[5]);
    for (uint32_t i = 1; i < accepted; i++) {
        if (i == 5) continue;
        assert_int_equal(drain(jobs[i], out, CTX, &n, &finish), 0);
        assert_int_equal(n, 3);
        check_answer(prompt, 2, out, n);
        gen->ops->job_free(gen, jobs[i]);
    }
}

static void test_cancel(void **state) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct gen_request req = request(prompt, 9, 50);
    struct gen_event ev;
    struct gen_job *job;
    (void)state;
    for (int i = 0; i < MAX_STAGES; i++) fakes[i].run_us = 2000;
    stand(3);
    for (int round = 0; round < 5; round++) {
        assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
        for (int i = 0; i < round * 3; i++)
            assert_int_equal(gen->ops->next(gen, job, clock_now_ns() + 5 * CLOCK_NS_PER_S, &ev, &em), 0);
        gen->ops->job_free(gen, job);
        ask(prompt, 9, 4, 4); /* the next request sees nothing of the cancelled one */
    }
}

static void test_next_deadline(void **state) {
    static const int32_t prompt[] = {1};
    struct gen_request req = request(prompt, 1, 2);
    struct gen_event ev;
    struct gen_job *job;
    (void)state;
    fakes[0].run_us = 300000;
    stand(1);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
    assert_int_equal(gen->ops->next(gen, job, clock_now_ns() + 20 * CLOCK_NS_PER_MS, &ev, &em), STRATA_ETIMEOUT);
    assert_int_equal(gen->ops->next(gen, job, clock_now_ns() + 5 * CLOCK_NS_PER_S, &ev, &em), 0);
    assert_int_equal(ev.kind, GEN_TOKEN);
    gen->ops->job_free(gen, job);
}

/* A fault inside one request ends that request alone. */
static void test_faults(void **state) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    struct gen_request req = request(prompt, 5, 5);
    struct gen_job *job;
    int32_t out[CTX];
    uint32_t n;
    enum gen_finish finish;
    (void)state;
    stand(3);
    for (int i = 0; i < 3; i++) {
        fakes[i].fail_run = 1;
        assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
        assert_int_equal(drain(job, out, CTX, &n, &finish), STRATA_EINTERNAL);
        char name[40];
        snprintf(name, sizeof name, "stage %d of 3", i + 1);
        assert_non_null(strstr(em.text, name));
        assert_non_null(strstr(em.text, "told to fail"));
        gen->ops->job_free(gen, job);
        ask(prompt, 5, 3, 3);
    }
    fakes[0].nan_next = 1;
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
    assert_int_equal(drain(job, out, CTX, &n, &finish), STRATA_EPEER);
    assert_non_null(strstr(em.text, "stage 2 of 3"));
    assert_non_null(strstr(em.text, "layer 2"));
    assert_non_null(strstr(em.text, "not finite"));
    gen->ops->job_free(gen, job);
    ask(prompt, 5, 3, 3);
}

/* ---- several requests at once ---- */

static struct gen_job *submit(const int32_t *prompt, uint32_t n_prompt, uint32_t max_tokens) {
    struct gen_request req = request(prompt, n_prompt, max_tokens);
    struct gen_job *job;
    if (gen->ops->submit(gen, &req, &job, &em)) fail_msg("%s", em.text);
    return job;
}

static void finish_right(struct gen_job *job, const int32_t *prompt, uint32_t n_prompt, uint32_t want) {
    int32_t out[FAKE_CTX];
    uint32_t n;
    enum gen_finish finish;
    if (drain(job, out, FAKE_CTX, &n, &finish)) fail_msg("%s", em.text);
    assert_int_equal(n, want);
    check_answer(prompt, n_prompt, out, n);
    gen->ops->job_free(gen, job);
}

static int64_t health_number(const char *group, const char *key) {
    json_t *status, *at;
    gen->ops->health(gen, &status);
    at = group ? json_object_get(status, group) : status;
    int64_t v = json_integer_value(json_object_get(at, key));
    json_decref(status);
    return v;
}

/* Requests share batches on every stage, and none sees anything of the others. */
static void test_together(void **state) {
    int32_t prompts[8][20];
    struct gen_job *jobs[8];
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        for (uint32_t in_flight = 1; in_flight <= 2; in_flight++) {
            with.slots = with.batch = 8;
            with.in_flight = in_flight;
            for (uint32_t i = 0; i < n; i++) fakes[i].run_us = 4000;
            stand(n);
            for (int i = 0; i < 8; i++) {
                for (int k = 0; k < 20; k++) prompts[i][k] = (i * 31 + k * 7) % FAKE_VOCAB;
                jobs[i] = submit(prompts[i], (uint32_t)(3 + 2 * i), 30);
            }
            for (int i = 0; i < 8; i++) finish_right(jobs[i], prompts[i], (uint32_t)(3 + 2 * i), 30);
            /* One at a time would be 8 * 30 runs and more. */
            for (uint32_t i = 0; i < n; i++) {
                if (fakes[i].most < 3 || fakes[i].runs > 8 * 30 * 3 / 4)
                    fail_msg("stage %u of %u: at most %d together, %d runs", i + 1, n, fakes[i].most, fakes[i].runs);
            }
            teardown(NULL);
            setup(NULL);
        }
    }
}

/*
 * Requests that begin at different times fall into step: with one batch on its way at a time there are hardly more
 * batches than steps. One that is cancelled while its row is on its way keeps nobody waiting.
 */
static void test_in_step(void **state) {
    static const int32_t prompt[] = {5, 6};
    struct gen_job *jobs[8];
    (void)state;
    for (uint32_t n = 2; n <= 3; n++) {
        with.slots = with.batch = 8;
        for (uint32_t i = 0; i < n; i++) fakes[i].run_us = 2000;
        stand(n);
        struct gen_job *left = submit(prompt, 2, 50);
        for (int i = 0; i < 7; i++) {
            usleep(3000);
            jobs[i] = submit(prompt, 2, 50);
        }
        gen->ops->job_free(gen, left);
        for (int i = 0; i < 7; i++) finish_right(jobs[i], prompt, 2, 50);
        for (uint32_t i = 0; i < n; i++)
            if (fakes[i].runs > 50 + 2 * 8 + 10) fail_msg("stage %u of %u: %d runs", i + 1, n, fakes[i].runs);
        teardown(NULL);
        setup(NULL);
    }
}

/* A long prompt does not keep the others waiting until it is done, and gets its turn itself. */
static void test_fair(void **state) {
    int32_t prompt[FAKE_CTX] = {0};
    struct gen_event ev;
    (void)state;
    with.ctx = FAKE_CTX;
    with.batch = 8;
    with.slots = 3;
    fakes[0].run_us = 1000;
    stand(1);
    struct gen_job *talker = submit(prompt, 2, 300);
    assert_int_equal(gen->ops->next(gen, talker, clock_now_ns() + 5 * CLOCK_NS_PER_S, &ev, &em), 0);
    struct gen_job *reader = submit(prompt, 400, 5), *third = submit(prompt, 4, 4);
    finish_right(third, prompt, 4, 4);
    /* At two rows of prompt a batch the reader needs some 200 batches, in each of which the talker says something. */
    assert_int_equal(gen->ops->next(gen, reader, clock_now_ns() + 10 * CLOCK_NS_PER_S, &ev, &em), 0);
    uint32_t said = 1;
    while (gen->ops->next(gen, talker, clock_now_ns(), &ev, &em) == STRATA_OK && ev.kind == GEN_TOKEN) said++;
    assert_in_range(said, 100, 300);
    gen->ops->job_free(gen, reader);
    gen->ops->job_free(gen, talker);
}

/* What is wrong with one request ends that one, though it shares its batches. */
static void test_isolated(void **state) {
    static const int32_t good[] = {1, 2, 3, 4, 5}, bad[] = {1, 2, 50, 4, 5, 6, 7, 8, 9};
    int32_t out[CTX];
    uint32_t n;
    enum gen_finish finish;
    (void)state;
    for (int i = 0; i < 3; i++) fakes[i].run_us = 1000;
    stand(3);
    fakes[0].poison = 50;
    struct gen_job *a = submit(good, 5, 5), *b = submit(bad, 9, 20), *c = submit(good, 5, 5);
    assert_int_equal(drain(b, out, CTX, &n, &finish), STRATA_EINTERNAL);
    assert_non_null(strstr(em.text, "at token 50"));
    gen->ops->job_free(gen, b);
    finish_right(a, good, 5, 5);
    finish_right(c, good, 5, 5);
    assert_int_equal(health_number(NULL, "running"), 0);
}

/* Requests that together might outgrow the pool wait for one another, in order. */
static void test_pool(void **state) {
    static const int32_t prompt[] = {1, 2, 3, 4};
    struct gen_job *jobs[5];
    (void)state;
    with.pool = CTX + 10;
    fakes[0].run_us = 50000;
    stand(1);
    jobs[0] = submit(prompt, 4, 20);
    jobs[1] = submit(prompt, 4, 60); /* all of the context: does not fit beside the first */
    jobs[2] = submit(prompt, 4, 1);  /* would fit, but must not overtake */
    for (int i = 0; i < 100 && health_number(NULL, "running") == 0; i++) usleep(5000);
    assert_int_equal(health_number(NULL, "running"), 1);
    assert_int_equal(health_number(NULL, "queued"), 2);
    fakes[0].run_us = 1000;
    finish_right(jobs[0], prompt, 4, 20);
    finish_right(jobs[2], prompt, 4, 1);
    finish_right(jobs[1], prompt, 4, 60);
}

/* ---- the prefix cache ---- */

static void long_prompt(int32_t *prompt, uint32_t n, int32_t seed) {
    for (uint32_t i = 0; i < n; i++) prompt[i] = (int32_t)(((uint32_t)seed * 17 + i * i * 3 + i) % FAKE_VOCAB);
}

static void test_prefix(void **state) {
    int32_t a[600], b[600], talk[FAKE_CTX];
    (void)state;
    long_prompt(a, 600, 1);
    long_prompt(b, 600, 1);
    b[300] ^= 1;
    with.ctx = FAKE_CTX;
    with.batch = 100;
    with.cache = 32;
    stand(3);
    ask(a, 600, 5, 5);
    assert_int_equal(n_cached, 0);
    ask(a, 600, 5, 5);
    assert_int_equal(n_cached, 9 * 64);
    ask(b, 600, 5, 5); /* the same up to the 301st token */
    assert_int_equal(n_cached, 4 * 64);
    ask(a, 256, 5, 5); /* one token has to be computed */
    assert_int_equal(n_cached, 3 * 64);
    ask(a, 63, 5, 5);
    assert_int_equal(n_cached, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(fakes[i].loaded_rows, (9 + 4 + 3) * 64);
    assert_int_equal(health_number("prefix_cache", "hits"), 3);
    assert_int_equal(health_number("prefix_cache", "reused_tokens"), (9 + 4 + 3) * 64);
    /* a has nine, b five of its own, and the last one's answer completed its first. */
    assert_int_equal(health_number("prefix_cache", "tokens"), (9 + 5 + 1) * 64);
    /* A talk goes on: the answer is kept as well. */
    struct gen_job *job = submit(a, 100, 200);
    uint32_t n;
    enum gen_finish finish;
    memcpy(talk, a, 100 * sizeof *talk);
    assert_int_equal(drain(job, talk + 100, 200, &n, &finish), 0);
    gen->ops->job_free(gen, job);
    ask(talk, 300, 5, 5);
    assert_int_equal(n_cached, 4 * 64);
}

/* The cache stays within its bounds, at the stages too, and what was used last stays longest. */
static void test_prefix_eviction(void **state) {
    int32_t p[200], first[200];
    (void)state;
    long_prompt(first, 200, 99);
    with.ctx = FAKE_CTX;
    with.batch = 64;
    with.cache = 8;
    stand(2);
    ask(first, 200, 2, 2);
    for (int32_t seed = 0; seed < 10; seed++) {
        long_prompt(p, 200, seed);
        p[0] = seed;
        ask(p, 200, 2, 2);
        ask(first, 200, 2, 2);
        assert_int_equal(n_cached, 3 * 64);
        assert_true(health_number("prefix_cache", "tokens") <= 8 * 64);
    }
    assert_true(health_number("prefix_cache", "evictions") >= 10);
    /* A prompt that is larger than the whole cache is computed, and kept out of it. */
    int32_t large[700];
    long_prompt(large, 700, 5);
    ask(large, 700, 2, 2);
    ask(large, 700, 2, 2);
    assert_true(health_number("prefix_cache", "tokens") <= 8 * 64);
    ask(first, 200, 2, 2);
}

/* Cancelled and failed requests leave nothing half-known behind. */
static void test_prefix_cancelled(void **state) {
    int32_t p[500];
    struct gen_event ev;
    (void)state;
    long_prompt(p, 500, 3);
    with.ctx = FAKE_CTX;
    with.batch = 16;
    with.cache = 16;
    for (int i = 0; i < 2; i++) fakes[i].run_us = 500;
    stand(2);
    /* More than the stages have room for, if each left one block behind there. */
    for (int round = 0; round < 30; round++) {
        struct gen_job *job = submit(p, 100 + 13 * (uint32_t)round, 50);
        if (round % 2) assert_int_equal(gen->ops->next(gen, job, clock_now_ns() + 5 * CLOCK_NS_PER_S, &ev, &em), 0);
        usleep((useconds_t)(round * 400));
        gen->ops->job_free(gen, job);
    }
    ask(p, 500, 3, 3);
    ask(p, 500, 3, 3);
    assert_int_equal(n_cached, 7 * 64);
    assert_int_equal(health_number(NULL, "running"), 0);
}

/* A stage that lacks a block costs time, and nothing else: the request starts again, from nothing. */
static void test_prefix_lost(void **state) {
    int32_t p[300];
    (void)state;
    long_prompt(p, 300, 3);
    with.ctx = FAKE_CTX;
    with.batch = 64;
    with.cache = 16;
    stand(3);
    for (int i = 0; i < 3; i++) {
        ask(p, 300, 3, 3);
        ask(p, 300, 3, 3);
        assert_int_equal(n_cached, 4 * 64);
        fakes[i].lose++;
        ask(p, 300, 3, 3);
        assert_int_equal(n_cached, 0);
    }
    assert_int_equal(health_number(NULL, "running"), 0);
}

/* Many requests with the same beginnings, at once, on a small cache: every answer is right. */
static void test_prefix_crowd(void **state) {
    int32_t prompts[12][300];
    struct gen_job *jobs[12];
    (void)state;
    with.ctx = FAKE_CTX;
    with.batch = 64;
    with.slots = 6;
    with.cache = 10;
    stand(3);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 12; i++) {
            long_prompt(prompts[i], 300, i % 3);
            prompts[i][150 + i] = round;
            jobs[i] = submit(prompts[i], 300 - (uint32_t)i, 10);
        }
        if (round == 2) {
            gen->ops->job_free(gen, jobs[3]);
            jobs[3] = submit(prompts[3], 297, 10);
        }
        for (int i = 0; i < 12; i++) finish_right(jobs[i], prompts[i], 300 - (uint32_t)i, 10);
    }
    assert_true(health_number("prefix_cache", "hits") > 0);
}

/* A stage goes away during generation: the request ends in time, the chain comes back with the stage. */
static void test_lost(void **state) {
    static const int32_t prompt[] = {1, 2, 3};
    struct gen_request req = request(prompt, 3, 60);
    struct gen_job *job, *waiting;
    struct gen_event ev;
    int32_t out[CTX];
    uint32_t n;
    enum gen_finish finish;
    json_t *status;
    (void)state;
    fakes[2].run_us = 50000;
    stand(3);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), 0);
    assert_int_equal(gen->ops->submit(gen, &req, &waiting, &em), 0);
    assert_int_equal(gen->ops->next(gen, job, clock_now_ns() + 5 * CLOCK_NS_PER_S, &ev, &em), 0);
    uint16_t port = stage_server_addr(servers[1])->port;
    uint64_t start = clock_now_ns();
    assert_true(stage_server_stop(servers[1]));
    servers[1] = NULL;
    assert_int_equal(drain(job, out, CTX, &n, &finish), STRATA_EPEER);
    assert_non_null(strstr(em.text, "was lost"));
    assert_int_equal(drain(waiting, out, CTX, &n, &finish), STRATA_EPEER);
    assert_true(clock_since_s(start) < 2.0);
    gen->ops->job_free(gen, job);
    gen->ops->job_free(gen, waiting);
    assert_int_equal(gen->ops->submit(gen, &req, &job, &em), STRATA_EPEER);
    assert_non_null(strstr(em.text, "was lost"));
    assert_false(gen->ops->health(gen, &status));
    assert_string_equal(json_string_value(json_object_get(status, "status")), "degraded");
    json_decref(status);
    start_stage(1, port);
    for (int i = 0; i < 100 && !gen->ops->health(gen, &status); i++) {
        json_decref(status);
        usleep(50000);
    }
    assert_string_equal(json_string_value(json_object_get(status, "status")), "ok");
    assert_int_equal(json_array_size(json_object_get(status, "stages")), 3);
    json_decref(status);
    fakes[2].run_us = 0;
    ask(prompt, 3, 10, 10);
}

/* ---- set-up that cannot succeed ---- */

static void test_wrong_package(void **state) {
    (void)state;
    fakes[1].manifest = OTHER;
    start_stages(3);
    assert_int_equal(start_chain(), STRATA_EDIGEST);
    assert_non_null(strstr(em.text, "stage 2 of 3"));
    assert_non_null(strstr(em.text, OTHER));
    assert_non_null(strstr(em.text, D64));
}

static void test_untrusted_by_stage(void **state) {
    (void)state;
    wire_trust_deinit(&stage_trust);
    start_stages(2);
    assert_int_equal(start_chain(), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "on that machine run: strata key trust"));
}

static void test_untrusted_by_us(void **state) {
    (void)state;
    char text[ED25519_PUB_TEXT];
    start_stages(2);
    wire_trust_remove(&own_trust, ed25519_pub_text(&stage_keys[1]->pub, text), &em);
    assert_int_equal(start_chain(), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "stage 2 of 2"));
    assert_non_null(strstr(em.text, text));
}

static void test_load_fails(void **state) {
    (void)state;
    fakes[1].fail_load = "layers/layer-00003.gguf differs from its digest";
    start_stages(2);
    assert_int_equal(start_chain(), STRATA_EDIGEST);
    assert_non_null(strstr(em.text, "stage 2 of 2"));
    assert_non_null(strstr(em.text, "layer-00003"));
}

static void test_busy(void **state) {
    struct chain *first;
    (void)state;
    stand(2);
    first = chain;
    assert_int_equal(start_chain(), STRATA_EBUSY);
    assert_non_null(strstr(em.text, "busy with a session of boss"));
    chain_stop(chain);
    chain = first;
    gen = chain_gen(chain);
    static const int32_t prompt[] = {5};
    ask(prompt, 1, 3, 3);
    /* When the first goes, the stages are free for the next. */
    chain_stop(chain);
    usleep(200000);
    if (start_chain()) fail_msg("%s", em.text);
    ask(prompt, 1, 3, 3);
}

static void test_slow_load(void **state) {
    static const int32_t prompt[] = {5};
    (void)state;
    fakes[0].load_us = 1300000;
    stand(2);
    ask(prompt, 1, 3, 3);
}

/* A coordinator that goes while a stage loads leaves nothing behind. */
static void test_leave_while_loading(void **state) {
    (void)state;
    fakes[0].load_us = 400000;
    start_stages(1);
    struct chain_stage st = {.addr = *stage_server_addr(servers[0]), .end = FAKE_LAYERS};
    struct chain_options opt = {.stages = &st,
                                .n_stages = 1,
                                .key = own_key,
                                .trust = &own_trust,
                                .manifest_sha256 = D64,
                                .layer_count = FAKE_LAYERS,
                                .n_ctx = CTX,
                                .n_batch = BATCH,
                                .n_seq = 1,
                                .n_pool = CTX,
                                .n_in_flight = 1};
    assert_int_equal(chain_start(&opt, &chain, &em), 0);
    assert_int_equal(chain_wait(chain, clock_now_ns() + 200 * CLOCK_NS_PER_MS, &em), STRATA_ETIMEOUT);
    chain_stop(chain);
    chain = NULL;
    usleep(600000);
    assert_int_equal(fakes[0].units, 0);
    fakes[0].load_us = 0;
    if (start_chain()) fail_msg("%s", em.text);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_tokens),
        T(test_stop_ids),
        T(test_limits),
        T(test_queue),
        T(test_cancel),
        T(test_next_deadline),
        T(test_faults),
        T(test_lost),
        T(test_wrong_package),
        T(test_untrusted_by_stage),
        T(test_together),
        T(test_in_step),
        T(test_fair),
        T(test_isolated),
        T(test_pool),
        T(test_prefix),
        T(test_prefix_eviction),
        T(test_prefix_cancelled),
        T(test_prefix_crowd),
        T(test_prefix_lost),
        T(test_untrusted_by_us),
        T(test_load_fails),
        T(test_busy),
        T(test_slow_load),
        T(test_leave_while_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
