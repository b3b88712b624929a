/* Any bytes through a small tokenizer. The first byte places the control spans. Whatever the text is, its ids
 * are the tokenizer's, their text is valid UTF-8, and that text's own ids spell it again. */
#include <stdlib.h>

#include "../small_tokenizer.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *small_open(void) {
    struct calla_error error;
    json_t *root = small_tokenizer();
    char *text = json_dumps(root, 0);
    struct tokenizer *tokenizer = text == NULL ? NULL : tokenizer_parse(text, strlen(text), "small", &error);
    free(text);
    json_decref(root);
    return tokenizer;
}

static void encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                   const struct text_span *spans, size_t span_count, struct buffer *out) {
    struct calla_tokens tokens = {0};
    struct calla_error error;
    struct detokenizer detokenizer;
    if (!tokenizer_encode(tokenizer, text, size, spans, span_count, &tokens, &error))
        abort();
    detokenizer_start(&detokenizer, tokenizer);
    for (size_t i = 0; i < tokens.count; i++) {
        if (tokens.ids[i] < 0 || (uint32_t)tokens.ids[i] >= tokenizer_count(tokenizer))
            abort();
        detokenizer_add(&detokenizer, tokens.ids[i], out);
    }
    detokenizer_finish(&detokenizer, out);
    free(tokens.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer;
    if (tokenizer == NULL && (tokenizer = small_open()) == NULL)
        abort();
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    size_t middle = data[0] < size ? data[0] : size - 1;
    struct buffer first = {0}, second = {0};
    encode(tokenizer, text, size - 1, (struct text_span[]){{0, middle}, {middle, size - 1}}, 2, &first);
    for (size_t i = 0; i < first.size;) {
        struct utf8_character character = utf8_read(first.data + i, first.size - i);
        if (character.kind != UTF8_VALID)
            abort();
        i += character.size;
    }
    struct text_span all = {0, first.size};
    encode(tokenizer, first.data, first.size, &all, 1, &second);
    /* Text beside an added token is normalised on its own, so that joining the two may normalise further. */
    bool joined = first.size > 0 && memmem(first.data, first.size, "<|im_", 5) != NULL;
    if (!joined &&
        (first.size != second.size || (first.size > 0 && memcmp(first.data, second.data, first.size) != 0)))
        abort();
    buffer_free(&first);
    buffer_free(&second);
    return 0;
}
