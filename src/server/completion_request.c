/* The fields of a text completion. Its prompt is what the model reads, control tokens included: whoever
 * sends one writes the template's part too. */
#include <stdlib.h>
#include <string.h>

#include "server/exchange_state.h"

/* Tokens of a reply where the request names no number, as the OpenAI API has it. */
#define DEFAULT_MAX_TOKENS 16

static bool read_tokens(struct exchange *exchange, const json_t *ids, struct refusal *refusal) {
    struct calla_prompt *prompt = &exchange->prompt;
    struct calla_error error = {0};
    struct calla_model_info info;
    calla_model_info(exchange->model, &info);
    prompt->tokens.count = json_array_size(ids);
    prompt->tokens.ids = calloc(prompt->tokens.count + 1, sizeof *prompt->tokens.ids);
    if (prompt->tokens.ids == NULL)
        return refuse_memory(refusal);
    for (size_t i = 0; i < prompt->tokens.count; i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= (json_int_t)info.tokens)
            return refuse(refusal, "prompt",
                          "Element %zu of the \"prompt\" is not a token id (a whole number from 0 to %u).", i,
                          info.tokens - 1);
        prompt->tokens.ids[i] = (int32_t)value;
    }
    prompt->text =
        calla_detokenize(exchange->model, prompt->tokens.ids, prompt->tokens.count, &prompt->size, &error);
    return prompt->text != NULL || refuse_error(refusal, "prompt", &error);
}

static bool read_text(struct exchange *exchange, const json_t *text, struct refusal *refusal) {
    struct calla_prompt *prompt = &exchange->prompt;
    struct calla_error error = {0};
    prompt->size = json_string_length(text);
    prompt->text = strdup(json_string_value(text));
    if (prompt->text == NULL)
        return refuse_memory(refusal);
    return calla_tokenize(exchange->model, prompt->text, prompt->size, true, &prompt->tokens, &error) ||
           refuse_error(refusal, "prompt", &error);
}

/* A text or a list of token ids, or a list of one of these. */
static bool read_prompt(struct exchange *exchange, const json_t *prompt, struct refusal *refusal) {
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(prompt) > 1)
            return refuse(refusal, "prompt",
                          "\"prompt\" has %zu prompts; send them in requests of their own.",
                          json_array_size(prompt));
        prompt = first;
    }
    if (json_is_string(prompt))
        return read_text(exchange, prompt, refusal);
    if (json_is_array(prompt))
        return read_tokens(exchange, prompt, refusal);
    return refuse(refusal, "prompt", "\"prompt\" must be a string or a list of token ids, not %s.",
                  request_kind(prompt));
}

static bool read_logprobs(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    int64_t top = -1;
    if (!request_whole(request, "logprobs", 0, CALLA_MAX_TOP_LOGPROBS, &top, refusal))
        return false;
    exchange->log.on = exchange->options.logprobs = top >= 0;
    exchange->options.top_logprobs = top > 0 ? (uint32_t)top : 0;
    if (exchange->log.on && exchange->echo)
        return refuse(refusal, "logprobs", "\"logprobs\" cannot be had of a prompt: leave out \"echo\".");
    return true;
}

bool completion_request_read(struct exchange *exchange, json_t *request, struct refusal *refusal) {
    struct request_object object = {request, ""};
    int64_t best_of = 1;
    const char *suffix = "";
    if (!request_whole(object, "best_of", 1, 128, &best_of, refusal) ||
        !request_string(object, "suffix", &suffix, refusal) ||
        !request_boolean(object, "echo", &exchange->echo, refusal))
        return false;
    if (best_of != 1)
        return refuse(refusal, "best_of", "\"best_of\" must be 1: one reply is made for a request.");
    if (*suffix != 0)
        return refuse(refusal, "suffix", "\"suffix\" is not supported: text is made after a prompt only.");
    exchange->options.raw = true;
    if (exchange->options.max_tokens == 0)
        exchange->options.max_tokens = DEFAULT_MAX_TOKENS;
    return read_logprobs(exchange, object, refusal) &&
           read_prompt(exchange, request_value(object, "prompt"), refusal);
}
