#include "cli/request.h"

#include <string.h>

bool request_disable_thinking(json_t *request, struct calla_error *error) {
    json_t *arguments = json_object_get(request, "chat_template_kwargs");
    if (json_object_set_new(request, "enable_thinking", json_false()) != 0 ||
        (json_is_object(arguments) && json_object_set_new(arguments, "enable_thinking", json_false()) != 0))
        return error_memory(error, "the request", 0);
    return true;
}

bool request_set_system(json_t *request, const char *text, struct calla_error *error) {
    json_t *messages = json_object_get(request, "messages");
    if (!json_is_array(messages))
        return error_set(error, CALLA_BAD_INPUT, "The request needs \"messages\", a list.");
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    json_t *message = json_pack("{s:s, s:s}", "role", "system", "content", text);
    bool replace = role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    int failure = message == NULL ? -1
                  : replace       ? json_array_set_new(messages, 0, message)
                                  : json_array_insert_new(messages, 0, message);
    return failure == 0 || error_set(error, CALLA_BAD_INPUT, "The system message must be UTF-8 text.");
}
