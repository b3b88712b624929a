#include "cli/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/streams.h"

bool conversation_open(struct conversation *conversation, struct calla_error *error) {
    conversation->messages = json_array();
    return conversation->messages != NULL || error_memory(error, "the conversation", sizeof(json_t));
}

void conversation_close(struct conversation *conversation) {
    json_decref(conversation->messages);
    conversation->messages = NULL;
}

static const char *text_field(const json_t *message, const char *key) {
    return json_string_value(json_object_get(message, key));
}

const char *conversation_system(const struct conversation *conversation) {
    const json_t *first = json_array_get(conversation->messages, 0);
    const char *role = text_field(first, "role");
    return role != NULL && strcmp(role, "system") == 0 ? text_field(first, "content") : NULL;
}

bool conversation_set_system(struct conversation *conversation, const char *text, struct calla_error *error) {
    json_t *message = NULL;
    if (text != NULL && (message = json_pack("{s:s, s:s}", "role", "system", "content", text)) == NULL)
        return error_set(error, CALLA_BAD_INPUT, "The system message must be UTF-8 text.");
    if (conversation_system(conversation) != NULL)
        json_array_remove(conversation->messages, 0);
    return message == NULL || json_array_insert_new(conversation->messages, 0, message) == 0 ||
           error_memory(error, "the system message", strlen(text));
}

bool conversation_add_user(struct conversation *conversation, const char *text, size_t size,
                           struct calla_error *error) {
    json_t *message = json_pack("{s:s, s:s%}", "role", "user", "content", text, size);
    return json_array_append_new(conversation->messages, message) == 0 ||
           error_memory(error, "the message", size);
}

bool conversation_add_reply(struct conversation *conversation, const struct calla_reply *reply,
                            struct calla_error *error) {
    json_t *message =
        json_pack("{s:s, s:s%}", "role", "assistant", "content", reply->content, reply->content_size);
    if (message != NULL && reply->reasoning_size > 0)
        json_object_set_new(message, "reasoning_content",
                            json_stringn(reply->reasoning, reply->reasoning_size));
    if (message != NULL && reply->tool_calls != NULL)
        json_object_set_new(message, "tool_calls", json_loads(reply->tool_calls, JSON_ALLOW_NUL, NULL));
    return json_array_append_new(conversation->messages, message) == 0 ||
           error_memory(error, "the reply", strlen(reply->content));
}

void conversation_drop_last(struct conversation *conversation) {
    json_array_remove(conversation->messages, json_array_size(conversation->messages) - 1);
}

void conversation_reset(struct conversation *conversation) {
    size_t kept = conversation_system(conversation) != NULL;
    while (json_array_size(conversation->messages) > kept)
        conversation_drop_last(conversation);
}

bool conversation_save(const struct conversation *conversation, const char *path, struct calla_error *error) {
    json_t *body = json_pack("{s:O}", "messages", conversation->messages);
    char *json = body == NULL ? NULL : json_dumps(body, JSON_INDENT(2));
    struct buffer text = {0};
    bool ok = json != NULL && buffer_append_string(&text, json) && buffer_append_byte(&text, '\n')
                  ? write_file(path, text.data, text.size, error)
                  : error_memory(error, "the conversation", text.size);
    buffer_free(&text);
    free(json);
    json_decref(body);
    return ok;
}

/* The renderer takes more (other roles' order, parts of content); a chat only what it could have written. */
static bool check_message(const json_t *messages, size_t index, const char *path, struct calla_error *error) {
    const json_t *message = json_array_get(messages, index);
    const char *role = text_field(message, "role");
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    bool known = false;
    for (size_t i = 0; role != NULL && i < sizeof roles / sizeof *roles; i++)
        known = known || strcmp(role, roles[i]) == 0;
    if (!known)
        return error_set(
            error, CALLA_BAD_INPUT,
            "%s: message %zu must be an object whose \"role\" is system, user, assistant or tool.", path,
            index);
    if (strcmp(role, "system") == 0 && index > 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: message %zu is a system message; only the first can be one.", path, index);
    const json_t *content = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    if (!json_is_string(content) && !(json_is_array(calls) && (content == NULL || json_is_null(content))))
        return error_set(error, CALLA_BAD_INPUT, "%s: \"content\" of message %zu must be a string.", path,
                         index);
    const json_t *reasoning = json_object_get(message, "reasoning_content");
    if (reasoning != NULL && !json_is_string(reasoning) && !json_is_null(reasoning))
        return error_set(error, CALLA_BAD_INPUT, "%s: \"reasoning_content\" of message %zu must be a string.",
                         path, index);
    return true;
}

bool conversation_load(struct conversation *conversation, const char *path, struct calla_error *error) {
    json_t *file = json_parse_file(path, STREAM_LIMIT, error);
    if (file == NULL)
        return false;
    json_t *messages = json_is_array(file) ? file : json_object_get(file, "messages");
    bool ok = json_is_array(messages) ||
              error_set(error, CALLA_BAD_INPUT,
                        "%s holds no conversation: a JSON object with \"messages\" is expected.", path);
    for (size_t i = 0; ok && i < json_array_size(messages); i++)
        ok = check_message(messages, i, path, error);
    if (ok) {
        json_decref(conversation->messages);
        conversation->messages = json_incref(messages);
    }
    json_decref(file);
    return ok;
}

char *conversation_request(const struct conversation *conversation, bool thinking,
                           struct calla_error *error) {
    json_t *body = json_pack("{s:O, s:b, s:b}", "messages", conversation->messages, "enable_thinking",
                             thinking, "preserve_thinking", true);
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (text == NULL)
        error_memory(error, "the request", sizeof(json_t));
    json_decref(body);
    return text;
}
