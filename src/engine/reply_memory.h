/* The replies that were made, by what they say: a client sends a conversation back as messages, and what a
 * message says can be written in other tokens than those that were sampled. With these tokens in its place
 * the prompt is what the model has read, and its state can be used.
 *
 * A reply is found by the exact tokens before it and its content and calls. Its reasoning must be the same or
 * left out. Used by several threads. */
#ifndef CALLA_ENGINE_REPLY_MEMORY_H
#define CALLA_ENGINE_REPLY_MEMORY_H

#include "base/error.h"
#include "text/reply_digest.h"

struct reply_memory;

/* NULL when memory is short. */
struct reply_memory *reply_memory_new(void);
void reply_memory_free(struct reply_memory *memory);

/* Recalls the replies that are in a file, as far as it is sound, and writes down there what comes: replies
 * outlive the program. Tokens must be below `tokens`. False if the file can be neither read nor written,
 * which is no harm. */
bool reply_memory_use_file(struct reply_memory *memory, const char *path, uint32_t tokens);

struct remembered {
    unsigned char said[REPLY_DIGEST], reasoning[REPLY_DIGEST];
    const int32_t *before; /* tokens of the prompt up to the reply, */
    size_t before_count;
};

/* Remembers that these tokens came there. Forgets the oldest when there are too many. */
void reply_memory_add(struct reply_memory *memory, const struct remembered *reply, const int32_t *tokens,
                      size_t count);

/* Appends the tokens of a reply to `tokens`, which has room for `capacity` and is grown; false when the reply
 * is not known, or memory is short. */
bool reply_memory_find(struct reply_memory *memory, const struct remembered *reply,
                       struct calla_tokens *tokens);

#endif
