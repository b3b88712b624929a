/* metal_stdlib for a compile that only looks: device, constant, threadgroup and thread are address spaces, as
 * in Metal, so that a pointer to one cannot become a pointer to another, and vectors are clang's own, from
 * which Metal's come. Functions are declared and have no bodies. A bfloat is a double here, which Metal has
 * not. The spaces are macros that are defined after prepare.py has seen the source (CMakeLists.txt). */
#ifndef EMULATOR_SYNTAX_H
#define EMULATOR_SYNTAX_H

#include "traits.h"

typedef _Float16 half;
typedef double bfloat;
half operator""h(long double value);
bfloat operator"" bf(long double value);

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}

#define EMULATOR_NAMES(name, type)                                                                           \
    typedef type name##2 __attribute__((ext_vector_type(2)));                                                \
    typedef type name##3 __attribute__((ext_vector_type(3)));                                                \
    typedef type name##4 __attribute__((ext_vector_type(4)));                                                \
    typedef type packed_##name##2 __attribute__((ext_vector_type(2), aligned(sizeof(type))));                \
    typedef type packed_##name##3 __attribute__((ext_vector_type(3), aligned(sizeof(type))));                \
    typedef type packed_##name##4 __attribute__((ext_vector_type(4), aligned(sizeof(type))));                \
    template <class... A> name##2 emulator_make_##name##2(A... parts);                                       \
    template <class... A> name##3 emulator_make_##name##3(A... parts);                                       \
    template <class... A> name##4 emulator_make_##name##4(A... parts);
EMULATOR_NAMES(bool, int) /* what comparing gives */
EMULATOR_NUMBERS(EMULATOR_NAMES)
#undef EMULATOR_NAMES

namespace metal {

template <class To, class From> To as_type(From from);

#define EMULATOR_FUNCTIONS                                                                                   \
    EMULATOR_FUNCTION(exp)                                                                                   \
    EMULATOR_FUNCTION(exp2)                                                                                  \
    EMULATOR_FUNCTION(exp10)                                                                                 \
    EMULATOR_FUNCTION(log)                                                                                   \
    EMULATOR_FUNCTION(log2)                                                                                  \
    EMULATOR_FUNCTION(log10)                                                                                 \
    EMULATOR_FUNCTION(sqrt)                                                                                  \
    EMULATOR_FUNCTION(rsqrt)                                                                                 \
    EMULATOR_FUNCTION(sin)                                                                                   \
    EMULATOR_FUNCTION(cos)                                                                                   \
    EMULATOR_FUNCTION(tan)                                                                                   \
    EMULATOR_FUNCTION(sinh)                                                                                  \
    EMULATOR_FUNCTION(cosh)                                                                                  \
    EMULATOR_FUNCTION(tanh)                                                                                  \
    EMULATOR_FUNCTION(asin)                                                                                  \
    EMULATOR_FUNCTION(acos)                                                                                  \
    EMULATOR_FUNCTION(atan)                                                                                  \
    EMULATOR_FUNCTION(floor)                                                                                 \
    EMULATOR_FUNCTION(ceil)                                                                                  \
    EMULATOR_FUNCTION(trunc)                                                                                 \
    EMULATOR_FUNCTION(rint)                                                                                  \
    EMULATOR_FUNCTION(round)                                                                                 \
    EMULATOR_FUNCTION(fract)                                                                                 \
    EMULATOR_FUNCTION(fabs)                                                                                  \
    EMULATOR_FUNCTION(sign)                                                                                  \
    EMULATOR_FUNCTION(saturate)                                                                              \
    EMULATOR_BINARY(pow)                                                                                     \
    EMULATOR_BINARY(powr)                                                                                    \
    EMULATOR_BINARY(min)                                                                                     \
    EMULATOR_BINARY(max)                                                                                     \
    EMULATOR_BINARY(divide)
#define EMULATOR_FUNCTION(name) template <class A> A name(A x);
#define EMULATOR_BINARY(name)                                                                                \
    template <class A> A name(A a, A b);                                                                     \
    template <class A, class B> auto name(A a, B b)->decltype(a + b);
EMULATOR_FUNCTIONS
EMULATOR_BINARY(fmin)
EMULATOR_BINARY(fmax)
EMULATOR_BINARY(fmod)
EMULATOR_BINARY(atan2)
EMULATOR_BINARY(copysign)
EMULATOR_BINARY(step)
EMULATOR_BINARY(mulhi)
EMULATOR_BINARY(rotate)
EMULATOR_FUNCTION(abs)
EMULATOR_FUNCTION(popcount)
EMULATOR_FUNCTION(clz)
EMULATOR_FUNCTION(ctz)
namespace fast {
EMULATOR_FUNCTIONS
}
namespace precise {
EMULATOR_FUNCTIONS
}
#undef EMULATOR_FUNCTIONS

float sincos(float x, thread float &cosine);
template <class A> A ldexp(A a, int b);
template <class A, class B, class C> auto fma(A a, B b, C c) -> decltype(a * b + c);
template <class A, class B, class C> auto mad(A a, B b, C c) -> decltype(a * b + c);
template <class A> A max3(A a, A b, A c);
template <class A> A min3(A a, A b, A c);
template <class A, class B, class C> A clamp(A x, B low, C high);
template <class A, class B, class C> A mix(A a, B b, C t);
template <class T> bool isnan(T x);
template <class T> bool isinf(T x);
template <class T> bool isfinite(T x);
template <class T> bool signbit(T x);
template <class T> bool any(T x);
template <class T> bool all(T x);
template <class T, class C> T select(T a, T b, C c);
template <class T, int N> T dot(vec<T, N> a, vec<T, N> b);
template <class T, int N> T length(vec<T, N> a);
template <class T, int N> T length_squared(vec<T, N> a);
template <class T> T extract_bits(T x, uint offset, uint bits);
template <class T> T insert_bits(T base, T insert, uint offset, uint bits);

template <class T> struct numeric_limits {
    static T min();
    static T lowest();
    static T max();
    static T infinity();
    static T quiet_NaN();
};

/* ---- What lanes do together */

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
    return (mem_flags)((int)a | (int)b);
}
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

