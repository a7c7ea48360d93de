/* Where the threads of an engine run: each on a processor of its own when there is one for each, and only as long as
 * the engine lives. */
#include "chain.h"

#include "../base/test_folder.h"

#include "base/cpus.h"
#include "model/model_team.h"

#include <pthread.h>
#include <sched.h>

struct places {
    pthread_mutex_t lock;
    cpu_set_t all;   /* what any thread may run on */
    unsigned n, sum; /* threads; processors that each may run on, added up */
};

static void note(void *ctx) {
    struct places *p = ctx;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    pthread_mutex_lock(&p->lock);
    CPU_OR(&p->all, &p->all, &mine);
    p->n++;
    p->sum += (unsigned)CPU_COUNT(&mine);
    pthread_mutex_unlock(&p->lock);
}

static struct places places(uint32_t n) {
    struct places p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    CPU_ZERO(&p.all);
    model_team_run(n, note, &p);
    return p;
}

/* Every thread on all processors. */
static void expect_free(uint32_t n) {
    struct places p = places(n);
    assert_int_equal(p.sum, p.n * cpus_count());
}

static void test_bound(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    uint32_t n = cpus_count();
    struct engine_options opt = {.n_ctx = 64, .n_threads = n};
    struct test_chain c;
    const char *path = tmp_path(&folder, "threads.gguf");
    if (n < 2) skip();
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    struct places p = places(n);
    assert_int_equal(p.n, n);
    assert_int_equal(p.sum, n);
    assert_int_equal(CPU_COUNT(&p.all), (int)n);
    chain_close(&c);
    expect_free(n);
    /* Fewer threads than processors leave the choice to the system. */
    opt.n_threads = n - 1;
    chain_open(&c, path, NULL, &opt);
    expect_free(n - 1);
    chain_close(&c);
    /* And so does a user who has made it. */
    setenv("OMP_PROC_BIND", "false", 1);
    opt.n_threads = n;
    chain_open(&c, path, NULL, &opt);
    expect_free(n);
    chain_close(&c);
    unsetenv("OMP_PROC_BIND");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
