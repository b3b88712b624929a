/* The tokens and merges of a tokenizer: bytes in one arena, lookups by open addressing. While it is filled, a
 * second table finds base tokens by their bytes; an encoding does not need it, since it starts from bytes and
 * then only asks what a pair of ids merges to. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* The byte that a character of GPT-2's alphabet stands for, or -1. Printable Latin-1 characters stand for
 * themselves, and the 68 other bytes in turn for U+0100, U+0101, ... */
static int alphabet_byte(uint32_t code) {
    if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || (code >= 0xae && code <= 0xff))
        return (int)code;
    if (code < 0x100 || code > 0x143)
        return -1;
    uint32_t index = code - 0x100;
    if (index <= 0x20)
        return (int)index;
    return index <= 0x42 ? (int)(index - 0x21 + 0x7f) : 0xad;
}

/* Appends the bytes of a token written in the alphabet; false if it leaves the alphabet or memory is short.
 */
static bool alphabet_decode(const char *text, size_t size, struct buffer *bytes) {
    if (!buffer_reserve(bytes, size))
        return false;
    char *out = bytes->data + bytes->size;
    for (size_t i = 0; i < size; i++) {
        unsigned char first = (unsigned char)text[i];
        uint32_t code = first;
        /* The whole alphabet takes two bytes a character at most. */
        if (first >= 0x80) {
            if (first < 0xc2 || first > 0xdf || i + 1 == size || ((unsigned char)text[i + 1] & 0xc0) != 0x80)
                return false;
            code = (first & 0x1fu) << 6 | ((unsigned char)text[++i] & 0x3fu);
        }
        int byte = alphabet_byte(code);
        if (byte < 0)
            return false;
        *out++ = (char)byte;
    }
    *out = 0;
    bytes->size = (size_t)(out - bytes->data);
    return true;
}

/* How much of a text an error shows: whole characters, 80 bytes at most. */
static int shown(const char *text, size_t size) {
    if (size <= 80)
        return (int)size;
    size = 80;
    while (size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80)
        size--;
    return (int)size;
}

static uint32_t hash_bytes(const char *bytes, size_t size) {
    uint64_t hash = size;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

/* Room for twice the entries, so that a probe soon meets an empty slot. */
static uint32_t table_size(size_t entries) {
    uint32_t size = 16;
    while (size / 2 <= entries)
        size *= 2;
    return size;
}

/* The slot of the base token with these bytes, or the empty one where it would go. Slots carry the hash, so
 * that a token's bytes are only looked at when they are very likely the ones. */
static struct vocabulary_slot *base_slot(const struct vocabulary *vocabulary, const char *bytes, size_t size,
                                         uint32_t hash) {
    const struct tokenizer *tokenizer = vocabulary->tokenizer;
    for (uint32_t i = hash;; i++) {
        struct vocabulary_slot *slot = &vocabulary->slots[i & vocabulary->slot_mask];
        if (slot->id < 0)
            return slot;
        if (slot->hash != hash)
            continue;
        const struct token *token = &tokenizer->tokens[slot->id];
        if (token->size == size && memcmp(tokenizer->arena.data + token->begin, bytes, size) == 0)
            return slot;
    }
}

static int32_t base_id(const struct vocabulary *vocabulary, const char *bytes, size_t size) {
    return base_slot(vocabulary, bytes, size, hash_bytes(bytes, size))->id;
}

bool vocabulary_start(struct vocabulary *vocabulary, const char *name, size_t tokens, size_t merges,
                      struct calla_error *error) {
    memset(vocabulary, 0, sizeof *vocabulary);
    vocabulary->name = name;
    if (tokens > TOKENIZER_ID_LIMIT || merges > TOKENIZER_ID_LIMIT)
        return error_set(error, CALLA_UNSUPPORTED,
                         "%s has %zu tokens and %zu merges; at most %u of each are supported.", name, tokens,
                         merges, TOKENIZER_ID_LIMIT);
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL)
        return error_memory(error, "the tokenizer", sizeof *tokenizer);
    vocabulary->tokenizer = tokenizer;
    for (unsigned i = 0; i < 256; i++)
        tokenizer->byte_ids[i] = -1;
    uint32_t slots = table_size(tokens), merge_slots = table_size(merges);
    vocabulary->slot_mask = slots - 1;
    vocabulary->slots = malloc(slots * sizeof *vocabulary->slots);
    tokenizer->merge_mask = merge_slots - 1;
    tokenizer->merges = malloc(merge_slots * sizeof *tokenizer->merges);
    if (vocabulary->slots == NULL || tokenizer->merges == NULL)
        return error_memory(error, "the tokenizer's tables", merge_slots * sizeof *tokenizer->merges);
    for (uint32_t i = 0; i < merge_slots; i++)
        tokenizer->merges[i].left = -1;
    for (uint32_t i = 0; i < slots; i++)
        vocabulary->slots[i].id = -1;
    return true;
}

