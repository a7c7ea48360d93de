/* Hashing and comparing in one pass: every border, every place a difference can be, and files that go away. */
#include "package/pkg_scan.h"

#include "../base/tmp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

/* What the scan takes at once: with a second file of as many bytes, alone, and within that. */
enum { PIECE = 4 << 20, ALONE = 16 << 20, BITE = 256 << 10, MOST = ALONE + PIECE + BITE + 7 };

static uint8_t *A, *B; /* equal, MOST bytes each */

static int setup(void **state) {
    (void)state;
    /* Maps, as the files are: pages of the heap must not be given back. */
    A = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    B = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (A == MAP_FAILED || B == MAP_FAILED) return -1;
    for (size_t i = 0; i < MOST; i++) A[i] = B[i] = (uint8_t)(i * 2654435761u >> 11);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    munmap(A, MOST);
    munmap(B, MOST);
    return 0;
}

static struct gguf_tensor tensor(const uint8_t *base, size_t at, size_t bytes) {
    return (struct gguf_tensor){.name = "t", .bytes = bytes, .data = base + at};
}

static void test_digests(void **state) {
    (void)state;
    static const size_t sizes[] = {0,     1,         BITE - 1,  BITE,  BITE + 1,  PIECE - 1,
                                   PIECE, PIECE + 1, ALONE - 1, ALONE, ALONE + 1, MOST};
    uint8_t want[DIGEST_BYTES];
    struct strata_errmsg em;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct progress bar;
        progress_begin(&bar, NULL, "", 0);
        struct pkg_scan s = {.map = {A, sizes[i]}, .name = "a", .hash = true, .progress = &bar};
        assert_int_equal(pkg_scan_run(&s, &em), STRATA_OK);
        assert_int_equal(digest_of(A, sizes[i], want, &em), STRATA_OK);
        assert_memory_equal(s.sha256, want, DIGEST_BYTES);
        assert_int_equal(bar.done, sizes[i]);
    }
}

/* One byte at `at` of the file differs; the tensor starts at `from`. */
static void one_difference(size_t from, size_t bytes, size_t at, bool hash) {
    struct strata_errmsg em;
    struct gguf_tensor have = tensor(A, from, bytes), want = tensor(B, from, bytes);
    struct pkg_scan_pair pair = {.have = &have, .want = &want};
    struct pkg_scan s = {.map = {A, MOST}, .name = "a", .other = "b", .hash = hash, .pairs = &pair, .n_pairs = 1};
    B[at] ^= 0x40;
    assert_int_equal(pkg_scan_run(&s, &em), STRATA_OK);
    B[at] ^= 0x40;
    bool inside = at >= from && at < from + bytes;
    assert_int_equal(pair.differs, inside);
    if (inside) assert_int_equal(pair.first, at - from);
}

static void test_every_place(void **state) {
    (void)state;
    static const size_t at[] = {0, 1, BITE - 1, BITE, PIECE - 1, PIECE, PIECE + BITE, ALONE - 1, ALONE, MOST - 1};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        for (int hash = 0; hash < 2; hash++) {
            one_difference(0, MOST, at[i], hash);
            one_difference(100, MOST - 200, at[i], hash);
            one_difference(PIECE - 3, 6, at[i], hash);
            one_difference(ALONE - 3, 6, at[i], hash);
            one_difference(MOST - 1, 1, at[i], hash);
        }
    /* Just outside, on both sides. */
    one_difference(PIECE, BITE, PIECE - 1, true);
    one_difference(PIECE, BITE, PIECE + BITE, true);
}

/* Many tensors, in any order, only some of which differ, each at its first and at later bytes. */
static void test_many(void **state) {
    (void)state;
    enum { N = 200 };
    struct strata_errmsg em;
    struct gguf_tensor have[N], want[N];
    struct pkg_scan_pair pairs[N];
    size_t step = MOST / N;
    for (size_t i = 0; i < N; i++) {
        size_t k = (i * 77) % N; /* a permutation */
        have[i] = tensor(A, k * step, step - 1);
        want[i] = tensor(B, k * step, step - 1);
        pairs[i] = (struct pkg_scan_pair){.have = &have[i], .want = &want[i]};
        if (k % 3 == 0) B[k * step + k] ^= 1, B[k * step + k + 5] ^= 1;
    }
    struct pkg_scan s = {.map = {A, MOST}, .name = "a", .other = "b", .hash = true, .pairs = pairs, .n_pairs = N};
    assert_int_equal(pkg_scan_run(&s, &em), STRATA_OK);
    for (size_t i = 0; i < N; i++) {
        size_t k = (size_t)(pairs[i].have->data - A) / step;
        assert_int_equal(k, i); /* sorted by place */
        assert_int_equal(pairs[i].differs, k % 3 == 0);
        if (pairs[i].differs) assert_int_equal(pairs[i].first, k);
        if (k % 3 == 0) B[k * step + k] ^= 1, B[k * step + k + 5] ^= 1;
    }
}

