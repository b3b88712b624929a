#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

bool error_set(struct calla_error *error, enum calla_status status, const char *format, ...) {
    if (error == NULL)
        return false;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    /* A message may quote a hostile file name: it must not be able to drive a terminal. */
    for (unsigned char *c = (unsigned char *)error->message; *c != 0; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
    return false;
}

bool error_memory(struct calla_error *error, const char *what, size_t bytes) {
    return error_set(error, CALLA_OUT_OF_MEMORY, "Out of memory: %zu bytes for %s could not be had.", bytes,
                     what);
}
