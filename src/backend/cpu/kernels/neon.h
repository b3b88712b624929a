/* What the kernels of 64-bit ARM share: the parts that need no more than ARMv8.0. */
#ifndef CALLA_BACKEND_CPU_KERNELS_NEON_H
#define CALLA_BACKEND_CPU_KERNELS_NEON_H

#define VECTOR_ROWS 4
#include "backend/cpu/kernels/panel.h"

#include <arm_neon.h>

typedef float32x4_t float_lanes;
typedef int32x4_t int_lanes;
typedef uint32x4_t word_lanes;

INLINE void store_lanes(float *to, float32x4_t values) {
    vst1q_f32(to, values);
}

INLINE float32x4_t load_lanes(const float *from) {
    return vld1q_f32(from);
}

/* v[row] of 4 words -> v[word] of 4 rows */
INLINE void transpose(uint32x4_t v[4]) {
    uint64x2_t pairs[4];
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = vreinterpretq_u64_u32(vtrn1q_u32(v[i], v[i + 1]));
        pairs[i + 1] = vreinterpretq_u64_u32(vtrn2q_u32(v[i], v[i + 1]));
    }
    for (int i = 0; i < 2; i++) {
        v[i] = vreinterpretq_u32_u64(vtrn1q_u64(pairs[i], pairs[i + 2]));
        v[i + 2] = vreinterpretq_u32_u64(vtrn2q_u64(pairs[i], pairs[i + 2]));
    }
}

/* `count` (at most 4) elements of an array of 16- or 32-bit floats that may lie unaligned; zeros after them
 */
INLINE float32x4_t load_floats(const unsigned char *array, enum dtype dtype, size_t at, size_t count) {
    size_t size = dtype == DTYPE_F32 ? 4 : 2;
    unsigned char copy[16] = {0};
    const unsigned char *from = array + at * size;
    if (count < 4)
        from = memcpy(copy, from, count * size);
    if (dtype == DTYPE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(from));
    uint16x4_t halves = vreinterpret_u16_u8(vld1_u8(from));
    if (dtype == DTYPE_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

/* A NaN loses its payload, so that it survives being rounded. */
INLINE float32x4_t quiet(float32x4_t values) {
    uint32x4_t nan = vdupq_n_u32(0x7fc00000u);
    return vbslq_f32(vceqq_f32(values, values), values, vreinterpretq_f32_u32(nan));
}

/* `count` groups (of a block at most) from `group` on; those that are not there get zeros. */
INLINE void scales_of_vector(const unsigned char *array, enum dtype dtype,
                             const size_t first_group[VECTOR_ROWS], size_t group, size_t count,
                             float32x4_t lanes[BLOCK_GROUPS]) {
    for (size_t g = 0; g < BLOCK_GROUPS; g += 4) {
        size_t left = count > g ? count - g : 0;
        uint32x4_t v[4];
        for (int r = 0; r < VECTOR_ROWS; r++)
            v[r] = vreinterpretq_u32_f32(quiet(
                load_floats(array, dtype, first_group[r] + group + (left > 0 ? g : 0), left < 4 ? left : 4)));
        transpose(v);
        for (int i = 0; i < 4; i++)
            lanes[g + i] = vreinterpretq_f32_u32(v[i]);
    }
}

/* The terms of one group, added to y. */
INLINE float32x4_t int8_terms(float32x4_t y, int32x4_t product, float32x4_t scale, float32x4_t offset,
                              const struct int8_input *input, size_t group) {
    y = vfmaq_n_f32(y, vmulq_f32(scale, vcvtq_f32_s32(product)), input->scales[group]);
    return vfmaq_n_f32(y, offset, input->sums[group]);
}

/* Those of neon_matrix.c that neon_i8mm_matrix.c takes as they are. */
multiply_function neon_multiply_float;
void neon_prepare_int8(const float *x, size_t columns, void *row);
void neon_prepare_bf16(const float *x, size_t columns, void *row);

#endif
