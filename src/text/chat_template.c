/* The steps are those of the official template, in its order: the system block with the tools, then a turn
 * for each message. Every byte comes from one of two writers: `literal` for what the template itself says,
 * which is marked as a place where control tokens count, and `plain` for what came with the request, which is
 * not. */
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "text/chat_messages.h"
#include "text/json_python.h"

/* The file published with Qwen3.6-35B-A3B. */
static const char known_template[] = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259";

static const char tools_before[] =
    "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_after[] =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can "
    "span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function "
    "calls "
    "MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You may provide optional "
    "reasoning for your function call in natural language BEFORE the function call, but NOT after\n- If "
    "there "
    "is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n</IMPORTANT>";

/* Writers */

static void literal(struct rendered *out, const char *string) {
    size_t begin = out->text.size;
    if (!buffer_append_string(&out->text, string))
        return;
    if (out->control_count > 0 && out->controls[out->control_count - 1].end == begin) {
        out->controls[out->control_count - 1].end = out->text.size;
        return;
    }
    if (out->control_count == out->control_capacity) {
        size_t capacity = out->control_capacity < 16 ? 16 : out->control_capacity * 2;
        struct text_span *controls = realloc(out->controls, capacity * sizeof *controls);
        if (controls == NULL) {
            out->text.failed = true;
            return;
        }
        out->controls = controls;
        out->control_capacity = capacity;
    }
    out->controls[out->control_count++] = (struct text_span){begin, out->text.size};
}

static void plain(struct rendered *out, struct slice slice) {
    buffer_append(&out->text, slice.text, slice.size);
}

void rendered_free(struct rendered *rendered) {
    buffer_free(&rendered->text);
    free(rendered->controls);
    free(rendered->replies);
    memset(rendered, 0, sizeof *rendered);
}

/* Rendering */

/* The leading system messages, an empty line between those that say something. */
static void render_system(struct rendered *out, const struct chat_messages *conversation,
                          const char *before) {
    for (size_t i = 0; i < conversation->leading; i++) {
        struct slice content = conversation->messages[i].content;
        if (content.size == 0)
            continue;
        literal(out, before);
        plain(out, content);
        before = "\n\n";
    }
}

static bool render_head(struct rendered *out, const struct chat_messages *conversation, const json_t *tools,
                        struct calla_error *error) {
    if (tools != NULL && !json_is_null(tools) && !json_is_array(tools))
        return error_set(error, CALLA_BAD_INPUT, "\"tools\" must be a list of tools, not %s.",
                         chat_quote(tools).text);
    size_t tool_count = json_array_size(tools);
    if (tool_count > 0) {
        literal(out, tools_before);
        for (size_t i = 0; i < tool_count; i++) {
            const json_t *tool = json_array_get(tools, i);
            if (!json_is_object(tool))
                return error_set(error, CALLA_BAD_INPUT, "tools[%zu] must be an object, not %s.", i,
                                 chat_quote(tool).text);
            literal(out, "\n");
            json_write_python(&out->text, tool);
        }
        literal(out, tools_after);
        render_system(out, conversation, "\n\n");
        literal(out, "<|im_end|>\n");
    } else if (conversation->leading > 0) {
        literal(out, "<|im_start|>system\n");
        render_system(out, conversation, "");
        literal(out, "<|im_end|>\n");
    }
    return true;
}

static void render_parameter(struct rendered *out, struct slice name, const json_t *value) {
    literal(out, "<parameter=");
    plain(out, name);
    literal(out, ">\n");
    if (json_is_string(value))
        plain(out, chat_string(value));
    else
        json_write_python(&out->text, value);
    literal(out, "\n</parameter>\n");
}

static void render_object(struct rendered *out, const json_t *object) {
    json_t *borrowed = (json_t *)(uintptr_t)object; /* see write_object in json_python.c */
    for (void *item = json_object_iter(borrowed); item != NULL; item = json_object_iter_next(borrowed, item))
        render_parameter(out, (struct slice){json_object_iter_key(item), json_object_iter_key_len(item)},
                         json_object_iter_value(item));
}

/* Arguments come as an object or, after the OpenAI rule, as a string that holds one. What is neither is shown
 * to the model whole, as a parameter called "arguments": it must see what it got wrong. */
