/* The reference: one plain-C function for each op, the specification of every other backend.
 *
 * An op's work is a number of *units*, results that do not depend on each other (an output row of a matrix, a
 * head, a token), and a function computes the units [begin, end). A unit is computed in the same way whoever
 * runs it and whatever T is, so the bits depend neither on the threads nor on the chunk that a token came in.
 */
#ifndef CALLA_BACKEND_REFERENCE_H
#define CALLA_BACKEND_REFERENCE_H

#include <math.h>

#include "backend/host.h"

struct reference_op {
    size_t (*units)(const struct bound_op *op);
    /* `workspace`: `workspace_bytes` of memory of the caller's own, for intermediate values. */
    void (*run)(const struct bound_op *op, size_t begin, size_t end, void *workspace);
    size_t (*workspace_bytes)(const struct bound_op *op); /* NULL: needs none */
};

extern const struct reference_op reference_ops[OP_KIND_COUNT];

size_t reference_workspace_bytes(const struct bound_op *op);

/* sum_i a[i] b[i] with 16 partial sums (i mod 16) that are added in pairs at the end: one order, which
 * compilers can vectorise. */
float dot(const float *a, const float *b, size_t count);

/* Row `row` of a weight as float32. Affine: scale * code + offset with the scale and offset of the element's
 * group of 64 columns. */
void matrix_row(const struct view *matrix, size_t row, float *out);

/* Neighbouring rows of a weight are worked on in blocks, so that an input is read once for all of them. The
 * values are those of matrix_row and dot, bit for bit. `rows` and `out` are [row_count, count] in memory. */
#define BLOCK_ROWS 4
void matrix_block(const struct view *matrix, size_t first, size_t row_count, float *out);
void dot_block(const float *rows, size_t row_count, const float *x, size_t count, float *out);

static inline size_t block_rows(size_t left) {
    return left < BLOCK_ROWS ? left : BLOCK_ROWS;
}

/* Element `index` of a vector of weights. */
static inline float vector_at(const struct view *vector, size_t index) {
    return float_load(vector->bytes, vector->dtype, index);
}

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static inline float silu(float x) {
    return x / (1.0f + expf(-x));
}

/* 1 / sqrt(mean(x^2) + epsilon) */
static inline float rms_scale(const float *x, size_t count, float epsilon) {
    return 1.0f / sqrtf(dot(x, x, count) / (float)count + epsilon);
}

/* linear.c */
void reference_embed(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_linear(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_head(const struct bound_op *op, size_t begin, size_t end, void *workspace);
/* norm.c */
void reference_rms_norm(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_gated_norm(const struct bound_op *op, size_t begin, size_t end, void *workspace);
/* One row of it: y = x rms_scale(x) weight silu(z); y may be x. */
void gated_norm_row(const float *x, const float *z, const struct view *weight, float epsilon, float *y);
/* What an op's products multiply: x or, where it normalises, rms_norm of its rows, computed into `rows`,
 * which is as large as x. */
struct view product_input(const struct bound_op *op, float *rows);
/* delta.c */
void reference_conv_silu(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_delta_gates(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_delta_scan(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_delta_tail(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_delta_step(const struct bound_op *op, size_t begin, size_t end, void *workspace);
/* attention.c */
void reference_rope(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_kv_write(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_qk_prep(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_attention(const struct bound_op *op, size_t begin, size_t end, void *workspace);
/* experts.c */
void reference_router(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_expert_sort(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_expert_linear(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_swiglu(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_expert_combine(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_expert_gate_up(const struct bound_op *op, size_t begin, size_t end, void *workspace);
void reference_expert_down(const struct bound_op *op, size_t begin, size_t end, void *workspace);
/* route.c: the choice of one row of logits[E], which become probabilities: ids[K] and scores[K]. */
void route_row(float *logits, size_t experts, size_t chosen, int32_t *ids, float *scores);
/* sample.c */
void reference_sample(const struct bound_op *op, size_t begin, size_t end, void *workspace);

#endif
