#include "base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_free(struct buffer *buffer) {
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

void buffer_clear(struct buffer *buffer) {
    buffer->size = 0;
    buffer->failed = false;
    if (buffer->data != NULL)
        buffer->data[0] = 0;
}

bool buffer_reserve(struct buffer *buffer, size_t more) {
    if (buffer->failed)
        return false;
    if (more >= SIZE_MAX / 2 - buffer->size) {
        buffer->failed = true;
        return false;
    }
    size_t needed = buffer->size + more + 1;
    if (needed <= buffer->capacity)
        return true;
    size_t capacity = buffer->capacity < 64 ? 64 : buffer->capacity + buffer->capacity / 2;
    if (capacity < needed)
        capacity = needed;
    char *data = realloc(buffer->data, capacity);
    if (data == NULL) {
        buffer->failed = true;
        return false;
    }
    data[buffer->size] = 0;
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

bool buffer_append(struct buffer *buffer, const void *bytes, size_t size) {
    if (!buffer_reserve(buffer, size))
        return false;
    if (size > 0)
        memcpy(buffer->data + buffer->size, bytes, size);
    buffer->size += size;
    buffer->data[buffer->size] = 0;
    return true;
}

bool buffer_append_string(struct buffer *buffer, const char *string) {
    return buffer_append(buffer, string, strlen(string));
}

bool buffer_append_byte(struct buffer *buffer, char byte) {
    return buffer_append(buffer, &byte, 1);
}

bool buffer_printf(struct buffer *buffer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    bool ok = size >= 0 && buffer_reserve(buffer, (size_t)size);
    if (ok) {
        vsnprintf(buffer->data + buffer->size, (size_t)size + 1, format, again);
        buffer->size += (size_t)size;
    } else {
        buffer->failed = true;
    }
    va_end(again);
    return ok;
}

char *buffer_take(struct buffer *buffer, size_t *size) {
    char *data = NULL;
    if (buffer_reserve(buffer, 0)) {
        data = buffer->data;
        if (size != NULL)
            *size = buffer->size;
        buffer->data = NULL;
    }
    buffer_free(buffer);
    return data;
}
