#include "unit.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

/* Renders JSON text; NULL with *error filled if it fails. */
static char *render(const char *request, struct calla_error *error) {
    json_t *json = json_parse(request, strlen(request), "the request", error);
    if (json == NULL)
        return NULL;
    struct rendered out;
    bool ok = chat_template_render(json, &out, error);
    json_decref(json);
    if (!ok) {
        assert_null(out.text.data);
        return NULL;
    }
    char *text = buffer_take(&out.text, NULL);
    rendered_free(&out);
    return text;
}

static void expect(const char *request, const char *expected) {
    struct calla_error error = {0};
    char *text = render(request, &error);
    if (text == NULL)
        fail_msg("%s: %s", request, error.message);
    assert_string_equal(text, expected);
    free(text);
}

static void equals_jinja2_on_generated_conversations(void **state) {
    (void)state;
    struct calla_error error = {0};
    struct buffer file = {0};
    assert_true(file_read("tests/data/template_conversations.jsonl", 4 << 20, &file, &error));
    size_t count = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, count++) {
        json_t *pair = json_parse(line, (size_t)(end - line), "the conversation", &error);
        assert_non_null(pair);
        const json_t *prompt = json_object_get(pair, "prompt");
        struct rendered out;
        if (!chat_template_render(json_object_get(pair, "request"), &out, &error))
            fail_msg("conversation %zu: %s", count, error.message);
        const char *expected = json_string_value(prompt);
        size_t same = 0, size = json_string_length(prompt);
        while (same < size && same < out.text.size && expected[same] == out.text.data[same])
            same++;
        if (same < size || same < out.text.size)
            fail_msg("conversation %zu differs at byte %zu: expected %.60s, got %.60s", count, same,
                     expected + same, out.text.data + same);
        rendered_free(&out);
        json_decref(pair);
    }
    assert_true(count >= 500);
    buffer_free(&file);
}

static void the_smallest_conversation(void **state) {
    (void)state;
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_conversation),
        cmocka_unit_test(equals_jinja2_on_generated_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
