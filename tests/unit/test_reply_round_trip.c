/* What the template writes of a call, the parser must read as the same call: the calls of the generated
 * conversations, with every kind of argument, there and back. */
#include "unit.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/reply_parser.h"

/* A text with such a tag in it can look like the end of its value; nothing in the format tells it apart. */
static bool ambiguous(const json_t *value) {
    const char *text = json_string_value(value);
    return text != NULL && (strstr(text, "</function>") != NULL || strstr(text, "</tool_call>") != NULL);
}

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return names[json_typeof(value)];
}

/* A copy of the calls of one message with names that the format can carry, and tools whose schemas type them.
 */
static size_t take_calls(const json_t *message, json_t *calls, json_t *tools) {
    size_t index, arguments_taken = 0;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), index, call) {
        const json_t *function = json_object_get(call, "function");
        json_t *given = json_object_get(function == NULL ? call : function, "arguments");
        json_t *arguments = json_object(), *properties = json_object(), *value;
        const char *key;
        json_object_foreach(given, key, value) {
            char name[32];
            if (ambiguous(value))
                continue;
            snprintf(name, sizeof name, "p%zu", arguments_taken++);
            json_object_set(arguments, name, value);
            json_object_set_new(properties, name, json_pack("{s:s}", "type", type_name(value)));
        }
        char name[32];
        snprintf(name, sizeof name, "f%zu", index);
        json_array_append_new(calls,
                              json_pack("{s:{s:s, s:o}}", "function", "name", name, "arguments", arguments));
        json_array_append_new(tools, json_pack("{s:{s:s, s:{s:o}}}", "function", "name", name, "parameters",
                                               "properties", properties));
    }
    return arguments_taken;
}

static void check_message(const json_t *message, size_t *taken) {
    json_t *calls = json_array(), *tools = json_array();
    *taken += take_calls(message, calls, tools);
    json_t *request =
        json_pack("{s:b, s:[{s:s, s:s}, {s:s, s:s, s:O}]}", "add_generation_prompt", 0, "messages", "role",
                  "user", "content", "q", "role", "assistant", "content", "Look.", "tool_calls", calls);
    struct rendered out;
    struct calla_error error = {0};
    assert_true(chat_template_render(request, &out, &error));
    const char *reply = strstr(out.text.data, "<think>\n") + strlen("<think>\n");
    size_t size = out.text.size - (size_t)(reply - out.text.data) - strlen("<|im_end|>\n");

    struct reply_parser *parser = reply_parser_new(true, tools, NULL, NULL, NULL, &error);
    assert_true(reply_parser_feed(parser, reply, size, &error));
    assert_true(reply_parser_finish(parser, false, &error));
    assert_string_equal(reply_parser_content(parser, NULL), "Look.");
    assert_int_equal(json_array_size(reply_parser_calls(parser)), json_array_size(calls));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *sent = json_object_get(json_array_get(calls, i), "function");
        const json_t *found = json_object_get(json_array_get(reply_parser_calls(parser), i), "function");
        assert_string_equal(json_string_value(json_object_get(found, "name")),
                            json_string_value(json_object_get(sent, "name")));
        const json_t *text = json_object_get(found, "arguments");
        json_t *arguments =
            json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
        if (!json_equal(arguments, json_object_get(sent, "arguments")))
            fail_msg("%s came back as %s", reply, json_string_value(text));
        json_decref(arguments);
    }
    reply_parser_free(parser);
    rendered_free(&out);
    json_decref(request);
    json_decref(calls);
    json_decref(tools);
}

static void calls_come_back(void **state) {
    (void)state;
    struct calla_error error = {0};
    struct buffer file = {0};
    assert_true(file_read("tests/data/template_conversations.jsonl", 4 << 20, &file, &error));
    size_t taken = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *pair = json_parse(line, (size_t)(end - line), "the conversation", &error);
        size_t index;
        json_t *message;
        json_array_foreach(json_object_get(json_object_get(pair, "request"), "messages"), index, message) {
            if (json_array_size(json_object_get(message, "tool_calls")) > 0)
                check_message(message, &taken);
        }
        json_decref(pair);
    }
    assert_true(taken > 500);
    buffer_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
