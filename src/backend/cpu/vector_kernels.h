/* The kernels that are not matrix products, once for each instruction set: the same source, compiled for
 * vectors of another width. */
#ifndef CALLA_BACKEND_CPU_VECTOR_KERNELS_H
#define CALLA_BACKEND_CPU_VECTOR_KERNELS_H

#include <stdbool.h>

#include "plan/op.h"

/* Rows of the state of one value head, and what a chunk of tokens brings them: see kernels/vector_delta.h. */
struct delta_rows {
    float *state;              /* [rows, keys] */
    const float *q, *k;        /* of the head, of the first token; strides in floats from token to token */
    const float *v;            /* the rows' elements */
    const float *decay, *beta; /* the head's */
    float *y;                  /* the rows' elements */
    size_t q_stride, k_stride, v_stride, decay_stride, beta_stride, y_stride;
    size_t tokens, rows, keys;
};

/* What is known of logits after the first pass over some of them. */
struct logit_summary {
    float largest;
    uint32_t count; /* above -infinity */
    bool broken;    /* one is NaN or +infinity */
};

/* Pointers to floats need no more alignment than a float, and counts may be anything, unless it is said. An
 * element's value does not depend on the count, nor on where in a vector it comes to lie. */
struct vector_kernels {
    /* y[count] = silu(gate) * up; y may be gate or up */
    void (*swiglu)(const float *gate, const float *up, float *y, size_t count);
    /* y[count] = x / sqrt(mean(x^2) + epsilon) * weight; y may be x */
    void (*rms_norm)(const float *x, const float *weight, float epsilon, float *y, size_t count);
    /* rms_norm(x) * silu(z); y may be x */
    void (*gated_norm)(const float *x, const float *z, const float *weight, float epsilon, float *y,
                       size_t count);
    /* x[count] = x / sqrt(sum(x^2) + epsilon) * factor */
    void (*unit_norm)(float *x, float epsilon, float factor, size_t count);
    /* out[4][count] from taps[count][4] in bfloat16, which may lie unaligned */
    void (*conv_four_taps)(const unsigned char *taps, size_t count, float *out);
    /* y[count] = silu(sum over j < width of taps[j][count] * inputs[j][count]) */
    void (*conv_silu)(const float *const *inputs, const float *taps, size_t width, float *y, size_t count);
    /* decay[count] = exp(-exp(A_log) softplus(a + dt_bias)); beta[count] = sigmoid(b) */
    void (*delta_gates)(const float *a, const float *b, const float *A_log, const float *dt_bias,
                        float *decay, float *beta, size_t count);
    void (*delta_scan)(const struct delta_rows *rows);
    /* y[count] += sum over k < chosen of scores[k] routed[k * stride ..], + scores[chosen] shared */
    void (*expert_combine)(const float *routed, size_t stride, const float *shared, const float *scores,
                           size_t chosen, float *y, size_t count);
    /* out[count] = the logits after penalties and bias, as the reference's; out may be NULL */
    struct logit_summary (*adjust_logits)(const float *logits, const float *bias, const int32_t *counts,
                                          const struct step_record *record, float *out, size_t count);
    /* sum of exp((logits - largest) / temperature) */
    float (*sum_weights)(const float *logits, float largest, float temperature, size_t count);
};

/* Of those that this program was built for; kernels.c says which. */
extern const struct vector_kernels portable_vector_kernels, avx2_vector_kernels, avx512_vector_kernels;

#endif
