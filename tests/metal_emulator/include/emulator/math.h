/* Metal's mathematical functions, on scalars and element by element on vectors, rounded as the C library
 * does. fast:: and precise:: are the same functions here: what a kernel makes of an approximate one only a
 * GPU shows. */
#ifndef EMULATOR_MATH_H
#define EMULATOR_MATH_H

#include "vectors.h"

namespace emulator {

/* The result of a function of A's elements. */
template <class A> inline constexpr bool is_vector = (shape<A>::size > 1);
template <class A> using vector_of = metal::vec<element_of<A>, shape<A>::size>;
template <class A> using if_vector = metal::enable_if_t<is_vector<A>, vector_of<A>>;
template <class A> using if_float = metal::enable_if_t<metal::is_same_v<A, float> || is_small<A>, A>;
template <class A> using if_integer = metal::enable_if_t<metal::is_integral_v<A>, A>;

/* The common type of two numbers for min, max and the like. */
template <class A, class B> struct common {
    using type = decltype(metal::declval<A>() + metal::declval<B>());
};
template <class A> struct common<A, A> { using type = A; };
template <class A, class B>
using if_numbers = metal::enable_if_t<is_number<A> && is_number<B>, typename common<A, B>::type>;

} // namespace emulator

namespace metal {

template <class To, class From> inline To as_type(const From &from) {
    static_assert(sizeof(To) == sizeof(From), "as_type between types of one size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

#define EMULATOR_FUNCTION(name, expression)                                                                  \
    template <class A> inline emulator::if_float<A> name(A value) {                                          \
        float x = value;                                                                                     \
        return (A)(expression);                                                                              \
    }                                                                                                        \
    template <class A> inline emulator::if_vector<A> name(A a) {                                             \
        emulator::vector_of<A> out;                                                                          \
        for (int i = 0; i < emulator::shape<A>::size; i++)                                                   \
            out.e[i] = name(emulator::at(a, i));                                                             \
        return out;                                                                                          \
    }
#define EMULATOR_TRANSCENDENTAL                                                                              \
    EMULATOR_FUNCTION(exp, __builtin_expf(x))                                                                \
    EMULATOR_FUNCTION(exp2, __builtin_exp2f(x))                                                              \
    EMULATOR_FUNCTION(exp10, __builtin_powf(10.0f, x))                                                       \
    EMULATOR_FUNCTION(log, __builtin_logf(x))                                                                \
    EMULATOR_FUNCTION(log2, __builtin_log2f(x))                                                              \
    EMULATOR_FUNCTION(log10, __builtin_log10f(x))                                                            \
    EMULATOR_FUNCTION(sqrt, __builtin_sqrtf(x))                                                              \
    EMULATOR_FUNCTION(rsqrt, 1.0f / __builtin_sqrtf(x))                                                      \
    EMULATOR_FUNCTION(sin, __builtin_sinf(x))                                                                \
    EMULATOR_FUNCTION(cos, __builtin_cosf(x))                                                                \
    EMULATOR_FUNCTION(tan, __builtin_tanf(x))                                                                \
    EMULATOR_FUNCTION(sinh, __builtin_sinhf(x))                                                              \
    EMULATOR_FUNCTION(cosh, __builtin_coshf(x))                                                              \
    EMULATOR_FUNCTION(tanh, __builtin_tanhf(x))                                                              \
    EMULATOR_FUNCTION(asin, __builtin_asinf(x))                                                              \
    EMULATOR_FUNCTION(acos, __builtin_acosf(x))                                                              \
    EMULATOR_FUNCTION(atan, __builtin_atanf(x))                                                              \
    EMULATOR_FUNCTION(floor, __builtin_floorf(x))                                                            \
    EMULATOR_FUNCTION(ceil, __builtin_ceilf(x))                                                              \
    EMULATOR_FUNCTION(trunc, __builtin_truncf(x))                                                            \
    EMULATOR_FUNCTION(rint, __builtin_rintf(x))                                                              \
    EMULATOR_FUNCTION(round, __builtin_roundf(x))                                                            \
    EMULATOR_FUNCTION(fract, x - __builtin_floorf(x))                                                        \
    EMULATOR_FUNCTION(fabs, __builtin_fabsf(x))                                                              \
    EMULATOR_FUNCTION(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)                                       \
    EMULATOR_FUNCTION(saturate, x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)
EMULATOR_TRANSCENDENTAL
inline float sincos(float x, float &cosine) {
    cosine = __builtin_cosf(x);
    return __builtin_sinf(x);
}

/* Functions of two numbers, or of two vectors, or of a vector and a number. */
#define EMULATOR_BINARY(name, expression)                                                                    \
    template <class A, class B> inline emulator::if_numbers<A, B> name(A first, B second) {                  \
        using T = typename emulator::common<A, B>::type;                                                     \
        T a = (T)first, b = (T)second;                                                                       \
        return (T)(expression);                                                                              \
    }                                                                                                        \
    template <class A, class B> inline emulator::pair_vector<A, B> name(A a, B b) {                          \
        using T = emulator::pair_element<A, B>;                                                              \
        emulator::pair_vector<A, B> out;                                                                     \
        for (int i = 0; i < emulator::pair_size<A, B>; i++)                                                  \
            out.e[i] = name((T)emulator::at(a, i), (T)emulator::at(b, i));                                   \
        return out;                                                                                          \
    }
/* As IEEE minNum: of a number and a NaN the number. */
EMULATOR_BINARY(min, b != b ? a : b < a || a != a ? b : a)
EMULATOR_BINARY(max, b != b ? a : b > a || a != a ? b : a)
EMULATOR_BINARY(fmin, b != b ? a : b < a || a != a ? b : a)
EMULATOR_BINARY(fmax, b != b ? a : b > a || a != a ? b : a)
EMULATOR_BINARY(pow, __builtin_powf((float)a, (float)b))
EMULATOR_BINARY(powr, __builtin_powf((float)a, (float)b))
EMULATOR_BINARY(fmod, __builtin_fmodf((float)a, (float)b))
EMULATOR_BINARY(atan2, __builtin_atan2f((float)a, (float)b))
EMULATOR_BINARY(copysign, __builtin_copysignf((float)a, (float)b))
EMULATOR_BINARY(step, b < a ? 0.0f : 1.0f)
EMULATOR_BINARY(ldexp, __builtin_ldexpf((float)a, (int)b))

inline float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
inline half fma(half a, half b, half c) {
    return half(__builtin_fmaf(a, b, c));
}
inline bfloat fma(bfloat a, bfloat b, bfloat c) {
    return bfloat(__builtin_fmaf(a, b, c));
}
template <class A, class B, class C,
          class V = conditional_t<
              emulator::is_vector<A>, emulator::vector_of<A>,
              conditional_t<emulator::is_vector<B>, emulator::vector_of<B>, emulator::vector_of<C>>>,
          class = enable_if_t<emulator::is_vector<A> || emulator::is_vector<B> || emulator::is_vector<C>>>
inline V fma(A first, B second, C third) {
    const V a = first, b = second, c = third;
    V out;
    for (int i = 0; i < emulator::shape<V>::size; i++)
        out.e[i] = fma(a.e[i], b.e[i], c.e[i]);
    return out;
}
template <class A, class B, class C> inline auto mad(A a, B b, C c) {
    return a * b + c;
}
template <class A, class B, class C> inline auto max3(A a, B b, C c) {
    return max(max(a, b), c);
}
template <class A, class B, class C> inline auto min3(A a, B b, C c) {
    return min(min(a, b), c);
}
template <class A, class B, class C> inline auto clamp(A x, B low, C high) {
    return min(max(x, low), high);
}
template <class A, class B, class C> inline auto mix(A a, B b, C t) {
    return a + (b - a) * t;
}

template <class A> inline emulator::if_float<A> abs(A a) {
    return (A)__builtin_fabsf(a);
}
template <class A> inline emulator::if_integer<A> abs(A a) {
    return a < 0 ? (A)-a : a;
}
template <class A> inline emulator::if_vector<A> abs(A a) {
    emulator::vector_of<A> out;
    for (int i = 0; i < emulator::shape<A>::size; i++)
        out.e[i] = abs(emulator::at(a, i));
    return out;
}

#define EMULATOR_PREDICATE(name, expression)                                                                 \
    inline bool name(float x) {                                                                              \
        return expression;                                                                                   \
    }                                                                                                        \
    template <class T, int N> inline vec<bool, N> name(vec<T, N> a) {                                        \
        vec<bool, N> out;                                                                                    \
        for (int i = 0; i < N; i++)                                                                          \
            out.e[i] = name((float)a.e[i]);                                                                  \
        return out;                                                                                          \
    }
EMULATOR_PREDICATE(isnan, x != x)
EMULATOR_PREDICATE(isinf, __builtin_isinf(x) != 0)
EMULATOR_PREDICATE(isfinite, __builtin_isfinite(x))
EMULATOR_PREDICATE(signbit, __builtin_signbit(x) != 0)

template <int N> inline bool any(const vec<bool, N> &a) {
    bool out = false;
    for (int i = 0; i < N; i++)
        out = out || a.e[i];
    return out;
}
inline bool any(bool a) {
    return a;
}
template <int N> inline bool all(const vec<bool, N> &a) {
    bool out = true;
    for (int i = 0; i < N; i++)
        out = out && a.e[i];
    return out;
}
inline bool all(bool a) {
    return a;
}

/* c ? b : a */
template <class T, class = enable_if_t<emulator::is_number<T>>> inline T select(T a, T b, bool c) {
    return c ? b : a;
}
template <class T, int N> inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
    vec<T, N> out;
    for (int i = 0; i < N; i++)
        out.e[i] = c.e[i] ? b.e[i] : a.e[i];
    return out;
}

template <class A, class B, class = enable_if_t<emulator::vector_pair<A, B>>>
inline emulator::pair_element<A, B> dot(A a, B b) {
    emulator::pair_element<A, B> sum =
        (emulator::pair_element<A, B>)(emulator::at(a, 0) * emulator::at(b, 0));
    for (int i = 1; i < emulator::pair_size<A, B>; i++)
        sum = (emulator::pair_element<A, B>)(sum + emulator::at(a, i) * emulator::at(b, i));
    return sum;
}
template <class A> inline auto length_squared(A a) {
    return dot(a, a);
}
template <class A> inline auto length(A a) {
    return sqrt(dot(a, a));
}

#define EMULATOR_BITS(name, expression)                                                                      \
    template <class A> inline emulator::if_integer<A> name(A x) {                                            \
        constexpr int bits = 8 * (int)sizeof(A);                                                             \
        (void)bits;                                                                                          \
        return (A)(expression);                                                                              \
    }                                                                                                        \
    template <class A> inline emulator::if_vector<A> name(A a) {                                             \
        emulator::vector_of<A> out;                                                                          \
        for (int i = 0; i < emulator::shape<A>::size; i++)                                                   \
            out.e[i] = name(emulator::at(a, i));                                                             \
        return out;                                                                                          \
    }
namespace {
template <class A> inline ulong emulator_bits(A x) {
    return (ulong)x & (~0ul >> (64 - 8 * sizeof(A)));
}
} // namespace
EMULATOR_BITS(popcount, __builtin_popcountl(emulator_bits(x)))
EMULATOR_BITS(clz, emulator_bits(x) == 0 ? bits : __builtin_clzl(emulator_bits(x)) - (64 - bits))
EMULATOR_BITS(ctz, emulator_bits(x) == 0 ? bits : __builtin_ctzl(emulator_bits(x)))

inline uint mulhi(uint a, uint b) {
    return (uint)((ulong)a * b >> 32);
}
inline int mulhi(int a, int b) {
    return (int)((long)a * b >> 32);
}
inline ulong mulhi(ulong a, ulong b) {
    return (ulong)((unsigned __int128)a * b >> 64);
}
template <class T> inline emulator::if_integer<T> extract_bits(T x, uint offset, uint bits) {
    if (bits == 0)
        return 0;
    constexpr uint width = 8 * sizeof(T);
    return (T)((T)(x << (width - offset - bits)) >> (width - bits));
}
template <class T> inline emulator::if_integer<T> insert_bits(T base, T insert, uint offset, uint bits) {
    if (bits == 0)
        return base;
    T mask = (T)((T)(~(T)0) >> 0);
    mask = (T)((bits >= 8 * sizeof(T) ? ~0ul : (1ul << bits) - 1) << offset);
    return (T)((base & ~mask) | ((T)(insert << offset) & mask));
}
template <class T> inline emulator::if_integer<T> rotate(T x, T by) {
    constexpr uint width = 8 * sizeof(T);
    uint n = (uint)by % width;
    return n == 0 ? x : (T)(emulator_bits(x) << n | emulator_bits(x) >> (width - n));
}

/* What nobody may rely on: the last bits of approximate functions. When checked, numbers near the right one,
 * the same for the same argument. (EMULATOR_IS_CHECKED is defined after prepare.py has seen this.) */
namespace {
inline float emulator_near(float exact, float argument) {
    uint bits = emulator::bits_of_float(exact), at = bits & 0x7fffffffu;
    if (!EMULATOR_IS_CHECKED || at < 0x00800002u || at > 0x7f7ffffdu)
        return exact;
    uint off = emulator::bits_of_float(argument) * 2654435761u >> 8;
    return emulator::float_of_bits(bits + off % 5 - 2);
}
} // namespace

namespace fast {
EMULATOR_FUNCTION(exp, emulator_near(__builtin_expf(x), x))
EMULATOR_FUNCTION(exp2, emulator_near(__builtin_exp2f(x), x))
EMULATOR_FUNCTION(exp10, emulator_near(__builtin_powf(10.0f, x), x))
EMULATOR_FUNCTION(log, emulator_near(__builtin_logf(x), x))
EMULATOR_FUNCTION(log2, emulator_near(__builtin_log2f(x), x))
EMULATOR_FUNCTION(log10, emulator_near(__builtin_log10f(x), x))
EMULATOR_FUNCTION(sqrt, emulator_near(__builtin_sqrtf(x), x))
EMULATOR_FUNCTION(rsqrt, emulator_near(1.0f / __builtin_sqrtf(x), x))
EMULATOR_FUNCTION(sin, emulator_near(__builtin_sinf(x), x))
EMULATOR_FUNCTION(cos, emulator_near(__builtin_cosf(x), x))
EMULATOR_FUNCTION(tan, emulator_near(__builtin_tanf(x), x))
EMULATOR_FUNCTION(tanh, emulator_near(__builtin_tanhf(x), x))
EMULATOR_BINARY(pow, emulator_near(__builtin_powf((float)a, (float)b), (float)a))
EMULATOR_BINARY(powr, emulator_near(__builtin_powf((float)a, (float)b), (float)a))
EMULATOR_BINARY(divide, emulator_near((float)a / (float)b, (float)b))
EMULATOR_BINARY(min, b < a ? b : a)
EMULATOR_BINARY(max, b > a ? b : a)
} // namespace fast
namespace precise {
EMULATOR_TRANSCENDENTAL
EMULATOR_BINARY(pow, __builtin_powf((float)a, (float)b))
EMULATOR_BINARY(powr, __builtin_powf((float)a, (float)b))
EMULATOR_BINARY(divide, (float)a / (float)b)
EMULATOR_BINARY(min, b != b ? a : b < a || a != a ? b : a)
EMULATOR_BINARY(max, b != b ? a : b > a || a != a ? b : a)
} // namespace precise

template <class T> struct numeric_limits;
#define EMULATOR_LIMITS(type, smallest, lowest_, largest, infinite)                                          \
    template <> struct numeric_limits<type> {                                                                \
        static type min() {                                                                                  \
            return type(smallest);                                                                           \
        }                                                                                                    \
        static type lowest() {                                                                               \
            return type(lowest_);                                                                            \
        }                                                                                                    \
        static type max() {                                                                                  \
            return type(largest);                                                                            \
        }                                                                                                    \
        static type infinity() {                                                                             \
            return type(infinite);                                                                           \
        }                                                                                                    \
        static type quiet_NaN() {                                                                            \
            return type(infinite - infinite);                                                                \
        }                                                                                                    \
    }
EMULATOR_LIMITS(float, FLT_MIN, -FLT_MAX, FLT_MAX, INFINITY);
EMULATOR_LIMITS(half, 6.103515625e-05f, -65504.0f, 65504.0f, INFINITY);
EMULATOR_LIMITS(bfloat, FLT_MIN, -3.3895313892515355e+38f, 3.3895313892515355e+38f, INFINITY);
EMULATOR_LIMITS(int, INT_MIN, INT_MIN, INT_MAX, 0);
EMULATOR_LIMITS(uint, 0, 0, UINT_MAX, 0u);
EMULATOR_LIMITS(short, -32768, -32768, 32767, 0);
EMULATOR_LIMITS(ushort, 0, 0, 65535, 0);
EMULATOR_LIMITS(uchar, 0, 0, 255, 0);
#undef EMULATOR_LIMITS

} // namespace metal

/* as_type and the vector types need no metal:: in Metal. */
using metal::as_type;
using metal::packed_vec;
using metal::vec;

#undef EMULATOR_FUNCTION
#undef EMULATOR_BINARY
#undef EMULATOR_PREDICATE
#undef EMULATOR_BITS
#undef EMULATOR_TRANSCENDENTAL

#endif
