/* The bytes of a tokenizer.json; what loads must then encode and come back. */
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct calla_error error;
    struct tokenizer *tokenizer = tokenizer_parse((const char *)data, size, "tokenizer.json", &error);
    if (tokenizer == NULL)
        return 0;
    static const char text[] = "hello aaaa <|im_end|>> e\xcc\x81 \xff\n\n 12 'll";
    struct text_span all = {0, sizeof text - 1};
    struct calla_tokens tokens = {0};
    struct buffer out = {0};
    struct detokenizer detokenizer;
    detokenizer_start(&detokenizer, tokenizer);
    if (tokenizer_encode(tokenizer, text, all.end, &all, 1, &tokens, &error))
        for (size_t i = 0; i < tokens.count; i++)
            detokenizer_add(&detokenizer, tokens.ids[i], &out);
    detokenizer_finish(&detokenizer, &out);
    buffer_free(&out);
    free(tokens.ids);
    tokenizer_close(tokenizer);
    return 0;
}
