/* Available memory from the system's files, as those of machines and containers look. */
#include "base/memory.h"

#include "base/file.h"
#include "test_folder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static void put(const char *name, const char *text) {
    struct strata_errmsg em;
    char dir[1024];
    const char *path = tmp_path(&folder, name);
    assert_int_equal(path_dirname(dir, sizeof dir, path, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(dir, 0755, &em), STRATA_OK);
    assert_int_equal(file_write_all(path, text, strlen(text), 0644, &em), STRATA_OK);
}

/* A group of version 2 (or 1): limit, use, and of that what files hold. */
static void group(const char *dir, bool old, const char *limit, const char *used, const char *stat) {
    char name[256];
    snprintf(name, sizeof name, "%s/%s", dir, old ? "memory.limit_in_bytes" : "memory.max");
    put(name, limit);
    snprintf(name, sizeof name, "%s/%s", dir, old ? "memory.usage_in_bytes" : "memory.current");
    put(name, used);
    snprintf(name, sizeof name, "%s/memory.stat", dir);
    put(name, stat);
}

static void assert_mib(uint64_t want) {
    assert_int_equal(memory_available_below(folder.path) / MIB, want);
}

static void test_machine(void **state) {
    (void)state;
    assert_true(memory_available_below(folder.path) == UINT64_MAX); /* nothing is known */
    put("proc/meminfo", "MemTotal:       8000000 kB\nMemAvailable:    4096000 kB\nMemAvailableX: 1 kB\n");
    assert_mib(4000);
    put("proc/self/cgroup", "nonsense\n0:no group\n");
    assert_mib(4000);
    assert_true(memory_available() > MIB);
}

static void test_groups2(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/outer/inner\n");
    assert_mib(4000); /* groups out of sight */
    group("sys/fs/cgroup/outer/inner", false, "max\n", "1048576\n", "");
    group("sys/fs/cgroup/outer", false, "3145728000\n", "1048576000\n",
          "anon 5\ninactive_file 104857600\nactive_file 209715200\n");
    assert_mib(3000 - 700);
    /* The inner one is narrower. */
    group("sys/fs/cgroup/outer/inner", false, "1073741824\n", "536870912\n", "inactive_file 5368709120\n");
    assert_mib(1024);
    group("sys/fs/cgroup/outer/inner", false, "1073741824\n", "1610612736\n", "anon 7\n");
    assert_mib(0);
    put("proc/self/cgroup", "0::/\n"); /* a container's own root, without limits of its own */
    assert_mib(4000);
    group("sys/fs/cgroup", false, "524288000\n", "0\n", "");
    assert_mib(500);
}

static void test_groups1(void **state) {
    (void)state;
    put("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/far/away\n0::/gone\n");
    assert_mib(500); /* of version 2's root, still */
    group("sys/fs/cgroup/memory", true, "209715200\n", "104857600\n",
          "inactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 10485760\n");
    assert_mib(120);
    group("sys/fs/cgroup/memory", true, "9223372036854771712\n", "104857600\n", "");
    assert_mib(500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_groups2),
        cmocka_unit_test(test_groups1),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
