/* What the tokenizer's files share. An encoding runs through them in this order:
 *   tokenizer.c            cuts the added tokens out of the raw text; the text between them goes on
 *   tokenizer_normalize.c  mends UTF-8 and brings it to NFC, only where it is not so already
 *   tokenizer_split.c      cuts it into pieces (words, digits, runs of symbols and of white space)
 *   tokenizer_merge.c      turns each piece into tokens: bytes, merged pair by pair
 * tokenizer_vocabulary.c holds the tokens and merges, tokenizer_read.c fills it from the files. */
#ifndef CALLA_TEXT_TOKENIZER_INTERNAL_H
#define CALLA_TEXT_TOKENIZER_INTERNAL_H

#include "text/tokenizer.h"
#include "text/utf8.h"

/* What the split pattern takes a code point for. */
enum character_class {
    CHARACTER_OTHER, /* symbols, controls, unassigned */
    CHARACTER_LETTER,
    CHARACTER_NUMBER,
    CHARACTER_SPACE,   /* white space but CR and LF */
    CHARACTER_NEWLINE, /* CR, LF */
    CHARACTER_MARK,    /* only in the table: a tokenizer counts marks as letters or as other */
    CHARACTER_CLASS = 7,
    CHARACTER_UNSTABLE = 8 /* flag: NFC may change it or join it with what is before it */
};

#define CODE_POINTS 0x110000u

extern const uint32_t tokenizer_character_runs[];
extern const size_t tokenizer_character_run_count;

struct token {
    uint32_t begin, size; /* in the arena; begin is TOKEN_ABSENT for an id that no token has */
};
#define TOKEN_ABSENT UINT32_MAX

/* A slot of the open-addressing table of merges; left is -1 in an empty one. */
struct merge {
    int32_t left, right, result;
    uint32_t rank;
};

struct added_token {
    int32_t id;
    uint32_t begin, size; /* in the arena */
};

struct tokenizer {
    uint8_t *classes; /* [CODE_POINTS]: class and flag */
    bool normalize;   /* to NFC */
    struct buffer arena;
    struct token *tokens; /* [count] */
    uint32_t count;
    int32_t byte_ids[256];
    struct merge *merges; /* [merge_mask + 1] */
    uint32_t merge_mask;
    struct added_token *added; /* by first byte, then longest first */
    uint32_t added_count;
    uint32_t added_from[257]; /* those that start with byte b: [added_from[b], added_from[b + 1]) */
};

/* --- tokenizer_vocabulary.c --- */

struct vocabulary_slot {
    uint32_t hash;
    int32_t id; /* -1: empty */
};

/* Filling a tokenizer; `name` says in errors where the data is from. */
struct vocabulary {
    struct tokenizer *tokenizer;
    const char *name;
    struct vocabulary_slot *slots; /* open addressing: the base tokens by their bytes */
    uint32_t slot_mask;
    struct buffer scratch;
};

#define TOKENIZER_ID_LIMIT (1u << 20)
#define TOKENIZER_ADDED_LIMIT 4096u

/* Makes the empty tokenizer, with room for `tokens` base tokens and `merges` merges. */
bool vocabulary_start(struct vocabulary *vocabulary, const char *name, size_t tokens, size_t merges,
                      struct calla_error *error);
/* A base token, written in the byte alphabet of GPT-2 (one that leaves it stands for itself and never
 * merges). */
bool vocabulary_add(struct vocabulary *vocabulary, const char *text, size_t size, int64_t id,
                    struct calla_error *error);
/* The merge number `rank` of two base tokens in that alphabet; a pair's later rank replaces its earlier. */
bool vocabulary_merge(struct vocabulary *vocabulary, const char *left, size_t left_size, const char *right,
                      size_t right_size, uint32_t rank, struct calla_error *error);
/* An added token, written as itself. Nothing happens when it is there already under the same id. */
bool vocabulary_add_special(struct vocabulary *vocabulary, const char *text, size_t size, int64_t id,
                            struct calla_error *error);
/* Checks that every byte has a token and hands the tokenizer over; NULL on failure. */
struct tokenizer *vocabulary_finish(struct vocabulary *vocabulary, struct calla_error *error);
void vocabulary_free(struct vocabulary *vocabulary);

static inline uint32_t merge_slot(int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 40);
}

/* The merge of two tokens, or NULL. */
static inline const struct merge *merge_find(const struct tokenizer *tokenizer, int32_t left, int32_t right) {
    for (uint32_t i = merge_slot(left, right);; i++) {
        const struct merge *merge = &tokenizer->merges[i & tokenizer->merge_mask];
        if (merge->left == left && merge->right == right)
            return merge;
        if (merge->left < 0)
            return NULL;
    }
}

/* --- tokenizer_split.c --- */

/* Whether a split pattern is one that tokenizer_piece follows, and if so whether it lets marks join letters.
 */
bool tokenizer_pattern(const char *pattern, size_t size, bool *marks_are_letters);
/* Allocates and fills the table of classes; false when memory is short. */
bool tokenizer_classes(struct tokenizer *tokenizer, bool marks_are_letters);
/* Bytes of the first piece of valid UTF-8 text, size > 0. */
size_t tokenizer_piece(const struct tokenizer *tokenizer, const char *text, size_t size);

/* --- tokenizer_normalize.c --- */

/* Whether the text is valid UTF-8 that normalising leaves alone. */
bool tokenizer_is_normal(const struct tokenizer *tokenizer, const char *text, size_t size);
/* Appends the text with broken UTF-8 replaced by U+FFFD, in NFC if the tokenizer asks for it. */
bool tokenizer_normalize(const struct tokenizer *tokenizer, const char *text, size_t size,
                         struct buffer *out);

/* --- tokenizer_merge.c --- */

/* The working memory of one encoding. */
struct encoder {
    const struct tokenizer *tokenizer;
    int32_t *ids;
    size_t count, capacity;
    struct merge_symbol *symbols;
    uint64_t *queue;
    size_t piece_capacity;
    struct piece_memory *memory; /* pieces seen in this encoding, [memory_mask + 1], or NULL */
    uint32_t memory_mask;
};

/* An encoding of about `size` bytes. */
bool encoder_start(struct encoder *encoder, const struct tokenizer *tokenizer, size_t size);
void encoder_free(struct encoder *encoder);
bool encoder_push(struct encoder *encoder, int32_t id);
/* Appends the tokens of one piece. */
bool encoder_piece(struct encoder *encoder, const char *text, size_t size);

#endif
