#include "text/utf8.h"

struct utf8_character utf8_read(const char *bytes, size_t size) {
    struct utf8_character result = {UTF8_INVALID, 1, 0xfffd};
    unsigned char first = (unsigned char)bytes[0];
    if (first < 0x80)
        return (struct utf8_character){UTF8_VALID, 1, first};
    if (first < 0xc2 || first > 0xf4)
        return result;
    unsigned length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    /* The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF. */
    unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    uint32_t code = first & (0xffu >> (length + 1));
    for (unsigned i = 1; i < length; i++) {
        if (i == size) {
            result.kind = UTF8_INCOMPLETE;
            return result;
        }
        unsigned char next = (unsigned char)bytes[i];
        if (next < low || next > high)
            return result;
        code = code << 6 | (next & 0x3fu);
        result.size = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return (struct utf8_character){UTF8_VALID, length, code};
}

unsigned utf8_write(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    unsigned length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (unsigned i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)((0xf00u >> length & 0xf0) | code);
    return length;
}
