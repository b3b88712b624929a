/* JSON as Python's json.dumps(value, ensure_ascii=False) writes it, to the byte. */
#ifndef CALLA_TEXT_JSON_PYTHON_H
#define CALLA_TEXT_JSON_PYTHON_H

#include <jansson.h>

#include "base/buffer.h"

/* Appends the value: ", " and ": " between items, keys in their order, floats as Python's repr. Nesting is
 * bounded by what jansson parses (2,048). */
bool json_write_python(struct buffer *out, const json_t *value);

/* Appends a number as Python's repr(float): the shortest digits that read back as the same double. NaN and
 * infinities, which no JSON text holds, become NaN, Infinity and -Infinity as in json.dumps. */
bool json_write_python_real(struct buffer *out, double value);

/* Appends the inside of a string literal, escaped and without the quotes. A text may be escaped in pieces. */
bool json_escape_python(struct buffer *out, const char *text, size_t size);

#endif
