/* Every reply here is parsed whole, one byte at a time, and at every split in two: the joined events and the
 * final object must be the same. */
#include "unit.h"

#include <stdio.h>

#include "base/json.h"
#include "text/reply_parser.h"

/* The tools of the tests, as a request would have them. */
static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"celsius\":{\"type\":\"boolean\"},\"limit\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}}}}"
    "},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"},"
    "\"edits\":{\"type\":\"array\"},\"mode\":{}}}}}]";

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
    json_t *tools = flags & NO_TOOLS ? NULL : json_parse(tool_list, strlen(tool_list), "tools", &error);
    struct reply_parser *parser =
        reply_parser_new((flags & THINKING) != 0, tools, "call_", keep, &record, &error);
    json_decref(tools);
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_and_content),
        cmocka_unit_test(calls),
        cmocka_unit_test(a_call_inside_the_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
