/* Raw replies and what they say, for the tests that take replies apart: each group is one cmocka test that
 * calls the `expect` of the file that includes this. Events are written as "R:..." reasoning, "C:..."
 * content, "N0:..." the name of call 0, "A0:..." its arguments, each after a '|', neighbours of one kind
 * joined. */
#ifndef CALLA_TESTS_REPLY_CASES_H
#define CALLA_TESTS_REPLY_CASES_H

#include "unit.h"

#include <stdio.h>

enum { NO_TOOLS = 1, CUT = 2, THINKING = 4 };

static void expect(unsigned flags, const char *raw, const char *events);

/* The tools of the tests, as a request would have them. */
static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"day\":{\"type\":\"integer\"},"
    "\"main\":{\"type\":\"boolean\"},\"formats\":{\"type\":\"array\"},"
    "\"limit\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}}}}},"
    "{\"type\":\"function\",\"name\":\"write_file\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"},"
    "\"edits\":{\"type\":\"array\"},\"mode\":{}}}}]";

#define CALL(name, parameters) "<tool_call>\n<function=" name ">\n" parameters "</function>\n</tool_call>"
#define PARAMETER(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define OSLO CALL("get_weather", PARAMETER("city", "Oslo"))

static void reasoning_and_content(void **state) {
    (void)state;
    expect(THINKING, "draft\n</think>\n\nHi", "|R:draft|C:Hi");
    expect(THINKING, "<think>\ndraft\n</think>\n\nHi\n", "|R:draft|C:Hi\n");
    expect(THINKING, "\n\n</think>\n\nHi", "|C:Hi");
    expect(THINKING | CUT, "a long thought\n", "|R:a long thought");
    expect(THINKING | CUT, "a thought</thi", "|R:a thought</thi");
    expect(THINKING, "a < b </thin> \n c</think>x</think>", "|R:a < b </thin> \n c|C:x</think>");
    expect(0, "Hi <b>there</b>\n", "|C:Hi <b>there</b>\n");
    expect(0, "\n<think>\nhm\n</think>\n\nHi", "|R:hm|C:Hi");
    expect(0, "draft\n</think>\n\nHi", "|C:draft\n</think>\n\nHi");
    expect(0, "  \n", "|C:  \n");
    expect(0, "", "");
}

