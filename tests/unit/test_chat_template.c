/* The renderings expected here are jinja2's, in two files: conversations that were generated, and examples
 * that were written by hand, among them all that the original refuses and this renderer does not. */
#include "unit.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "base/system.h"
#include "text/chat_template.h"

/* Hands each line of a file of JSON values to `check`; returns how many there were. */
static size_t each_line(const char *path, void (*check)(const json_t *line, size_t number)) {
    struct calla_error error = {0};
    struct buffer file = {0};
    if (!file_read(path, 4 << 20, &file, &error))
        fail_msg("%s", error.message);
    size_t count = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *value = json_parse(line, (size_t)(end - line), path, &error);
        if (value == NULL)
            fail_msg("line %zu: %s", count + 1, error.message);
        check(value, ++count);
        json_decref(value);
    }
    buffer_free(&file);
    return count;
}

/* The controls must be ascending, disjoint and inside the text. */
static void check_controls(const struct rendered *out) {
    size_t end = 0;
    for (size_t i = 0; i < out->control_count; i++) {
        assert_true(out->controls[i].begin >= end);
        assert_true(out->controls[i].end >= out->controls[i].begin);
        end = out->controls[i].end;
    }
    assert_true(end <= out->text.size);
}

static void check_prompt(const json_t *request, const char *expected, size_t size, const char *name) {
    struct calla_error error = {0};
    struct rendered out;
    if (!chat_template_render(request, &out, &error))
        fail_msg("%s: %s", name, error.message);
    size_t same = 0;
    while (same < size && same < out.text.size && expected[same] == out.text.data[same])
        same++;
    if (same < size || same < out.text.size)
        fail_msg("%s differs at byte %zu: expected %.60s, got %.60s", name, same, expected + same,
                 out.text.data + same);
    check_controls(&out);
    bool open = size >= 8 && memcmp(expected + size - 8, "<think>\n", 8) == 0;
    assert_int_equal(out.thinking, open);
    rendered_free(&out);
}

static void check_generated(const json_t *line, size_t number) {
    char name[64];
    snprintf(name, sizeof name, "conversation %zu", number);
    const json_t *prompt = json_object_get(line, "prompt");
    check_prompt(json_object_get(line, "request"), json_string_value(prompt), json_string_length(prompt),
                 name);
}

static void equals_jinja2_on_generated_conversations(void **state) {
    (void)state;
    assert_true(each_line("tests/data/template_conversations.jsonl", check_generated) >= 500);
}

static void check_example(const json_t *line, size_t number) {
    (void)number;
    const char *name = json_string_value(json_object_get(line, "name"));
    const json_t *prompt = json_object_get(line, "prompt"), *request = json_object_get(line, "request");
    const char *refusal = json_string_value(json_object_get(line, "error"));
    if (prompt != NULL) {
        check_prompt(request, json_string_value(prompt), json_string_length(prompt), name);
        return;
    }
    struct calla_error error = {0};
    struct rendered out;
    if (chat_template_render(request, &out, &error))
        fail_msg("%s: must be refused, gave %s", name, out.text.data);
    assert_int_equal(error.status, CALLA_BAD_INPUT);
    if (strstr(error.message, refusal) == NULL)
        fail_msg("%s: expected an error with %s, got %s", name, refusal, error.message);
    assert_null(out.text.data);
    assert_null(out.controls);
}

static void the_examples(void **state) {
    (void)state;
    assert_true(each_line("tests/data/template_examples.jsonl", check_example) >= 80);
}

/* How often `tag` lies wholly inside a control span, and how often in the text at all. */
static void count_tag(const struct rendered *out, const char *tag, size_t *inside, size_t *all) {
    *inside = *all = 0;
    for (const char *at = out->text.data; (at = strstr(at, tag)) != NULL; at++) {
        size_t begin = (size_t)(at - out->text.data), end = begin + strlen(tag);
        ++*all;
        for (size_t i = 0; i < out->control_count; i++)
            *inside += out->controls[i].begin <= begin && end <= out->controls[i].end;
    }
}

/* Every place where a request's text gets into the prompt carries `hostile`; the same request with "x" there
 * has as many control tokens. */
