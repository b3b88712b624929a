/* Every reply here is parsed whole, one byte at a time, and at every split in two: the joined events and the
 * final object must be the same. */
#include "unit.h"

#include <stdio.h>
#include <time.h>

#include "base/json.h"
#include "text/reply_parser.h"

#include "reply_cases.h"

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
            clock_t start = clock(); /* the processor's time: others may use the machine */
            for (size_t at = 0; at < size; at += step)
                assert_true(reply_parser_feed(parser, text + at, step, &error));
            assert_true(reply_parser_finish(parser, false, &error));
            /* Work that grows with the square takes a minute and more. */
            double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (seconds > 10)
                fail_msg("%s of %s takes %.1f s", starts[way % 3], units[i], seconds);
            reply_parser_free(parser);
        }
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        REPLY_CASES,
        cmocka_unit_test(zero_bytes),
        cmocka_unit_test(the_whole_reply),
        cmocka_unit_test(every_prefix),
        cmocka_unit_test(a_string_is_passed_on_as_it_comes),
        cmocka_unit_test(the_receiver_can_stop),
        cmocka_unit_test(hostile_text_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, read_tools, free_tools);
}
