/* What a container's control groups leave of the processors, on made-up trees. */
#include "unit.h"

#include <stdio.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/quota.h"
#include "scratch.h"

static char *root;

static int set_up(void **state) {
    (void)state;
    root = scratch_new();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_remove(root);
    return 0;
}

static void put(const char *folder, const char *name, const char *text) {
    char *path = scratch_path(root, folder);
    struct calla_error error;
    assert_true(folder_make(path, &error));
    scratch_write_text(path, name, text);
    free(path);
}

static int quota_of(const char *groups) {
    put("proc/self", "cgroup", groups);
    return processor_quota(root);
}

static void test_version_2(void **state) {
    (void)state;
    assert_int_equal(processor_quota(root), 0); /* no /proc at all */
    assert_int_equal(quota_of("0::/\n"), 0);
    put("sys/fs/cgroup", "cpu.max", "150000 100000\n");
    assert_int_equal(quota_of("0::/\n"), 2); /* rounded up */
    assert_int_equal(quota_of("0::/a/b\n"), 2);
    assert_int_equal(quota_of("1:name=systemd:/x\n0::/a/b"), 2);
    put("sys/fs/cgroup/a", "cpu.max", "100000 100000\n");
    assert_int_equal(quota_of("0::/a/b\n"), 1); /* the least on the way up */
    put("sys/fs/cgroup/a/b", "cpu.max", "400000 100000\n");
    assert_int_equal(quota_of("0::/a/b\n"), 1);
    put("sys/fs/cgroup/a", "cpu.max", "max 100000\n");
    put("sys/fs/cgroup", "cpu.max", "max 100000\n");
    assert_int_equal(quota_of("0::/a/b\n"), 4);
    put("sys/fs/cgroup/a/b", "cpu.max", "1000 100000\n");
    assert_int_equal(quota_of("0::/a/b\n"), 1);
    assert_int_equal(quota_of("0::/a\n"), 0);
}

static void test_version_1(void **state) {
    (void)state;
    put("sys/fs/cgroup/cpu/docker/1", "cpu.cfs_quota_us", "250000\n");
    put("sys/fs/cgroup/cpu/docker/1", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of("5:memory:/docker/1\n4:cpuset:/docker/1\n"), 0);
    assert_int_equal(quota_of("3:cpu,cpuacct:/docker/1\n0::/\n"), 3);
    assert_int_equal(quota_of("3:cpuacct,cpu:/docker/1\n"), 3);
    put("sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of("1:cpu:/docker/2\n"), 0);
    put("sys/fs/cgroup/cpu", "cpu.cfs_quota_us",
        "200000\n"); /* all that a container sees of the path outside */
    assert_int_equal(quota_of("1:cpu:/docker/2\n"), 2);
}

static void test_nonsense(void **state) {
    (void)state;
    static const char *const lines[] = {
        "",
        "x\n",
        "-5 100000\n",
        "100000\n",
        "100000 0\n",
        "100000 -7\n",
        "100000 max\n",
        "99999999999999999999 1\n",
        "9223372036854775807 1\n",
        "0000000000000000000000000000000000000000000000000000000000000000001 1\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        put("sys/fs/cgroup", "cpu.max", lines[i]);
        assert_int_equal(quota_of("0::/\n"), 0);
    }
    put("sys/fs/cgroup", "cpu.max", "1 9223372036854775807\n");
    assert_int_equal(quota_of("0::/\n"), 1);
    static const char *const groups[] = {
        "", ":", "::", "0:", "0::", "0::x", "0::/../x\n", "\n\n\n", "0:\x01:/"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        assert_int_equal(quota_of(groups[i]), 0);
    struct buffer deep = {0};
    buffer_append_string(&deep, "0::");
    for (int i = 0; i < 5000; i++)
        buffer_append_string(&deep, "/a");
    assert_int_equal(quota_of(deep.data), 1); /* from as far down as a path can name */
    buffer_free(&deep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version_2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_version_1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nonsense, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
