/* One request that the model answers, in the form that its API speaks: the body of a request in, bytes for
 * the client out. It knows nothing of sockets, threads or sessions.
 *
 * The events of a generation are fed in as they come; what they append to `out` is the response's body:
 * server-sent events when the request asked to stream, otherwise nothing until the end, and then one JSON
 * object. */
#ifndef CALLA_SERVER_EXCHANGE_H
#define CALLA_SERVER_EXCHANGE_H

#include "base/buffer.h"
#include "server/refusal.h"

enum exchange_kind { EXCHANGE_CHAT, EXCHANGE_COMPLETION };

struct exchange;

struct exchange_context {
    const struct calla_model *model;
    const char *model_name; /* what /v1/models calls it */
    uint32_t context;       /* positions of a session */
    bool only_model_name;   /* another "model" in the request is 404 instead of ignored */
};

/* Reads and checks a request's body and renders its prompt. NULL with a refusal filled in; never with one
 * half done. */
struct exchange *exchange_new(enum exchange_kind kind, const struct exchange_context *context,
                              const char *body, size_t size, struct refusal *refusal);
void exchange_free(struct exchange *exchange);

const struct calla_prompt *exchange_prompt(const struct exchange *exchange);
/* Sampling, limits, stops and so on, with pointers into the exchange. event, token, user and progress are the
 * caller's to fill. */
const struct calla_generate_options *exchange_options(const struct exchange *exchange);
bool exchange_streams(const struct exchange *exchange);
const char *exchange_id(const struct exchange *exchange); /* "chatcmpl-..." */

/* Each appends to *out; false when memory is short. */
bool exchange_start(struct exchange *exchange, struct buffer *out);
bool exchange_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out);
bool exchange_token(struct exchange *exchange, const struct calla_token_event *token, struct buffer *out);
bool exchange_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out);
/* A comment that keeps a stream alive and tells how far the reading of the prompt is. Nothing when not
 * streaming. */
bool exchange_alive(struct exchange *exchange, size_t read, size_t total, struct buffer *out);
/* A failure: an error event in a stream, the error object otherwise. */
bool exchange_fail(struct exchange *exchange, const struct calla_error *failure, struct buffer *out);

#endif
