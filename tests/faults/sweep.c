/*
 * Every operation on packages, with its n-th allocation, write, flush, rename, ... failing, for n = 1, 2, 3, ... until
 * nothing fails any more.
 *
 * After each failure: an error code with a text, no descriptor and no map left over, no temporary file, nothing under a
 * final name that is not whole; and the same operation, tried again, succeeds with the same result as if nothing had
 * happened. An operation that succeeds in spite of a failed call must give that result too. Leaks are LeakSanitizer's
 * to find, in the instrumented build. The writers also run with the process ending at each write, flush and rename,
 * with short and interrupted reads and writes, and under a watch for files that are renamed before they are flushed.
 */
#include "inject.h"
#include "ops.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "gguf/gguf_reader.h"
#include "package/pkg_check.h"
#include "package/pkg_manifest.h"

#include <dirent.h>
#include <fts.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_CALLS = 200000, SHOWN = 4, RETRIES = 8 };

/* Faults found in one sweep; the first few are shown, and all of it is tried before the test fails. */
static unsigned n_faults;

static void fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void fault(const char *fmt, ...) {
    va_list ap;
    if (n_faults++ >= SHOWN) return;
    va_start(ap, fmt);
    vprint_error(fmt, ap);
    va_end(ap);
    print_error("\n");
}

/* ---- what must hold afterwards ---- */

