/* Why a request was refused, in the terms of the OpenAI API's error object. */
#ifndef CALLA_SERVER_REFUSAL_H
#define CALLA_SERVER_REFUSAL_H

#include "base/buffer.h"

struct refusal {
    unsigned status;     /* of HTTP: 400, 404, 413, ... */
    const char *type;    /* "invalid_request_error", ...: static */
    char parameter[128]; /* the field, "" if none is to blame: "messages[2].content" */
    const char *code;    /* static, or NULL */
    char message[1024];
};

/* Fills in a 400 that blames `parameter` ("" for none), with one formatted sentence. Always false. */
bool refuse(struct refusal *refusal, const char *parameter, const char *format, ...) PRINTF_LIKE(3, 4);
/* The same for memory that could not be had: a 500. */
bool refuse_memory(struct refusal *refusal);
/* The same for a body that came too slowly: a 408. */
bool refuse_late(struct refusal *refusal);
/* What the library failed with: its sentence, and the status, type and code that fit. Always false. */
bool refuse_error(struct refusal *refusal, const char *parameter, const struct calla_error *error);

/* The error object: {"error": {"message", "type", "param", "code"}}. */
bool refusal_write(const struct refusal *refusal, struct buffer *out);

#endif