#define EMULATOR_SIMD(name)                                                                                  \
    template <class A> A simd_##name(A a);                                                                   \
    template <class A> A quad_##name(A a);
EMULATOR_SIMD(sum)
EMULATOR_SIMD(product)
EMULATOR_SIMD(min)
EMULATOR_SIMD(max)
EMULATOR_SIMD(and)
EMULATOR_SIMD(or)
EMULATOR_SIMD(xor)
EMULATOR_SIMD(prefix_inclusive_sum)
EMULATOR_SIMD(prefix_exclusive_sum)
EMULATOR_SIMD(prefix_inclusive_product)
EMULATOR_SIMD(prefix_exclusive_product)
EMULATOR_SIMD(broadcast_first)
#undef EMULATOR_SIMD
#define EMULATOR_SIMD(name)                                                                                  \
    template <class A> A simd_##name(A a, ushort index);                                                     \
    template <class A> A quad_##name(A a, ushort index);
EMULATOR_SIMD(broadcast)
EMULATOR_SIMD(shuffle)
EMULATOR_SIMD(shuffle_xor)
EMULATOR_SIMD(shuffle_up)
EMULATOR_SIMD(shuffle_down)
EMULATOR_SIMD(shuffle_rotate_up)
EMULATOR_SIMD(shuffle_rotate_down)
#undef EMULATOR_SIMD
template <class A> A simd_shuffle_and_fill_up(A a, A fill, ushort delta);
template <class A> A simd_shuffle_and_fill_down(A a, A fill, ushort delta);
struct simd_vote {
    using vote_t = ulong;
    explicit operator ulong() const;
    bool all() const;
    bool any() const;
};
simd_vote simd_ballot(bool value);
bool simd_any(bool value);
bool simd_all(bool value);
bool simd_is_first();

/* ---- Atomics: in device or threadgroup memory, nowhere else */

void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope scope = thread_scope_device);
#define EMULATOR_ATOMIC(space)                                                                               \
    template <class T> T atomic_load_explicit(const volatile space atomic<T> *object, memory_order order);   \
    template <class T, class V>                                                                              \
    void atomic_store_explicit(volatile space atomic<T> *object, V value, memory_order order);               \
    template <class T, class V>                                                                              \
    T atomic_exchange_explicit(volatile space atomic<T> *object, V value, memory_order order);               \
    template <class T, class V>                                                                              \
    bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> *object, thread T *expected,         \
                                               V value, memory_order order, memory_order failure);           \
    EMULATOR_FETCH(space, add)                                                                               \
    EMULATOR_FETCH(space, sub)                                                                               \
    EMULATOR_FETCH(space, min)                                                                               \
    EMULATOR_FETCH(space, max)                                                                               \
    EMULATOR_FETCH(space, and)                                                                               \
    EMULATOR_FETCH(space, or)                                                                                \
    EMULATOR_FETCH(space, xor)
#define EMULATOR_FETCH(space, name)                                                                          \
    template <class T, class V>                                                                              \
    T atomic_fetch_##name##_explicit(volatile space atomic<T> *object, V value, memory_order order);
EMULATOR_ATOMIC(device)
EMULATOR_ATOMIC(threadgroup)
#undef EMULATOR_ATOMIC
#undef EMULATOR_FETCH

/* ---- Matrices of a simdgroup, loaded from and stored to device or threadgroup memory */

template <class T, int Rows, int Columns> struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "simdgroup matrices are 8 by 8");
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal);
    vec<T, 2> &thread_elements();
    const vec<T, 2> &thread_elements() const;
};
template <class T, int N> simdgroup_matrix<T, N, N> make_filled_simdgroup_matrix(T value);
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value);
#define EMULATOR_MATRIX(space)                                                                               \
    template <class T>                                                                                       \
    void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &d, const space T *from, ulong stride = 8,          \
                        ulong2 origin = 0, bool transpose = false);                                          \
    template <class T>                                                                                       \
    void simdgroup_store(thread simdgroup_matrix<T, 8, 8> a, space T *to, ulong stride = 8,                  \
                         ulong2 origin = 0, bool transpose = false);
EMULATOR_MATRIX(device)
EMULATOR_MATRIX(threadgroup)
#undef EMULATOR_MATRIX
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                        simdgroup_matrix<B, 8, 8> b);

} // namespace metal

using metal::as_type;
using metal::vec;
using atomic_int = metal::atomic<int>;
using atomic_uint = metal::atomic<uint>;
using atomic_float = metal::atomic<float>;
using simdgroup_float8x8 = metal::simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = metal::simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = metal::simdgroup_matrix<bfloat, 8, 8>;

template <class T> T &emulator_threadgroup();

#define is_function_constant_defined(name) (true)

#endif
