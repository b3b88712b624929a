/* A growable byte string. Appends can be chained without a check each: after a failed allocation `failed` is
 * set, further appends do nothing, and the caller asks once at the end. */
#ifndef CALLA_BASE_BUFFER_H
#define CALLA_BASE_BUFFER_H

#include "base/error.h"

struct buffer {
    char *data; /* NULL while empty; otherwise data[size] is a 0 byte that does not count */
    size_t size;
    size_t capacity;
    bool failed;
};

/* A zeroed struct is an empty buffer. buffer_free leaves it one. */
void buffer_free(struct buffer *buffer);
void buffer_clear(struct buffer *buffer);
bool buffer_reserve(struct buffer *buffer, size_t more);
bool buffer_append(struct buffer *buffer, const void *bytes, size_t size);
bool buffer_append_string(struct buffer *buffer, const char *string);
bool buffer_append_byte(struct buffer *buffer, char byte);
bool buffer_printf(struct buffer *buffer, const char *format, ...) PRINTF_LIKE(2, 3);
/* Hands the bytes to the caller, who frees them with free(); the buffer is empty afterwards. NULL if it
 * failed; an empty buffer gives "" on the heap. */
char *buffer_take(struct buffer *buffer, size_t *size);

#endif
