/* One tool call while it is being written: parameters in, a growing JSON object out. */
#ifndef CALLA_TEXT_REPLY_CALL_H
#define CALLA_TEXT_REPLY_CALL_H

#include <jansson.h>

#include "base/buffer.h"

/* A zeroed struct is a call that has not begun. */
struct reply_call {
    struct buffer name;
    struct buffer arguments;  /* JSON so far; the object is whole after reply_call_end */
    const json_t *parameters; /* the function's schema, borrowed from the tools; NULL without */
    json_t *seen;             /* an object whose keys are the parameters so far */

    struct buffer key;   /* the parameter being written */
    struct buffer value; /* its text so far, where the type is only known from the whole */
    unsigned types;
    bool streams; /* a string and nothing else: escaped and passed on as it comes */
    bool started; /* the key is in `arguments` already */
    bool skipped; /* given before: the first one counts, since it may have been passed on */
};

/* The function of the tools (OpenAI form, nested or flat) with this name, or NULL. */
const json_t *reply_call_function(const json_t *tools, const char *name, size_t size);

/* These report a failed allocation by the `failed` of `arguments`. */
void reply_call_begin(struct reply_call *call, const json_t *tools, const char *name, size_t size);
void reply_call_key(struct reply_call *call, const char *key, size_t size);
void reply_call_value(struct reply_call *call, const char *text, size_t size);
/* `whole`: the value's end was seen. A value that was cut is kept as far as it is a string that has begun; a
 * number or a list would say something else than it was going to, and is left out. */
void reply_call_value_end(struct reply_call *call, bool whole);
void reply_call_end(struct reply_call *call);

/* Whether the function declares this parameter and the call has not had it yet. */
bool reply_call_expects(const struct reply_call *call, const char *key, size_t size);

void reply_call_clear(struct reply_call *call);

#endif
