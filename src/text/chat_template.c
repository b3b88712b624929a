/* The steps are those of the official template, in its order: the system block with the tools, then a turn
 * for each message. Every byte comes from one of two writers: `literal` for what the template itself says,
 * which is marked as a place where control tokens count, and `plain` for what came with the request, which is
 * not. */
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/sha256.h"
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

/* A borrowed piece of text. */
struct slice {
    const char *text;
    size_t size;
};

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };

struct message {
    const json_t *json;
    const char *role_name;
    enum role role;
    struct slice content; /* trimmed */
    char *joined;         /* owned: the text parts of a content list, where there is one */
};

struct conversation {
    struct message *messages;
    size_t count;
    size_t leading; /* system messages before the first of another role */
    size_t turn;    /* messages from here on belong to the current turn: their reasoning is shown */
};

/* Slices, as Python's strings do it */

/* The size of the white space character (str.isspace) that `text` begins with, 0 without. */
static size_t space_size(const char *text, size_t size) {
    const unsigned char *c = (const unsigned char *)text;
    if (size >= 1 && ((c[0] >= 0x09 && c[0] <= 0x0d) || (c[0] >= 0x1c && c[0] <= 0x20)))
        return 1;
    if (size >= 2 && c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0))
        return 2;
    if (size < 3)
        return 0;
    unsigned character = (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    bool three_bytes = c[0] >> 4 == 0xe && c[1] >> 6 == 2 && c[2] >> 6 == 2;
    bool space = character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
                 character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
    return three_bytes && space ? 3 : 0;
}

static struct slice trim(struct slice slice) {
    for (size_t size; (size = space_size(slice.text, slice.size)) > 0;) {
        slice.text += size;
        slice.size -= size;
    }
    for (;;) {
        size_t size = slice.size < 3 ? slice.size : 3;
        while (size > 0 && space_size(slice.text + slice.size - size, size) != size)
            size--;
        if (size == 0)
            return slice;
        slice.size -= size;
    }
}

static struct slice trim_newlines(struct slice slice, bool left, bool right) {
    while (left && slice.size > 0 && slice.text[0] == '\n') {
        slice.text++;
        slice.size--;
    }
    while (right && slice.size > 0 && slice.text[slice.size - 1] == '\n')
        slice.size--;
    return slice;
}

static const char *find_first(struct slice slice, const char *tag) {
    return slice.size == 0 ? NULL : memmem(slice.text, slice.size, tag, strlen(tag));
}

static const char *find_last(struct slice slice, const char *tag) {
    size_t size = strlen(tag);
    for (size_t i = slice.size; i >= size; i--)
        if (memcmp(slice.text + i - size, tag, size) == 0)
            return slice.text + i - size;
    return NULL;
}

static bool begins_with(struct slice slice, const char *start) {
    size_t size = strlen(start);
    return slice.size >= size && memcmp(slice.text, start, size) == 0;
}

static bool ends_with(struct slice slice, const char *end) {
    size_t size = strlen(end);
    return slice.size >= size && memcmp(slice.text + slice.size - size, end, size) == 0;
}

/* Empty for what is no string. */
static struct slice string_slice(const json_t *string) {
    const char *text = json_string_value(string);
    return (struct slice){text == NULL ? "" : text, json_string_length(string)};
}

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
    memset(rendered, 0, sizeof *rendered);
}

/* Reading the messages */

/* A request's string as an error may quote it: short, and cut between characters. */
struct quoted {
    char text[72];
};

static struct quoted quote(const json_t *value) {
    struct quoted quoted = {"?"};
    if (!json_is_string(value)) {
        static const char *const names[] = {"an object", "a list", "a string", "a number",
                                            "a number",  "true",   "false",    "null"};
        strcpy(quoted.text, value == NULL ? "nothing" : names[json_typeof(value)]);
        return quoted;
    }
    struct slice slice = string_slice(value);
    size_t size = slice.size < 60 ? slice.size : 60;
    while (size < slice.size && size > 0 && (slice.text[size] & 0xc0) == 0x80)
        size--;
    char *to = quoted.text;
    *to++ = '"';
    memcpy(to, slice.text, size);
    for (size_t i = 0; i < size; i++, to++)
        if (*to == 0)
            *to = '?';
    strcpy(to, size < slice.size ? "...\"" : "\"");
    return quoted;
}

static bool bad_message(struct calla_error *error, size_t index, const struct message *message,
                        const char *what, const char *found) {
    return error_set(error, CALLA_BAD_INPUT, "messages[%zu] (%s): %s%s.", index, message->role_name, what,
                     found);
}

/* Whether a content part holds this: its type says so, or it has the key. */
static bool part_has(const json_t *part, const char *type, const char *key) {
    const json_t *value = json_object_get(part, key);
    const char *name = json_string_value(json_object_get(part, "type"));
    return (value != NULL && !json_is_null(value)) || (name != NULL && strcmp(name, type) == 0);
}

