#include "unit.h"

#include <float.h>
#include <math.h>

#include "text/json_python.h"

static void expect_real(double value, const char *expected) {
    struct buffer out = {0};
    assert_true(json_write_python_real(&out, value));
    assert_string_equal(out.data, expected);
    buffer_free(&out);
}

/* What Python's repr says. */
static void reals(void **state) {
    (void)state;
    expect_real(0.0, "0.0");
    expect_real(-0.0, "-0.0");
    expect_real(1.0, "1.0");
    expect_real(0.1, "0.1");
    expect_real(-2.5, "-2.5");
    expect_real(100.0, "100.0");
    expect_real(123456.789, "123456.789");
    expect_real(0.0001, "0.0001");
    expect_real(0.00012, "0.00012");
    expect_real(0.00001, "1e-05");
    expect_real(1.5e-7, "1.5e-07");
    expect_real(1e15, "1000000000000000.0");
    expect_real(9999999999999998.0, "9999999999999998.0");
    expect_real(1e16, "1e+16");
    expect_real(1.2345678901234568e+22, "1.2345678901234568e+22");
    expect_real(1e100, "1e+100");
    expect_real(1e-300, "1e-300");
    expect_real(1.0 / 3.0, "0.3333333333333333");
    expect_real(2.0 / 3.0, "0.6666666666666666");
    expect_real(0.1 + 0.2, "0.30000000000000004");
    expect_real(5e-324, "5e-324");
    expect_real(DBL_MIN, "2.2250738585072014e-308");
    expect_real(DBL_MAX, "1.7976931348623157e+308");
    /* Powers of two: the shortest that reads back is not the nearest of its length. */
    expect_real(ldexp(1, 534), "5.623642243178996e+160");
    expect_real(ldexp(1, -44), "5.684341886080802e-14");
    expect_real(9007199254740992.0, "9007199254740992.0");
    expect_real((double)NAN, "NaN");
    expect_real((double)INFINITY, "Infinity");
    expect_real(-(double)INFINITY, "-Infinity");
}

static void expect(const char *json, const char *expected) {
    json_t *value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    struct buffer out = {0};
    assert_true(json_write_python(&out, value));
    assert_string_equal(out.data, expected);
    buffer_free(&out);
    json_decref(value);
}

static void values(void **state) {
    (void)state;
    expect("{\"b\":1,\"a\":[true,false,null,-7,1.0,\"x\"],\"\":{},\"c\":[]}",
           "{\"b\": 1, \"a\": [true, false, null, -7, 1.0, \"x\"], \"\": {}, \"c\": []}");
    expect(
        "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\u007f\\\"\\\\\\/\\u00e9\\u2028\\ud83d\\ude00<>&'\"",
        "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\x7f\\\"\\\\/\u00e9\u2028\U0001f600<>&'\"");
    expect("{\"k\\n\\\"\":9223372036854775807}", "{\"k\\n\\\"\": 9223372036854775807}");
    expect("-9223372036854775808", "-9223372036854775808");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reals),
        cmocka_unit_test(values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
