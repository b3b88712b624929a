#include "server/text_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "server/openai_json.h"
#include "server/request_fields.h"
#include "text/utf8.h"

static bool ended(const struct buffer *out, bool ok, struct refusal *refusal) {
    return ok && (!out->failed || refuse_memory(refusal));
}

/* /tokenize */

/* A token's text, or its bytes where they are not whole characters. */
static void write_piece(struct buffer *out, const char *bytes, size_t size) {
    bool text = true;
    for (size_t at = 0; at < size && text;) {
        struct utf8_character character = utf8_read(bytes + at, size - at);
        text = character.kind == UTF8_VALID;
        at += character.size;
    }
    if (text) {
        openai_string(out, bytes, size);
        return;
    }
    for (size_t i = 0; i < size; i++)
        buffer_printf(out, "%s%u", i == 0 ? "[" : ",", (unsigned)(unsigned char)bytes[i]);
    buffer_append_byte(out, ']');
}

static bool write_tokens(const struct calla_model *model, const struct calla_tokens *tokens, bool pieces,
                         struct buffer *out, struct refusal *refusal) {
    buffer_append_string(out, "{\"tokens\":[");
    for (size_t i = 0; i < tokens->count; i++) {
        buffer_append_string(out, i == 0 ? "" : ",");
        if (!pieces) {
            buffer_printf(out, "%d", (int)tokens->ids[i]);
            continue;
        }
        size_t size;
        char *bytes = calla_detokenize(model, &tokens->ids[i], 1, &size, NULL);
        if (bytes == NULL)
            return refuse_memory(refusal);
        buffer_printf(out, "{\"id\":%d,\"piece\":", (int)tokens->ids[i]);
        write_piece(out, bytes, size);
        buffer_append_byte(out, '}');
        free(bytes);
    }
    buffer_printf(out, "],\"count\":%zu}", tokens->count);
    return true;
}

static bool tokenize(const struct calla_model *model, json_t *request, struct buffer *out,
                     struct refusal *refusal) {
    struct request_object object = {request, ""};
    const char *content = NULL;
    bool special = false, pieces = false;
    struct calla_tokens tokens = {0};
    struct calla_error error = {0};
    if (!request_string(object, "prompt", &content, refusal) ||
        !request_string(object, "content", &content, refusal) ||
        !request_boolean(object, "parse_special", &special, refusal) ||
        !request_boolean(object, "special", &special, refusal) ||
        !request_boolean(object, "with_pieces", &pieces, refusal))
        return false;
    if (content == NULL)
        return refuse(refusal, "content", "The request needs \"content\", the text to tokenise.");
    if (!calla_tokenize(model, content, strlen(content), special, &tokens, &error))
        return refuse_error(refusal, "content", &error);
    bool ok = write_tokens(model, &tokens, pieces, out, refusal);
    calla_tokens_free(&tokens);
    return ok;
}

bool tokenize_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                     struct refusal *refusal) {
    json_t *request = request_parse(body, size, refusal);
    bool ok = request != NULL && tokenize(model, request, out, refusal);
    json_decref(request);
    return ended(out, ok, refusal);
}

/* /detokenize */

static bool detokenize(const struct calla_model *model, json_t *request, struct buffer *out,
                       struct refusal *refusal) {
    const json_t *list = json_object_get(request, "tokens");
    struct calla_error error = {0};
    if (!json_is_array(list))
        return refuse(refusal, "tokens", "\"tokens\" must be a list of token ids, not %s.",
                      request_kind(list));
    size_t count = json_array_size(list), size = 0;
    int32_t *ids = calloc(count + 1, sizeof *ids);
    if (ids == NULL)
        return refuse_memory(refusal);
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_integer_value(id);
        ids[i] = (int32_t)value;
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            ok = refuse(refusal, "tokens", "Element %zu of \"tokens\" is not a token id.", i);
    }
    char *text = ok ? calla_detokenize(model, ids, count, &size, &error) : NULL;
    free(ids);
    if (text == NULL)
        return ok ? refuse_error(refusal, "tokens", &error) : false;
    buffer_append_string(out, "{\"content\":");
    openai_string(out, text, size);
    buffer_append_byte(out, '}');
    free(text);
    return true;
}

bool detokenize_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                       struct refusal *refusal) {
    json_t *request = request_parse(body, size, refusal);
    bool ok = request != NULL && detokenize(model, request, out, refusal);
    json_decref(request);
    return ended(out, ok, refusal);
}

/* /apply-template: the prompt that chat completions would make of the same body. */

bool apply_template_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                           struct refusal *refusal) {
    const struct exchange_context context = {.model = model, .model_name = "", .context = UINT32_MAX};
    struct exchange *exchange = exchange_new(EXCHANGE_CHAT, &context, body, size, refusal);
    if (exchange == NULL)
        return false;
    const struct calla_prompt *prompt = exchange_prompt(exchange);
    buffer_append_string(out, "{\"prompt\":");
    openai_string(out, prompt->text, prompt->size);
    buffer_printf(out, ",\"count\":%zu}", prompt->tokens.count);
    exchange_free(exchange);
    return ended(out, true, refusal);
}
