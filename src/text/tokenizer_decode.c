/* The streaming detokeniser: a character may be spread over tokens, so its first bytes wait for the rest. */
#include <string.h>

#include "text/tokenizer_internal.h"

void detokenizer_start(struct detokenizer *detokenizer, const struct tokenizer *tokenizer) {
    *detokenizer = (struct detokenizer){.tokenizer = tokenizer};
}

/* Adds one byte to the character that waits, and appends what that settles. */
static void add_byte(struct detokenizer *detokenizer, unsigned char byte, struct buffer *out) {
    detokenizer->held[detokenizer->held_size++] = byte;
    while (detokenizer->held_size > 0) {
        const char *held = (const char *)detokenizer->held;
        struct utf8_character character = utf8_read(held, detokenizer->held_size);
        if (character.kind == UTF8_INCOMPLETE)
            return;
        if (character.kind == UTF8_VALID)
            buffer_append(out, held, character.size);
        else
            buffer_append_string(out, UTF8_REPLACEMENT);
        detokenizer->held_size -= character.size;
        memmove(detokenizer->held, detokenizer->held + character.size, detokenizer->held_size);
    }
}

bool detokenizer_add(struct detokenizer *detokenizer, int32_t id, struct buffer *out) {
    size_t size;
    const char *bytes = tokenizer_bytes(detokenizer->tokenizer, id, &size);
    for (size_t i = 0; i < size; i++)
        add_byte(detokenizer, (unsigned char)bytes[i], out);
    return !out->failed;
}

bool detokenizer_finish(struct detokenizer *detokenizer, struct buffer *out) {
    if (detokenizer->held_size > 0)
        buffer_append_string(out, UTF8_REPLACEMENT);
    detokenizer->held_size = 0;
    return !out->failed;
}
