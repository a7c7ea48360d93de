/* The queue between the threads: order, when it is full and when there is room, cancels, and the end of waiting. */
#include "stage/stage_queue.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static struct wire_loop *loop;
static struct stage_queue *q;

static int setup(void **state) {
    (void)state;
    assert_int_equal(wire_loop_start(&loop, NULL), 0);
    assert_int_equal(stage_queue_new(&q, NULL), 0);
    return 0;
}

/* What is still in the queue is freed with it: the leak checker sees whether that is so. */
static int teardown(void **state) {
    (void)state;
    stage_queue_free(q);
    wire_loop_stop(loop);
    return 0;
}

/* An item that owns all that its kind can own. */
static struct stage_item item(enum stage_item_kind kind, uint32_t seq, size_t payload) {
    struct stage_item it = {.kind = kind, .generation = 5, .frame = {.seq = seq}};
    if (payload) it.payload = wire_buf_get(loop, payload);
    if (kind == STAGE_ITEM_LOAD) it.assign = calloc(1, sizeof *it.assign);
    if (kind == STAGE_ITEM_BEGIN) {
        it.begin = calloc(1, sizeof *it.begin);
        it.begin->restore = malloc(8);
        it.begin->history = malloc(8);
        it.begin->stop_ids = malloc(8);
    }
    return it;
}

static bool push(enum stage_item_kind kind, uint32_t seq, size_t payload) {
    struct stage_item it = item(kind, seq, payload);
    bool full = false;
    assert_int_equal(stage_queue_push(q, &it, &full, NULL), 0);
    return full;
}

static void push_quietly(enum stage_item_kind kind, uint32_t seq, size_t payload) {
    struct stage_item it = item(kind, seq, payload);
    assert_int_equal(stage_queue_push(q, &it, NULL, NULL), 0);
}

/* Takes the next item, which must be of request seq; tells whether there is room again. */
static bool pop(uint32_t seq) {
    struct stage_item it;
    bool room = true;
    assert_true(stage_queue_pop(q, &it, &room));
    assert_int_equal(it.frame.seq, seq);
    assert_int_equal(it.generation, 5);
    stage_item_deinit(&it);
    return room;
}

static void expect_empty(void) {
    struct stage_item it;
    bool room = true;
    assert_false(stage_queue_pop(q, &it, &room));
    assert_false(room);
}

/* In order, while the ring turns and grows at every place of its head. */
static void test_order(void **state) {
    uint32_t in = 0, out = 0;
    (void)state;
    expect_empty();
    for (unsigned round = 0; round < 60; round++) {
        for (unsigned i = 0; i < 7 * round; i++) {
            enum stage_item_kind kind = (enum stage_item_kind)(in % (STAGE_ITEM_FORGET + 1));
            push_quietly(kind, in++, kind == STAGE_ITEM_HIDDEN ? 8 : 0);
        }
        for (unsigned i = 0; i < 5 * round; i++) assert_false(pop(out++));
    }
    while (out < in) assert_false(pop(out++));
    expect_empty();
    for (uint32_t i = 0; i < 500; i++) push_quietly(STAGE_ITEM_BEGIN, i, 8);
}

static void test_full_of_items(void **state) {
    uint32_t in = 0, out = 0;
    (void)state;
    for (unsigned again = 0; again < 3; again++) {
        while (in - out < 64) assert_false(push(STAGE_ITEM_TOKENS, in++, 4));
        assert_true(push(STAGE_ITEM_TOKENS, in++, 4));
        /* It stays full, and says so, until half of it is gone; then it says once that there is room. */
        assert_false(pop(out++));
        assert_true(push(STAGE_ITEM_TOKENS, in++, 4));
        while (in - out > 33) assert_false(pop(out++));
        assert_true(push(STAGE_ITEM_TOKENS, in++, 4));
        assert_false(pop(out++));
        assert_true(pop(out++));
        assert_int_equal(in - out, 32);
        assert_false(pop(out++));
        assert_false(push(STAGE_ITEM_TOKENS, in++, 4));
    }
    while (out < in) assert_false(pop(out++));
}

/* A sender that cannot be held back does not make the queue full; but what it sent counts for the others. */
static void test_full_is_asked_for(void **state) {
    uint32_t in = 0, out = 0;
    (void)state;
    while (in < 200) push_quietly(STAGE_ITEM_STEPS, in++, 16);
    while (out < 150) assert_false(pop(out++));
    while (in < 300) push_quietly(STAGE_ITEM_STEPS, in++, 16);
    assert_true(push(STAGE_ITEM_HIDDEN, in++, 16));
    while (in - out > 33) assert_false(pop(out++));
    assert_true(pop(out++));
    while (out < in) assert_false(pop(out++));
}

