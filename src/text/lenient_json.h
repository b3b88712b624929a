/* Reading JSON as models write it, and writing it as JSON must be. */
#ifndef CALLA_TEXT_LENIENT_JSON_H
#define CALLA_TEXT_LENIENT_JSON_H

#include "base/buffer.h"

/* Appends `text` (UTF-8) as strict, compact JSON, and returns the first character of the value's kind: one of
 * { [ " 0 t f n. Returns 0 and leaves `out` as it was if the text is no value even so. Beyond JSON it reads
 * True, False and None, strings in single quotes, raw control characters in strings, unknown escapes (the
 * backslash stays), and a comma before a closing bracket. Numbers keep their digits, whatever their size;
 * half a surrogate pair becomes U+FFFD. Nesting deeper than 200 is no value. */
char lenient_json_write(struct buffer *out, const char *text, size_t size);

/* The size of the JSON number at the start of `text`, 0 without. */
size_t json_number_size(const char *text, size_t size);

#endif
