#include "text/json_python.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool json_escape_python(struct buffer *out, const char *text, size_t size) {
    if (size == 0) /* then `text` may be NULL */
        return !out->failed;
    size_t begin = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buffer_append(out, text + begin, i - begin);
        begin = i + 1;
        static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
        const char *name = named;
        while (*name != 0 && *name != (char)c)
            name += 2;
        if (c != 0 && *name != 0) {
            buffer_append_byte(out, '\\');
            buffer_append_byte(out, name[1]);
        } else {
            buffer_printf(out, "\\u%04x", c);
        }
    }
    return buffer_append(out, text + begin, size - begin);
}

static void write_string(struct buffer *out, const char *text, size_t size) {
    buffer_append_byte(out, '"');
    json_escape_python(out, text, size);
    buffer_append_byte(out, '"');
}

/* The fewest decimal digits that read back as `value` (finite, not negative), without zeros at the end, and
 * the decimal exponent of the first. The C library rounds to the nearest number of so many digits; where
 * `value` is a power of two, the doubles below it lie closer than those above, and the next number up can be
 * the one that reads back although it is not the nearest. */
static int shortest_digits(double value, char digits[32]) {
    int exponent = 0;
    for (int precision = 0; precision < 17; precision++) {
        char text[64];
        snprintf(text, sizeof text, "%.*e", precision, value);
        uint64_t number = 0;
        const char *c = text;
        for (; *c != 'e'; c++) /* whatever the locale's decimal point is, it is passed over */
            if (*c >= '0' && *c <= '9')
                number = number * 10 + (uint64_t)(*c - '0');
        exponent = (int)strtol(c + 1, NULL, 10);
        for (unsigned up = 0; up < 2; up++) {
            snprintf(text, sizeof text, "%" PRIu64 "e%d", number + up, exponent - precision);
            if (strtod(text, NULL) == value) {
                int size = snprintf(digits, 32, "%" PRIu64, number + up);
                exponent += size - (precision + 1);
                while (size > 1 && digits[size - 1] == '0')
                    digits[--size] = 0;
                return exponent;
            }
        }
    }
    return exponent; /* not reached: 17 digits always read back */
}

bool json_write_python_real(struct buffer *out, double value) {
    if (isnan(value))
        return buffer_append_string(out, "NaN");
    if (isinf(value))
        return buffer_append_string(out, value > 0 ? "Infinity" : "-Infinity");
    char digits[32];
    int exponent = shortest_digits(fabs(value), digits);
    int count = (int)strlen(digits);
    if (signbit(value))
        buffer_append_byte(out, '-');
    if (exponent < -4 || exponent >= 16) {
        buffer_append_byte(out, digits[0]);
        if (count > 1) {
            buffer_append_byte(out, '.');
            buffer_append(out, digits + 1, (size_t)(count - 1));
        }
        return buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        buffer_append_string(out, "0.");
        buffer_append(out, "000", (size_t)(-exponent - 1));
        return buffer_append(out, digits, (size_t)count);
    }
    for (int i = 0; i <= exponent; i++)
        buffer_append_byte(out, i < count ? digits[i] : '0');
    buffer_append_byte(out, '.');
    if (count <= exponent + 1)
        return buffer_append_byte(out, '0');
    return buffer_append(out, digits + exponent + 1, (size_t)(count - exponent - 1));
}

static void write_object(struct buffer *out, const json_t *object) {
    /* jansson's iterators take a pointer that is not const, and leave the object as it is. */
    json_t *borrowed = (json_t *)(uintptr_t)object;
    bool first = true;
    buffer_append_byte(out, '{');
    for (void *item = json_object_iter(borrowed); item != NULL;
         item = json_object_iter_next(borrowed, item)) {
        if (!first)
            buffer_append_string(out, ", ");
        first = false;
        write_string(out, json_object_iter_key(item), json_object_iter_key_len(item));
        buffer_append_string(out, ": ");
        json_write_python(out, json_object_iter_value(item));
    }
    buffer_append_byte(out, '}');
}

bool json_write_python(struct buffer *out, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(out, value);
        break;
    case JSON_ARRAY:
        buffer_append_byte(out, '[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i > 0)
                buffer_append_string(out, ", ");
            json_write_python(out, json_array_get(value, i));
        }
        buffer_append_byte(out, ']');
        break;
    case JSON_STRING:
        write_string(out, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        buffer_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        json_write_python_real(out, json_real_value(value));
        break;
    case JSON_TRUE:
        buffer_append_string(out, "true");
        break;
    case JSON_FALSE:
        buffer_append_string(out, "false");
        break;
    case JSON_NULL:
        buffer_append_string(out, "null");
        break;
    }
    return !out->failed;
}
