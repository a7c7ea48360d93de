/* Who runs a loop: its own thread, or one that takes it while it waits; and that nothing is lost when they change. */
#include "wire/wire_loop.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

static struct wire_loop *loop;

static int setup(void **state) {
    (void)state;
    return wire_loop_start(&loop, NULL) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    wire_loop_stop(loop);
    return 0;
}

/* A task that notes which thread it runs on. */
struct note {
    struct wire_task task;
    pthread_t thread;
    atomic_bool done;
};

static void take_note(void *ctx) {
    struct note *n = ctx;
    n->thread = pthread_self();
    atomic_store(&n->done, true);
}

static void note_init(struct note *n) {
    *n = (struct note){.task = {.fn = take_note, .ctx = n}};
}

static void expect_done(struct note *n) {
    for (int i = 0; i < 5000 && !atomic_load(&n->done); i++) usleep(1000);
    assert_true(atomic_load(&n->done));
}

static bool is_mine(const struct note *n) {
    return pthread_equal(n->thread, pthread_self());
}

static void test_tasks(void **state) {
    struct note n;
    (void)state;
    for (int i = 0; i < 3; i++) {
        note_init(&n);
        wire_loop_take(loop);
        wire_loop_post(loop, &n.task);
        usleep(20000);
        assert_false(atomic_load(&n.done)); /* the loop's own thread leaves it alone */
        wire_loop_turn(loop, 5000);
        assert_true(atomic_load(&n.done) && is_mine(&n));
        wire_loop_give(loop, i % 2);
        note_init(&n);
        wire_loop_post(loop, &n.task); /* does not wait for us to come back */
        expect_done(&n);
        assert_false(is_mine(&n));
    }
    note_init(&n);
    wire_loop_take(loop);
    wire_loop_post(loop, &n.task);
    wire_loop_give(loop, true); /* left behind */
    expect_done(&n);
    assert_false(is_mine(&n));
}

static void *wake_later(void *arg) {
    usleep(20000);
    wire_loop_wake(loop);
    return arg;
}

static void test_wake(void **state) {
    pthread_t t;
    (void)state;
    wire_loop_take(loop);
    wire_loop_turn(loop, 0);
    assert_int_equal(pthread_create(&t, NULL, wake_later, NULL), 0);
    wire_loop_turn(loop, 60000); /* else the test never ends */
    pthread_join(t, NULL);
    wire_loop_wake(loop); /* before it waits */
    wire_loop_turn(loop, 60000);
    wire_loop_give(loop, false);
}

/* ---- sockets and timers ---- */

static struct {
    uv_poll_t poll;
    uv_timer_t timer;
    int fd[2];
    pthread_t thread;
    atomic_uint n_read, n_fired;
} ev;

static void on_readable(uv_poll_t *h, int status, int events) {
    char c;
    (void)h;
    assert_int_equal(status, 0);
    assert_int_equal(events, UV_READABLE);
    assert_int_equal(read(ev.fd[0], &c, 1), 1);
    ev.thread = pthread_self();
    atomic_fetch_add(&ev.n_read, 1);
}

static void on_time(uv_timer_t *h) {
    (void)h;
    ev.thread = pthread_self();
    atomic_fetch_add(&ev.n_fired, 1);
}

static void open_events(void *ctx) {
    (void)ctx;
    uv_poll_init(wire_loop_uv(loop), &ev.poll, ev.fd[0]);
    uv_poll_start(&ev.poll, UV_READABLE, on_readable);
    uv_timer_init(wire_loop_uv(loop), &ev.timer);
}

static void arm_timer(void *ctx) {
    (void)ctx;
    uv_timer_start(&ev.timer, on_time, 30, 0);
}

static void close_events(void *ctx) {
    (void)ctx;
    uv_close((uv_handle_t *)&ev.poll, NULL);
    uv_close((uv_handle_t *)&ev.timer, NULL);
}

static void *write_later(void *arg) {
    usleep(20000);
    assert_int_equal(write(ev.fd[1], "x", 1), 1);
    return arg;
}

static void expect_count(atomic_uint *n, unsigned want) {
    for (int i = 0; i < 5000 && atomic_load(n) < want; i++) usleep(1000);
    assert_int_equal(atomic_load(n), want);
}

static void test_events(void **state) {
    struct wire_task arm = {.fn = arm_timer};
    pthread_t t;
    (void)state;
    atomic_store(&ev.n_read, 0);
    atomic_store(&ev.n_fired, 0);
    assert_int_equal(pipe(ev.fd), 0);
    wire_loop_call(loop, open_events, NULL);
    wire_loop_take(loop);
    assert_int_equal(pthread_create(&t, NULL, write_later, NULL), 0);
    while (atomic_load(&ev.n_read) == 0) wire_loop_turn(loop, 5000);
    assert_true(pthread_equal(ev.thread, pthread_self()));
    pthread_join(t, NULL);
    wire_loop_post(loop, &arm); /* a timer that begins in a turn ends the next one in time */
    while (atomic_load(&ev.n_fired) == 0) wire_loop_turn(loop, 60000);
    assert_true(pthread_equal(ev.thread, pthread_self()));
    wire_loop_post(loop, &arm);
    wire_loop_turn(loop, 5000);
    wire_loop_give(loop, true); /* and we do not come back: the loop's own thread finds what comes */
    expect_count(&ev.n_fired, 2);
    assert_false(pthread_equal(ev.thread, pthread_self()));
    assert_int_equal(write(ev.fd[1], "y", 1), 1);
    expect_count(&ev.n_read, 2);
    assert_false(pthread_equal(ev.thread, pthread_self()));
    wire_loop_call(loop, close_events, NULL);
    close(ev.fd[0]);
    close(ev.fd[1]);
}

/* ---- all at once ---- */

enum { POSTERS = 3, POSTS = 3000 };

static atomic_bool inside;
static atomic_uint ran, overlaps;

static void run_alone(void *ctx) {
    struct note *n = ctx;
    if (atomic_exchange(&inside, true)) atomic_fetch_add(&overlaps, 1);
    atomic_fetch_add(&ran, 1);
    atomic_store(&inside, false);
    atomic_store(&n->done, true);
}

static void *post_many(void *arg) {
    for (int i = 0; i < POSTS; i++) {
        struct note n = {.task = {.fn = run_alone, .ctx = &n}};
        if (i % 2) {
            wire_loop_call(loop, run_alone, &n);
        } else {
            wire_loop_post(loop, &n.task);
            expect_done(&n);
        }
    }
    return arg;
}

static void test_change_over(void **state) {
    pthread_t t[POSTERS];
    (void)state;
    atomic_store(&ran, 0);
    atomic_store(&overlaps, 0);
    for (int i = 0; i < POSTERS; i++) assert_int_equal(pthread_create(&t[i], NULL, post_many, NULL), 0);
    for (unsigned i = 0; atomic_load(&ran) < POSTERS * POSTS; i++) {
        wire_loop_take(loop);
        for (unsigned k = 0; k < i % 4; k++) wire_loop_turn(loop, k);
        wire_loop_give(loop, i % 3);
        if (i % 5 == 0) usleep(100);
    }
    for (int i = 0; i < POSTERS; i++) pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&ran), POSTERS * POSTS);
    assert_int_equal(atomic_load(&overlaps), 0);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_tasks), T(test_wake), T(test_events), T(test_change_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
