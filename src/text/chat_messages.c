#include "text/chat_messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"

struct slice chat_string(const json_t *string) {
    const char *text = json_string_value(string);
    return (struct slice){text == NULL ? "" : text, json_string_length(string)};
}

struct chat_quoted chat_quote(const json_t *value) {
    struct chat_quoted quoted = {"?"};
    if (!json_is_string(value)) {
        static const char *const names[] = {"an object", "a list", "a string", "a number",
                                            "a number",  "true",   "false",    "null"};
        strcpy(quoted.text, value == NULL ? "nothing" : names[json_typeof(value)]);
        return quoted;
    }
    struct slice slice = chat_string(value);
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

bool chat_bad_message(struct calla_error *error, size_t index, const struct chat_message *message,
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
                        const struct chat_message *message, struct calla_error *error) {
    if (json_is_string(part)) {
        buffer_append(joined, json_string_value(part), json_string_length(part));
        return true;
    }
    if (!json_is_object(part))
        return chat_bad_message(error, index, message,
                                "a content part must be an object such as {\"type\": \"text\", "
                                "\"text\": ...}, not ",
                                chat_quote(part).text);
    if (part_has(part, "image", "image") || part_has(part, "image_url", "image_url") ||
        part_has(part, "input_image", "image_url"))
        return chat_bad_message(
            error, index, message,
            "its content has an image, and this program reads text only; leave the image out", "");
    if (part_has(part, "video", "video") || part_has(part, "video_url", "video_url"))
        return chat_bad_message(
            error, index, message,
            "its content has a video, and this program reads text only; leave the video out", "");
    const json_t *text = json_object_get(part, "text");
    if (text == NULL)
        return chat_bad_message(
            error, index, message,
            "a content part has no \"text\", and this program reads text only; its type is ",
            chat_quote(json_object_get(part, "type")).text);
    if (!json_is_string(text) && !json_is_null(text))
        return chat_bad_message(error, index, message,
                                "the \"text\" of a content part must be a string, not ",
                                chat_quote(text).text);
    buffer_append(joined, json_string_value(text), json_string_length(text));
    return true;
}

static bool read_content(struct chat_message *message, size_t index, struct calla_error *error) {
    const json_t *content = json_object_get(message->json, "content");
    message->content = (struct slice){"", 0};
    if (content == NULL || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        message->content = slice_trim(chat_string(content));
        return true;
    }
    if (!json_is_array(content))
        return chat_bad_message(error, index, message,
                                "its content must be a string or a list of parts, not ",
                                chat_quote(content).text);
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
    message->content = slice_trim((struct slice){message->joined, size});
    return true;
}

static bool read_message(struct chat_message *message, size_t index, struct calla_error *error) {
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", ROLE_SYSTEM},       {"developer", ROLE_SYSTEM}, {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT}, {"tool", ROLE_TOOL},        {"function", ROLE_TOOL}};
    if (!json_is_object(message->json))
        return error_set(error, CALLA_BAD_INPUT,
                         "messages[%zu] must be an object with a role and a content, not %s.", index,
                         chat_quote(message->json).text);
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
                     index, chat_quote(role).text);
}

void chat_messages_free(struct chat_messages *conversation) {
    for (size_t i = 0; i < conversation->count; i++)
        free(conversation->messages[i].joined);
    free(conversation->messages);
}

bool chat_messages_read(struct chat_messages *conversation, const json_t *messages,
                        struct calla_error *error) {
    if (!json_is_array(messages))
        return error_set(error, CALLA_BAD_INPUT, "\"messages\" must be a list of messages, not %s.",
                         chat_quote(messages).text);
    size_t count = json_array_size(messages);
    if (count == 0)
        return error_set(error, CALLA_BAD_INPUT, "\"messages\" is empty: send at least one message.");
    conversation->messages = calloc(count, sizeof *conversation->messages);
    if (conversation->messages == NULL)
        return error_memory(error, "the messages", count * sizeof *conversation->messages);
    conversation->count = count;
    for (size_t i = 0; i < count; i++) {
        struct chat_message *message = &conversation->messages[i];
        message->json = json_array_get(messages, i);
        if (!read_message(message, i, error))
            return false;
        if (message->role == ROLE_SYSTEM && conversation->leading == i)
            conversation->leading = i + 1;
        /* A user message that only carries a tool's response asks nothing: it continues the turn. */
        bool response = slice_begins_with(message->content, "<tool_response>") &&
                        slice_ends_with(message->content, "</tool_response>");
        if (message->role == ROLE_USER && !response)
            conversation->turn = i + 1;
    }
    return true;
}
