#include "text/json_python.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool json_escape_python(struct buffer *out, const char *text, size_t size) {
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

bool json_write_python_real(struct buffer *out, double value) {
    if (isnan(value))
        return buffer_append_string(out, "NaN");
    if (isinf(value))
        return buffer_append_string(out, value > 0 ? "Infinity" : "-Infinity");
    char text[64];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    /* Only the digits and the exponent are taken from the text, so that the locale's decimal point is none of
     * our business. */
    char digits[32];
    int count = 0;
    const char *mark = strchr(text, 'e');
    for (const char *c = text; c < mark; c++)
        if (*c >= '0' && *c <= '9')
            digits[count++] = *c;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    int exponent = (int)strtol(mark + 1, NULL, 10);
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
