#include "unit.h"

#include "base/error.h"
#include "text/utf8.h"

static void becomes(const char *quoted, const char *expected) {
    struct calla_error error;
    assert_false(error_set(&error, CALLA_BAD_INPUT, "%s", quoted));
    assert_int_equal(error.status, CALLA_BAD_INPUT);
    assert_string_equal(error.message, expected);
}

static void a_message_cannot_drive_a_terminal(void **state) {
    (void)state;
    becomes("a\033[2Jb\r\n\x7f", "a?[2Jb???");
    becomes("\xc2\x9b\x32J\xc2\x80\xc2\xa0", "??2J??\xc2\xa0");
    becomes("\x9b\x32J", "?2J");
}

static void a_message_is_utf8(void **state) {
    (void)state;
    becomes("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    becomes("\xff\xc0\x80", "???");
    becomes("\xed\xa0\x80\xf4\x90\x80\x80", "???????");
    becomes("\xe0\x80\x80\xe2\x82", "?????");
    becomes("\xf0\x9f\x98", "???");
}

static void a_message_that_is_cut_is_utf8(void **state) {
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        struct calla_error error;
        char text[2 * sizeof error.message] = "...";
        for (size_t at = shift; at + 4 < sizeof text; at += 4)
            memcpy(text + at, "\xf0\x9f\x98\x80", 5);
        error_set(&error, CALLA_BAD_INPUT, "%s", text);
        size_t size = strlen(error.message);
        assert_int_equal(size, sizeof error.message - 1);
        for (size_t at = 0; at < size;) {
            struct utf8_character character = utf8_read(error.message + at, size - at);
            assert_int_equal(character.kind, UTF8_VALID);
            at += character.size;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_cannot_drive_a_terminal),
        cmocka_unit_test(a_message_is_utf8),
        cmocka_unit_test(a_message_that_is_cut_is_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