static void calls(void **state) {
    (void)state;
    expect(0, "I will look.\n\n" OSLO, "|C:I will look.|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(0, OSLO "\n" OSLO, "|N0:get_weather|A0:{\"city\":\"Oslo\"}|N1:get_weather|A1:{\"city\":\"Oslo\"}");
    expect(0, OSLO OSLO, "|N0:get_weather|A0:{\"city\":\"Oslo\"}|N1:get_weather|A1:{\"city\":\"Oslo\"}");
    expect(0, OSLO "\nDone.\n", "|N0:get_weather|A0:{\"city\":\"Oslo\"}|C:Done.");
    expect(0, "A\n\n" OSLO "\nB", "|C:A|N0:get_weather|A0:{\"city\":\"Oslo\"}|C:\n\n\nB");
    expect(THINKING, "hm\n</think>\n\n" OSLO, "|R:hm|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(0, CALL("get_weather", ""), "|N0:get_weather|A0:{}");
    expect(0, CALL("unknown", PARAMETER("n", "1")), "|N0:unknown|A0:{\"n\":\"1\"}");
    expect(NO_TOOLS, OSLO, "|C:" OSLO);
    expect(0, "<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>",
           "|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(0, "<function=get_weather>\n" PARAMETER("city", "Oslo") "</function>\n</tool_call>",
           "|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(0, "so <function=get_weather>\n" PARAMETER("city", "Oslo") "</function>",
           "|C:so <function=get_weather>\n" PARAMETER("city", "Oslo") "</function>");
}

static void a_call_inside_the_reasoning(void **state) {
    (void)state;
    expect(THINKING, "Need data.\n" OSLO, "|R:Need data.|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(THINKING, "Need data.\n" OSLO "\n" OSLO "\n</think>\n\nSo.\n",
           "|R:Need data.|N0:get_weather|A0:{\"city\":\"Oslo\"}|N1:get_weather|A1:{\"city\":\"Oslo\"}|C:So.");
    expect(THINKING, OSLO "\nDone.", "|N0:get_weather|A0:{\"city\":\"Oslo\"}|C:Done.");
    /* The tag is only mentioned, or the call is not whole, or nobody declared it. */
    expect(THINKING, "I write <tool_call> then </tool_call>.\n</think>\n\n" OSLO,
           "|R:I write <tool_call> then </tool_call>.|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(THINKING, "like <tool_call>\n<function=get_weather>\n<parameter=city>\nO\n</think>\nHi",
           "|R:like <tool_call>\n<function=get_weather>\n<parameter=city>\nO|C:Hi");
    expect(THINKING, "a <tool_call>\n<function=get_weather>\n<parameter=city>\nb " OSLO,
           "|R:a "
           "<tool_call>\n<function=get_weather>\n<parameter=city>\nb|N0:get_weather|A0:{\"city\":\"Oslo\"}");
    expect(THINKING, CALL("other", "") "\n</think>\n\nHi", "|R:" CALL("other", "") "|C:Hi");
    expect(THINKING, "<tool_call>\n<function=get_weather>\n</function>\nhm\n</think>\n\nHi",
           "|R:<tool_call>\n<function=get_weather>\n</function>\nhm|C:Hi");
    expect(THINKING | CUT,
           "x <tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</fun",
           "|R:x <tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</fun");
    expect(THINKING | NO_TOOLS, OSLO, "|R:" OSLO);
}

static void values_are_typed_by_the_schema(void **state) {
    (void)state;
    expect(
        0,
        CALL("get_weather", PARAMETER("formats", "[\"markdown\"]") PARAMETER("main", "True")
                                PARAMETER("limit", "80") PARAMETER("day", "2026-01-15")),
        "|N0:get_weather|A0:{\"formats\":[\"markdown\"],\"main\":true,\"limit\":80,\"day\":\"2026-01-15\"}");
    expect(0, CALL("write_file", PARAMETER("edits", "[{\"text\":\"line1\nline2\"}]")),
           "|N0:write_file|A0:{\"edits\":[{\"text\":\"line1\\nline2\"}]}");
    expect(0, CALL("write_file", PARAMETER("mode", "420") PARAMETER("path", "420") PARAMETER("other", "420")),
           "|N0:write_file|A0:{\"mode\":420,\"path\":\"420\",\"other\":\"420\"}");
}

static void strings_keep_every_byte(void **state) {
    (void)state;
    expect(0,
           CALL("write_file", PARAMETER("path", "a.py")
                                  PARAMETER("content", "print(\"</parameter>\")\nx = \"</tool_call>\"\n")),
           "|N0:write_file|A0:{\"path\":\"a.py\",\"content\":"
           "\"print(\\\"</parameter>\\\")\\nx = \\\"</tool_call>\\\"\\n\"}");
    expect(0, CALL("write_file", PARAMETER("content", "\n\n  a\\b\t\"c\" \n ")),
           "|N0:write_file|A0:{\"content\":\"\\n\\n  a\\\\b\\t\\\"c\\\" \\n \"}");
    expect(0, CALL("write_file", PARAMETER("content", "")), "|N0:write_file|A0:{\"content\":\"\"}");
    expect(0, CALL("write_file", "<parameter=content>\n</parameter>\n"),
           "|N0:write_file|A0:{\"content\":\"\"}");
    expect(0, CALL("write_file", PARAMETER("content", "null")), "|N0:write_file|A0:{\"content\":\"null\"}");
    expect(
        0,
        CALL("write_file", PARAMETER("content", "a < b <parameter=x> <function=f> </function> <tool_call>")),
        "|N0:write_file|A0:{\"content\":\"a < b <parameter=x> <function=f> </function> <tool_call>\"}");
    expect(0, CALL("write_file", PARAMETER("content", "a\n<parameter=x>\n</function>\n</tool_call> b")),
           "|N0:write_file|A0:{\"content\":\"a\\n<parameter=x>\"}|C: "
           "b\n</parameter>\n</function>\n</tool_call>");
    expect(0, CALL("write_file", PARAMETER("content", "</parameter> </parameter> </para</parameter>")),
           "|N0:write_file|A0:{\"content\":\"</parameter> </parameter> </para</parameter>\"}");
}

static void calls_that_leave_tags_out(void **state) {
    (void)state;
    const char *whole = "|N0:write_file|A0:{\"path\":\"a\",\"content\":\"b\"}";
    expect(0,
           "<tool_call>\n<function=write_file>\n<parameter=path>\na\n<parameter=content>\nb\n</function>\n</"
           "tool_call>",
           whole);
    expect(
        0,
        "<tool_call>\n<function=write_file>\n" PARAMETER("path", "a") "<parameter=content>\nb\n</tool_call>",
        whole);
    expect(0, "<tool_call>\n<function=write_file>\n" PARAMETER("path", "a") PARAMETER("content", "b"), whole);
    expect(0,
           "<tool_call>\n<function=write_file>\n" PARAMETER("path", "a")
               PARAMETER("content", "b") "</tool_call>",
           whole);
    expect(0, "<tool_call>\n<function=write_file>\n" PARAMETER("path", "a") "<parameter=content>\nb\n",
           whole);
    expect(0,
           "<tool_call>\n<function=write_file>\n" PARAMETER(
               "path", "a") "<parameter=content>\nb\n</parameter>\n</func",
           whole);
    expect(0, "<tool_call>\n<function=get_weather>\n", "|N0:get_weather|A0:{}");
    expect(0, "<tool_call>\n<function=get_weather>\n</function>\n" OSLO,
           "|N0:get_weather|A0:{}|N1:get_weather|A1:{\"city\":\"Oslo\"}");
    /* Two functions in one block. */
    expect(0,
           "<tool_call>\n<function=get_weather>\n</function>\n<function=write_file>\n" PARAMETER(
               "path", "a") "</function>\n</tool_call>",
           "|N0:get_weather|A0:{}|N1:write_file|A1:{\"path\":\"a\"}");
    /* The first value counts: it has been passed on already. */
    expect(0, CALL("write_file", PARAMETER("path", "a") PARAMETER("path", "b") PARAMETER("mode", "1")),
           "|N0:write_file|A0:{\"path\":\"a\",\"mode\":1}");
}

static void what_is_no_call_is_content(void **state) {
    (void)state;
    static const char *const raws[] = {"<tool_call>",
                                       "<tool_call>\n",
                                       "<tool_call>\nnothing\n</tool_call>",
                                       "<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call>",
                                       "<tool_call>\n<function=>\n</function>\n</tool_call>",
                                       "<tool_call>\n<function=get_weather>\nOslo\n</function>\n</tool_call>",
                                       "<tool_call>\n<function=get_weather\n</function>\n</tool_call>",
                                       "<function=other>\n</function>",
                                       "a <tool_call> b </tool_call> c <function=get_weather> d",
                                       "<tool_ca",
                                       "</tool_call>",
                                       "</parameter>"};
    for (size_t i = 0; i < sizeof raws / sizeof *raws; i++) {
        char expected[256];
        snprintf(expected, sizeof expected, "|C:%s", raws[i]);
        expect(0, raws[i], expected);
        expect(CUT, raws[i], expected);
    }
    char raw[600] = "<tool_call>\n<function=", expected[640];
    memset(raw + strlen(raw), 'n', 257);
    strcat(raw, ">\n</function>\n</tool_call>");
    snprintf(expected, sizeof expected, "|C:%s", raw);
    expect(0, raw, expected);
}

static void a_cut_reply_ends_as_valid_json(void **state) {
    (void)state;
    expect(CUT, "Hm.\n<tool_call>\n<function=write_fi", "|C:Hm.\n<tool_call>\n<function=write_fi");
    expect(CUT, "<tool_call>\n<function=write_file>\n", "|C:<tool_call>\n<function=write_file>\n");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=path>\n", "|N0:write_file|A0:{}");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=path>\nREAD",
           "|N0:write_file|A0:{\"path\":\"READ\"}");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=path>\nREAD\n</para",
           "|N0:write_file|A0:{\"path\":\"READ\"}");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=path>\nREAD\n</parameter>\n<param",
           "|N0:write_file|A0:{\"path\":\"READ\"}");
    expect(CUT, "<tool_call>\n<function=write_file>\n" PARAMETER("path", "a") "<parameter=mode>\n42",
           "|N0:write_file|A0:{\"path\":\"a\"}");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=mode>\n42\n</parameter>",
           "|N0:write_file|A0:{\"mode\":42}");
    expect(CUT, "<tool_call>\n<function=write_file>\n<parameter=edits>\n[1, 2", "|N0:write_file|A0:{}");
    expect(CUT, "<tool_call>\n<function=get_weather>\n</function>\n</tool_c", "|N0:get_weather|A0:{}");
    expect(CUT, OSLO "\n<tool_call>\n<fun", "|N0:get_weather|A0:{\"city\":\"Oslo\"}|C:<tool_call>\n<fun");
}