static void test_full_of_bytes(void **state) {
    (void)state;
    assert_false(push(STAGE_ITEM_HIDDEN, 0, 9 * MIB));
    assert_false(push(STAGE_ITEM_TOKENS, 1, 9 * MIB));
    /* Only rows take long: what else comes does not count. */
    assert_false(push(STAGE_ITEM_BEGIN, 2, 40 * MIB));
    assert_false(push(STAGE_ITEM_STEPS, 3, 40 * MIB));
    assert_false(push(STAGE_ITEM_HIDDEN, 4, 14 * MIB)); /* 32 MiB to the byte */
    assert_true(push(STAGE_ITEM_HIDDEN, 5, 1));
    assert_false(pop(0));
    assert_true(push(STAGE_ITEM_FORGET, 6, 0));
    assert_true(pop(1)); /* 14 MiB and a byte are left */
    for (uint32_t seq = 2; seq <= 6; seq++) assert_false(pop(seq));
    expect_empty();
    /* A single one that is larger than all that may wait. */
    assert_true(push(STAGE_ITEM_HIDDEN, 7, 33 * MIB));
    assert_true(pop(7));
    /* Both limits: there is room when neither is near. */
    assert_true(push(STAGE_ITEM_HIDDEN, 0, 33 * MIB));
    for (uint32_t seq = 1; seq <= 70; seq++) assert_true(push(STAGE_ITEM_TOKENS, seq, 4));
    for (uint32_t seq = 0; seq < 38; seq++) assert_false(pop(seq));
    assert_true(pop(38));
    for (uint32_t seq = 39; seq <= 70; seq++) assert_false(pop(seq));
}

static void test_cancels(void **state) {
    (void)state;
    assert_false(stage_queue_cancels(q, 5));
    push_quietly(STAGE_ITEM_TOKENS, 5, 4);
    assert_false(stage_queue_cancels(q, 5));
    push_quietly(STAGE_ITEM_CANCEL, 6, 0);
    push_quietly(STAGE_ITEM_TOKENS, 7, 4);
    push_quietly(STAGE_ITEM_CANCEL, 5, 0);
    push_quietly(STAGE_ITEM_CANCEL, 6, 0);
    assert_true(stage_queue_cancels(q, 5));
    assert_true(stage_queue_cancels(q, 6));
    assert_false(stage_queue_cancels(q, 7));
    assert_false(stage_queue_cancels(q, 0));
    pop(5);
    pop(6);
    assert_true(stage_queue_cancels(q, 6)); /* the other one */
    assert_true(stage_queue_cancels(q, 5));
    pop(7);
    pop(5);
    assert_false(stage_queue_cancels(q, 5));
    assert_true(stage_queue_cancels(q, 6));
    pop(6);
    assert_false(stage_queue_cancels(q, 6));
}

static void test_clear(void **state) {
    (void)state;
    stage_queue_clear(q);
    for (uint32_t i = 0; i < 10; i++) push_quietly(STAGE_ITEM_LOAD, i, 0);
    for (uint32_t i = 0; i < 10; i++) pop(i);
    for (uint32_t i = 0; i < 70; i++) push(STAGE_ITEM_BEGIN, i, 100);
    push_quietly(STAGE_ITEM_CANCEL, 3, 0);
    assert_true(push(STAGE_ITEM_HIDDEN, 3, 33 * MIB));
    stage_queue_clear(q);
    expect_empty();
    assert_false(stage_queue_cancels(q, 3));
    assert_false(stage_queue_quitting(q));
    /* Nothing of what was there counts any more. */
    for (uint32_t i = 0; i < 64; i++) assert_false(push(STAGE_ITEM_HIDDEN, i, 512 << 10));
    assert_true(push(STAGE_ITEM_HIDDEN, 64, 1));
    for (uint32_t i = 0; i < 32; i++) assert_false(pop(i));
    assert_true(pop(32));
}

/* It refuses an item in the end, rather than take all memory; what the item owns is freed. */
static void test_refuses(void **state) {
    struct strata_errmsg em = {0};
    strata_err rc = STRATA_OK;
    uint32_t n = 0, out = 0;
    (void)state;
    while (!rc && n < 4u << 20) {
        struct stage_item it = item(n < MIB ? STAGE_ITEM_FORGET : STAGE_ITEM_BEGIN, n, 0);
        rc = stage_queue_push(q, &it, NULL, &em);
        n += !rc;
    }
    assert_int_equal(rc, STRATA_ENOMEM);
    assert_true(n >= 1 << 16);
    assert_non_null(strstr(em.text, "queue"));
    while (out < n) pop(out++);
    expect_empty();
    push_quietly(STAGE_ITEM_FORGET, 1, 0);
    pop(1);
}

/* ---- threads ---- */

static atomic_uint woken;

static void *wait_once(void *arg) {
    stage_queue_wait(q, NULL);
    atomic_fetch_add(&woken, 1);
    return arg;
}

static void expect_woken(unsigned n) {
    for (int i = 0; i < 2000 && atomic_load(&woken) < n; i++) usleep(1000);
    assert_int_equal(atomic_load(&woken), n);
}