static bool append_part(struct buffer *joined, const json_t *part, size_t index,
                        const struct message *message, struct calla_error *error) {
    if (json_is_string(part)) {
        buffer_append(joined, json_string_value(part), json_string_length(part));
        return true;
    }
    if (!json_is_object(part))
        return bad_message(error, index, message,
                           "a content part must be an object such as {\"type\": \"text\", "
                           "\"text\": ...}, not ",
                           quote(part).text);
    if (part_has(part, "image", "image") || part_has(part, "image_url", "image_url") ||
        part_has(part, "input_image", "image_url"))
        return bad_message(error, index, message,
                           "its content has an image, and this program reads text only; leave the image out",
                           "");
    if (part_has(part, "video", "video") || part_has(part, "video_url", "video_url"))
        return bad_message(error, index, message,
                           "its content has a video, and this program reads text only; leave the video out",
                           "");
    const json_t *text = json_object_get(part, "text");
    if (text == NULL)
        return bad_message(error, index, message,
                           "a content part has no \"text\", and this program reads text only; its type is ",
                           quote(json_object_get(part, "type")).text);
    if (!json_is_string(text) && !json_is_null(text))
        return bad_message(error, index, message, "the \"text\" of a content part must be a string, not ",
                           quote(text).text);
    buffer_append(joined, json_string_value(text), json_string_length(text));
    return true;
}

static bool read_content(struct message *message, size_t index, struct calla_error *error) {
    const json_t *content = json_object_get(message->json, "content");
    message->content = (struct slice){"", 0};
    if (content == NULL || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        message->content = trim(string_slice(content));
        return true;
    }
    if (!json_is_array(content))
        return bad_message(error, index, message, "its content must be a string or a list of parts, not ",
                           quote(content).text);
    struct buffer joined = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (!append_part(&joined, json_array_get(content, i), index, message, error)) {
            buffer_free(&joined);
            return false;
        }
    }
    size_t size = 0;
    message->joined = buffer_take(&joined, &size);
    if (message->joined == NULL)
        return error_memory(error, "a message's content", size);
    message->content = trim((struct slice){message->joined, size});
    return true;
}

static bool read_message(struct message *message, size_t index, struct calla_error *error) {
    static const struct {
        const char *name;
        enum role role;
    } roles[] = {{"system", ROLE_SYSTEM},       {"developer", ROLE_SYSTEM}, {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT}, {"tool", ROLE_TOOL},        {"function", ROLE_TOOL}};
    if (!json_is_object(message->json))
        return error_set(error, CALLA_BAD_INPUT,
                         "messages[%zu] must be an object with a role and a content, not %s.", index,
                         quote(message->json).text);
    const json_t *role = json_object_get(message->json, "role");
    for (size_t i = 0; json_is_string(role) && i < sizeof roles / sizeof *roles; i++) {
        if (json_string_length(role) == strlen(roles[i].name) &&
            strcmp(json_string_value(role), roles[i].name) == 0) {
            message->role_name = roles[i].name;
            message->role = roles[i].role;
            return read_content(message, index, error);
        }
    }
    return error_set(error, CALLA_BAD_INPUT,
                     "messages[%zu]: the role must be system, developer, user, assistant or tool, not %s.",
                     index, quote(role).text);
}

static void conversation_free(struct conversation *conversation) {
    for (size_t i = 0; i < conversation->count; i++)
        free(conversation->messages[i].joined);
    free(conversation->messages);
}

static bool read_conversation(struct conversation *conversation, const json_t *messages,
                              struct calla_error *error) {
    if (!json_is_array(messages))
        return error_set(error, CALLA_BAD_INPUT, "\"messages\" must be a list of messages, not %s.",
                         quote(messages).text);
    size_t count = json_array_size(messages);
    if (count == 0)
        return error_set(error, CALLA_BAD_INPUT, "\"messages\" is empty: send at least one message.");
    conversation->messages = calloc(count, sizeof *conversation->messages);
    if (conversation->messages == NULL)
        return error_memory(error, "the messages", count * sizeof *conversation->messages);
    conversation->count = count;
    for (size_t i = 0; i < count; i++) {
        struct message *message = &conversation->messages[i];
        message->json = json_array_get(messages, i);
        if (!read_message(message, i, error))
            return false;
        if (message->role == ROLE_SYSTEM && conversation->leading == i)
            conversation->leading = i + 1;
        /* A user message that only carries a tool's response asks nothing: it continues the turn. */
        bool response = begins_with(message->content, "<tool_response>") &&
                        ends_with(message->content, "</tool_response>");
        if (message->role == ROLE_USER && !response)
            conversation->turn = i + 1;
    }
    return true;
}

/* Rendering */

