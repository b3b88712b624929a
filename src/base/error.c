#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

/* Bytes of the well-formed UTF-8 character at `text`, 0 when there is none. */
static size_t character_size(const unsigned char *text) {
    unsigned char lead = text[0], least = 0x80, most = 0xbf;
    if (lead < 0x80)
        return 1;
    size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    if (lead == 0xe0 || lead == 0xf0)
        least = lead == 0xe0 ? 0xa0 : 0x90; /* below: overlong */
    if (lead == 0xed || lead == 0xf4)
        most = lead == 0xed ? 0x9f : 0x8f; /* above: a surrogate, beyond U+10FFFF */
    for (size_t i = 1; i < size; i++, least = 0x80, most = 0xbf)
        if (text[i] < least || text[i] > most)
            return 0;
    return size;
}

/* A message may quote a hostile file name: it must not be able to drive a terminal, and it must fit into
 * JSON. U+0080 to U+009F, which some terminals take for control sequences, are C2 80 to C2 9F. */
static void make_harmless(unsigned char *text) {
    while (*text != 0) {
        size_t size = character_size(text);
        bool control = *text < 0x20 || *text == 0x7f || (size == 2 && text[0] == 0xc2 && text[1] < 0xa0);
        if (size == 0 || control) {
            size = size == 0 ? 1 : size;
            for (size_t i = 0; i < size; i++)
                text[i] = '?';
        }
        text += size;
    }
}

bool error_set(struct calla_error *error, enum calla_status status, const char *format, ...) {
    if (error == NULL)
        return false;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    make_harmless((unsigned char *)error->message);
    return false;
}

bool error_memory(struct calla_error *error, const char *what, size_t bytes) {
    return error_set(error, CALLA_OUT_OF_MEMORY, "Out of memory: %zu bytes for %s could not be had.", bytes,
                     what);
}
