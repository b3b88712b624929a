/* Byte-level BPE as Hugging Face `tokenizers` runs the Qwen3.6 tokenizer, and the way back. */
#ifndef CALLA_TEXT_TOKENIZER_H
#define CALLA_TEXT_TOKENIZER_H

#include "base/buffer.h"

struct tokenizer;

/* Reads folder/tokenizer.json, or folder/vocab.json + merges.txt (+ tokenizer_config.json for the added
 * tokens). */
struct tokenizer *tokenizer_open(const char *folder, struct calla_error *error);
/* The same from the bytes of a tokenizer.json; `name` is used in errors. */
struct tokenizer *tokenizer_parse(const char *json, size_t size, const char *name, struct calla_error *error);
void tokenizer_close(struct tokenizer *tokenizer);

/* Ids are [0, count). */
uint32_t tokenizer_count(const struct tokenizer *tokenizer);

/* The bytes of a token (not zero-terminated, may be part of a character); NULL for an id that has none. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *size);

/* The id of the added token with exactly this text ("<|im_end|>"), or -1. */
int32_t tokenizer_added(const struct tokenizer *tokenizer, const char *text);

/* A range of bytes of a text: [begin, end). */
struct text_span {
    size_t begin, end;
};

/* Appends the ids of `text`. Added tokens are recognised only where they lie wholly inside one of the
 * `controls` spans (ascending, disjoint); everything else is ordinary text, and joins with its neighbours as
 * if the spans were not there, so that the ids equal Hugging Face's whenever the ordinary text spells no
 * added token. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                      const struct text_span *controls, size_t control_count, struct calla_tokens *tokens,
                      struct calla_error *error);

/* Streaming: bytes of successive tokens in, whole UTF-8 characters out. */
struct detokenizer {
    const struct tokenizer *tokenizer;
    unsigned char held[4]; /* the start of a character that is not complete yet */
    unsigned held_size;
};

void detokenizer_start(struct detokenizer *detokenizer, const struct tokenizer *tokenizer);
/* Appends the characters that the token completes. An id without bytes adds nothing. */
bool detokenizer_add(struct detokenizer *detokenizer, int32_t id, struct buffer *out);
/* Appends U+FFFD for what is left incomplete. */
bool detokenizer_finish(struct detokenizer *detokenizer, struct buffer *out);

#endif