/* The leading system messages, an empty line between those that say something. */
static void render_system(struct rendered *out, const struct conversation *conversation, const char *before) {
    for (size_t i = 0; i < conversation->leading; i++) {
        struct slice content = conversation->messages[i].content;
        if (content.size == 0)
            continue;
        literal(out, before);
        plain(out, content);
        before = "\n\n";
    }
}

static bool render_head(struct rendered *out, const struct conversation *conversation, const json_t *tools,
                        struct calla_error *error) {
    if (tools != NULL && !json_is_null(tools) && !json_is_array(tools))
        return error_set(error, CALLA_BAD_INPUT, "\"tools\" must be a list of tools, not %s.",
                         quote(tools).text);
    size_t tool_count = json_array_size(tools);
    if (tool_count > 0) {
        literal(out, tools_before);
        for (size_t i = 0; i < tool_count; i++) {
            const json_t *tool = json_array_get(tools, i);
            if (!json_is_object(tool))
                return error_set(error, CALLA_BAD_INPUT, "tools[%zu] must be an object, not %s.", i,
                                 quote(tool).text);
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
        plain(out, string_slice(value));
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
        struct slice text = trim(string_slice(arguments));
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
                        const struct message *message, struct calla_error *error) {
    const json_t *function = json_object_get(call, "function");
    if (function == NULL)
        function = call;
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name))
        return bad_message(error, index, message,
                           "a tool call must be an object with a function that has a name; the name is ",
                           quote(name).text);
    literal(out, opening);
    literal(out, "<tool_call>\n<function=");
    plain(out, string_slice(name));
    literal(out, ">\n");
    render_arguments(out, json_object_get(function, "arguments"));
    literal(out, "</function>\n</tool_call>");
    return true;
}

static bool render_calls(struct rendered *out, bool after_text, size_t index, const struct message *message,
                         struct calla_error *error) {
    const json_t *calls = json_object_get(message->json, "tool_calls");
    const json_t *legacy = json_object_get(message->json, "function_call");
    const char *opening = after_text ? "\n\n" : "";
    if (calls != NULL && !json_is_null(calls) && !json_is_array(calls))
        return bad_message(error, index, message, "its tool_calls must be a list, not ", quote(calls).text);
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
    const char *first = find_first(*content, "</think>"), *last = find_last(*content, "</think>");
    if (first == NULL || last == NULL)
        return;
    struct slice before = {content->text, (size_t)(first - content->text)};
    before = trim_newlines(before, false, true);
    const char *begin = find_last(before, "<think>");
    if (begin != NULL) {
        begin += strlen("<think>");
        before = (struct slice){begin, before.size - (size_t)(begin - before.text)};
    }
    *reasoning = before;
    last += strlen("</think>");
    struct slice after = {last, content->size - (size_t)(last - content->text)};
    *content = trim_newlines(after, true, false);
}

static bool render_assistant(struct rendered *out, bool show_reasoning, size_t index,
                             const struct message *message, struct calla_error *error) {
    const json_t *given = json_object_get(message->json, "reasoning_content");
    struct slice content = message->content, reasoning = string_slice(given);
    if (!json_is_string(given))
        split_thinking(&content, &reasoning);
    literal(out, "<|im_start|>assistant\n");
    if (show_reasoning) {
        literal(out, "<think>\n");
        plain(out, trim(reasoning));
        literal(out, "\n</think>\n\n");
    }
    plain(out, content);
    if (!render_calls(out, trim(content).size > 0, index, message, error))
        return false;
    literal(out, "<|im_end|>\n");
    return true;
}

static bool render_message(struct rendered *out, const struct conversation *conversation, size_t index,
                           bool preserve_thinking, struct calla_error *error) {
    const struct message *message = &conversation->messages[index];
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
                         "The request must be a JSON object with \"messages\", not %s.", quote(request).text);
    const json_t *keywords = json_object_get(request, "chat_template_kwargs");
    if (keywords != NULL && !json_is_object(keywords) && !json_is_null(keywords))
        return error_set(error, CALLA_BAD_INPUT, "\"chat_template_kwargs\" must be an object, not %s.",
                         quote(keywords).text);
    const json_t *generate = find_option(request, "add_generation_prompt");
    bool preserve_thinking = json_is_true(find_option(request, "preserve_thinking"));

    struct conversation conversation = {0};
    bool ok = read_conversation(&conversation, json_object_get(request, "messages"), error) &&
              render_head(out, &conversation, json_object_get(request, "tools"), error);
    for (size_t i = conversation.leading; ok && i < conversation.count; i++)
        ok = render_message(out, &conversation, i, preserve_thinking, error);
    conversation_free(&conversation);
    if (ok && (generate == NULL || truthy(generate))) {
        out->thinking = thinking_enabled(request);
        literal(out, "<|im_start|>assistant\n");
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
