/* The fields of a chat completion, and its prompt. What the template needs is gathered in an object of its
 * own, the view, so that the prompt shows what was checked and nothing else. */
#include <string.h>

#include "engine/render.h"
#include "server/billing_header.h"
#include "server/exchange_state.h"

#define MAX_MESSAGES 16384

static bool read_logprobs(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    int64_t top = 0;
    if (!request_boolean(request, "logprobs", &exchange->log.on, refusal) ||
        !request_whole(request, "top_logprobs", 0, CALLA_MAX_TOP_LOGPROBS, &top, refusal))
        return false;
    if (top > 0 && !exchange->log.on)
        return refuse(refusal, "top_logprobs", "\"top_logprobs\" needs \"logprobs\" to be true.");
    exchange->options.logprobs = exchange->log.on;
    exchange->options.top_logprobs = (uint32_t)top;
    return true;
}

/* Shares a field of the request with the view. */
static bool show(json_t *view, const char *name, json_t *value, struct refusal *refusal) {
    return value == NULL || json_object_set(view, name, value) == 0 || refuse_memory(refusal);
}

static bool show_messages(json_t *view, json_t *messages, struct refusal *refusal) {
    json_t *shown = messages == NULL ? NULL : without_billing_header(messages);
    if (messages != NULL && shown == NULL)
        return refuse_memory(refusal);
    bool ok = show(view, "messages", shown, refusal);
    json_decref(shown);
    return ok;
}

static bool read_messages(json_t *request, json_t *view, struct refusal *refusal) {
    struct request_object object = {request, ""};
    json_t *messages = request_value(object, "messages");
    if (json_array_size(messages) > MAX_MESSAGES)
        return refuse(refusal, "messages", "\"messages\" has %zu messages; at most %d are read.",
                      json_array_size(messages), MAX_MESSAGES);
    bool generate = true;
    return request_boolean(object, "add_generation_prompt", &generate, refusal) &&
           show_messages(view, messages, refusal) &&
           show(view, "add_generation_prompt", request_value(object, "add_generation_prompt"), refusal);
}

/* The template's errors begin with the message or tool that they blame: "messages[2] (user): ...". */
static bool refuse_rendering(const struct calla_error *error, struct refusal *refusal) {
    char parameter[64] = "messages";
    const char *end = strchr(error->message, ']');
    bool named = strncmp(error->message, "messages[", 9) == 0 || strncmp(error->message, "tools[", 6) == 0;
    if (named && end != NULL && end - error->message < 40) {
        size_t size = (size_t)(end - error->message) + 1;
        memcpy(parameter, error->message, size);
        parameter[size] = 0;
    }
    return refuse_error(refusal, parameter, error);
}

static bool read_into_view(struct exchange *exchange, json_t *request, json_t *view,
                           struct refusal *refusal) {
    struct calla_error error = {0};
    if (!read_logprobs(exchange, (struct request_object){request, ""}, refusal) ||
        !read_messages(request, view, refusal) || !chat_tools_read(exchange, request, view, refusal) ||
        !chat_thinking_read(exchange, request, view, refusal))
        return false;
    return model_render(exchange->model, view, &exchange->prompt, &error) ||
           refuse_rendering(&error, refusal);
}

bool chat_request_read(struct exchange *exchange, json_t *request, struct refusal *refusal) {
    json_t *view = json_object();
    bool ok = view == NULL ? refuse_memory(refusal) : read_into_view(exchange, request, view, refusal);
    json_decref(view);
    return ok;
}
