/* Deadlines of connections, on socket pairs. */
#include "serve/api_watch.h"

#include "base/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static bool closed_within(int fd, int ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;
    return poll(&p, 1, ms) == 1 && recv(fd, &c, 1, MSG_DONTWAIT) == 0;
}

static void cuts_what_is_overdue(void **state) {
    (void)state;
    struct api_watch *w = NULL;
    struct strata_errmsg em;
    int a[2], b[2];
    assert_int_equal(api_watch_new(&w, &em), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    struct api_watch_entry *ea = api_watch_add(w, a[0]), *eb = api_watch_add(w, b[0]);
    assert_non_null(ea);
    assert_non_null(eb);
    uint64_t start = clock_now_ns();
    api_watch_arm(w, eb, 100);
    api_watch_arm(w, ea, 1); /* earlier than what the thread waits for */
    assert_true(closed_within(a[1], 5000));
    assert_true(clock_since_s(start) >= 0.9);
    assert_false(closed_within(b[1], 0));
    /* Disarmed and re-armed deadlines replace the old one. */
    api_watch_arm(w, eb, 1);
    api_watch_arm(w, eb, 0);
    assert_false(closed_within(b[1], 1500));
    api_watch_arm(w, eb, 1);
    assert_true(closed_within(b[1], 5000));
    api_watch_remove(w, ea);
    api_watch_remove(w, eb);
    api_watch_remove(w, NULL);
    api_watch_free(w);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
}

static void sees_the_client_go(void **state) {
    (void)state;
    struct api_watch *w = NULL;
    struct strata_errmsg em;
    int a[2];
    assert_int_equal(api_watch_new(&w, &em), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    struct api_watch_entry *e = api_watch_add(w, a[0]);
    assert_non_null(e);
    assert_false(api_watch_gone(e));
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_false(api_watch_gone(e)); /* pipelined bytes are no goodbye */
    close(a[1]);
    assert_true(api_watch_gone(e));
    api_watch_remove(w, e);
    api_watch_free(w);
    close(a[0]);
}

static void makes_room(void **state) {
    (void)state;
    struct api_watch *w = NULL;
    struct strata_errmsg em;
    int fd[3][2];
    struct api_watch_entry *e[3];
    assert_int_equal(api_watch_new(&w, &em), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]), 0);
        e[i] = api_watch_add(w, fd[i][0]);
        assert_non_null(e[i]);
        api_watch_arm_waiting(w, e[i], 100);
    }
    assert_true(api_watch_make_room(w, 4));
    for (int i = 0; i < 3; i++) assert_false(closed_within(fd[i][1], 0));
    api_watch_arm(w, e[0], 100); /* at work: never cut to make room */
    assert_true(api_watch_make_room(w, 3));
    assert_false(closed_within(fd[0][1], 0));
    assert_true(closed_within(fd[1][1], 0));
    assert_false(closed_within(fd[2][1], 0));
    assert_true(api_watch_make_room(w, 3)); /* one was cut, so two are left */
    assert_false(closed_within(fd[2][1], 0));
    api_watch_arm(w, e[2], 100);
    assert_false(api_watch_make_room(w, 2));
    api_watch_refuse(w, e[2], 100);
    assert_true(api_watch_refused(w, e[2]));
    assert_false(api_watch_refused(w, e[0]));
    assert_true(api_watch_make_room(w, 2));
    for (int i = 0; i < 3; i++) {
        api_watch_remove(w, e[i]);
        close(fd[i][0]);
        close(fd[i][1]);
    }
    api_watch_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_what_is_overdue),
        cmocka_unit_test(sees_the_client_go),
        cmocka_unit_test(makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
