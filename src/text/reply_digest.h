/* What an assistant's turn says, as a digest that does not change with what does not matter: white space
 * around the content, and how a call's arguments are written down: order of keys, white space, escapes, and
 * 1.0 for 1. */
#ifndef CALLA_TEXT_REPLY_DIGEST_H
#define CALLA_TEXT_REPLY_DIGEST_H

#include <jansson.h>

#include "text/slice.h"

#define REPLY_DIGEST 32

/* `calls` (may be NULL) is a list of tool calls in the OpenAI form, arguments as a string or an object, ids
 * left out of account. False when memory is short. */
bool reply_digest(struct slice content, const json_t *calls, unsigned char digest[REPLY_DIGEST]);

/* Of reasoning: all zero when there is none but white space. */
void reasoning_digest(struct slice reasoning, unsigned char digest[REPLY_DIGEST]);

#endif
