#include "text/slice.h"

#include <string.h>

/* The size of the white space character (str.isspace) that `text` begins with, 0 without. */
static size_t space_size(const char *text, size_t size) {
    const unsigned char *c = (const unsigned char *)text;
    if (size >= 1 && ((c[0] >= 0x09 && c[0] <= 0x0d) || (c[0] >= 0x1c && c[0] <= 0x20)))
        return 1;
    if (size >= 2 && c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0))
        return 2;
    if (size < 3)
        return 0;
    unsigned character = (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    bool three_bytes = c[0] >> 4 == 0xe && c[1] >> 6 == 2 && c[2] >> 6 == 2;
    bool space = character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
                 character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
    return three_bytes && space ? 3 : 0;
}

struct slice slice_trim(struct slice slice) {
    for (size_t size; (size = space_size(slice.text, slice.size)) > 0;) {
        slice.text += size;
        slice.size -= size;
    }
    for (;;) {
        size_t size = slice.size < 3 ? slice.size : 3;
        while (size > 0 && space_size(slice.text + slice.size - size, size) != size)
            size--;
        if (size == 0)
            return slice;
        slice.size -= size;
    }
}

struct slice slice_trim_newlines(struct slice slice, bool left, bool right) {
    while (left && slice.size > 0 && slice.text[0] == '\n') {
        slice.text++;
        slice.size--;
    }
    while (right && slice.size > 0 && slice.text[slice.size - 1] == '\n')
        slice.size--;
    return slice;
}

const char *slice_find_first(struct slice slice, const char *tag) {
    return slice.size == 0 ? NULL : memmem(slice.text, slice.size, tag, strlen(tag));
}

const char *slice_find_last(struct slice slice, const char *tag) {
    size_t size = strlen(tag);
    for (size_t i = slice.size; i >= size; i--)
        if (memcmp(slice.text + i - size, tag, size) == 0)
            return slice.text + i - size;
    return NULL;
}

bool slice_begins_with(struct slice slice, const char *start) {
    size_t size = strlen(start);
    return slice.size >= size && memcmp(slice.text, start, size) == 0;
}

bool slice_ends_with(struct slice slice, const char *end) {
    size_t size = strlen(end);
    return slice.size >= size && memcmp(slice.text + slice.size - size, end, size) == 0;
}
