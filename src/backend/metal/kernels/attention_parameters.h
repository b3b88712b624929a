/* What the kernels of the attention layers are told: for C and for Metal. Strides are in elements. */
#ifndef CALLA_BACKEND_METAL_KERNELS_ATTENTION_PARAMETERS_H
#define CALLA_BACKEND_METAL_KERNELS_ATTENTION_PARAMETERS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* Less than any score; not infinite, since fast functions need not know infinity. */
#define ATTENTION_LEAST (-1e30f)

struct rope_parameters {
    uint32_t rows, heads, half_size /* pairs that turn */, stride;
};

struct kv_write_parameters {
    uint32_t rows, columns, k_stride, v_stride, cache_rows, key_stride, value_stride;
};

struct qk_prep_parameters {
    uint32_t rows, heads, kv_heads, head_size, half_size;
    uint32_t q_stride, k_stride, v_stride, y_stride, cache_rows, key_stride, value_stride;
    float epsilon;
};

struct attention_parameters {
    uint32_t rows; /* T */
    uint32_t heads, kv_heads, head_size;
    uint32_t q_stride, gate_stride, y_stride; /* of rows t * heads + head */
    uint32_t cache_rows, key_stride, value_stride;
    uint32_t first_row, end_row; /* of T: what this launch is for */
    uint32_t parts;              /* that the positions are dealt to */
    uint32_t block;              /* positions of a part, 0: the positions are dealt evenly */
    float scale;                 /* head_size^-0.5 */
};

#endif
