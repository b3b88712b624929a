/* Sockets to listen on: what is in use, what is stale, what is somebody else's. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "scratch.h"
#include "server/listener.h"

static void test_tcp(void **state) {
    (void)state;
    struct listener first, second;
    struct calla_error error = {0};
    unsigned port = 0;
    assert_true(listener_open_tcp(&first, "127.0.0.1", 0, &error));
    assert_int_equal(sscanf(first.address, "http://127.0.0.1:%u", &port), 1);
    assert_in_range(port, 1, 65535);
    assert_false(listener_open_tcp(&second, "127.0.0.1", (uint16_t)port, &error));
    assert_non_null(strstr(error.message, "is in use"));
    listener_close(&first);
    assert_true(listener_open_tcp(&second, "127.0.0.1", (uint16_t)port, &error));
    listener_close(&second);
    assert_false(listener_open_tcp(&second, "no.such.host.invalid", 0, &error));
    assert_non_null(strstr(error.message, "no.such.host.invalid"));
    /* An address of the documentation, which no machine has. */
    assert_false(listener_open_tcp(&second, "192.0.2.1", 0, &error));
    assert_non_null(strstr(error.message, "Cannot listen on 192.0.2.1"));
}

static void test_unix(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "socket");
    struct listener first, second;
    struct calla_error error = {0};
    struct stat status;
    assert_true(listener_open_unix(&first, path, &error));
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_false(listener_open_unix(&second, path, &error));
    assert_non_null(strstr(error.message, "listens on"));
    assert_int_equal(stat(path, &status), 0);
    /* A server that was killed leaves its path. */
    close(first.descriptor);
    first.descriptor = -1;
    assert_true(listener_open_unix(&second, path, &error));
    /* What has taken the path meanwhile is not ours to remove. */
    listener_close(&first);
    assert_int_equal(stat(path, &status), 0);
    listener_close(&second);
    assert_int_not_equal(stat(path, &status), 0);
    free(path);
    scratch_remove(folder);
}

static void test_unix_path_taken(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "file");
    struct listener listener;
    struct calla_error error = {0};
    scratch_write_text(folder, "file", "precious");
    assert_false(listener_open_unix(&listener, path, &error));
    assert_non_null(strstr(error.message, "is no socket"));
    assert_int_equal(access(path, F_OK), 0);
    char long_path[300];
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    assert_false(listener_open_unix(&listener, long_path, &error));
    assert_non_null(strstr(error.message, "at most"));
    assert_false(listener_open_unix(&listener, "/no/such/folder/socket", &error));
    assert_non_null(strstr(error.message, "/no/such/folder/socket"));
    free(path);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_unix),
        cmocka_unit_test(test_unix_path_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
