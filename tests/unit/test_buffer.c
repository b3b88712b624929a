#include "unit.h"

#include "base/buffer.h"

static void appends_and_formats(void **state) {
    (void)state;
    struct buffer buffer = {0};
    assert_true(buffer_append_string(&buffer, "ab"));
    assert_true(buffer_append_byte(&buffer, 0));
    assert_true(buffer_printf(&buffer, "%d-%s", 7, "x"));
    assert_int_equal(buffer.size, 6);
    assert_memory_equal(buffer.data,
                        "ab\0"
                        "7-x",
                        7);
    size_t size = 0;
    char *taken = buffer_take(&buffer, &size);
    assert_int_equal(size, 6);
    assert_null(buffer.data);
    free(taken);
}

static void a_failed_append_sticks(void **state) {
    (void)state;
    struct buffer buffer = {0};
    assert_false(buffer_reserve(&buffer, SIZE_MAX));
    assert_true(buffer.failed);
    assert_false(buffer_append_string(&buffer, "x"));
    assert_null(buffer_take(&buffer, NULL));
    assert_false(buffer.failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_and_formats),
        cmocka_unit_test(a_failed_append_sticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
