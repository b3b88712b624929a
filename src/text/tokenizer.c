/* Encoding from the outside in, and the simple questions to a tokenizer. tokenizer_internal.h has the map. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

void tokenizer_close(struct tokenizer *tokenizer) {
    if (tokenizer == NULL)
        return;
    free(tokenizer->classes);
    buffer_free(&tokenizer->arena);
    free(tokenizer->tokens);
    free(tokenizer->merges);
    free(tokenizer->added);
    free(tokenizer);
}

uint32_t tokenizer_count(const struct tokenizer *tokenizer) {
    return tokenizer->count;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *size) {
    *size = 0;
    if (id < 0 || (uint32_t)id >= tokenizer->count || tokenizer->tokens[id].begin == TOKEN_ABSENT)
        return NULL;
    *size = tokenizer->tokens[id].size;
    return tokenizer->arena.data + tokenizer->tokens[id].begin;
}

int32_t tokenizer_added(const struct tokenizer *tokenizer, const char *text) {
    size_t size = strlen(text);
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        const struct added_token *added = &tokenizer->added[i];
        if (added->size == size && memcmp(tokenizer->arena.data + added->begin, text, size) == 0)
            return added->id;
    }
    return -1;
}

/* The longest added token at the start of the text, or NULL. */
static const struct added_token *added_at(const struct tokenizer *tokenizer, const char *text, size_t size) {
    unsigned first = (unsigned char)*text;
    for (uint32_t i = tokenizer->added_from[first]; i < tokenizer->added_from[first + 1]; i++) {
        const struct added_token *added = &tokenizer->added[i];
        if (added->size <= size && memcmp(tokenizer->arena.data + added->begin, text, added->size) == 0)
            return added;
    }
    return NULL;
}

/* Text without added tokens; `normal` is working memory. */
static bool encode_ordinary(struct encoder *encoder, const char *text, size_t size, struct buffer *normal) {
    if (!tokenizer_is_normal(encoder->tokenizer, text, size)) {
        buffer_clear(normal);
        if (!tokenizer_normalize(encoder->tokenizer, text, size, normal))
            return false;
        text = normal->data;
        size = normal->size;
    }
    for (size_t i = 0; i < size;) {
        size_t piece = tokenizer_piece(encoder->tokenizer, text + i, size - i);
        if (!encoder_piece(encoder, text + i, piece))
            return false;
        i += piece;
    }
    return true;
}

bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                      const struct text_span *controls, size_t control_count, struct calla_tokens *tokens,
                      struct calla_error *error) {
    size_t previous_end = 0;
    for (size_t i = 0; i < control_count; i++) {
        if (controls[i].begin < previous_end || controls[i].end < controls[i].begin || controls[i].end > size)
            return error_set(
                error, CALLA_BAD_INPUT,
                "Control span %zu, [%zu, %zu), of a text of %zu bytes is out of order or bounds.", i,
                controls[i].begin, controls[i].end, size);
        previous_end = controls[i].end;
    }
    if (size == 0)
        return true; /* text may be NULL */
    struct encoder encoder;
    struct buffer normal = {0};
    bool ok = encoder_start(&encoder, tokenizer, size);
    size_t ordinary = 0; /* start of the text not yet encoded */
    for (size_t i = 0; ok && i < control_count; i++)
        for (size_t at = controls[i].begin; ok && at < controls[i].end;) {
            const struct added_token *added = added_at(tokenizer, text + at, controls[i].end - at);
            if (added == NULL) {
                at++;
                continue;
            }
            ok = encode_ordinary(&encoder, text + ordinary, at - ordinary, &normal) &&
                 encoder_push(&encoder, added->id);
            at += added->size;
            ordinary = at;
        }
    ok = ok && encode_ordinary(&encoder, text + ordinary, size - ordinary, &normal);
    if (ok && encoder.count > 0) {
        int32_t *ids = realloc(tokens->ids, (tokens->count + encoder.count) * sizeof *ids);
        ok = ids != NULL;
        if (ok) {
            memcpy(ids + tokens->count, encoder.ids, encoder.count * sizeof *ids);
            tokens->ids = ids;
            tokens->count += encoder.count;
        }
    }
    encoder_free(&encoder);
    buffer_free(&normal);
    return ok || error_memory(error, "tokenising", size);
}
