/* Cutting text into pieces, as the split pattern of the Qwen3.5 and 3.6 tokenizers does:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)                 1 English contractions
 *   |[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+             2 letters and marks, with one character before them
 *   |\p{N}                                       3 one digit
 *   | ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*              4 symbols, with a space before and line ends after them
 *   |\s*[\r\n]+                                  5 white space up to its last line end
 *   |\s+(?!\S)|\s+                               6 white space, but its last character before other text
 *
 * The alternatives are followed by hand and not by a regular-expression library: the classes must be those of
 * the one Unicode version that the original uses, whatever version a library has, and the work is linear on
 * any text. Marks join letters by the table alone: a tokenizer whose pattern names \p{M} has them classed as
 * letters, one with the older Qwen2 pattern, which does not, as other characters. (Alternative 2 may also
 * take a mark as the character before the letters; that is the same run of letters and marks.) */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

static const char pattern_with_marks[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char pattern_without_marks[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

bool tokenizer_pattern(const char *pattern, size_t size, bool *marks_are_letters) {
    *marks_are_letters =
        size == sizeof pattern_with_marks - 1 && memcmp(pattern, pattern_with_marks, size) == 0;
    return *marks_are_letters ||
           (size == sizeof pattern_without_marks - 1 && memcmp(pattern, pattern_without_marks, size) == 0);
}

bool tokenizer_classes(struct tokenizer *tokenizer, bool marks_are_letters) {
    tokenizer->classes = calloc(CODE_POINTS, 1);
    if (tokenizer->classes == NULL)
        return false;
    for (size_t i = 0; i < tokenizer_character_run_count; i++) {
        uint32_t run = tokenizer_character_runs[i];
        uint32_t end =
            i + 1 < tokenizer_character_run_count ? tokenizer_character_runs[i + 1] >> 4 : CODE_POINTS;
        unsigned value = run & 0xf;
        if ((value & CHARACTER_CLASS) == CHARACTER_MARK)
            value = (value & CHARACTER_UNSTABLE) | (marks_are_letters ? CHARACTER_LETTER : CHARACTER_OTHER);
        /* Untouched pages of the table cost no memory. */
        if (value != 0)
            memset(tokenizer->classes + (run >> 4), (int)value, end - (run >> 4));
    }
    return true;
}

/* The class of the character at `text`, and its bytes; CHARACTER_CLASS, which is no class, at the end. */
static inline unsigned class_at(const uint8_t *classes, const uint8_t *text, const uint8_t *end,
                                unsigned *size) {
    *size = 0;
    if (text == end)
        return CHARACTER_CLASS;
    uint32_t code = *text;
    if (code < 0x80) {
        *size = 1;
    } else if (code < 0xe0) {
        *size = 2;
        code = (code & 0x1f) << 6 | (text[1] & 0x3fu);
    } else if (code < 0xf0) {
        *size = 3;
        code = (code & 0xf) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
    } else {
        *size = 4;
        code = (code & 7) << 18 | (text[1] & 0x3fu) << 12 | (text[2] & 0x3fu) << 6 | (text[3] & 0x3fu);
    }
    return classes[code] & CHARACTER_CLASS;
}

/* Past the run of characters of one class. */
static const uint8_t *skip(const uint8_t *classes, const uint8_t *text, const uint8_t *end, unsigned wanted) {
    unsigned size;
    while (class_at(classes, text, end, &size) == wanted)
        text += size;
    return text;
}

/* The length of a contraction that starts with the apostrophe at `text`, or 0. Ignoring case, "s" is also the
 * long s, U+017F. */
static size_t contraction(const uint8_t *text, size_t size) {
    if (size < 2)
        return 0;
    unsigned first = text[1] | 0x20u, second = size > 2 ? text[2] | 0x20u : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l') || (size > 2 && text[1] == 0xc5 && text[2] == 0xbf))
        return 3;
    return 0;
}

/* White space: `text` starts a run of it. */
static const uint8_t *space_piece(const uint8_t *classes, const uint8_t *text, const uint8_t *end) {
    const uint8_t *after = text, *last = text, *after_newline = NULL;
    unsigned size, class;
    while ((class = class_at(classes, after, end, &size)) == CHARACTER_SPACE || class == CHARACTER_NEWLINE) {
        last = after;
        after += size;
        if (class == CHARACTER_NEWLINE)
            after_newline = after;
    }
    if (after_newline != NULL)
        return after_newline;
    return after == end || last == text ? after : last;
}

size_t tokenizer_piece(const struct tokenizer *tokenizer, const char *text, size_t size) {
    const uint8_t *classes = tokenizer->classes;
    const uint8_t *begin = (const uint8_t *)text, *end = begin + size, *after;
    unsigned first_size, second_size;
    unsigned first = class_at(classes, begin, end, &first_size);
    if (*begin == '\'') {
        size_t length = contraction(begin, size);
        if (length != 0)
            return length;
    }
    unsigned second = class_at(classes, begin + first_size, end, &second_size);
    if (first == CHARACTER_LETTER)
        after = skip(classes, begin + first_size, end, CHARACTER_LETTER);
    else if (second == CHARACTER_LETTER && (first == CHARACTER_OTHER || first == CHARACTER_SPACE))
        after = skip(classes, begin + first_size + second_size, end, CHARACTER_LETTER);
    else if (first == CHARACTER_NUMBER)
        after = begin + first_size;
    else if (first == CHARACTER_OTHER || (*begin == ' ' && second == CHARACTER_OTHER))
        after =
            skip(classes, skip(classes, begin + first_size, end, CHARACTER_OTHER), end, CHARACTER_NEWLINE);
    else
        after = space_piece(classes, begin, end);
    return (size_t)(after - begin);
}
