/* Text to tokens and back, through the public interface. */
#include "engine/render.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/engine.h"
#include "engine/reply_memory.h"
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

/* Appends the tokens and the text of a part of what was rendered. It ends where control tokens meet, so that
 * its tokens do not depend on what follows. */
static bool encode_part(const struct calla_model *model, const struct rendered *rendered, size_t begin,
                        size_t end, size_t *control, struct calla_prompt *prompt, struct calla_error *error) {
    const struct text_span *controls = rendered->controls;
    size_t first = *control, last = first;
    while (last < rendered->control_count && controls[last].begin < end)
        last++;
    struct text_span *spans = malloc((last - first + 1) * sizeof *spans);
    if (spans == NULL)
        return error_memory(error, "the prompt", (last - first) * sizeof *spans);
    for (size_t i = first; i < last; i++) {
        spans[i - first].begin = (controls[i].begin > begin ? controls[i].begin : begin) - begin;
        spans[i - first].end = (controls[i].end < end ? controls[i].end : end) - begin;
    }
    bool ok = begin == end || tokenizer_encode(model->tokenizer, rendered->text.data + begin, end - begin,
                                               spans, last - first, &prompt->tokens, error);
    free(spans);
    /* The last span may go on in the next part. */
    *control = last > first && controls[last - 1].end > end ? last - 1 : last;
    return ok;
}

/* Appends the tokens that were sampled for a reply, if it was made here. */
static bool encode_remembered(const struct calla_model *model, const struct rendered_reply *reply,
                              struct calla_prompt *prompt, struct buffer *text) {
    size_t before = prompt->tokens.count;
    struct remembered remembered = {.before = prompt->tokens.ids, .before_count = before};
    memcpy(remembered.said, reply->said, sizeof remembered.said);
    memcpy(remembered.reasoning, reply->reasoning, sizeof remembered.reasoning);
    if (model->replies == NULL || !reply_memory_find(model->replies, &remembered, &prompt->tokens))
        return false;
    for (size_t i = before; i < prompt->tokens.count; i++) {
        size_t size = 0;
        const char *bytes = tokenizer_bytes(model->tokenizer, prompt->tokens.ids[i], &size);
        buffer_append(text, bytes, size);
    }
    return true;
}

static bool encode(const struct calla_model *model, const json_t *request, const struct rendered *rendered,
                   struct calla_prompt *prompt, struct calla_error *error) {
    struct buffer text = {0};
    size_t at = 0, control = 0, size = rendered->text.size;
    const char *data = rendered->text.data;
    /* Parts begin and end at control tokens; where these are none, there is one part. */
    bool parts = tokenizer_added(model->tokenizer, "<think>") >= 0 &&
                 tokenizer_added(model->tokenizer, "<|im_end|>") >= 0;
    bool ok = true;
    for (size_t i = 0; ok && parts && i < rendered->reply_count; i++) {
        const struct rendered_reply *reply = &rendered->replies[i];
        ok = encode_part(model, rendered, at, reply->begin, &control, prompt, error);
        buffer_append(&text, data + at, reply->begin - at);
        at = reply->begin;
        if (!ok || !encode_remembered(model, reply, prompt, &text))
            continue;
        at = reply->end;
        while (control < rendered->control_count && rendered->controls[control].end <= at)
            control++;
    }
    if (ok && parts && rendered->reply_begin > 0) {
        ok = encode_part(model, rendered, at, rendered->reply_begin, &control, prompt, error);
        buffer_append(&text, data + at, rendered->reply_begin - at);
        at = rendered->reply_begin;
        prompt->reply_start = prompt->tokens.count;
    }
    ok = ok && encode_part(model, rendered, at, size, &control, prompt, error);
    buffer_append(&text, data + at, size - at);
    prompt->thinking = rendered->thinking;
    const json_t *tools = json_object_get(request, "tools");
    if (ok && json_array_size(tools) > 0 && (prompt->tools = json_dumps(tools, JSON_COMPACT)) == NULL)
        ok = error_memory(error, "the tools", 0);
    prompt->text = buffer_take(&text, &prompt->size);
    return ok && (prompt->text != NULL || error_memory(error, "the prompt", prompt->size));
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
