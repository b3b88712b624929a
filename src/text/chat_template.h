/* The chat template of Qwen3.6, in C: messages in, the prompt out, byte for byte what jinja2 makes of the
 * official file. */
#ifndef CALLA_TEXT_CHAT_TEMPLATE_H
#define CALLA_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/buffer.h"
#include "text/reply_digest.h"
#include "text/tokenizer.h"

/* An assistant's turn whose reasoning is shown, as a reply that begins with its think block. */
struct rendered_reply {
    size_t begin, end; /* in the text: from "<think>" to before "<|im_end|>" */
    unsigned char said[REPLY_DIGEST], reasoning[REPLY_DIGEST];
};

struct rendered {
    struct buffer text;
    struct text_span *controls; /* the template's own literals: only there do control tokens count */
    size_t control_count, control_capacity;
    struct rendered_reply *replies;
    size_t reply_count, reply_capacity;
    size_t reply_begin; /* where the reply to come begins, with its think block; 0: none is asked for */
    bool thinking;      /* the prompt ends inside a think block */
};

void rendered_free(struct rendered *rendered);

/* `request` is the body of a chat-completions request: messages, tools, add_generation_prompt,
 * enable_thinking, preserve_thinking, add_vision_id, chat_template_kwargs, reasoning_effort. What is accepted
 * beyond the original is listed in docs/template.md. A request that cannot be rendered is CALLA_BAD_INPUT
 * with a sentence naming the message. */
bool chat_template_render(const json_t *request, struct rendered *out, struct calla_error *error);

/* Whether a checkpoint's template (the bytes of chat_template.jinja, or the "chat_template" string of
 * tokenizer_config.json) is the one that this renderer implements. */
bool chat_template_known(const char *bytes, size_t size);

#endif
