#include "text/lenient_json.h"

#include <string.h>

#include "text/json_python.h"

#define DEPTH_LIMIT 200

struct reader {
    const char *at, *end;
    struct buffer *out;
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

size_t json_number_size(const char *text, size_t size) {
    size_t i = size > 0 && text[0] == '-' ? 1 : 0;
    if (i == size || !is_digit(text[i]))
        return 0;
    if (text[i] == '0')
        i++;
    else
        while (i < size && is_digit(text[i]))
            i++;
    if (i + 1 < size && text[i] == '.' && is_digit(text[i + 1]))
        for (i++; i < size && is_digit(text[i]);)
            i++;
    if (i < size && (text[i] == 'e' || text[i] == 'E')) {
        size_t exponent = i + 1;
        if (exponent < size && (text[exponent] == '+' || text[exponent] == '-'))
            exponent++;
        if (exponent < size && is_digit(text[exponent]))
            for (i = exponent; i < size && is_digit(text[i]);)
                i++;
    }
    return i;
}

static void skip_space(struct reader *reader) {
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) != NULL && *reader->at != 0)
        reader->at++;
}

static bool take(struct reader *reader, char c) {
    if (reader->at == reader->end || *reader->at != c)
        return false;
    reader->at++;
    return true;
}

/* The value of `count` hexadecimal digits, or -1. */
static int read_hex(const char *at, const char *end, int count) {
    if (end - at < count)
        return -1;
    int value = 0;
    for (int i = 0; i < count; i++) {
        char c = at[i];
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* After a backslash. */
static void write_escape(struct reader *reader) {
    char c = *reader->at;
    if (memchr("\"\\/bfnrt", c, 8) != NULL) {
        buffer_append_byte(reader->out, '\\');
        buffer_append_byte(reader->out, c);
        reader->at++;
        return;
    }
    int unit = c == 'u'   ? read_hex(reader->at + 1, reader->end, 4)
               : c == 'x' ? read_hex(reader->at + 1, reader->end, 2)
                          : -1;
    if (c == '\'') {
        buffer_append_byte(reader->out, c);
        reader->at++;
    } else if (unit >= 0) {
        reader->at += c == 'u' ? 5 : 3;
        if (unit >= 0xd800 && unit < 0xe000) {
            bool pair = unit < 0xdc00 && reader->end - reader->at >= 6 && memcmp(reader->at, "\\u", 2) == 0;
            int low = pair ? read_hex(reader->at + 2, reader->end, 4) : -1;
            if (low >= 0xdc00 && low < 0xe000) {
                buffer_printf(reader->out, "\\u%04x\\u%04x", (unsigned)unit, (unsigned)low);
                reader->at += 6;
                return;
            }
            unit = 0xfffd;
        }
        buffer_printf(reader->out, "\\u%04x", (unsigned)unit);
    } else {
        buffer_append_string(reader->out, "\\\\");
    }
}

static bool write_string(struct reader *reader) {
    char mark = *reader->at++;
    buffer_append_byte(reader->out, '"');
    for (;;) {
        const char *begin = reader->at;
        while (reader->at < reader->end && *reader->at != mark && *reader->at != '\\')
            reader->at++;
        json_escape_python(reader->out, begin, (size_t)(reader->at - begin));
        if (reader->at == reader->end)
            return false;
        if (*reader->at++ == mark)
            return buffer_append_byte(reader->out, '"');
        if (reader->at == reader->end)
            return false;
        write_escape(reader);
    }
}

static char write_word(struct reader *reader) {
    static const struct {
        const char *word, *json;
    } words[] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                 {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t size = strlen(words[i].word);
        if ((size_t)(reader->end - reader->at) >= size && memcmp(reader->at, words[i].word, size) == 0) {
            reader->at += size;
            buffer_append_string(reader->out, words[i].json);
            return words[i].json[0];
        }
    }
    size_t size = json_number_size(reader->at, (size_t)(reader->end - reader->at));
    buffer_append(reader->out, reader->at, size);
    reader->at += size;
    return size > 0 ? '0' : 0;
}

static char write_value(struct reader *reader, unsigned depth);

static bool write_key(struct reader *reader) {
    skip_space(reader);
    if (reader->at == reader->end || (*reader->at != '"' && *reader->at != '\'') || !write_string(reader))
        return false;
    skip_space(reader);
    return take(reader, ':') && buffer_append_byte(reader->out, ':');
}

static bool write_items(struct reader *reader, char open, unsigned depth) {
    char close = open == '{' ? '}' : ']';
    buffer_append_byte(reader->out, open);
    skip_space(reader);
    for (bool first = true; !take(reader, close); first = false) {
        if (!first)
            buffer_append_byte(reader->out, ',');
        if ((open == '{' && !write_key(reader)) || write_value(reader, depth + 1) == 0)
            return false;
        if (!take(reader, ',')) {
            if (!take(reader, close))
                return false;
            break;
        }
        skip_space(reader);
    }
    return buffer_append_byte(reader->out, close);
}

/* Takes the white space around the value as well. */
static char write_value(struct reader *reader, unsigned depth) {
    skip_space(reader);
    if (reader->at == reader->end)
        return 0;
    char kind = *reader->at;
    if (kind == '{' || kind == '[') {
        reader->at++;
        if (depth == DEPTH_LIMIT || !write_items(reader, kind, depth))
            return 0;
    } else if (kind == '"' || kind == '\'') {
        kind = '"';
        if (!write_string(reader))
            return 0;
    } else {
        kind = write_word(reader);
    }
    skip_space(reader);
    return kind;
}

char lenient_json_write(struct buffer *out, const char *text, size_t size) {
    if (size == 0)
        return 0;
    size_t before = out->size;
    struct reader reader = {text, text + size, out};
    char kind = write_value(&reader, 0);
    if (kind != 0 && reader.at == reader.end && !out->failed)
        return kind;
    if (out->data != NULL) {
        out->size = before;
        out->data[before] = 0;
    }
    return 0;
}
