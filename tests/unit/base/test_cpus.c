/* Processors: what may be used stays known to a bound thread, and work that it hands out is not bound with it. */
#include "base/cpus.h"
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

/* Processors that the calling thread may run on now. */
static unsigned mine(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return (unsigned)CPU_COUNT(&set);
}

static void test_bind(void **state) {
    (void)state;
    unsigned n = cpus_count(), seen = 0;
    cpu_set_t used;
    CPU_ZERO(&used);
    assert_int_equal(n, mine());
    for (unsigned i = 0; i < n; i++) {
        assert_true(cpus_bind(i));
        assert_int_equal(mine(), 1);
        assert_int_equal(cpus_count(), n);
        int cpu = sched_getcpu();
        if (!CPU_ISSET((size_t)cpu, &used)) seen++;
        CPU_SET((size_t)cpu, &used);
    }
    assert_int_equal(seen, n);
    assert_false(cpus_bind(n));
    cpus_release();
    assert_int_equal(mine(), n);
}

struct share {
    atomic_uint least; /* processors of any thread but the caller's */
    pthread_t caller;
};

static strata_err note(void *user, size_t i, struct strata_errmsg *em) {
    struct share *s = user;
    (void)i;
    (void)em;
    usleep(2000); /* long enough for every thread to get some */
    if (!pthread_equal(pthread_self(), s->caller) && mine() < atomic_load(&s->least)) atomic_store(&s->least, mine());
    return STRATA_OK;
}

static void test_pool(void **state) {
    struct strata_errmsg em;
    struct share s = {.caller = pthread_self()};
    (void)state;
    atomic_init(&s.least, cpus_count());
    assert_true(cpus_bind(0));
    assert_int_equal(pool_run(4, 40, note, &s, &em), STRATA_OK);
    assert_int_equal(mine(), 1);
    cpus_release();
    assert_int_equal(atomic_load(&s.least), cpus_count());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bind), cmocka_unit_test(test_pool)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
