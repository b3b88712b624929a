/* A tokenizer.json of the 256 byte tokens and a handful of merges, as a tree that a test can change. */
#ifndef CALLA_TESTS_SMALL_TOKENIZER_H
#define CALLA_TESTS_SMALL_TOKENIZER_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

#define SMALL_PATTERN                                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                              \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Ids 0 to 255 are the bytes, 256 to 262 he, ll, hell, hello, aa, aaaa, Ġh (a space and an h); the added
 * tokens follow: 263 <|im_start|>, 264 <|im_end|>, 265 <|im_end|>>. */
static inline json_t *small_tokenizer(void) {
    json_t *vocabulary = json_object();
    uint32_t other = 256;
    for (int byte = 0; byte < 256; byte++) {
        int printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        char key[5] = {0};
        utf8_write(printable ? (uint32_t)byte : other++, key);
        json_object_set_new(vocabulary, key, json_integer(byte));
    }
    static const char *const tokens[] = {"he", "ll", "hell", "hello", "aa", "aaaa", "\xc4\xa0h"};
    for (int i = 0; i < 7; i++)
        json_object_set_new(vocabulary, tokens[i], json_integer(256 + i));
    json_t *byte_level =
        json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", SMALL_PATTERN,
                              "behavior", "Isolated", "invert", 0);
    json_t *added = json_pack("[{s:i, s:s}, {s:i, s:s}, {s:i, s:s}]", "id", 263, "content", "<|im_start|>",
                              "id", 264, "content", "<|im_end|>", "id", 265, "content", "<|im_end|>>");
    return json_pack("{s:{s:s}, s:{s:s, s:[o, O]}, s:o, s:o, s:{s:s, s:o, s:[s, s, s, s, s, s, s]}}",
                     "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers", split,
                     byte_level, "decoder", byte_level, "added_tokens", added, "model", "type", "BPE",
                     "vocab", vocabulary, "merges", "h e", "l l", "he ll", "hell o", "a a", "aa aa",
                     "\xc4\xa0 h");
}

#endif