static void test_quit(void **state) {
    pthread_t t[4];
    (void)state;
    atomic_store(&woken, 0);
    assert_false(stage_queue_quitting(q));
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, wait_once, NULL), 0);
    usleep(50000);
    assert_int_equal(atomic_load(&woken), 0);
    stage_queue_quit(q);
    expect_woken(4);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_true(stage_queue_quitting(q));
    stage_queue_wait(q, NULL); /* at once, now and later */
    push_quietly(STAGE_ITEM_FORGET, 1, 0);
    stage_queue_wait(q, NULL);
    pop(1);
    stage_queue_clear(q);
    assert_true(stage_queue_quitting(q));
}

static void test_item_wakes(void **state) {
    pthread_t t[3];
    (void)state;
    atomic_store(&woken, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, wait_once, NULL), 0);
    usleep(50000);
    assert_int_equal(atomic_load(&woken), 0);
    push_quietly(STAGE_ITEM_FORGET, 1, 0); /* an item that nobody takes wakes everybody */
    expect_woken(3);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    stage_queue_wait(q, NULL); /* there is one */
    pop(1);
}

/* ---- a wait that runs the loop ---- */

static void push_from_loop(void *ctx) {
    (void)ctx;
    usleep(1000);
    push_quietly(STAGE_ITEM_FORGET, 1, 0);
}

static void quit_from_loop(void *ctx) {
    (void)ctx;
    stage_queue_quit(q);
}

static void *wait_in_loop(void *arg) {
    stage_queue_wait(q, loop);
    atomic_fetch_add(&woken, 1);
    return arg;
}

static void start_wait(pthread_t *t, useconds_t us) {
    atomic_store(&woken, 0);
    assert_int_equal(pthread_create(t, NULL, wait_in_loop, NULL), 0);
    usleep(us);
    assert_int_equal(atomic_load(&woken), 0);
}

/* Waits of all lengths: it is awake, it sleeps in the loop, it has given the loop back. */
static void test_waits_in_loop(void **state) {
    static const useconds_t us[] = {0, 200, 20000, 1500000};
    pthread_t t;
    (void)state;
    for (size_t i = 0; i < sizeof us / sizeof us[0]; i++) {
        struct wire_task task = {.fn = push_from_loop};
        start_wait(&t, us[i]);
        wire_loop_post(loop, &task);
        expect_woken(1);
        pthread_join(t, NULL);
        pop(1);
    }
    start_wait(&t, 20000);
    stage_queue_quit(q);
    wire_loop_wake(loop);
    expect_woken(1);
    pthread_join(t, NULL);
    wait_in_loop(NULL); /* at once, now and later */
}

static void test_quits_in_loop(void **state) {
    pthread_t t;
    (void)state;
    start_wait(&t, 20000);
    wire_loop_call(loop, quit_from_loop, NULL);
    expect_woken(1);
    pthread_join(t, NULL);
}

enum { STREAM = 200000 };

static atomic_bool held;

/* Stops when the queue is full, until the taker tells that there is room, as a link does. */
static void *produce(void *arg) {
    for (uint32_t i = 0; i < STREAM; i++) {
        struct stage_item it = {.kind = i % 3 ? STAGE_ITEM_HIDDEN : STAGE_ITEM_CANCEL, .generation = 5};
        bool full = false;
        it.frame.seq = i;
        if (i % 8 == 0) it.payload = wire_buf_get(loop, 100);
        /* Before the push: the taker may be quicker to lift it than we are to set it. */
        atomic_store(&held, true);
        if (stage_queue_push(q, &it, &full, NULL)) break;
        if (!full) atomic_store(&held, false);
        while (full && atomic_load(&held)) sched_yield();
    }
    return arg;
}

static void test_stream(void **state) {
    pthread_t t;
    uint32_t next = 0, rooms = 0;
    (void)state;
    assert_int_equal(pthread_create(&t, NULL, produce, NULL), 0);
    while (next < STREAM) {
        struct stage_item it;
        bool room;
        stage_queue_wait(q, NULL);
        while (stage_queue_pop(q, &it, &room)) {
            assert_int_equal(it.frame.seq, next);
            stage_item_deinit(&it);
            if (room) {
                rooms++;
                atomic_store(&held, false);
            }
            if (next % 16 == 0) assert_false(stage_queue_cancels(q, next)); /* it is out of the queue */
            if (next % 1024 == 0) usleep(500);                              /* so that the queue fills */
            next++;
        }
    }
    pthread_join(t, NULL);
    expect_empty();
    assert_true(rooms > 0);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_order),      T(test_full_of_items), T(test_full_is_asked_for), T(test_full_of_bytes),
        T(test_cancels),    T(test_clear),         T(test_refuses),           T(test_quit),
        T(test_item_wakes), T(test_stream),        T(test_waits_in_loop),     T(test_quits_in_loop),
    };
    stage_queue_free(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
