#include "base/dtype.h"

const char *dtype_name(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return "F32";
    case DTYPE_F16:
        return "F16";
    case DTYPE_BF16:
        return "BF16";
    case DTYPE_I32:
        return "I32";
    case DTYPE_U32:
        return "U32";
    case DTYPE_U8:
        return "U8";
    case DTYPE_AFFINE4:
        return "affine 4-bit";
    case DTYPE_AFFINE8:
        return "affine 8-bit";
    case DTYPE_COUNT:
        break;
    }
    return "unknown";
}

float half_to_float(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = value >> 10 & 0x1fu;
    uint32_t fraction = value & 0x3ffu;
    if (exponent == 31)
        return float_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    /* A subnormal half is fraction * 2^-24, which float32 holds exactly. */
    float magnitude = (float)fraction * 0x1p-24f;
    return float_from_bits(sign | float_to_bits(magnitude));
}
