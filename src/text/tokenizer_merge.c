/* Byte-pair encoding of one piece. It starts as one token a byte; then, again and again, the neighbours whose
 * merge has the lowest rank, the leftmost of equals, become one token. Symbols form a linked list, and a heap
 * orders the possible merges by rank and place, so that a piece of n bytes takes O(n log n). A heap entry
 * whose place has since changed no longer carries that place's rank, and is dropped when it comes up.
 *
 * Text repeats itself, so an encoding remembers where it put the tokens of short pieces it has seen. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

#define NO_MERGE UINT32_MAX
#define NOWHERE UINT32_MAX

struct merge_symbol {
    int32_t id, result;      /* the token, and what it and the next one merge to */
    uint32_t rank;           /* of that merge; NO_MERGE if there is none, or this symbol is gone */
    uint32_t previous, next; /* places, or NOWHERE */
};

#define REMEMBERED_SIZE 24

struct piece_memory {
    char bytes[REMEMBERED_SIZE]; /* zero-padded */
    uint32_t at;                 /* where its ids begin */
    uint8_t size, count;         /* size 0: empty */
};

bool encoder_start(struct encoder *encoder, const struct tokenizer *tokenizer, size_t size) {
    memset(encoder, 0, sizeof *encoder);
    encoder->tokenizer = tokenizer;
    if (size < 1024)
        return true; /* too short to repeat itself much */
    uint32_t pieces = 64;
    while (pieces < size / 32 && pieces < 16384)
        pieces *= 2;
    encoder->memory = calloc(pieces, sizeof *encoder->memory);
    encoder->memory_mask = pieces - 1;
    return encoder->memory != NULL;
}

void encoder_free(struct encoder *encoder) {
    free(encoder->ids);
    free(encoder->symbols);
    free(encoder->queue);
    free(encoder->memory);
    memset(encoder, 0, sizeof *encoder);
}

static bool reserve_ids(struct encoder *encoder, size_t more) {
    if (encoder->capacity - encoder->count >= more)
        return true;
    size_t capacity = encoder->count + more + encoder->capacity / 2 + 64;
    int32_t *ids = realloc(encoder->ids, capacity * sizeof *ids);
    if (ids == NULL)
        return false;
    encoder->ids = ids;
    encoder->capacity = capacity;
    return true;
}

bool encoder_push(struct encoder *encoder, int32_t id) {
    if (!reserve_ids(encoder, 1))
        return false;
    encoder->ids[encoder->count++] = id;
    return true;
}

static bool reserve_piece(struct encoder *encoder, size_t size) {
    if (size <= encoder->piece_capacity)
        return true;
    size_t capacity = size * 2 < 64 ? 64 : size * 2;
    free(encoder->symbols);
    free(encoder->queue);
    encoder->piece_capacity = 0;
    encoder->symbols = calloc(capacity, sizeof *encoder->symbols);
    /* At most size - 1 merges are queued at first, and two more by each that is done. */
    encoder->queue = malloc(3 * capacity * sizeof *encoder->queue);
    if (encoder->symbols == NULL || encoder->queue == NULL)
        return false;
    encoder->piece_capacity = capacity;
    return true;
}

/* A heap of rank << 32 | place, the smallest on top. */

static void queue_push(uint64_t *queue, size_t *count, uint64_t entry) {
    size_t i = (*count)++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (queue[parent] <= entry)
            break;
        queue[i] = queue[parent];
        i = parent;
    }
    queue[i] = entry;
}

static uint64_t queue_pop(uint64_t *queue, size_t *count) {
    uint64_t top = queue[0], moved = queue[--*count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *count) {
        if (child + 1 < *count && queue[child + 1] < queue[child])
            child++;
        if (queue[child] >= moved)
            break;
        queue[i] = queue[child];
        i = child;
    }
    queue[i] = moved;
    return top;
}