/* Stores bytes under an id that must be free; `text` is how the file writes the token. */
static bool place(struct vocabulary *vocabulary, const char *bytes, size_t size, int64_t id, const char *text,
                  size_t text_size, struct calla_error *error) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    if (id < 0 || id >= TOKENIZER_ID_LIMIT)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s gives the token \"%.*s\" the id %lld; ids from 0 to %u are supported.",
                         vocabulary->name, shown(text, text_size), text, (long long)id,
                         TOKENIZER_ID_LIMIT - 1);
    if (id >= tokenizer->count) {
        uint32_t count = (uint32_t)id + 1;
        /* The last id sets the count; allocating by powers of two makes growing cheap. */
        uint32_t held = tokenizer->count == 0 ? 0 : table_size(tokenizer->count);
        uint32_t wanted = table_size(count);
        if (wanted != held) {
            struct token *tokens = realloc(tokenizer->tokens, wanted * sizeof *tokens);
            if (tokens == NULL)
                return error_memory(error, "the vocabulary", wanted * sizeof *tokens);
            tokenizer->tokens = tokens;
        }
        for (uint32_t i = tokenizer->count; i < count; i++)
            tokenizer->tokens[i] = (struct token){TOKEN_ABSENT, 0};
        tokenizer->count = count;
    }
    struct token *token = &tokenizer->tokens[id];
    if (token->begin != TOKEN_ABSENT)
        return error_set(error, CALLA_BAD_INPUT, "%s gives the id %lld to \"%.*s\" and to another token.",
                         vocabulary->name, (long long)id, shown(text, text_size), text);
    size_t begin = tokenizer->arena.size;
    if (begin + size >= UINT32_MAX || !buffer_append(&tokenizer->arena, bytes, size))
        return error_memory(error, "the vocabulary", begin + size);
    *token = (struct token){(uint32_t)begin, (uint32_t)size};
    return true;
}

bool vocabulary_add(struct vocabulary *vocabulary, const char *text, size_t size, int64_t id,
                    struct calla_error *error) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    buffer_clear(&vocabulary->scratch);
    bool in_alphabet = alphabet_decode(text, size, &vocabulary->scratch);
    if (vocabulary->scratch.failed)
        return error_memory(error, "a token", size);
    if (!in_alphabet || size == 0)
        return place(vocabulary, text, size, id, text, size, error);
    const char *bytes = vocabulary->scratch.data;
    size_t byte_count = vocabulary->scratch.size;
    uint32_t hash = hash_bytes(bytes, byte_count);
    struct vocabulary_slot *slot = base_slot(vocabulary, bytes, byte_count, hash);
    if (slot->id >= 0)
        return error_set(error, CALLA_BAD_INPUT, "%s has the token \"%.*s\" twice.", vocabulary->name,
                         shown(text, size), text);
    if (!place(vocabulary, bytes, byte_count, id, text, size, error))
        return false;
    *slot = (struct vocabulary_slot){hash, (int32_t)id};
    if (byte_count == 1)
        tokenizer->byte_ids[(unsigned char)bytes[0]] = (int32_t)id;
    return true;
}

bool vocabulary_merge(struct vocabulary *vocabulary, const char *left, size_t left_size, const char *right,
                      size_t right_size, uint32_t rank, struct calla_error *error) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    struct buffer *scratch = &vocabulary->scratch;
    buffer_clear(scratch);
    bool known = left_size > 0 && right_size > 0 && alphabet_decode(left, left_size, scratch);
    size_t middle = scratch->size;
    known = known && alphabet_decode(right, right_size, scratch);
    if (scratch->failed)
        return error_memory(error, "a merge", left_size + right_size);
    int32_t left_id = -1, right_id = -1, result = -1;
    if (known) {
        left_id = base_id(vocabulary, scratch->data, middle);
        right_id = base_id(vocabulary, scratch->data + middle, scratch->size - middle);
        result = base_id(vocabulary, scratch->data, scratch->size);
    }
    if (left_id < 0 || right_id < 0 || result < 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: merge %u (\"%.*s\" with \"%.*s\") names or makes a token that is not in the "
                         "vocabulary.",
                         vocabulary->name, rank, shown(left, left_size), left, shown(right, right_size),
                         right);
    uint32_t i = merge_slot(left_id, right_id) & tokenizer->merge_mask;
    while (tokenizer->merges[i].left >= 0 &&
           (tokenizer->merges[i].left != left_id || tokenizer->merges[i].right != right_id))
        i = (i + 1) & tokenizer->merge_mask;
    tokenizer->merges[i] = (struct merge){left_id, right_id, result, rank};
    return true;
}

