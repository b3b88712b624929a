#include "unit.h"

#include "base/system.h"
#include "text/argument_types.h"
#include "text/lenient_json.h"

/* The value that a text is under a schema. */
static void expect(const char *schema, const char *text, const char *expected) {
    json_error_t failure;
    json_t *parsed = json_loads(schema, JSON_DECODE_ANY, &failure);
    if (parsed == NULL)
        fail_msg("%s: %s", schema, failure.text);
    struct buffer out = {0};
    assert_true(argument_write(&out, text, strlen(text), argument_types(NULL, parsed)));
    if (strcmp(out.data, expected) != 0)
        fail_msg("%s of %s: expected %s, got %s", text, schema, expected, out.data);
    json_t *value = json_loads(out.data, JSON_DECODE_ANY, &failure);
    /* The one thing that JSON has and jansson has not is an integer of any size. */
    assert_true(value != NULL || strstr(failure.text, "integer") != NULL);
    json_decref(value);
    json_decref(parsed);
    buffer_free(&out);
}

static void strings(void **state) {
    (void)state;
    const char *schema = "{\"type\":\"string\"}";
    expect(schema, "null", "\"null\"");
    expect(schema, " 5 ", "\" 5 \"");
    expect(schema, "\"a\"", "\"\\\"a\\\"\"");
    expect(schema, "", "\"\"");
    expect("{\"enum\":[\"a\",\"b\"]}", "5", "\"5\"");
    expect("{\"type\":[\"string\",\"null\"]}", "null", "null");
    expect("{\"type\":[\"string\",\"null\"]}", "None", "null");
    expect("{\"type\":[\"string\",\"null\"]}", " nullable", "\" nullable\"");
    expect("{\"type\":\"string\",\"nullable\":true}", "null", "null");
}

static void numbers(void **state) {
    (void)state;
    const char *integer = "{\"type\":\"integer\"}", *number = "{\"type\":\"number\"}";
    expect(integer, "80", "80");
    expect(integer, " -80\n", "-80");
    expect(integer, "+5", "5");
    expect(integer, "007", "7");
    expect(integer, "80.0", "80");
    expect(integer, "80.5", "\"80.5\"");
    expect(integer, "1e3", "\"1e3\"");
    expect(integer, "2026-01-15", "\"2026-01-15\"");
    expect(integer, "123456789012345678901234567890", "123456789012345678901234567890");
    expect(integer, "", "\"\"");
    expect(integer, "-", "\"-\"");
    expect(integer, "null", "null");
    expect(integer, "None", "null");
    expect(integer, "true", "\"true\"");
    expect(integer, "[1]", "\"[1]\"");
    expect(number, "80", "80");
    expect(number, "3.0", "3.0");
    expect(number, ".5", "0.5");
    expect(number, "5.", "5");
    expect(number, "-.5e-7", "-0.5e-7");
    expect(number, "1e3", "1e3");
    expect(number, "1e", "\"1e\"");
    expect(number, "nan", "\"nan\"");
    expect(number, "0x10", "\"0x10\"");
    expect(number, "1,5", "\"1,5\"");
    expect("{\"type\":\"int\"}", "5", "5");
    expect("{\"type\":\"float\"}", "5.5", "5.5");
    expect("{\"enum\":[1,2]}", "2", "2");
    expect("{\"const\":2.5}", "2.5", "2.5");
}

static void booleans(void **state) {
    (void)state;
    const char *schema = "{\"type\":\"boolean\"}";
    expect(schema, "true", "true");
    expect(schema, "True", "true");
    expect(schema, " FALSE ", "false");
    expect(schema, "yes", "\"yes\"");
    expect(schema, "1", "\"1\"");
    expect(schema, "null", "null");
}

static void lists_and_objects(void **state) {
    (void)state;
    const char *list = "{\"type\":\"array\"}", *object = "{\"type\":\"object\"}";
    expect(list, "[\"markdown\"]", "[\"markdown\"]");
    expect(list, "[{\"text\":\"line1\nline2\t`x`\"}]", "[{\"text\":\"line1\\nline2\\t`x`\"}]");
    expect(list, "[True, False, None, 'it\\'s', 1.50]", "[true,false,null,\"it's\",1.50]");
    expect(list, "[1, 2, ]", "[1,2]");
    expect(list, "\"[1, 2]\"", "[1,2]");
    expect(list, "[1, 2", "\"[1, 2\"");
    expect(list, "a, b", "\"a, b\"");
    expect(list, "{}", "{}");
    expect(list, "5", "\"5\"");
    expect(list, "[12345678901234567890123]", "[12345678901234567890123]");
    expect(object, "{ 'a' : {\"b\": []} }", "{\"a\":{\"b\":[]}}");
    expect(object, "{\"a\" 1}", "\"{\\\"a\\\" 1}\"");
    expect(object, "{\"a\": 1} b", "\"{\\\"a\\\": 1} b\"");
    expect("{\"items\":{\"type\":\"string\"}}", "[1]", "[1]");
    expect("{\"properties\":{}}", "5", "\"5\"");
}

