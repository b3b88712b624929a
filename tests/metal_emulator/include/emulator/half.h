/* half and bfloat: 16 bits each, every operation rounded to nearest even, as Metal defines them.
 *
 * half converts both ways by itself. A float becomes a bfloat only when the source says so. */
#ifndef EMULATOR_HALF_H
#define EMULATOR_HALF_H

#include "traits.h"

namespace emulator {

inline float float_of_bits(uint bits) {
    return __builtin_bit_cast(float, bits);
}
inline uint bits_of_float(float value) {
    return __builtin_bit_cast(uint, value);
}

inline float half_to_float(ushort half) {
    uint sign = (uint)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float value = (float)fraction * 0x1p-24f;
    return sign != 0 ? -value : value;
}

inline ushort float_to_half(float value) {
    uint bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (ushort)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (ushort)(sign | 0x7c00);
    if (magnitude < 0x38800000u) { /* subnormal: adding 0.5 leaves the rounded multiple of 2^-24 */
        uint sum = bits_of_float(float_of_bits(magnitude) + 0.5f);
        return (ushort)(sign | (sum - 0x3f000000u));
    }
    uint rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return (ushort)(sign | (rounded - 0x38000000u) >> 13);
}

inline float bfloat_to_float(ushort value) {
    return float_of_bits((uint)value << 16);
}

inline ushort float_to_bfloat(float value) {
    uint bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (ushort)(bits >> 16 | 0x40);
    return (ushort)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

} // namespace emulator

struct half {
    ushort bits;
    half() = default;
    half(float value) : bits(emulator::float_to_half(value)) {}
    template <class T, class = metal::enable_if_t<metal::is_integral_v<T>>>
    half(T value) : half((float)value) {}
    half(double value) : half((float)value) {}
    operator float() const {
        return emulator::half_to_float(bits);
    }
};

struct bfloat {
    ushort bits;
    bfloat() = default;
    explicit bfloat(float value) : bits(emulator::float_to_bfloat(value)) {}
    explicit bfloat(half value) : bfloat((float)value) {}
    template <class T, class = metal::enable_if_t<metal::is_integral_v<T>>>
    explicit bfloat(T value) : bfloat((float)value) {}
    operator float() const {
        return emulator::bfloat_to_float(bits);
    }
};

inline half operator""h(long double value) {
    return half((float)value);
}
inline bfloat operator"" bf(long double value) {
    return bfloat((float)value);
}

namespace emulator {

template <class T> inline constexpr bool is_small = metal::is_same_v<T, half> || metal::is_same_v<T, bfloat>;
template <class T>
inline constexpr bool is_number = metal::is_integral_v<T> || metal::is_same_v<T, float> || is_small<T>;

/* half with half, or with an integer, is half; half with float or bfloat is float. */
template <class A, class B>
using small_result = metal::conditional_t<metal::is_same_v<A, B> || metal::is_integral_v<B>, A,
                                          metal::conditional_t<metal::is_integral_v<A>, B, float>>;

template <class A, class B>
using small_operands = metal::enable_if_t<(is_small<A> || is_small<B>)&&is_number<A> && is_number<B>>;

} // namespace emulator

#define EMULATOR_SMALL(operation)                                                                            \
    template <class A, class B, class = emulator::small_operands<A, B>>                                      \
    inline emulator::small_result<A, B> operator operation(A a, B b) {                                       \
        return emulator::small_result<A, B>((float)a operation(float) b);                                    \
    }                                                                                                        \
    template <class B> inline half &operator operation##=(half &a, B b) {                                    \
        return a = half((float)(a operation b));                                                             \
    }                                                                                                        \
    template <class B> inline bfloat &operator operation##=(bfloat &a, B b) {                                \
        return a = bfloat((float)(a operation b));                                                           \
    }
EMULATOR_SMALL(+)
EMULATOR_SMALL(-)
EMULATOR_SMALL(*)
EMULATOR_SMALL(/)
#undef EMULATOR_SMALL

#define EMULATOR_SMALL_COMPARE(operation)                                                                    \
    template <class A, class B, class = emulator::small_operands<A, B>>                                      \
    inline bool operator operation(A a, B b) {                                                               \
        return (float)a operation(float) b;                                                                  \
    }
EMULATOR_SMALL_COMPARE(<)
EMULATOR_SMALL_COMPARE(>)
EMULATOR_SMALL_COMPARE(<=)
EMULATOR_SMALL_COMPARE(>=)
EMULATOR_SMALL_COMPARE(==)
EMULATOR_SMALL_COMPARE(!=)
#undef EMULATOR_SMALL_COMPARE

inline half operator-(half a) {
    return half(-(float)a);
}
inline bfloat operator-(bfloat a) {
    return bfloat(-(float)a);
}

#endif