bool vocabulary_add_special(struct vocabulary *vocabulary, const char *text, size_t size, int64_t id,
                            struct calla_error *error) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    if (size == 0)
        return error_set(error, CALLA_BAD_INPUT, "%s has an added token without text (id %lld).",
                         vocabulary->name, (long long)id);
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        const struct added_token *added = &tokenizer->added[i];
        if (added->size != size || memcmp(tokenizer->arena.data + added->begin, text, size) != 0)
            continue;
        if (added->id == id)
            return true;
        return error_set(error, CALLA_BAD_INPUT,
                         "%s gives the added token \"%.*s\" the id %lld, but it is %d.", vocabulary->name,
                         shown(text, size), text, (long long)id, added->id);
    }
    if (tokenizer->added_count == TOKENIZER_ADDED_LIMIT)
        return error_set(error, CALLA_UNSUPPORTED, "%s has more than %u added tokens.", vocabulary->name,
                         TOKENIZER_ADDED_LIMIT);
    /* The vocabulary may list an added token as well; it must then be the same one. */
    bool listed = false;
    if (id >= 0 && id < tokenizer->count && tokenizer->tokens[id].begin != TOKEN_ABSENT) {
        const struct token *token = &tokenizer->tokens[id];
        listed = token->size == size && memcmp(tokenizer->arena.data + token->begin, text, size) == 0;
    }
    if (!listed && !place(vocabulary, text, size, id, text, size, error))
        return false;
    int32_t base = base_id(vocabulary, text, size);
    if (base >= 0 && base != id)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s gives the added token \"%.*s\" the id %lld, but the vocabulary has it as %d.",
                         vocabulary->name, shown(text, size), text, (long long)id, base);
    struct added_token *added =
        realloc(tokenizer->added, (tokenizer->added_count + 1) * sizeof *tokenizer->added);
    if (added == NULL)
        return error_memory(error, "the added tokens", (tokenizer->added_count + 1) * sizeof *added);
    tokenizer->added = added;
    const struct token *token = &tokenizer->tokens[id];
    added[tokenizer->added_count++] = (struct added_token){(int32_t)id, token->begin, token->size};
    return true;
}

/* Sorts the added tokens by first byte, and within it the longest first, by insertion: they are few. */
static void index_added(struct tokenizer *tokenizer) {
    const char *arena = tokenizer->arena.data;
    struct added_token *added = tokenizer->added;
    for (uint32_t i = 1; i < tokenizer->added_count; i++) {
        struct added_token moved = added[i];
        unsigned char first = (unsigned char)arena[moved.begin];
        uint32_t j = i;
        for (; j > 0; j--) {
            unsigned char other = (unsigned char)arena[added[j - 1].begin];
            if (other < first || (other == first && added[j - 1].size >= moved.size))
                break;
            added[j] = added[j - 1];
        }
        added[j] = moved;
    }
    uint32_t next = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        tokenizer->added_from[byte] = next;
        while (next < tokenizer->added_count && (unsigned char)arena[added[next].begin] == byte)
            next++;
    }
    tokenizer->added_from[256] = next;
}

struct tokenizer *vocabulary_finish(struct vocabulary *vocabulary, struct calla_error *error) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    for (unsigned byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] < 0) {
            error_set(error, CALLA_BAD_INPUT,
                      "%s has no token for the byte 0x%02x; a byte-level vocabulary has all 256.",
                      vocabulary->name, byte);
            return NULL;
        }
    index_added(tokenizer);
    /* Growing left room to spare; keeping the larger block is no failure. */
    struct token *tokens = realloc(tokenizer->tokens, tokenizer->count * sizeof *tokens);
    if (tokens != NULL)
        tokenizer->tokens = tokens;
    vocabulary->tokenizer = NULL;
    return tokenizer;
}

void vocabulary_free(struct vocabulary *vocabulary) {
    tokenizer_close(vocabulary->tokenizer);
    free(vocabulary->slots);
    buffer_free(&vocabulary->scratch);
    memset(vocabulary, 0, sizeof *vocabulary);
}
