/* What an exchange keeps, for the files that make one: the request's readers fill in what is asked, the
 * writers of chunks and replies keep what is said. */
#ifndef CALLA_SERVER_EXCHANGE_STATE_H
#define CALLA_SERVER_EXCHANGE_STATE_H

#include <jansson.h>

#include "server/exchange.h"
#include "server/request_fields.h"
#include "server/token_log.h"

#define EXCHANGE_MAX_STOPS 4

struct exchange {
    enum exchange_kind kind;
    const struct calla_model *model;

    /* What is asked */
    struct calla_prompt prompt;
    struct calla_generate_options options;
    struct calla_logit_bias *biases;
    char *stops[EXCHANGE_MAX_STOPS];
    char *tool_name;
    bool streams, include_usage, include_progress;
    bool echo; /* of completions: the prompt comes before the reply */

    /* What every object of the response begins with */
    char id[40];
    struct buffer head;     /* "created" to "system_fingerprint" */
    struct buffer warnings; /* JSON strings with commas between them; none for most requests */
    unsigned warning_count;

    /* What is said. Without streaming the text waits in these buffers; a call's arguments are kept as they go
     * into a JSON string. */
    struct buffer reasoning, content, calls;
    uint32_t call_count;
    struct token_log log;
};

/* Names something in the request that does not have the effect that its sender may expect. The reply carries
 * it in "warnings". */
void exchange_warn(struct exchange *exchange, const char *format, ...) PRINTF_LIKE(2, 3);

/* Fields that chat and completions share: model, lengths, sampling, stops, streaming. */
bool generation_request_read(struct exchange *exchange, const struct exchange_context *context,
                             json_t *request, struct refusal *refusal);
/* The rest of each kind's fields, and the prompt. */
bool chat_request_read(struct exchange *exchange, json_t *request, struct refusal *refusal);
bool completion_request_read(struct exchange *exchange, json_t *request, struct refusal *refusal);

/* Tools and the choice among them. Puts the list that the prompt shall show into `view`. */
bool chat_tools_read(struct exchange *exchange, json_t *request, json_t *view, struct refusal *refusal);
/* Thinking or not, and how long. Puts what the template needs into `view`. */
bool chat_thinking_read(struct exchange *exchange, json_t *request, json_t *view, struct refusal *refusal);

/* The start of a chunk or of the whole response, as far as "system_fingerprint". */
void response_begin(const struct exchange *exchange, const char *object, struct buffer *out);
/* The "warnings" field, if there is something to warn of. */
void response_warnings(const struct exchange *exchange, struct buffer *out);
/* What follows the choices of a whole response. */
void response_end(const struct exchange *exchange, const struct calla_reply *reply, struct buffer *out);
/* What follows the choices of a chunk. */
void chunk_end(const struct exchange *exchange, struct buffer *out);
/* What follows the chunk with the finish reason. */
void stream_end(const struct exchange *exchange, const struct calla_reply *reply, const char *object,
                struct buffer *out);
const char *finish_reason(const struct exchange *exchange, const struct calla_reply *reply);

/* Each kind's part of the exchange's functions of these names; false when memory is short, which the buffers
 * may tell instead. */
void chat_start(struct exchange *exchange, struct buffer *out);
bool chat_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out);
bool chat_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out);

void completion_start(struct exchange *exchange, struct buffer *out);
bool completion_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out);
bool completion_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out);

#endif
