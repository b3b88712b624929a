/* Errors are values: a function that can fail returns false or NULL and fills a calla_error. */
#ifndef CALLA_BASE_ERROR_H
#define CALLA_BASE_ERROR_H

#include "calla.h"

#if defined(__GNUC__)
#define PRINTF_LIKE(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define PRINTF_LIKE(format_index, first)
#endif

/* Fills *error (which may be NULL) with a status and one formatted sentence. Always returns false, so that
 * a failing function can end with `return error_set(...)`. The sentence is cut where it is too long; control
 * characters in it, and what is not UTF-8, become '?'. */
bool error_set(struct calla_error *error, enum calla_status status, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* The same for a failed allocation of `bytes` bytes for `what`. */
bool error_memory(struct calla_error *error, const char *what, size_t bytes);

#endif
