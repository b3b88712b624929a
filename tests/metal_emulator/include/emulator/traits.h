/* What kernels find the same when they are run and when they are only looked at (syntax.h): names of types,
 * type traits and plain structures of metal_stdlib. The kernels are compiled without any library. */
#ifndef EMULATOR_TRAITS_H
#define EMULATOR_TRAITS_H

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef unsigned long ulong;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920928955e-07f
#define HALF_MAX 65504.0f
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f

/* The numbers that vectors have names for, and the types behind them. */
#define EMULATOR_NUMBERS(f)                                                                                  \
    f(char, signed char) f(uchar, uchar) f(short, short) f(ushort, ushort) f(int, int) f(uint, uint)         \
        f(long, long) f(ulong, ulong) f(half, half) f(bfloat, bfloat) f(float, float)

#define METAL_FUNC inline __attribute__((always_inline))

namespace metal {

template <class T, T V> struct integral_constant {
    static constexpr T value = V;
    using value_type = T;
    using type = integral_constant;
    constexpr operator T() const {
        return V;
    }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;

template <bool, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;

template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T &> { using type = T; };
template <class T> struct remove_reference<T &&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_cv { using type = T; };
template <class T> struct remove_cv<const T> : remove_cv<T> {};
template <class T> struct remove_cv<volatile T> : remove_cv<T> {};
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T *> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using decay_t = remove_cv_t<remove_reference_t<T>>;

template <class T> T &&declval() noexcept;

template <class T>
inline constexpr bool is_integral_v =
    is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, signed char> || is_same_v<T, uchar> ||
    is_same_v<T, short> || is_same_v<T, ushort> || is_same_v<T, int> || is_same_v<T, uint> ||
    is_same_v<T, long> || is_same_v<T, ulong> || is_same_v<T, long long> || is_same_v<T, unsigned long long>;

template <class T, size_t N> struct array {
    T elements[N];
    constexpr T &operator[](size_t i) {
        return elements[i];
    }
    constexpr const T &operator[](size_t i) const {
        return elements[i];
    }
    constexpr size_t size() const {
        return N;
    }
    constexpr T *data() {
        return elements;
    }
    constexpr T *begin() {
        return elements;
    }
    constexpr T *end() {
        return elements + N;
    }
};

template <class T> struct atomic { T emulator_value; };

enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope {
    thread_scope_thread,
    thread_scope_simdgroup,
    thread_scope_threadgroup,
    thread_scope_device,
    thread_scope_system
};

} // namespace metal

#endif
