/* Files: maps, bounded reads, and atomic writes that never leave half a file under the final name. */
#include "base/file.h"

#include "tmp_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static size_t entries(void) {
    size_t n = 0;
    DIR *d = opendir(T.path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static void expect_content(const char *path, const char *want) {
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 1000);
    assert_int_equal(file_read_all(path, 1000, &b, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&b), want);
    buf_deinit(&b);
}

static void test_atomic(void **state) {
    (void)state;
    struct file_atomic f;
    struct strata_errmsg em;
    struct stat st;
    const char *path = tmp_path(&T, "a");
    assert_int_equal(file_write_all(path, "old", 3, 0644, &em), STRATA_OK);
    assert_int_equal(file_atomic_begin(&f, path, 0600, &em), STRATA_OK);
    assert_int_equal(file_atomic_write(&f, "new", 3, &em), STRATA_OK);
    expect_content(path, "old"); /* until the commit */
    assert_int_equal(file_atomic_commit(&f, &em), STRATA_OK);
    expect_content(path, "new");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    file_atomic_abort(&f); /* harmless after a commit */
    expect_content(path, "new");
    assert_int_equal(file_atomic_begin(&f, path, 0644, &em), STRATA_OK);
    assert_int_equal(file_atomic_write(&f, "never", 5, &em), STRATA_OK);
    file_atomic_abort(&f);
    expect_content(path, "new");
    assert_int_equal(entries(), 1);
    assert_int_equal(file_atomic_begin(&f, tmp_path(&T, "no/folder"), 0644, &em), STRATA_EIO);
    file_atomic_abort(&f);
}

/* A process that dies in the middle of a write leaves the old file. */
static void test_crash(void **state) {
    (void)state;
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "a");
    assert_int_equal(file_write_all(path, "old", 3, 0644, &em), STRATA_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct file_atomic f;
        if (file_atomic_begin(&f, path, 0644, &em) || file_atomic_write(&f, "half", 4, &em)) _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    expect_content(path, "old");
}

/* A full disk: the write fails, the old file stays, the temporary one goes. */
static void test_full(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct rlimit old, small;
    const char *path = tmp_path(&T, "a");
    assert_int_equal(file_write_all(path, "old", 3, 0644, &em), STRATA_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    strata_err rc = file_write_all(path, "much longer", 11, 0644, &em);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, STRATA_EIO);
    assert_non_null(strstr(em.text, "cannot write"));
    expect_content(path, "old");
    assert_int_equal(entries(), 1);
}

static void test_map(void **state) {
    (void)state;
    struct file_map map = {0};
    struct strata_errmsg em;
    assert_int_equal(file_write_all(tmp_path(&T, "m"), "bytes", 5, 0644, &em), STRATA_OK);
    assert_int_equal(file_map_open(tmp_path(&T, "m"), &map, &em), STRATA_OK);
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.data, "bytes", 5);
    file_map_close(&map);
    assert_null(map.data);
    file_map_close(&map);
    file_map_close(NULL);
    assert_int_equal(file_write_all(tmp_path(&T, "e"), "", 0, 0644, &em), STRATA_OK);
    assert_int_equal(file_map_open(tmp_path(&T, "e"), &map, &em), STRATA_OK);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    assert_int_equal(file_map_open(tmp_path(&T, "gone"), &map, &em), STRATA_ENOENT);
    assert_int_equal(file_map_open(T.path, &map, &em), STRATA_EINVAL);
    /* Opening a FIFO must not wait for a writer. */
    assert_int_equal(mkfifo(tmp_path(&T, "fifo"), 0600), 0);
    assert_int_equal(file_map_open(tmp_path(&T, "fifo"), &map, &em), STRATA_EINVAL);
}

/* What is open is what is mapped, whatever stands under its name meanwhile. */
static void test_map_fd(void **state) {
    (void)state;
    struct file_map map = {0};
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "a");
    assert_int_equal(file_write_all(path, "old", 3, 0644, &em), STRATA_OK);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(path, "a new one", 9, 0644, &em), STRATA_OK);
    assert_int_equal(file_map_fd(fd, "a", &map, &em), STRATA_OK);
    close(fd);
    assert_int_equal(map.size, 3);
    assert_memory_equal(map.data, "old", 3);
    file_map_close(&map);
    fd = open(T.path, O_RDONLY);
    assert_int_equal(file_map_fd(fd, "the folder", &map, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "the folder"));
    close(fd);
    assert_int_equal(file_map_fd(-1, "nothing", &map, &em), STRATA_EIO);
}

