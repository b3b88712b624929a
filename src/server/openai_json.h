/* The parts that the OpenAI API's JSON objects have in common. They append to a buffer and leave it to their
 * caller to ask whether it failed. */
#ifndef CALLA_SERVER_OPENAI_JSON_H
#define CALLA_SERVER_OPENAI_JSON_H

#include "base/buffer.h"

/* A string literal. Bytes that are not UTF-8 become U+FFFD; without any `text` may be NULL. */
void openai_string(struct buffer *out, const char *text, size_t size);
void openai_string_or_null(struct buffer *out, const char *text);

/* A number; 0 for one that JSON does not have. */
void openai_number(struct buffer *out, double value);

/* A logarithm of a probability; -9999 stands for minus infinity, as the OpenAI API has it. */
void openai_logprob(struct buffer *out, float logprob);

/* The "usage" object. `completion_tokens` counts the tokens that the model made, end token and reasoning
 * included; "cached_tokens" those of the prompt that were not computed. */
void openai_usage(struct buffer *out, const struct calla_reply *reply);

/* The "timings" object with the names that llama.cpp's server gives them. */
void openai_timings(struct buffer *out, const struct calla_reply *reply);

#endif
