/* Who may ask: hosts, origins, keys. */
#include "unit.h"

#include <sys/stat.h>

#include "scratch.h"
#include "server/guard.h"

static struct guard *open_guard(struct guard_options options) {
    struct calla_error error = {0};
    struct guard *guard = guard_open(&options, &error);
    assert_string_equal(error.message, "");
    assert_non_null(guard);
    return guard;
}

static void check_host(const struct guard *guard, const char *host, bool allowed) {
    struct refusal refusal = {0};
    bool ok = guard_check_host(guard, host, &refusal);
    if (ok != allowed)
        fail_msg("Host %s is %s", host, ok ? "let in" : "refused");
    if (!ok)
        assert_int_equal(refusal.status, 403);
}

static void test_hosts_of_loopback(void **state) {
    (void)state;
    const char *const names[] = {"calla.lan"};
    struct guard *guard =
        open_guard((struct guard_options){.bound_host = "127.0.0.1", .hosts = names, .host_count = 1});
    check_host(guard, NULL, true);
    check_host(guard, "localhost", true);
    check_host(guard, "LOCALHOST:8080", true);
    check_host(guard, "localhost.", true);
    check_host(guard, "127.0.0.1:8080", true);
    check_host(guard, "127.1.2.3", true);
    check_host(guard, "[::1]:8080", true);
    check_host(guard, "[::1]", true);
    check_host(guard, "Calla.LAN:1", true);
    check_host(guard, "", false);
    check_host(guard, "evil.example", false);
    check_host(guard, "localhost.evil.example", false);
    check_host(guard, "127.0.0.1.evil.example:8080", false);
    check_host(guard, "192.168.1.5", false);
    check_host(guard, "[::1", false);
    check_host(guard, "[::1]evil", false);
    check_host(guard, "localhost:80:evil", false);
    check_host(guard, "localhost@evil", false);
    check_host(guard, ":8080", false);
    guard_close(guard);
}

static void test_hosts_elsewhere(void **state) {
    (void)state;
    struct guard *guard = open_guard((struct guard_options){.bound_host = "192.168.1.5"});
    check_host(guard, "192.168.1.5:8080", true);
    check_host(guard, "192.168.1.6:8080", false);
    guard_close(guard);
    guard = open_guard((struct guard_options){.bound_host = "0.0.0.0"});
    check_host(guard, "192.168.1.6:8080", true);
    check_host(guard, "evil.example", false);
    guard_close(guard);
    guard = open_guard((struct guard_options){.bound_host = "::"});
    check_host(guard, "[fe80::1]:8080", true);
    check_host(guard, "evil.example", false);
    guard_close(guard);
    guard = open_guard((struct guard_options){.bound_host = NULL});
    check_host(guard, "whatever", true);
    guard_close(guard);
}

static void test_origins(void **state) {
    (void)state;
    struct refusal refusal = {0};
    const char *const one[] = {"https://app.example"}, *const any[] = {"*"};
    struct guard *guard = open_guard((struct guard_options){.bound_host = "127.0.0.1"});
    assert_true(guard_check_origin(guard, NULL, "localhost:8080", &refusal));
    assert_true(guard_check_origin(guard, "http://localhost:8080", "localhost:8080", &refusal));
    assert_false(guard_check_origin(guard, "http://localhost:9090", "localhost:8080", &refusal));
    assert_int_equal(refusal.status, 403);
    assert_false(guard_check_origin(guard, "null", "localhost:8080", &refusal));
    assert_false(guard_check_origin(guard, "", "", &refusal));
    assert_null(guard_allowed_origin(guard, "https://app.example"));
    guard_close(guard);
    guard = open_guard((struct guard_options){.bound_host = "127.0.0.1", .origins = one, .origin_count = 1});
    assert_true(guard_check_origin(guard, "https://app.example", "localhost:8080", &refusal));
    assert_false(guard_check_origin(guard, "https://app.example.evil", "localhost:8080", &refusal));
    assert_string_equal(guard_allowed_origin(guard, "https://app.example"), "https://app.example");
    guard_close(guard);
    guard = open_guard((struct guard_options){.bound_host = "127.0.0.1", .origins = any, .origin_count = 1});
    assert_true(guard_check_origin(guard, "https://evil.example", "localhost:8080", &refusal));
    assert_string_equal(guard_allowed_origin(guard, "https://evil.example"), "*");
    assert_null(guard_allowed_origin(guard, NULL));
    guard_close(guard);
}

static void check_key_file(const char *text, size_t size, unsigned mode, const char *expected) {
    char *folder = scratch_new(), *path = scratch_path(folder, "keys");
    struct calla_error error = {0};
    scratch_write(folder, "keys", text, size);
    assert_int_equal(chmod(path, mode), 0);
    struct guard_options options = {.bound_host = "127.0.0.1", .key_file = path};
    struct guard *guard = guard_open(&options, &error);
    assert_null(guard);
    assert_non_null(strstr(error.message, expected));
    free(path);
    scratch_remove(folder);
}

static void test_key_files(void **state) {
    (void)state;
    check_key_file("secret\n", 7, 0644, "chmod 600");
    check_key_file("\n  \n", 4, 0600, "has no key");
    check_key_file("", 0, 0600, "has no key");
    check_key_file("two words\n", 10, 0600, "line 1");
    check_key_file("good\nb\xc3\xa4\n", 8, 0600, "line 2");
    check_key_file("a\0b\n", 4, 0600, "zero byte");
    struct calla_error error;
    struct guard_options options = {.key_file = "/no/such/file"};
    assert_null(guard_open(&options, &error));
    assert_non_null(strstr(error.message, "/no/such/file"));
}

static void test_keys(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "keys");
    struct refusal refusal = {0};
    scratch_write_text(folder, "keys", "first\r\n\nsecond");
    assert_int_equal(chmod(path, 0600), 0);
    struct guard *guard = open_guard((struct guard_options){.bound_host = "127.0.0.1", .key_file = path});
    assert_true(guard_has_keys(guard));
    assert_true(guard_check_key(guard, "Bearer first", &refusal));
    assert_true(guard_check_key(guard, "bearer  second", &refusal));
    const char *const wrong[] = {
        NULL, "", "first", "Bearer", "Bearer ", "Bearer firs", "Bearer first2", "Basic first"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        refusal.status = 0;
        assert_false(guard_check_key(guard, wrong[i], &refusal));
        assert_int_equal(refusal.status, 401);
    }
    guard_close(guard);
    free(path);
    scratch_remove(folder);
    guard = open_guard((struct guard_options){.bound_host = "127.0.0.1"});
    assert_true(guard_check_key(guard, NULL, &refusal));
    guard_close(guard);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_of_loopback),
        cmocka_unit_test(test_hosts_elsewhere),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_key_files),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