static unsigned asked;

static bool cancel_second(void) {
    return ++asked == 2;
}

static void test_cancel(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_scan s = {.map = {A, MOST}, .name = "a", .hash = true, .cancelled = cancel_second};
    asked = 0;
    assert_int_equal(pkg_scan_run(&s, &em), STRATA_ECANCELLED);
    assert_int_equal(asked, 2);
}

/* The file is cut short after it was mapped: an error that names it, not a signal. Which side it is does not matter. */
static void test_cut_short(void **state) {
    (void)state;
    struct tmp_folder t = {0};
    struct file_map map;
    struct strata_errmsg em;
    tmp_folder_make(&t);
    assert_int_equal(file_write_all(tmp_path(&t, "f"), A, MOST, 0644, &em), STRATA_OK);
    assert_int_equal(file_map_open(tmp_path(&t, "f"), &map, &em), STRATA_OK);
    bool can_tell = madvise((void *)(uintptr_t)map.data, 4096, 22) == 0;
    assert_int_equal(truncate(tmp_path(&t, "f"), PIECE + 10), 0);
    struct pkg_scan s = {.map = map, .name = "the file", .hash = true};
    if (can_tell) {
        assert_int_equal(pkg_scan_run(&s, &em), STRATA_EIO);
        assert_non_null(strstr(em.text, "the file"));
        struct gguf_tensor have = tensor(A, 0, MOST), want = tensor(map.data, 0, MOST);
        struct pkg_scan_pair pair = {.have = &have, .want = &want};
        struct pkg_scan other = {.map = {A, MOST}, .name = "a", .other = "the other", .pairs = &pair, .n_pairs = 1};
        assert_int_equal(pkg_scan_run(&other, &em), STRATA_EIO);
        assert_non_null(strstr(em.text, "the other"));
    }
    file_map_close(&map);
    tmp_folder_remove(t.path);
}

/* Only a few pieces are resident at any time, on both sides. */
static void test_memory(void **state) {
    (void)state;
    enum { SIZE = 64 << 20 };
    struct tmp_folder t = {0};
    struct file_map map[2];
    struct strata_errmsg em;
    tmp_folder_make(&t);
    for (int i = 0; i < 2; i++) {
        const char *path = tmp_path(&t, i ? "b" : "a");
        assert_int_equal(file_write_all(path, "", 0, 0644, &em), STRATA_OK);
        assert_int_equal(truncate(path, SIZE), 0);
        assert_int_equal(file_map_open(path, &map[i], &em), STRATA_OK);
    }
    struct gguf_tensor have = tensor(map[0].data, 0, SIZE), want = tensor(map[1].data, 0, SIZE);
    struct pkg_scan_pair pair = {.have = &have, .want = &want};
    struct pkg_scan s = {.map = map[0], .name = "a", .other = "b", .hash = true, .pairs = &pair, .n_pairs = 1};
    assert_int_equal(pkg_scan_run(&s, &em), STRATA_OK);
    assert_false(pair.differs);
    /* Mapped pages of this process, from the kernel: the page cache may well hold the file. */
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start = 0, kib = 0, sum = 0;
    bool ours = false;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) start = from;
        ours = start == (unsigned long)(uintptr_t)map[0].data || start == (unsigned long)(uintptr_t)map[1].data;
        if (ours && sscanf(line, "Rss: %lu kB", &kib) == 1) sum += kib;
    }
    if (f) {
        fclose(f);
        assert_true(sum <= 2 * PIECE / 1024);
    }
    file_map_close(&map[0]);
    file_map_close(&map[1]);
    tmp_folder_remove(t.path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests), cmocka_unit_test(test_every_place), cmocka_unit_test(test_many),
        cmocka_unit_test(test_cancel),  cmocka_unit_test(test_cut_short),   cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