static void alternatives(void **state) {
    (void)state;
    const char *optional = "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}";
    expect(optional, "80", "80");
    expect(optional, "null", "null");
    expect(optional, "x", "\"x\"");
    const char *either = "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\"}]}";
    expect(either, "[\"a\"]", "[\"a\"]");
    expect(either, "[a", "\"[a\"");
    expect(either, "5", "\"5\"");
    expect(either, "null", "\"null\"");
    expect(either, "\"[1]\"", "\"\\\"[1]\\\"\"");
    expect("{\"type\":[\"string\",\"integer\"]}", "007", "\"007\"");
    expect("{\"type\":[\"string\",\"integer\"]}", "7", "7");
    expect("{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"type\":\"number\"}]}", "7", "7");
    expect("{\"allOf\":[{\"type\":\"string\"},{\"description\":\"d\"}]}", "7", "\"7\"");
    /* A schema that says nothing, or what nothing can be: whatever JSON it is, and text otherwise. */
    expect("{}", "80", "80");
    expect("true", "[1]", "[1]");
    expect("{\"type\":\"any\"}", "True", "true");
    expect("{}", "hello", "\"hello\"");
    expect("{}", "\"hello\"", "\"\\\"hello\\\"\"");
    expect("{}", "", "\"\"");
    expect("{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "7", "7");
}

static void references(void **state) {
    (void)state;
    json_t *root =
        json_loads("{\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},\"b\":{\"$ref\":\"#/$defs/x~1y~0z\"},"
                   "\"c\":{\"$ref\":\"#/$defs/loop\"},\"d\":{\"$ref\":\"other.json\"},"
                   "\"e\":{\"$ref\":\"#/$defs/all/1\"},\"f\":{\"$ref\":\"#\"}},\"type\":\"object\","
                   "\"$defs\":{\"n\":{\"type\":\"integer\"},\"x/y~z\":{\"type\":\"boolean\"},"
                   "\"loop\":{\"anyOf\":[{\"$ref\":\"#/$defs/loop\"},{\"$ref\":\"#/$defs/loop\"}]},"
                   "\"all\":[{\"type\":\"string\"},{\"type\":\"array\"}]},"
                   "\"allOf\":[{\"properties\":{\"g\":{\"type\":\"null\"}}},{\"$ref\":\"#/$defs/loop\"}]}",
                   0, NULL);
    assert_non_null(root);
    static const struct {
        const char *name;
        unsigned types;
    } expected[] = {{"a", ARGUMENT_INTEGER}, {"b", ARGUMENT_BOOLEAN}, {"c", ARGUMENT_ANY},
                    {"d", ARGUMENT_ANY},     {"e", ARGUMENT_ARRAY},   {"f", ARGUMENT_OBJECT},
                    {"g", ARGUMENT_NULL},    {"h", ARGUMENT_STRING}};
    double start = system_seconds();
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const json_t *schema = argument_schema(root, expected[i].name, 1);
        assert_int_equal(argument_types(root, schema), expected[i].types);
    }
    assert_true(system_seconds() - start < 5); /* the loop, unbounded, would take 2^300 steps */
    json_decref(root);
    assert_null(argument_schema(NULL, "a", 1));
}

static void expect_json(const char *text, const char *expected) {
    struct buffer out = {0};
    buffer_append_string(&out, ">");
    char kind = lenient_json_write(&out, text, strlen(text));
    if (expected == NULL) {
        if (kind != 0)
            fail_msg("%s: expected no value, got %s", text, out.data);
        assert_string_equal(out.data, ">");
    } else {
        if (kind == 0 || strcmp(out.data + 1, expected) != 0)
            fail_msg("%s: expected %s, got %s", text, expected, out.data);
        /* A digit stands for every number, and the first character for the others. */
        assert_int_equal(kind, strchr("-123456789", *expected) != NULL ? '0' : *expected);
    }
    buffer_free(&out);
}

static void lenient_json(void **state) {
    (void)state;
    expect_json(" [ ] ", "[]");
    expect_json("{}", "{}");
    expect_json("-0.5E+10", "-0.5E+10");
    expect_json("'a\"b'", "\"a\\\"b\"");
    expect_json("\"\\d\\x41\\u00e9\\/\\'\"", "\"\\\\d\\u0041\\u00e9\\/'\"");
    expect_json("\"\\ud83d\\ude00\\ud83d\\udc00x\"", "\"\\ud83d\\ude00\\ud83d\\udc00x\"");
    expect_json("\"\\ud83d \\ude00 \\ud83d\\u0041 \\ud83\"", "\"\\ufffd \\ufffd \\ufffd\\u0041 \\\\ud83\"");
    expect_json("\"\\uD83D\\uDE00\"", "\"\\ud83d\\ude00\"");
    expect_json("\"\x01\x7f\"", "\"\\u0001\x7f\"");
    expect_json("{\"a\":{'b':[None,true,]},}", "{\"a\":{\"b\":[null,true]}}");
    static const char *const broken[] = {"",         " ",           "[",     "]",      "{",   "{\"a\"",
                                         "{\"a\":}", "{a:1}",       "[1 2]", "[,]",    "\"",  "'a\"",
                                         "\"\\",     "01",          "1.",    "+1",     "nul", "Nonesuch",
                                         "[1] [2]",  "{\"a\":1,,}", "-",     "\"\\\"", "NaN", "(1, 2)"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        expect_json(broken[i], NULL);
    for (unsigned depth = 190; depth < 210; depth++) {
        char text[1000] = "";
        for (unsigned i = 0; i < depth; i++)
            strcat(text, "[");
        for (unsigned i = 0; i < depth; i++)
            strcat(text, "]");
        expect_json(text, depth <= 200 ? text : NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings),           cmocka_unit_test(numbers),      cmocka_unit_test(booleans),
        cmocka_unit_test(lists_and_objects), cmocka_unit_test(alternatives), cmocka_unit_test(references),
        cmocka_unit_test(lenient_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
