/* Attention over the KV cache and what goes with it, once for each instruction set: the same source, compiled
 * for vectors of another width.
 *
 * Positions are taken in blocks of 64 and spans of 512, counted from position 0. Within a span a row keeps
 * the largest score so far, the sum of its weights exp(score - largest) and their sum with the values (an
 * "online softmax"), block by block; the spans' partial results are then combined in rising order. So a row's
 * bits depend neither on the rows beside it nor on who computes which span. A NaN or an infinity in the key
 * or the value of a position reaches only the rows that see that position. */
#ifndef CALLA_BACKEND_CPU_ATTENTION_KERNELS_H
#define CALLA_BACKEND_CPU_ATTENTION_KERNELS_H

#include "backend/host.h"

#define ATTENTION_BLOCK 64
#define ATTENTION_SPAN 512

/* Neighbouring rows of queries: `tokens` of them, each with the `group` heads of one KV head, or those of
 * `kv_heads` neighbouring ones. Head h of the i-th KV head of token t is row + t * heads + i * group + h of
 * q, gate and y. */
struct attention_rows {
    const struct view *q, *gate, *keys, *values, *y;
    size_t row, heads; /* first row; rows from token to token */
    size_t tokens, kv_heads, group;
    size_t position;     /* of the first token */
    size_t column, size; /* of the first KV head in the cache: first column, and D */
};

/* What a span gives a row: largest score, sum of weights, and weights times values [size] in an order of the
 * kernels' own. */
#define PARTIAL_LARGEST 0
#define PARTIAL_TOTAL 1
#define PARTIAL_VALUES 16

/* Floats from the partial result of one row to the next. */
static inline size_t attention_partial_floats(size_t size) {
    return PARTIAL_VALUES + (size + 31) / 32 * 32;
}

struct attention_kernels {
    /* Of attend and attend_span, for tokens * group = `rows` rows of D = size. */
    size_t (*workspace_bytes)(size_t rows, size_t size, size_t kv_heads);
    /* y of the rows. `workspace` is 64-byte aligned. */
    void (*attend)(const struct attention_rows *rows, void *workspace);
    /* The partial results of the rows of one token over the positions from `begin` to before `end` of one
     * span, one after the other. */
    void (*attend_span)(const struct attention_rows *rows, size_t begin, size_t end, float *partial,
                        void *workspace);
    /* y[size] of a row from its partial results over `spans` spans, `stride` floats apart, and its gate. */
    void (*combine)(const float *partial, size_t stride, size_t spans, size_t size, const float *gate,
                    float *y, void *workspace);

    /* Turns the pairs (x[j], x[j + half]), j < half: by the angles of these cosines and sines. */
    void (*rotate)(float *x, const float *cosines, const float *sines, size_t half);
    /* bfloat16, rounded to nearest even. */
    void (*store_bf16)(const float *x, size_t count, uint16_t *out);
};

/* Of those that this program was built for; kernels.c says which. */
extern const struct attention_kernels portable_attention_kernels, avx2_attention_kernels,
    avx512_attention_kernels;

#endif
