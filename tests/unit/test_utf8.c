#include "unit.h"

#include "text/utf8.h"

static void reads(const char *bytes, size_t size, enum utf8_kind kind, unsigned taken, uint32_t code) {
    struct utf8_character character = utf8_read(bytes, size);
    assert_int_equal(character.kind, kind);
    assert_int_equal(character.size, taken);
    assert_int_equal(character.code, code);
}

static void every_code_point_comes_back(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char bytes[4];
        unsigned size = utf8_write(code, bytes);
        if (code >= 0xd800 && code < 0xe000)
            continue;
        reads(bytes, size, UTF8_VALID, size, code);
        for (unsigned cut = 1; cut < size; cut++)
            reads(bytes, cut, UTF8_INCOMPLETE, cut, 0xfffd);
    }
}

static void broken_bytes_end_where_python_ends_them(void **state) {
    (void)state;
    reads("\x80", 1, UTF8_INVALID, 1, 0xfffd);
    reads("\xc0\x80", 2, UTF8_INVALID, 1, 0xfffd);         /* overlong */
    reads("\xe0\x80\x80", 3, UTF8_INVALID, 1, 0xfffd);     /* overlong */
    reads("\xed\xa0\x80", 3, UTF8_INVALID, 1, 0xfffd);     /* surrogate */
    reads("\xf4\x90\x80\x80", 4, UTF8_INVALID, 1, 0xfffd); /* beyond U+10FFFF */
    reads("\xe2\x82x", 3, UTF8_INVALID, 2, 0xfffd);
    reads("\xf0\x9f\x98x", 4, UTF8_INVALID, 3, 0xfffd);
    reads("\xff", 1, UTF8_INVALID, 1, 0xfffd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_comes_back),
        cmocka_unit_test(broken_bytes_end_where_python_ends_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