static void render_arguments(struct rendered *out, const json_t *arguments) {
    if (arguments == NULL || json_is_null(arguments))
        return;
    if (json_is_object(arguments)) {
        render_object(out, arguments);
        return;
    }
    json_t *parsed = NULL;
    if (json_is_string(arguments)) {
        struct slice text = slice_trim(chat_string(arguments));
        if (text.size == 0)
            return;
        parsed = json_loadb(text.text, text.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    }
    if (json_is_object(parsed))
        render_object(out, parsed);
    else if (!json_is_null(parsed))
        render_parameter(out, (struct slice){"arguments", 9}, arguments);
    json_decref(parsed);
}

static bool render_call(struct rendered *out, const json_t *call, const char *opening, size_t index,
                        const struct chat_message *message, struct calla_error *error) {
    const json_t *function = json_object_get(call, "function");
    if (function == NULL)
        function = call;
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name))
        return chat_bad_message(error, index, message,
                                "a tool call must be an object with a function that has a name; the name is ",
                                chat_quote(name).text);
    literal(out, opening);
    literal(out, "<tool_call>\n<function=");
    plain(out, chat_string(name));
    literal(out, ">\n");
    render_arguments(out, json_object_get(function, "arguments"));
    literal(out, "</function>\n</tool_call>");
    return true;
}

static bool render_calls(struct rendered *out, bool after_text, size_t index,
                         const struct chat_message *message, struct calla_error *error) {
    const json_t *calls = json_object_get(message->json, "tool_calls");
    const json_t *legacy = json_object_get(message->json, "function_call");
    const char *opening = after_text ? "\n\n" : "";
    if (calls != NULL && !json_is_null(calls) && !json_is_array(calls))
        return chat_bad_message(error, index, message, "its tool_calls must be a list, not ",
                                chat_quote(calls).text);
    if (json_array_size(calls) == 0 && json_is_object(legacy))
        return render_call(out, legacy, opening, index, message, error);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (!render_call(out, json_array_get(calls, i), opening, index, message, error))
            return false;
        opening = "\n";
    }
    return true;
}

/* Moves a think block out of the content: what lies before the first "</think>", from the last "<think>"
 * there on, is reasoning; what lies after the last "</think>" is left. */
static void split_thinking(struct slice *content, struct slice *reasoning) {
    const char *first = slice_find_first(*content, "</think>"), *last = slice_find_last(*content, "</think>");
    if (first == NULL || last == NULL)
        return;
    struct slice before = {content->text, (size_t)(first - content->text)};
    before = slice_trim_newlines(before, false, true);
    const char *begin = slice_find_last(before, "<think>");
    if (begin != NULL) {
        begin += strlen("<think>");
        before = (struct slice){begin, before.size - (size_t)(begin - before.text)};
    }
    *reasoning = before;
    last += strlen("</think>");
    struct slice after = {last, content->size - (size_t)(last - content->text)};
    *content = slice_trim_newlines(after, true, false);
}

/* Takes down what a turn says and where it stands. */
static void note_reply(struct rendered *out, size_t begin, struct slice content, struct slice reasoning,
                       const json_t *calls) {
    if (out->reply_count == out->reply_capacity) {
        size_t capacity = out->reply_capacity * 2 + 16;
        struct rendered_reply *replies = realloc(out->replies, capacity * sizeof *replies);
        if (replies == NULL) {
            out->text.failed = true;
            return;
        }
        out->replies = replies;
        out->reply_capacity = capacity;
    }
    struct rendered_reply *reply = &out->replies[out->reply_count++];
    reply->begin = begin;
    reply->end = out->text.size;
    reasoning_digest(reasoning, reply->reasoning);
    out->text.failed = out->text.failed || !reply_digest(content, calls, reply->said);
}

static bool render_assistant(struct rendered *out, bool show_reasoning, size_t index,
                             const struct chat_message *message, struct calla_error *error) {
    const json_t *given = json_object_get(message->json, "reasoning_content");
    struct slice content = message->content, reasoning = chat_string(given);
    if (!json_is_string(given))
        split_thinking(&content, &reasoning);
    literal(out, "<|im_start|>assistant\n");
    size_t begin = out->text.size;
    if (show_reasoning) {
        literal(out, "<think>\n");
        plain(out, slice_trim(reasoning));
        literal(out, "\n</think>\n\n");
    }
    plain(out, content);
    if (!render_calls(out, slice_trim(content).size > 0, index, message, error))
        return false;
    if (show_reasoning)
        note_reply(out, begin, content, reasoning, json_object_get(message->json, "tool_calls"));
    literal(out, "<|im_end|>\n");
    return true;
}