static size_t open_descriptors(void) {
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* What is wrong with the output folder, or NULL. */
static const char *offence;
static char offender[600];

static void offend(const char *what, const char *path) {
    if (offence) return;
    offence = what;
    snprintf(offender, sizeof offender, "%s", path);
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* One file of the output folder: no temporary one, and what has a final name is whole. Noted in r, unless NULL. */
static void look_at(const char *path, struct result *r) {
    struct strata_errmsg em;
    struct file_map map;
    struct gguf_reader *reader = NULL;
    json_t *doc = NULL;
    if (strstr(path, ".tmp-")) offend("a temporary file was left", path);
    if (file_map_open(path, &map, &em)) {
        offend("a file cannot be read", path);
        return;
    }
    bool carrier = ends_with(path, "/shared/metadata.gguf"); /* schema 2's lists tensors that lie elsewhere */
    if (ends_with(path, ".gguf") &&
        (carrier ? gguf_reader_new_header : gguf_reader_new)(map.data, map.size, path, &reader, &em))
        offend("half a fragment has its final name", path);
    if (ends_with(path, ".json") && jsonx_parse((const char *)map.data, map.size, &doc, &em))
        offend("half a document has its final name", path);
    if (map.size == 0) offend("an empty file has its final name", path);
    if (r) note(r, "%s %llx\n", path + strlen(ops_out_dir()), (unsigned long long)fnv(map.data, map.size));
    gguf_reader_free(reader);
    json_decref(doc);
    file_map_close(&map);
}

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* All files of the output folder, in the order of their names. */
static void look_at_all(struct result *r) {
    char *roots[] = {(char *)(uintptr_t)ops_out_dir(), NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    assert_non_null(tree);
    offence = NULL;
    for (FTSENT *e; (e = fts_read(tree)) != NULL;)
        if (e->fts_info == FTS_F) look_at(e->fts_path, r);
    fts_close(tree);
}

/* A folder with a manifest is a whole package. */
static void check_out_dir(void) {
    char path[600];
    const struct pkg_check_options opt = {.jobs = 1};
    struct pkg_check_report report;
    struct strata_errmsg em;
    look_at_all(NULL);
    snprintf(path, sizeof path, "%s/%s", ops_out_dir(), PKG_MANIFEST_FILE);
    if (offence || !file_is_regular(path)) return;
    if (pkg_check_run(ops_out_dir(), &opt, &report, &em)) {
        offend("preflight fails", path);
        return;
    }
    if (!pkg_check_is_valid(&report)) offend("the manifest is there, but the package is not sound", path);
    pkg_check_deinit(&report);
}

static strata_err run(const struct op *op, bool again, struct result *r, struct strata_errmsg *em) {
    *em = (struct strata_errmsg){0};
    r->len = 0;
    r->text[0] = '\0';
    return op->run(r, again, em);
}

static struct result reference, got; /* of an undisturbed run; of the one looked at */

static void make_reference(const struct op *op) {
    struct strata_errmsg em;
    ops_prepare(op);
    if (run(op, false, &reference, &em)) fail_msg("%s: %s", op->name, em.text);
    if (op->before) look_at_all(&reference);
    ops_prepare(op);
}

/* Of a run that succeeded: what it found and what it wrote are what they should be. */
static void expect_reference(const struct op *op, const char *label) {
    if (op->before) look_at_all(&got);
    if (strcmp(reference.text, got.text) != 0) {
        size_t at = 0;
        while (reference.text[at] == got.text[at]) at++;
        while (at > 0 && got.text[at - 1] != '\n') at--;
        fault("%s: another result: '%.200s' instead of '%.200s'", label, got.text + at, reference.text + at);
    }
    ops_prepare(op);
}

/* ---- sweeps ---- */

/* One failure, and what must hold after it. False when nothing failed: n is beyond the last call. */
static bool fail_once(const struct op *op, const struct inject_plan *plan, unsigned long *survived) {
    char label[160];
    struct strata_errmsg em;
    snprintf(label, sizeof label, "%s, %s %lu%s", op->name, inject_name(plan->kind), plan->at,
             plan->sticky ? " and all later ones" : "");
    size_t descriptors = open_descriptors();
    long maps = inject_live_maps();
    inject_arm(plan);
    strata_err rc = run(op, false, &got, &em);
    bool hit = inject_disarm() > 0;
    if (rc && !hit) fault("%s: failed by itself: %s", label, em.text);
    if (rc && (!em.text[0] || em.code != rc))
        fault("%s: code %d, message of code %d '%s'", label, (int)rc, (int)em.code, em.text);
    if (rc && plan->kind == FAULT_ALLOC && rc != STRATA_ENOMEM)
        fault("%s: called %s: %s", label, strata_err_name(rc), em.text);
    if (open_descriptors() != descriptors) fault("%s: a descriptor was left open", label);
    if (inject_live_maps() != maps) fault("%s: a map was left", label);
    if (op->before) check_out_dir();
    if (op->before && offence) fault("%s: %s: %s", label, offence, offender);
    if (rc && !hit) return false;
    /* What a lasting shortage leaves behind is mostly what one failure leaves behind: every eighth is tried again. */
    if (rc && plan->sticky && plan->at % RETRIES != 1) {
        ops_prepare(op);
        return hit;
    }
    if (rc && run(op, true, &got, &em)) fault("%s: and afterwards: %s", label, em.text);
    *survived += !rc && hit;
    expect_reference(op, label);
    return hit;
}

static void sweep(enum fault kind, bool sticky) {
    unsigned before = n_faults;
    for (size_t i = 0; i < n_ops; i++) {
        unsigned long n = 1, survived = 0;
        n_faults = 0;
        make_reference(&ops[i]);
        while (fail_once(&ops[i], &(struct inject_plan){.kind = kind, .at = n, .sticky = sticky}, &survived))
            if (n++ == MAX_CALLS) fail_msg("%s: no end after %d calls", ops[i].name, MAX_CALLS);
        if (n > 1)
            print_message("%-28s %-7s%s %6lu failed, %lu of them made good\n", ops[i].name, inject_name(kind),
                          sticky ? "*" : " ", n - 1, survived);
        if (n_faults) print_error("%s, %s: %u faults\n", ops[i].name, inject_name(kind), n_faults);
        before += n_faults;
    }
    n_faults = before;
}

static void test_allocations(void **state) {
    (void)state;
    n_faults = 0;
    sweep(FAULT_ALLOC, false);
    assert_int_equal(n_faults, 0);
}

static void test_memory_stays_short(void **state) {
    (void)state;
    n_faults = 0;
    sweep(FAULT_ALLOC, true);
    assert_int_equal(n_faults, 0);
}

static void test_writes(void **state) {
    (void)state;
    n_faults = 0;
    sweep(FAULT_WRITE, false);
    assert_int_equal(n_faults, 0);
}

static void test_full_disk(void **state) {
    (void)state;
    n_faults = 0;
    sweep(FAULT_WRITE, true);
    assert_int_equal(n_faults, 0);
}

static void test_other_calls(void **state) {
    (void)state;
    n_faults = 0;
    for (enum fault kind = FAULT_SYNC; kind < FAULT_KINDS; kind++) sweep(kind, false);
    assert_int_equal(n_faults, 0);
}

static void test_other_calls_for_good(void **state) {
    (void)state;
    n_faults = 0;
    for (enum fault kind = FAULT_SYNC; kind < FAULT_KINDS; kind++) sweep(kind, true);
    assert_int_equal(n_faults, 0);
}

/* Reads and writes that move little, and that are interrupted: the same result, no failure. */
static void test_short_and_interrupted(void **state) {
    (void)state;
    n_faults = 0;
    static const struct inject_plan plans[] = {
        {.short_bytes = 1}, {.short_bytes = 1000}, {.interrupt = true}, {.short_bytes = 7, .interrupt = true}};
    for (size_t i = 0; i < n_ops; i++) {
        make_reference(&ops[i]);
        for (size_t k = 0; k < sizeof plans / sizeof plans[0]; k++) {
            struct strata_errmsg em;
            inject_arm(&plans[k]);
            strata_err rc = run(&ops[i], false, &got, &em);
            inject_disarm();
            if (rc) fault("%s, plan %zu: %s", ops[i].name, k, em.text);
            expect_reference(&ops[i], ops[i].name);
        }
    }
    assert_int_equal(n_faults, 0);
}

static void remove_temporaries(void) {
    char *roots[] = {(char *)(uintptr_t)ops_out_dir(), NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    assert_non_null(tree);
    for (FTSENT *e; (e = fts_read(tree)) != NULL;)
        if (e->fts_info == FTS_F && strstr(e->fts_path, ".tmp-")) unlink(e->fts_path);
    fts_close(tree);
}

/*
 * The process ends at a call. Temporary files may stay; nothing else that is not whole may; and whoever has the whole
 * folder to himself, tried again, removes what stayed. False when the process came to its end by itself.
 */
static bool crash_once(const struct op *op, enum fault kind, unsigned long n) {
    char label[160];
    int status;
    struct strata_errmsg em;
    snprintf(label, sizeof label, "%s, ended at %s %lu", op->name, inject_name(kind), n);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        inject_arm(&(struct inject_plan){.kind = kind, .at = n, .crash = true});
        _exit(run(op, false, &got, &em) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != INJECT_CRASH_STATUS))
        fault("%s: wait status %d", label, status);
    check_out_dir();
    if (offence && strcmp(offence, "a temporary file was left") != 0) fault("%s: %s: %s", label, offence, offender);
    if (op->before != NO_FOLDER) remove_temporaries();
    if (run(op, true, &got, &em)) fault("%s: and afterwards: %s", label, em.text);
    expect_reference(op, label);
    return WEXITSTATUS(status) != 0;
}

static void test_killed(void **state) {
    (void)state;
    n_faults = 0;
    static const enum fault kinds[] = {FAULT_WRITE, FAULT_SYNC, FAULT_RENAME, FAULT_OPEN};
    for (size_t i = 0; i < n_ops; i++) {
        if (!ops[i].before) continue;
        make_reference(&ops[i]);
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            unsigned long n = 1;
            while (crash_once(&ops[i], kinds[k], n)) n++;
            print_message("%-28s %-7s  %6lu times killed\n", ops[i].name, inject_name(kinds[k]), n - 1);
        }
    }
    assert_int_equal(n_faults, 0);
}

/* Each file is flushed before it gets its name, and everything before the manifest gets its own. */
static void test_order(void **state) {
    (void)state;
    n_faults = 0;
    for (size_t i = 0; i < n_ops; i++) {
        struct strata_errmsg em;
        if (!ops[i].before) continue;
        ops_prepare(&ops[i]);
        inject_watch(PKG_MANIFEST_FILE);
        strata_err rc = run(&ops[i], false, &got, &em);
        const char *wrong = inject_watched();
        if (rc || wrong) fault("%s: %s", ops[i].name, rc ? em.text : wrong);
        ops_prepare(&ops[i]);
    }
    assert_int_equal(n_faults, 0);
}

static int setup(void **state) {
    (void)state;
    ops_setup();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ops_teardown();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_memory_stays_short),
        cmocka_unit_test(test_writes),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_other_calls),
        cmocka_unit_test(test_other_calls_for_good),
        cmocka_unit_test(test_short_and_interrupted),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_order),
    };
    inject_init();
    return cmocka_run_group_tests(tests, setup, teardown);
}
