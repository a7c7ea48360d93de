/* What long work prints where no terminal is: a line every few seconds, and none for work that is soon over. */
#include "base/clock.h"
#include "base/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static char text[1024];

/* What was printed once a megabyte of two was done, after that many seconds, in so many passes. */
static const char *after(double seconds, uint64_t passes, bool ended) {
    struct progress p;
    FILE *out = tmpfile();
    assert_non_null(out);
    progress_begin(&p, out, "working", 2 << 20);
    p.passes = passes;
    p.start_ns -= (uint64_t)(seconds * (double)CLOCK_NS_PER_S);
    progress_add(&p, passes << 19);
    progress_add(&p, passes << 19);
    if (ended) progress_end(&p);
    rewind(out);
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = '\0';
    fclose(out);
    return text;
}

static void test_lines(void **state) {
    (void)state;
    assert_string_equal(after(1, 1, true), "");
    /* The first addition prints; the second comes too soon after it. */
    assert_ptr_equal(strstr(after(8, 1, false), "working 25% (512.0 KiB of 2.0 MiB, "), text);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_non_null(strstr(after(8, 1, true), "\nworking 50% (1.0 MiB of 2.0 MiB, "));
}

/* Bytes that are gone through twice count once. */
static void test_passes(void **state) {
    (void)state;
    assert_non_null(strstr(after(8, 2, true), "\nworking 50% (1.0 MiB of 2.0 MiB, "));
}

static void test_nowhere(void **state) {
    (void)state;
    struct progress p;
    progress_begin(&p, NULL, "working", 10);
    progress_add(&p, 4);
    progress_end(&p);
    assert_int_equal(p.done, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