static bool render_message(struct rendered *out, const struct chat_messages *conversation, size_t index,
                           bool preserve_thinking, struct calla_error *error) {
    const struct chat_message *message = &conversation->messages[index];
    switch (message->role) {
    case ROLE_SYSTEM:
    case ROLE_USER:
        literal(out, message->role == ROLE_USER ? "<|im_start|>user\n" : "<|im_start|>system\n");
        plain(out, message->content);
        literal(out, "<|im_end|>\n");
        return true;
    case ROLE_ASSISTANT:
        return render_assistant(out, preserve_thinking || index >= conversation->turn, index, message, error);
    case ROLE_TOOL:
        if (index > 0 && message[-1].role != ROLE_TOOL)
            literal(out, "<|im_start|>user");
        literal(out, "\n<tool_response>\n");
        plain(out, message->content);
        literal(out, "\n</tool_response>");
        if (index + 1 == conversation->count || message[1].role != ROLE_TOOL)
            literal(out, "<|im_end|>\n");
        return true;
    }
    return true;
}

/* Options */

/* A template option: from chat_template_kwargs, or else from the request itself; null means not given. */
static const json_t *find_option(const json_t *request, const char *name) {
    const json_t *value = json_object_get(json_object_get(request, "chat_template_kwargs"), name);
    if (value == NULL || json_is_null(value))
        value = json_object_get(request, name);
    return json_is_null(value) ? NULL : value;
}

/* Python's bool(value). */
static bool truthy(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_REAL:
        return json_real_value(value) < 0 || json_real_value(value) > 0;
    case JSON_TRUE:
        return true;
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    return false;
}

static bool thinking_enabled(const json_t *request) {
    const json_t *enable = find_option(request, "enable_thinking");
    if (enable != NULL)
        return !json_is_false(enable);
    const char *effort = json_string_value(find_option(request, "reasoning_effort"));
    return effort == NULL || strcmp(effort, "none") != 0;
}

bool chat_template_render(const json_t *request, struct rendered *out, struct calla_error *error) {
    memset(out, 0, sizeof *out);
    if (!json_is_object(request))
        return error_set(error, CALLA_BAD_INPUT,
                         "The request must be a JSON object with \"messages\", not %s.",
                         chat_quote(request).text);
    const json_t *keywords = json_object_get(request, "chat_template_kwargs");
    if (keywords != NULL && !json_is_object(keywords) && !json_is_null(keywords))
        return error_set(error, CALLA_BAD_INPUT, "\"chat_template_kwargs\" must be an object, not %s.",
                         chat_quote(keywords).text);
    const json_t *generate = find_option(request, "add_generation_prompt");
    bool preserve_thinking = json_is_true(find_option(request, "preserve_thinking"));

    struct chat_messages conversation = {0};
    bool ok = chat_messages_read(&conversation, json_object_get(request, "messages"), error) &&
              render_head(out, &conversation, json_object_get(request, "tools"), error);
    for (size_t i = conversation.leading; ok && i < conversation.count; i++)
        ok = render_message(out, &conversation, i, preserve_thinking, error);
    chat_messages_free(&conversation);
    if (ok && (generate == NULL || truthy(generate))) {
        out->thinking = thinking_enabled(request);
        literal(out, "<|im_start|>assistant\n");
        out->reply_begin = out->text.size;
        literal(out, out->thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
    }
    if (ok && out->text.failed)
        ok = error_memory(error, "the prompt", out->text.size);
    if (!ok)
        rendered_free(out);
    return ok;
}

bool chat_template_known(const char *bytes, size_t size) {
    /* jinja2 drops one newline at the end of a template, so a file that has one renders the same. */
    if (size > 0 && bytes[size - 1] == '\n')
        size--;
    struct sha256 hash;
    unsigned char digest[32];
    char hex[65];
    sha256_start(&hash);
    sha256_add(&hash, bytes, size);
    sha256_finish(&hash, digest);
    sha256_hex(digest, hex);
    return strcmp(hex, known_template) == 0;
}
