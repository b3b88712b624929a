/* Element types, and the conversions between 16-bit floats and float32. */
#ifndef CALLA_BASE_DTYPE_H
#define CALLA_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_U8,      /* bytes: records that are copied as a whole */
    DTYPE_AFFINE4, /* 4-bit codes, a scale and an offset per group of 64 along the columns */
    DTYPE_AFFINE8, /* the same with 8-bit codes */
    DTYPE_COUNT
};

/* Bits an element takes, without the scales and offsets of the affine types. */
static inline unsigned dtype_bits(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
    case DTYPE_I32:
    case DTYPE_U32:
        return 32;
    case DTYPE_F16:
    case DTYPE_BF16:
        return 16;
    case DTYPE_U8:
    case DTYPE_AFFINE8:
        return 8;
    case DTYPE_AFFINE4:
        return 4;
    case DTYPE_COUNT:
        break;
    }
    return 0;
}

#define DTYPE_AFFINE_GROUP 64

/* Bytes of one row of `columns` elements; of the affine types with their 16-bit scale and offset a group. */
static inline uint64_t dtype_row_bytes(enum dtype dtype, uint64_t columns) {
    uint64_t bytes = (columns * dtype_bits(dtype) + 7) / 8;
    if (dtype == DTYPE_AFFINE4 || dtype == DTYPE_AFFINE8)
        bytes += (columns + DTYPE_AFFINE_GROUP - 1) / DTYPE_AFFINE_GROUP * 4;
    return bytes;
}

const char *dtype_name(enum dtype dtype);

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bf16_to_float(uint16_t value) {
    return float_from_bits((uint32_t)value << 16);
}

/* Rounds to nearest even; a NaN stays a NaN. */
static inline uint16_t float_to_bf16(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float half_to_float(uint16_t value);

/* One element of an F32, F16 or BF16 array that may lie unaligned, as a float. */
static inline float float_load(const void *array, enum dtype dtype, size_t index) {
    if (dtype == DTYPE_F32) {
        float value;
        memcpy(&value, (const char *)array + index * 4, 4);
        return value;
    }
    uint16_t value;
    memcpy(&value, (const char *)array + index * 2, 2);
    return dtype == DTYPE_BF16 ? bf16_to_float(value) : half_to_float(value);
}

#endif