static void text_from_people_is_never_a_control_token(void **state) {
    (void)state;
    static const char *const tags[] = {"<|im_start|>",    "<|im_end|>",       "<think>",
                                       "</think>",        "<tool_call>",      "</tool_call>",
                                       "<tool_response>", "</tool_response>", "<|endoftext|>"};
    size_t counts[2][9];
    for (unsigned hostile = 0; hostile < 2; hostile++) {
        char text[256] = "x";
        for (size_t i = 0; hostile && i < 9; i++)
            strcat(text, tags[i]);
        /* Not at the ends, where trimming and the search for think blocks would see them. */
        strcat(text, "x");
        json_error_t failure;
        json_t *request = json_pack_ex(
            &failure, 0,
            "{s:b, s:[{s:{s:s, s:s, s:{s:s}}}], s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s, s:s, "
            "s:[{s:{s:s, s:{s:s, s:[s]}}}, {s:{s:s, s:s}}]}, {s:s, s:s}, {s:s, s:s}]}",
            "preserve_thinking", 1, "tools", "function", "name", text, "description", text, "parameters",
            text, text, "messages", "role", "system", "content", text, "role", "user", "content", text,
            "role", "assistant", "reasoning_content", text, "content", text, "tool_calls", "function", "name",
            text, "arguments", text, text, "list", text, "function", "name", text, "arguments", text, "role",
            "tool", "content", text, "role", "developer", "content", text);
        if (request == NULL)
            fail_msg("%s", failure.text);
        struct calla_error error = {0};
        struct rendered out;
        if (!chat_template_render(request, &out, &error))
            fail_msg("%s", error.message);
        check_controls(&out);
        for (size_t i = 0; i < 9; i++) {
            size_t all;
            count_tag(&out, tags[i], &counts[hostile][i], &all);
            assert_true(hostile ? all > counts[hostile][i] : all == counts[hostile][i]);
        }
        rendered_free(&out);
        json_decref(request);
    }
    assert_memory_equal(counts[0], counts[1], sizeof counts[0]);
}

static void knows_its_template(void **state) {
    (void)state;
    assert_false(chat_template_known("", 0));
    assert_false(chat_template_known("\n", 1));
    assert_false(chat_template_known("{{ messages }}", 14));
    struct buffer file = {0};
    struct calla_error error;
    if (!file_read("models/calla-tiny/chat_template.jinja", 1 << 20, &file, &error))
        skip();
    assert_true(chat_template_known(file.data, file.size));
    buffer_append_string(&file, "\n");
    assert_true(chat_template_known(file.data, file.size));
    buffer_append_string(&file, "\n");
    assert_false(chat_template_known(file.data, file.size));
    file.data[100] ^= 1;
    assert_false(chat_template_known(file.data, file.size - 2));
    buffer_free(&file);
}

/* Text that makes a search start over and over must not take time that grows with its square. */
static void large_messages_take_linear_time(void **state) {
    (void)state;
    static const char *const units[] = {"\n", "</think>", "<think>", " x", "<tool_response>", "\xe2\x80\xa8"};
    const size_t size = 8 << 20;
    char *text = malloc(size + 1);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t unit = strlen(units[i]);
        for (size_t at = 0; at < size; at++)
            text[at] = units[i][at % unit];
        size_t whole = size / unit * unit;
        json_t *request = json_pack("{s:[{s:s%, s:s}, {s:s%, s:s}]}", "messages", "content", text, whole,
                                    "role", "user", "content", text, whole, "role", "assistant");
        assert_non_null(request);
        struct rendered out;
        struct calla_error error;
        double start = system_seconds();
        assert_true(chat_template_render(request, &out, &error));
        /* The square of 8 MiB would take hours; a busy machine and a sanitizer take seconds. */
        assert_true(system_seconds() - start < 20);
        rendered_free(&out);
        json_decref(request);
    }
    free(text);
}

static void a_deep_tool_is_rendered(void **state) {
    (void)state;
    struct buffer json = {0};
    buffer_append_string(&json, "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"tools\":[{\"x\":");
    for (unsigned i = 0; i < 2000; i++)
        buffer_append_byte(&json, '[');
    for (unsigned i = 0; i < 2000; i++)
        buffer_append_byte(&json, ']');
    buffer_append_string(&json, "}]}");
    struct calla_error error = {0};
    json_t *request = json_parse(json.data, json.size, "the request", &error);
    assert_non_null(request);
    struct rendered out;
    assert_true(chat_template_render(request, &out, &error));
    rendered_free(&out);
    json_decref(request);
    buffer_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_jinja2_on_generated_conversations),
        cmocka_unit_test(the_examples),
        cmocka_unit_test(text_from_people_is_never_a_control_token),
        cmocka_unit_test(knows_its_template),
        cmocka_unit_test(large_messages_take_linear_time),
        cmocka_unit_test(a_deep_tool_is_rendered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
