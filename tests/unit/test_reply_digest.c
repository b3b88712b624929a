/* What a turn says is the same however its arguments are written down, and different for different values. */
#include "unit.h"

#include "text/reply_digest.h"

static void digest_of(const char *arguments, bool as_object, unsigned char digest[REPLY_DIGEST]) {
    json_t *value =
        as_object ? json_loads(arguments, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : json_string(arguments);
    assert_non_null(value);
    json_t *calls = json_pack("[{s:{s:s, s:o}}]", "function", "name", "set", "arguments", value);
    assert_non_null(calls);
    assert_true(reply_digest((struct slice){"Done.", 5}, calls, digest));
    json_decref(calls);
}

static bool same(const char *a, const char *b, bool as_object) {
    unsigned char first[REPLY_DIGEST], second[REPLY_DIGEST];
    digest_of(a, false, first);
    digest_of(b, as_object, second);
    return memcmp(first, second, REPLY_DIGEST) == 0;
}

static void writing_does_not_matter(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"{\"x\": 1.0}", "{\"x\":1}"},
        {"{\"x\": -0.0}", "{\"x\":0}"},
        {"{\"x\": 1e3}", "{\"x\":1000}"},
        {"{\"x\": 100000.0, \"y\": 0.50}", "{\"y\":0.5,\"x\":100000}"},
        {"{\"x\": 1e22}", "{\"x\":1e+22}"},
        {"{\"x\": 10000000000000000000000.0}", "{\"x\":1e+22}"},
        {"{\"x\": 1E-7}", "{\"x\": 0.0000001}"},
        {"{\"a\": [1.0, {\"b\": [2.0, 2.5]}], \"c\": null}", "{\"c\":null,\"a\":[1,{\"b\":[2,2.5]}]}"},
        {"{\"x\": \"caf\\u00e9 \\/ \\ud83d\\ude00\"}", "{\"x\":\"caf\xc3\xa9 / \xf0\x9f\x98\x80\"}"},
        {"{\"x\": \"<\\u0026>\\t\"}", "{\"x\":\"\\u003c&\\u003e\\u0009\"}"},
        {" {\n \"x\" : [ ] }\r\n", "{\"x\":[]}"},
        {"{\"x\": 1, \"x\": 2}", "{\"x\": 2.0}"},
        {"", "{}"},
        {"3.0", "3"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int as_object = 0; as_object < 2; as_object++)
            if (!same(pairs[i][0], pairs[i][1], as_object))
                fail_msg("%s is not %s", pairs[i][0], pairs[i][1]);
}

static void values_matter(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"{\"x\": 1}", "{\"x\": \"1\"}"},
        {"{\"x\": 1.5}", "{\"x\": 1}"},
        {"{\"x\": 0}", "{\"x\": false}"},
        {"{\"x\": [1, 2]}", "{\"x\": [2, 1]}"},
        {"{\"x\": null}", "{}"},
        {"{\"x\": 9007199254740992}", "{\"x\": 9007199254740993}"},
        {"{\"x\": 0.1}", "{\"x\": 0.10000000000000002}"},
        {"{\"x\": \"a\"}", "{\"x\": \"a \"}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_false(same(pairs[i][0], pairs[i][1], false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing_does_not_matter),
        cmocka_unit_test(values_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
