/* Text to tokens and back, through the public interface. */
#include "engine/render.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/engine.h"
#include "text/chat_template.h"

void calla_tokens_free(struct calla_tokens *tokens) {
    free(tokens->ids);
    memset(tokens, 0, sizeof *tokens);
}

bool calla_tokenize(const struct calla_model *model, const char *text, size_t size, bool special,
                    struct calla_tokens *tokens, struct calla_error *error) {
    memset(tokens, 0, sizeof *tokens);
    struct text_span all = {0, size};
    if (tokenizer_encode(model->tokenizer, text, size, &all, special ? 1 : 0, tokens, error))
        return true;
    calla_tokens_free(tokens);
    return false;
}

char *calla_detokenize(const struct calla_model *model, const int32_t *ids, size_t count, size_t *size,
                       struct calla_error *error) {
    struct buffer text = {0};
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = tokenizer_bytes(model->tokenizer, ids[i], &length);
        if (bytes == NULL) {
            error_set(error, CALLA_BAD_INPUT,
                      "Token %zu is %ld, which the tokenizer does not have; ids are 0 to %u.", i,
                      (long)ids[i], tokenizer_count(model->tokenizer) - 1);
            buffer_free(&text);
            return NULL;
        }
        buffer_append(&text, bytes, length);
    }
    char *result = buffer_take(&text, size);
    if (result == NULL)
        error_memory(error, "the text", count);
    return result;
}

void calla_prompt_free(struct calla_prompt *prompt) {
    free(prompt->text);
    free(prompt->tools);
    calla_tokens_free(&prompt->tokens);
    memset(prompt, 0, sizeof *prompt);
}

static bool encode(const struct calla_model *model, const json_t *request, struct rendered *rendered,
                   struct calla_prompt *prompt, struct calla_error *error) {
    if (!tokenizer_encode(model->tokenizer, rendered->text.data, rendered->text.size, rendered->controls,
                          rendered->control_count, &prompt->tokens, error))
        return false;
    prompt->thinking = rendered->thinking;
    const json_t *tools = json_object_get(request, "tools");
    if (json_array_size(tools) > 0 && (prompt->tools = json_dumps(tools, JSON_COMPACT)) == NULL)
        return error_memory(error, "the tools", 0);
    prompt->text = buffer_take(&rendered->text, &prompt->size);
    return prompt->text != NULL || error_memory(error, "the prompt", prompt->size);
}

bool model_render(const struct calla_model *model, const json_t *request, struct calla_prompt *prompt,
                  struct calla_error *error) {
    memset(prompt, 0, sizeof *prompt);
    struct rendered rendered = {0};
    bool ok =
        chat_template_render(request, &rendered, error) && encode(model, request, &rendered, prompt, error);
    rendered_free(&rendered);
    if (!ok)
        calla_prompt_free(prompt);
    return ok;
}

bool calla_render(const struct calla_model *model, const char *request, size_t size,
                  struct calla_prompt *prompt, struct calla_error *error) {
    memset(prompt, 0, sizeof *prompt);
    json_t *json = json_parse(request, size, "The request", error);
    bool ok = json != NULL && model_render(model, json, prompt, error);
    json_decref(json);
    return ok;
}
