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

/* Whether `drawn` and then `bytes` begin before + middle + after. */
static bool continues(const char *before, const char *middle, const char *after, const struct buffer *drawn,
                      const char *bytes, size_t size) {
    const char *const parts[] = {before, middle, after};
    size_t at = 0, total = drawn->size + size;
    for (size_t part = 0; part < 3; part++) {
        for (const char *c = parts[part]; *c != 0 && at < total; c++, at++)
            if (*c != (at < drawn->size ? drawn->data[at] : bytes[at - drawn->size]))
                return false;
    }
    return at == total;
}

/* Whether this token goes on naming some tool. The characters around the name, "=NAME>\n", are drawn with it,
 * because tokens may join them with its ends as they do where the model is free. */
static bool continues_a_name(const void *user, int32_t token) {
    const struct calla_generation *generation = user;
    size_t size, index;
    const char *bytes = tokenizer_bytes(generation->session->model->tokenizer, token, &size);
    const json_t *tool;
    if (bytes == NULL || size == 0)
        return false;
    json_array_foreach(generation->tools, index, tool) {
        const char *name = tool_name(tool);
        if (name != NULL && *name != 0 && continues("=", name, ">\n", &generation->call_text, bytes, size))
            return true;
    }
    return false;
}

/* Whether this token goes on to the first parameter or to the end of the function: nothing else makes the
 * beginning a call. */
static bool continues_a_body(const void *user, int32_t token) {
    const struct calla_generation *generation = user;
    size_t size;
    const char *bytes = tokenizer_bytes(generation->session->model->tokenizer, token, &size);
    return bytes != NULL && size > 0 &&
           (continues("<parameter", "", "", &generation->call_text, bytes, size) ||
            continues("</function>", "", "", &generation->call_text, bytes, size));
}

static bool open_call(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    const char *name = generation->options.tool_name;
    if (name == NULL && json_array_size(generation->tools) == 1)
        name = tool_name(json_array_get(generation->tools, 0));
    generation->call_stage = name == NULL ? CALL_OPENED : CALL_NAMED;
    struct buffer text = {0};
    buffer_append_string(&text, token >= 0 && token == generation->session->model->think_end ? "\n\n" : "");
    buffer_append_string(&text, "<tool_call>\n<function");
    buffer_append_string(&text, name == NULL ? "" : "=");
    buffer_append_string(&text, name == NULL ? "" : name);
    buffer_append_string(&text, name == NULL ? "" : ">\n");
    bool ok = text.failed ? error_memory(error, "a tool call", text.size)
                          : generation_force(generation, text.data, error);
    buffer_free(&text);
    return ok;
}

static bool is_drawn(const struct buffer *drawn, const char *text) {
    return drawn->size == strlen(text) && memcmp(drawn->data, text, drawn->size) == 0;
}

/* Takes the token that was drawn, and chooses what the next may be. */
static bool draw_call(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    struct buffer *drawn = &generation->call_text;
    enum call_stage stage = generation->call_stage;
    size_t size = 0;
    const char *bytes = tokenizer_bytes(generation->session->model->tokenizer, token, &size);
    bool drawing = stage == CALL_NAMING || stage == CALL_BODY;
    if (drawing && bytes != NULL && !buffer_append(drawn, bytes, size))
        return error_memory(error, "a tool call", size);
    if (stage == CALL_OPENED)
        stage = CALL_NAMING;
    else if (stage == CALL_NAMED || (stage == CALL_NAMING && memchr(drawn->data, '\n', drawn->size) != NULL))
        stage = CALL_BODY;
    else if (stage == CALL_BODY && (is_drawn(drawn, "<parameter") || is_drawn(drawn, "</function>")))
        stage = CALL_FREE;
    if (stage != generation->call_stage)
        buffer_clear(drawn);
    generation->call_stage = stage;
    return session_bias(generation->session, &generation->options.sampling,
                        stage == CALL_NAMING ? continues_a_name
                        : stage == CALL_BODY ? continues_a_body
                                             : NULL,
                        generation, error);
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
    if (generation->call_stage != CALL_NONE && generation->call_stage != CALL_FREE)
        return draw_call(generation, token, error);
    bool wanted = options->tool_required && generation->call_stage == CALL_NONE &&
                  json_array_size(reply_parser_calls(generation->parser)) == 0;
    return !wanted || open_call(generation, token, error);
}
