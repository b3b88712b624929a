/* Reading UTF-8 that may be broken, with the replacements that Python, the WHATWG and Rust agree on: each
 * longest start of a character that is not a character becomes one U+FFFD. */
#ifndef CALLA_TEXT_UTF8_H
#define CALLA_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

enum utf8_kind {
    UTF8_VALID,
    UTF8_INVALID,   /* no further byte could make it a character */
    UTF8_INCOMPLETE /* the bytes end inside a character */
};

struct utf8_character {
    enum utf8_kind kind;
    unsigned size; /* bytes taken, at least 1 */
    uint32_t code; /* U+FFFD unless valid */
};

/* The first character of `size` > 0 bytes. */
struct utf8_character utf8_read(const char *bytes, size_t size);

/* Writes a code point below 0x110000 and returns its length, 1 to 4. */
unsigned utf8_write(uint32_t code, char out[4]);

#endif
