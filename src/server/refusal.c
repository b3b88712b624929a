#include "server/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/openai_json.h"

bool refuse(struct refusal *refusal, const char *parameter, const char *format, ...) {
    *refusal = (struct refusal){.status = 400, .type = "invalid_request_error"};
    snprintf(refusal->parameter, sizeof refusal->parameter, "%s", parameter);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal->message, sizeof refusal->message, format, arguments);
    va_end(arguments);
    return false;
}

bool refuse_memory(struct refusal *refusal) {
    refuse(refusal, "", "The server is out of memory for this request.");
    refusal->status = 500;
    refusal->type = "server_error";
    return false;
}

bool refuse_late(struct refusal *refusal) {
    refuse(refusal, "", "The body of the request came too slowly; send it again.");
    refusal->status = 408;
    refusal->code = "request_timeout";
    return false;
}

bool refuse_error(struct refusal *refusal, const char *parameter, const struct calla_error *error) {
    refuse(refusal, parameter, "%s", error->message);
    switch (error->status) {
    case CALLA_BAD_INPUT:
    case CALLA_UNSUPPORTED:
        break;
    case CALLA_NOT_FOUND:
        refusal->status = 404;
        break;
    case CALLA_CONTEXT_FULL:
        refusal->code = "context_length_exceeded";
        break;
    case CALLA_OK:
    case CALLA_OUT_OF_MEMORY:
    case CALLA_IO:
    case CALLA_NUMERIC:
    case CALLA_DEVICE:
    case CALLA_CANCELLED:
        refusal->status = 500;
        refusal->type = "server_error";
    }
    return false;
}

bool refusal_write(const struct refusal *refusal, struct buffer *out) {
    buffer_append_string(out, "{\"error\":{\"message\":");
    openai_string(out, refusal->message, strlen(refusal->message));
    buffer_append_string(out, ",\"type\":");
    openai_string(out, refusal->type, strlen(refusal->type));
    buffer_append_string(out, ",\"param\":");
    openai_string_or_null(out, refusal->parameter[0] == 0 ? NULL : refusal->parameter);
    buffer_append_string(out, ",\"code\":");
    openai_string_or_null(out, refusal->code);
    return buffer_append_string(out, "}}");
}
