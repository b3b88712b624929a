/* Every reply here is parsed whole, one byte at a time, and at every split in two: the joined events and the
 * final object must be the same. */
#include "unit.h"

#include <stdio.h>

#include "base/json.h"
#include "base/system.h"
#include "text/reply_parser.h"

/* The tools of the tests, as a request would have them. */
static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"day\":{\"type\":\"integer\"},"
    "\"main\":{\"type\":\"boolean\"},\"formats\":{\"type\":\"array\"},"
    "\"limit\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}}}}},"
    "{\"type\":\"function\",\"name\":\"write_file\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"},"
    "\"edits\":{\"type\":\"array\"},\"mode\":{}}}}]";

static json_t *tools;

static int read_tools(void **state) {
    (void)state;
    struct calla_error error;
    tools = json_parse(tool_list, strlen(tool_list), "the tools", &error);
    return tools == NULL;
}

static int free_tools(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

/* Everything that a parser said, in one string: "R:..." reasoning, "C:..." content, "N0:..." the name of call
 * 0, "A0:..." its arguments; neighbours of one kind joined. Then the final object. */
struct record {
    struct buffer text;
    char last[16];
};

static bool keep(void *user, const struct calla_event *event) {
    struct record *record = user;
    static const char letters[] = "RCNA";
    char mark[16];
    bool call = event->kind == CALLA_EVENT_CALL || event->kind == CALLA_EVENT_ARGUMENTS;
    if (call)
        snprintf(mark, sizeof mark, "|%c%u:", letters[event->kind], (unsigned)event->call);
    else
        snprintf(mark, sizeof mark, "|%c:", letters[event->kind]);
    if (strcmp(mark, record->last) != 0) {
        buffer_append_string(&record->text, mark);
        strcpy(record->last, mark);
    }
    assert_true(event->size > 0);
    return buffer_append(&record->text, event->text, event->size);
}

enum { NO_TOOLS = 1, CUT = 2, THINKING = 4 };

static char *parse(const char *raw, size_t size, const size_t *cuts, size_t cut_count, unsigned flags) {
    struct calla_error error = {0};
    struct record record = {0};
    struct reply_parser *parser = reply_parser_new((flags & THINKING) != 0, flags & NO_TOOLS ? NULL : tools,
                                                   "call_7_", keep, &record, &error);
    assert_non_null(parser);
    size_t begin = 0;
    for (size_t i = 0; i <= cut_count; i++) {
        size_t end = i < cut_count ? cuts[i] : size;
        /* A copy of its own, so that reading past the piece is seen by the sanitizer. */
        char *piece = malloc(end - begin + (end == begin));
        memcpy(piece, raw + begin, end - begin);
        assert_true(reply_parser_feed(parser, piece, end - begin, &error));
        free(piece);
        begin = end;
    }
    assert_true(reply_parser_finish(parser, (flags & CUT) != 0, &error));
    buffer_append_string(&record.text, "|| ");
    size_t part;
    const char *text = reply_parser_reasoning(parser, &part);
    buffer_append(&record.text, text, part);
    buffer_append_string(&record.text, " | ");
    text = reply_parser_content(parser, &part);
    buffer_append(&record.text, text, part);
    char *calls = json_dumps(reply_parser_calls(parser), JSON_COMPACT);
    assert_non_null(calls);
    buffer_printf(&record.text, " | %s", calls);
    free(calls);
    size_t index;
    json_t *call;
    json_array_foreach(reply_parser_calls(parser), index, call) {
        const json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
        json_t *object = json_loadb(json_string_value(arguments), json_string_length(arguments),
                                    JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(object));
        json_decref(object);
    }
    reply_parser_free(parser);
    return buffer_take(&record.text, NULL);
}

/* Parses in every way and returns the one result. */
static char *parse_all(const char *raw, size_t size, unsigned flags) {
    char *whole = parse(raw, size, NULL, 0, flags);
    size_t *cuts = malloc((size + 1) * sizeof *cuts);
    for (size_t i = 0; i < size; i++)
        cuts[i] = i;
    char *bytes = parse(raw, size, cuts, size, flags);
    if (strcmp(bytes, whole) != 0)
        fail_msg("byte by byte %s\nbut whole %s", bytes, whole);
    free(bytes);
    for (size_t i = 0; i <= size; i++) {
        char *split = parse(raw, size, &i, 1, flags);
        if (strcmp(split, whole) != 0)
            fail_msg("split at %zu %s\nbut whole %s", i, split, whole);
        free(split);
    }
    free(cuts);
    return whole;
}

static void expect(unsigned flags, const char *raw, const char *events) {
    char *result = parse_all(raw, strlen(raw), flags);
    char *end = strstr(result, "|| ");
    assert_non_null(end);
    *end = 0;
    if (strcmp(result, events) != 0)
        fail_msg("reply   %s\nexpected %s\nbut got  %s", raw, events, result);
    free(result);
}

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

static void zero_bytes(void **state) {
    (void)state;
    static const char raw[] = "a\0b" CALL("get_weather", PARAMETER("city", "O\0o"));
    struct calla_error error;
    struct reply_parser *parser = reply_parser_new(false, tools, NULL, NULL, NULL, &error);
    assert_true(reply_parser_feed(parser, raw, sizeof raw - 1, &error));
    assert_true(reply_parser_finish(parser, false, &error));
    size_t size;
    assert_memory_equal(reply_parser_content(parser, &size), "a\0b", 3);
    assert_int_equal(size, 3);
    const json_t *call = json_array_get(reply_parser_calls(parser), 0);
    assert_string_equal(json_string_value(json_object_get(call, "id")), "call_0");
    assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
    assert_string_equal(json_string_value(json_object_get(json_object_get(call, "function"), "arguments")),
                        "{\"city\":\"O\\u0000o\"}");
    reply_parser_free(parser);
}

/* The final object says what the events said: the calls in the OpenAI form, their ids with the prefix. */
static void the_whole_reply(void **state) {
    (void)state;
    const char *raw = "hm\n</think>\n\nLook.\n\n" OSLO "\n" OSLO;
    char *result = parse_all(raw, strlen(raw), THINKING);
    assert_string_equal(
        strstr(result, "|| "),
        "|| hm | Look. | [{\"id\":\"call_7_0\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
        "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}},{\"id\":\"call_7_1\",\"type\":\"function\","
        "\"function\":"
        "{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]");
    free(result);
}

/* Each prefix of a reply, cut or not: nothing crashes, arguments are valid JSON. */
static void every_prefix(void **state) {
    (void)state;
    static const char raw[] =
        "a\n<tool_call>\n<function=write_file>\n<parameter=content>\n\u00e9 </p\n</parameter>\n"
        "<parameter=mode>\n[1]\n</parameter>\n</function>\n</tool_call>\n</think>b";
    for (size_t size = 0; size < sizeof raw; size++) {
        for (unsigned flags = 0; flags < 8; flags++) {
            size_t middle = size / 2;
            char *whole = parse(raw, size, NULL, 0, flags), *split = parse(raw, size, &middle, 1, flags);
            assert_string_equal(whole, split);
            free(whole);
            free(split);
        }
    }
    free(parse_all(raw, sizeof raw - 1, 0));
    free(parse_all(raw, sizeof raw - 1, THINKING));
}

static void a_string_is_passed_on_as_it_comes(void **state) {
    (void)state;
    struct calla_error error = {0};
    struct record record = {0};
    struct reply_parser *parser = reply_parser_new(true, tools, "call_7_", keep, &record, &error);
    static const struct {
        const char *piece, *events;
    } steps[] = {{"I ", "|R:I"},
                 {"see", "|R:I see"},
                 {"\n</think>\n\nOk", "|R:I see|C:Ok"},
                 {"\n<tool_call>\n<function=write_file>\n", "|R:I see|C:Ok"},
                 {"<parameter=path>", "|R:I see|C:Ok|N0:write_file"},
                 {"\na\"", "|R:I see|C:Ok|N0:write_file|A0:{\"path\":\"a\\\""},
                 {"b\n", "|R:I see|C:Ok|N0:write_file|A0:{\"path\":\"a\\\"b"},
                 {"c\n</parameter>\n", "|R:I see|C:Ok|N0:write_file|A0:{\"path\":\"a\\\"b\\nc"},
                 {"</function>", "|R:I see|C:Ok|N0:write_file|A0:{\"path\":\"a\\\"b\\nc\"}"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_true(reply_parser_thinking(parser) == (i < 3));
        assert_true(reply_parser_feed(parser, steps[i].piece, strlen(steps[i].piece), &error));
        assert_string_equal(record.text.data, steps[i].events);
    }
    reply_parser_free(parser);
    buffer_free(&record.text);
}

static bool refuse(void *user, const struct calla_event *event) {
    (void)event;
    return --*(int *)user > 0;
}

static void the_receiver_can_stop(void **state) {
    (void)state;
    struct calla_error error = {0};
    int left = 2;
    struct reply_parser *parser = reply_parser_new(false, NULL, NULL, refuse, &left, &error);
    assert_true(reply_parser_feed(parser, "a", 1, &error));
    assert_false(reply_parser_feed(parser, "b", 1, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    assert_false(reply_parser_feed(parser, "c", 1, &error));
    assert_false(reply_parser_finish(parser, false, &error));
    assert_int_equal(left, 0);
    reply_parser_free(parser);
}

/* Text made to be looked at again and again: half a million bytes of it whole, a hundred thousand in single
 * bytes. */
static void hostile_text_takes_linear_time(void **state) {
    (void)state;
    static const char *const starts[] = {"", "<tool_call><function=write_file><parameter=content>",
                                         "<tool_call><function=write_file><parameter=mode>"};
    static const char *const units[] = {"<",
                                        "<tool_call>",
                                        "</parameter>",
                                        "\n",
                                        "<function=",
                                        "</think>",
                                        " ",
                                        "<tool_call>\n<function=get_weather>\n<parameter=city>\n",
                                        "\n<parameter=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                        "</parameter>\n",
                                        "</parameter>\n  \n</function>",
                                        "\n<parameter=city>\n",
                                        "<tool_call>          ",
                                        "\xf0\x9f\x98",
                                        OSLO,
                                        "[",
                                        "\"",
                                        "{\"a\":"};
    char *text = malloc(500000);
    struct calla_error error = {0};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        for (unsigned way = 0; way < 12; way++) {
            strcpy(text, starts[way % 3]);
            size_t begin = strlen(text), unit = strlen(units[i]);
            size_t size = way < 6 ? 500000 : 100000, step = way < 6 ? size : 1;
            for (size_t at = begin; at < size; at++)
                text[at] = units[i][(at - begin) % unit];
            struct reply_parser *parser = reply_parser_new(way / 3 % 2 == 1, tools, NULL, NULL, NULL, &error);
            double start = system_seconds();
            for (size_t at = 0; at < size; at += step)
                assert_true(reply_parser_feed(parser, text + at, step, &error));
            assert_true(reply_parser_finish(parser, false, &error));
            /* Work that grows with the square takes a minute and more. */
            if (system_seconds() - start > 10)
                fail_msg("%s of %s takes %.1f s", starts[way % 3], units[i], system_seconds() - start);
            reply_parser_free(parser);
        }
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_and_content),
        cmocka_unit_test(calls),
        cmocka_unit_test(a_call_inside_the_reasoning),
        cmocka_unit_test(values_are_typed_by_the_schema),
        cmocka_unit_test(strings_keep_every_byte),
        cmocka_unit_test(calls_that_leave_tags_out),
        cmocka_unit_test(what_is_no_call_is_content),
        cmocka_unit_test(a_cut_reply_ends_as_valid_json),
        cmocka_unit_test(characters_stay_whole),
        cmocka_unit_test(zero_bytes),
        cmocka_unit_test(the_whole_reply),
        cmocka_unit_test(every_prefix),
        cmocka_unit_test(a_string_is_passed_on_as_it_comes),
        cmocka_unit_test(the_receiver_can_stop),
        cmocka_unit_test(hostile_text_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, read_tools, free_tools);
}