static void characters_stay_whole(void **state) {
    (void)state;
    expect(THINKING, "\u00e9\n</think>\n\n\U0001f469\u200d\U0001f467 \u4f60",
           "|R:\u00e9|C:\U0001f469\u200d\U0001f467 \u4f60");
    expect(0, CALL("get_weather", PARAMETER("city", "Troms\u00f8\U0001f600")),
           "|N0:get_weather|A0:{\"city\":\"Troms\u00f8\U0001f600\"}");
    expect(0, "a\xff\xe4\xbd z\xf0\x9f", "|C:a\ufffd\ufffd z\ufffd");
    expect(0, CALL("get_weather", PARAMETER("ci\xffty", "\xc0\x80")),
           "|N0:get_weather|A0:{\"ci\ufffdty\":\"\ufffd\ufffd\"}");
}

#define REPLY_CASES                                                                                          \
    cmocka_unit_test(reasoning_and_content), cmocka_unit_test(calls),                                        \
        cmocka_unit_test(a_call_inside_the_reasoning), cmocka_unit_test(values_are_typed_by_the_schema),     \
        cmocka_unit_test(strings_keep_every_byte), cmocka_unit_test(calls_that_leave_tags_out),              \
        cmocka_unit_test(what_is_no_call_is_content), cmocka_unit_test(a_cut_reply_ends_as_valid_json),      \
        cmocka_unit_test(characters_stay_whole)

#endif