static void test_passes_over_a_map(void **state) {
    (void)state;
    enum { SIZE = 300000 };
    static uint8_t data[SIZE];
    struct file_map map = {0};
    struct strata_errmsg em;
    for (size_t i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 31);
    assert_int_equal(file_write_all(tmp_path(&T, "p"), data, SIZE, 0644, &em), STRATA_OK);
    assert_int_equal(file_map_open(tmp_path(&T, "p"), &map, &em), STRATA_OK);
    file_map_ahead(map.data, 0);
    file_map_ahead(map.data + 1, SIZE - 1);
    assert_int_equal(file_map_fetch(map.data, 0, "p", &em), STRATA_OK);
    assert_int_equal(file_map_fetch(map.data + 4097, 4096, "p", &em), STRATA_OK);
    assert_int_equal(file_map_fetch(map.data, SIZE, "p", &em), STRATA_OK);
    file_map_drop(map.data + 5, 10000);
    file_map_drop(map.data, 0);
    assert_memory_equal(map.data, data, SIZE); /* they come again */
    /* A page that is gone is told, where touching it would end the process. */
    assert_int_equal(truncate(tmp_path(&T, "p"), 10), 0);
    strata_err rc = file_map_fetch(map.data, SIZE, "p", &em);
    if (madvise((void *)(uintptr_t)map.data, 4096, 22) == 0) {
        assert_int_equal(rc, STRATA_EIO);
        assert_non_null(strstr(em.text, "p cannot be read"));
    } else {
        assert_int_equal(rc, STRATA_OK); /* a kernel that cannot tell */
    }
    file_map_close(&map);
}

static void test_read_limit(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    assert_int_equal(file_write_all(tmp_path(&T, "r"), "12345", 5, 0644, &em), STRATA_OK);
    buf_init(&b, 100);
    assert_int_equal(file_read_all(tmp_path(&T, "r"), 4, &b, &em), STRATA_ELIMIT);
    assert_int_equal(b.len, 0);
    assert_int_equal(file_read_all(tmp_path(&T, "r"), 5, &b, &em), STRATA_OK);
    assert_int_equal(file_read_all(tmp_path(&T, "r"), 5, &b, &em), STRATA_OK); /* appends */
    assert_string_equal(buf_cstr(&b), "1234512345");
    buf_deinit(&b);
}

static void test_folders(void **state) {
    (void)state;
    struct strata_errmsg em;
    bool empty = false;
    assert_int_equal(file_mkdirs(tmp_path(&T, "x/y/z"), 0755, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "x/y/z"), 0755, &em), STRATA_OK);
    assert_true(file_is_dir(tmp_path(&T, "x/y/z")));
    assert_false(file_is_regular(tmp_path(&T, "x/y/z")));
    assert_int_equal(file_dir_is_empty(tmp_path(&T, "x/y/z"), &empty, &em), STRATA_OK);
    assert_true(empty);
    assert_int_equal(file_dir_is_empty(tmp_path(&T, "x/y"), &empty, &em), STRATA_OK);
    assert_false(empty);
    assert_int_equal(file_dir_is_empty(tmp_path(&T, "gone"), &empty, &em), STRATA_OK);
    assert_true(empty);
    assert_int_equal(file_write_all(tmp_path(&T, "f"), "", 0, 0644, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "f"), 0755, &em), STRATA_EIO);
    assert_int_equal(file_mkdirs(tmp_path(&T, "f/g"), 0755, &em), STRATA_EIO);
    assert_int_equal(file_mkdirs("", 0755, &em), STRATA_EINVAL);
    assert_int_equal(file_dir_is_empty(tmp_path(&T, "f"), &empty, &em), STRATA_EIO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_atomic, setup, teardown),
        cmocka_unit_test_setup_teardown(test_crash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map_fd, setup, teardown),
        cmocka_unit_test_setup_teardown(test_passes_over_a_map, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
