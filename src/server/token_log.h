/* The tokens of the content with their log-probabilities, in the two forms that the OpenAI API has. Tokens
 * come before the text that they complete: they wait until that text is said, and are dropped if it never is
 * (an end token, a stop string, a tool call). */
#ifndef CALLA_SERVER_TOKEN_LOG_H
#define CALLA_SERVER_TOKEN_LOG_H

#include "base/buffer.h"

struct token_record {
    int32_t token;
    float logprob;
    uint32_t top_count;
    struct calla_logprob top[CALLA_MAX_TOP_LOGPROBS];
};

struct token_log {
    bool on;
    struct token_record *records;
    size_t count, capacity;
    size_t said;   /* records[0, said) belong to text that was said and is not written yet */
    size_t offset; /* of completions: characters before the next record */
};

void token_log_free(struct token_log *log);
bool token_log_add(struct token_log *log, const struct calla_token_event *event);
/* The tokens so far belong to text that is being said ... */
void token_log_say(struct token_log *log);
/* ... or to none. */
void token_log_drop(struct token_log *log);

/* Write the tokens of what was said, and forget them: the value of "logprobs", null when it is off. */
bool token_log_write_chat(struct token_log *log, const struct calla_model *model, struct buffer *out);
bool token_log_write_completion(struct token_log *log, const struct calla_model *model, struct buffer *out);

#endif
