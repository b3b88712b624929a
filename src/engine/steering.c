/* Tokens of a reply that are not left to chance. A forced token is read like a drawn one; what the reply says
 * is the same as if the model had drawn it. */
#include "engine/generation.h"

#include <stdlib.h>
#include <string.h>

bool generation_force(struct calla_generation *generation, const char *text, struct calla_error *error) {
    struct text_span all = {0, strlen(text)};
    struct calla_tokens tokens = {0};
    struct calla_tokens *forced = &generation->forced;
    if (!tokenizer_encode(generation->session->model->tokenizer, text, all.end, &all, 1, &tokens, error))
        return false;
    int32_t *ids = realloc(forced->ids, (forced->count + tokens.count + 1) * sizeof *ids);
    if (ids == NULL) {
        calla_tokens_free(&tokens);
        return error_memory(error, "the reply", (forced->count + tokens.count) * sizeof *ids);
    }
    memcpy(ids + forced->count, tokens.ids, tokens.count * sizeof *ids);
    forced->ids = ids;
    forced->count += tokens.count;
    calla_tokens_free(&tokens);
    return true;
}

/* Follows a think block's closing token: the line end that the template has there, and once only. */
static bool close_thinking(struct calla_generation *generation, const char *text, struct calla_error *error) {
    generation->thinking_closed = true;
    return generation_force(generation, text, error);
}

bool generation_redirect(struct calla_generation *generation, int32_t *token, struct calla_error *error) {
    const struct calla_model *model = generation->session->model;
    if (model->think_end < 0 || generation->thinking_closed || !model_is_end_token(model, *token) ||
        !reply_parser_thinking(generation->parser))
        return true;
    *token = model->think_end;
    return close_thinking(generation, "\n\n", error);
}

static const char *tool_name(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return json_string_value(json_object_get(function == NULL ? tool : function, "name"));
}

/* Whether the name so far and this token's text still begin some tool's name and the '>' after it. */
static bool continues_a_name(const void *user, int32_t token) {
    const struct calla_generation *generation = user;
    const struct buffer *drawn = &generation->call_name;
    size_t size, index;
    const char *bytes = tokenizer_bytes(generation->session->model->tokenizer, token, &size);
    const json_t *tool;
    if (bytes == NULL || size == 0)
        return false;
    json_array_foreach(generation->tools, index, tool) {
        const char *name = tool_name(tool);
        size_t length = name == NULL ? 0 : strlen(name);
        if (length == 0 || drawn->size + size > length + 1)
            continue;
        bool whole = drawn->size + size > length;
        size_t inside = whole ? size - 1 : size;
        if ((drawn->size == 0 || memcmp(name, drawn->data, drawn->size) == 0) &&
            memcmp(name + drawn->size, bytes, inside) == 0 && (!whole || bytes[inside] == '>'))
            return true;
    }
    return false;
}

static bool open_call(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    const char *name = generation->options.tool_name;
    if (name == NULL && json_array_size(generation->tools) == 1)
        name = tool_name(json_array_get(generation->tools, 0));
    generation->call_stage = name == NULL ? CALL_OPENED : CALL_NAMED;
    struct buffer text = {0};
    buffer_append_string(&text, token >= 0 && token == generation->session->model->think_end ? "\n\n" : "");
    buffer_append_string(&text, "<tool_call>\n<function=");
    buffer_append_string(&text, name == NULL ? "" : name);
    buffer_append_string(&text, name == NULL ? "" : ">\n");
    bool ok = text.failed ? error_memory(error, "a tool call", text.size)
                          : generation_force(generation, text.data, error);
    buffer_free(&text);
    return ok;
}

/* Draws the next token among those that continue a name until the name is whole. */
static bool draw_name(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    if (generation->call_stage == CALL_NAMING) {
        size_t size = 0;
        const char *bytes = tokenizer_bytes(generation->session->model->tokenizer, token, &size);
        if (bytes != NULL && !buffer_append(&generation->call_name, bytes, size))
            return error_memory(error, "a tool call", size);
        bool whole = bytes != NULL && memchr(bytes, '>', size) != NULL;
        generation->call_stage = whole ? CALL_NAMED : CALL_NAMING;
    } else {
        generation->call_stage = CALL_NAMING;
    }
    return session_bias(generation->session, &generation->options.sampling,
                        generation->call_stage == CALL_NAMING ? continues_a_name : NULL, generation, error);
}

bool generation_steer(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    const struct calla_generate_options *options = &generation->options;
    if (generation->parser == NULL || generation->forced_used < generation->forced.count)
        return true;
    if (reply_parser_thinking(generation->parser)) {
        generation->thinking_tokens += token >= 0;
        bool over = options->reasoning_budget > 0 && generation->thinking_tokens >= options->reasoning_budget;
        return !over || generation->thinking_closed || close_thinking(generation, "\n</think>\n\n", error);
    }
    if (generation->call_stage == CALL_OPENED || generation->call_stage == CALL_NAMING)
        return draw_name(generation, token, error);
    bool wanted = options->tool_required && generation->call_stage == CALL_NONE &&
                  json_array_size(reply_parser_calls(generation->parser)) == 0;
    return !wanted || open_call(generation, token, error);
}