/* Looks up what the symbol at `place` and the next one merge to, and queues it. */
static void propose(struct encoder *encoder, uint32_t place, size_t *queued) {
    struct merge_symbol *symbol = &encoder->symbols[place];
    symbol->rank = NO_MERGE;
    if (symbol->next == NOWHERE)
        return;
    const struct merge *merge = merge_find(encoder->tokenizer, symbol->id, encoder->symbols[symbol->next].id);
    if (merge == NULL)
        return;
    symbol->rank = merge->rank;
    symbol->result = merge->result;
    queue_push(encoder->queue, queued, (uint64_t)merge->rank << 32 | place);
}

static void merge_piece(struct encoder *encoder, const char *text, uint32_t size) {
    struct merge_symbol *symbols = encoder->symbols;
    size_t queued = 0;
    for (uint32_t i = 0; i < size; i++) {
        symbols[i].id = encoder->tokenizer->byte_ids[(unsigned char)text[i]];
        symbols[i].previous = i == 0 ? NOWHERE : i - 1;
        symbols[i].next = i + 1 == size ? NOWHERE : i + 1;
    }
    for (uint32_t i = 0; i < size; i++)
        propose(encoder, i, &queued);
    while (queued > 0) {
        uint64_t entry = queue_pop(encoder->queue, &queued);
        uint32_t place = (uint32_t)entry;
        struct merge_symbol *symbol = &symbols[place];
        if (symbol->rank != (uint32_t)(entry >> 32))
            continue;
        struct merge_symbol *absorbed = &symbols[symbol->next];
        absorbed->rank = NO_MERGE;
        symbol->id = symbol->result;
        symbol->next = absorbed->next;
        if (symbol->next != NOWHERE)
            symbols[symbol->next].previous = place;
        propose(encoder, place, &queued);
        if (symbol->previous != NOWHERE)
            propose(encoder, symbol->previous, &queued);
    }
    for (uint32_t i = 0; i != NOWHERE; i = symbols[i].next)
        encoder->ids[encoder->count++] = symbols[i].id;
}

/* The place in memory for a short piece; `padded` becomes its bytes. */
static struct piece_memory *recall(const struct encoder *encoder, const char *text, size_t size,
                                   uint64_t padded[3]) {
    padded[0] = padded[1] = padded[2] = 0;
    memcpy(padded, text, size);
    uint64_t hash = (padded[0] ^ size) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 32 ^ padded[1]) * UINT64_C(0xd6e8feb86659fd93);
    hash = (hash ^ hash >> 32 ^ padded[2]) * UINT64_C(0x9e3779b97f4a7c15);
    return &encoder->memory[hash >> 40 & encoder->memory_mask];
}

bool encoder_piece(struct encoder *encoder, const char *text, size_t size) {
    if (size == 1)
        return encoder_push(encoder, encoder->tokenizer->byte_ids[(unsigned char)text[0]]);
    /* A piece has at most as many tokens as bytes. Places are 32 bits. */
    if (size >= NOWHERE || !reserve_ids(encoder, size))
        return false;
    struct piece_memory *memory = NULL;
    uint64_t padded[3];
    if (encoder->memory != NULL && size <= REMEMBERED_SIZE) {
        memory = recall(encoder, text, size, padded);
        if (memory->size == size && memcmp(memory->bytes, padded, sizeof padded) == 0) {
            for (unsigned i = 0; i < memory->count; i++)
                encoder->ids[encoder->count++] = encoder->ids[memory->at + i];
            return true;
        }
    }
    size_t begin = encoder->count;
    if (!reserve_piece(encoder, size))
        return false;
    merge_piece(encoder, text, (uint32_t)size);
    if (memory != NULL && begin <= UINT32_MAX) {
        memcpy(memory->bytes, padded, sizeof padded);
        memory->at = (uint32_t)begin;
        memory->size = (uint8_t)size;
        memory->count = (uint8_t)(encoder->count - begin);
    }
    return true;
}
