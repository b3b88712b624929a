/* Vectors of two, three and four elements, with Metal's constructors, operators and the usual swizzles.
 *
 * A vector is loaded and stored as a whole, so that its alignment can be checked and it counts as one access:
 * hence arguments by value. */
#ifndef EMULATOR_VECTORS_H
#define EMULATOR_VECTORS_H

#include "half.h"

namespace metal {
template <class T, int N> struct vec;
}

namespace emulator {

template <class T> struct storage { using type = T; };
template <> struct storage<half> { using type = ushort; };
template <> struct storage<bfloat> { using type = ushort; };
template <> struct storage<bool> { using type = uchar; };
template <class T, int N> using whole = typename storage<T>::type __attribute__((ext_vector_type(N)));

/* Elements I... of the N that lie here. */
template <class T, int N, int... I> struct swizzle {
    T e[N];
    static constexpr int indices[] = {I...};
    operator metal::vec<T, sizeof...(I)>() const {
        metal::vec<T, sizeof...(I)> out;
        for (int i = 0; i < (int)sizeof...(I); i++)
            out.e[i] = e[indices[i]];
        return out;
    }
    swizzle &operator=(const metal::vec<T, sizeof...(I)> &in) {
        for (int i = 0; i < (int)sizeof...(I); i++)
            e[indices[i]] = in.e[i];
        return *this;
    }
    swizzle &operator=(const swizzle &in) {
        return *this = (metal::vec<T, sizeof...(I)>)in;
    }
};

/* Element type and number of elements of a scalar, a vector or a swizzle, and their elements. */
template <class A> struct shape {
    using element = A;
    static constexpr int size = is_number<A> ? 1 : 0;
};
template <class T, int N> struct shape<metal::vec<T, N>> {
    using element = T;
    static constexpr int size = N;
};
template <class T, int N, int... I> struct shape<swizzle<T, N, I...>> {
    using element = T;
    static constexpr int size = sizeof...(I);
};
template <class A> using element_of = typename shape<A>::element;

template <class A> inline A at(const A &a, int) {
    return a;
}
template <class T, int N> inline T at(const metal::vec<T, N> &a, int i) {
    return a.e[i];
}
template <class T, int N, int... I> inline T at(const swizzle<T, N, I...> &a, int i) {
    return a.e[a.indices[i]];
}

/* What an operator or function of A and B works on: at least one is a vector, and a scalar is spread over all
 * elements in the vector's type. Two vectors are of one type, as in Metal. */
template <class A, class B>
inline constexpr bool
    vector_pair = shape<A>::size != 0 && shape<B>::size != 0 && (shape<A>::size > 1 || shape<B>::size > 1) &&
                  (shape<A>::size == 1 || shape<B>::size == 1 ||
                   (shape<A>::size == shape<B>::size && metal::is_same_v<element_of<A>, element_of<B>>));
template <class A, class B>
using pair_element = metal::conditional_t<(shape<A>::size > 1), element_of<A>, element_of<B>>;
template <class A, class B>
inline constexpr int pair_size = shape<A>::size > 1 ? shape<A>::size : shape<B>::size;
template <class A, class B, class T = pair_element<A, B>>
using pair_vector = metal::enable_if_t<vector_pair<A, B>, metal::vec<T, pair_size<A, B>>>;

} // namespace emulator

#define EMULATOR_SWIZZLES2(N)                                                                                \
    emulator::swizzle<T, N, 0, 0> xx;                                                                        \
    emulator::swizzle<T, N, 0, 1> xy;                                                                        \
    emulator::swizzle<T, N, 1, 0> yx;                                                                        \
    emulator::swizzle<T, N, 1, 1> yy;                                                                        \
    emulator::swizzle<T, N, 0, 1> rg;
#define EMULATOR_SWIZZLES3(N)                                                                                \
    EMULATOR_SWIZZLES2(N)                                                                                    \
    emulator::swizzle<T, N, 0, 2> xz;                                                                        \
    emulator::swizzle<T, N, 2, 0> zx;                                                                        \
    emulator::swizzle<T, N, 1, 2> yz;                                                                        \
    emulator::swizzle<T, N, 2, 1> zy;                                                                        \
    emulator::swizzle<T, N, 2, 2> zz;                                                                        \
    emulator::swizzle<T, N, 0, 1, 2> xyz;                                                                    \
    emulator::swizzle<T, N, 2, 1, 0> zyx;                                                                    \
    emulator::swizzle<T, N, 0, 1, 2> rgb;
#define EMULATOR_SWIZZLES4(N)                                                                                \
    EMULATOR_SWIZZLES3(N)                                                                                    \
    emulator::swizzle<T, N, 0, 3> xw;                                                                        \
    emulator::swizzle<T, N, 3, 0> wx;                                                                        \
    emulator::swizzle<T, N, 1, 3> yw;                                                                        \
    emulator::swizzle<T, N, 3, 1> wy;                                                                        \
    emulator::swizzle<T, N, 2, 3> zw;                                                                        \
    emulator::swizzle<T, N, 3, 2> wz;                                                                        \
    emulator::swizzle<T, N, 3, 3> ww;                                                                        \
    emulator::swizzle<T, N, 1, 2, 3> yzw;                                                                    \
    emulator::swizzle<T, N, 0, 1, 2, 3> xyzw;                                                                \
    emulator::swizzle<T, N, 3, 2, 1, 0> wzyx;                                                                \
    emulator::swizzle<T, N, 1, 0, 3, 2> yxwz;                                                                \
    emulator::swizzle<T, N, 2, 3, 0, 1> zwxy;                                                                \
    emulator::swizzle<T, N, 0, 0, 1, 1> xxyy;                                                                \
    emulator::swizzle<T, N, 2, 2, 3, 3> zzww;

#define EMULATOR_VECTOR_BODY(N)                                                                              \
    vec() = default;                                                                                         \
    vec(const vec &o) : all(o.all) {}                                                                        \
    vec &operator=(const vec &o) {                                                                           \
        all = o.all;                                                                                         \
        return *this;                                                                                        \
    }                                                                                                        \
    template <class S, class = enable_if_t<emulator::is_number<S>>> vec(S s) {                               \
        for (int i = 0; i < N; i++)                                                                          \
            e[i] = (T)s;                                                                                     \
    }                                                                                                        \
    vec(double s) : vec((float)s) {}                                                                         \
    template <class U, class = enable_if_t<!is_same_v<U, T>>> explicit vec(vec<U, N> o) {                    \
        for (int i = 0; i < N; i++)                                                                          \
            e[i] = (T)o.e[i];                                                                                \
    }                                                                                                        \
    template <class U, int M, int... I, class = enable_if_t<sizeof...(I) == N && !is_same_v<U, T>>>          \
    explicit vec(emulator::swizzle<U, M, I...> o) {                                                          \
        for (int i = 0; i < N; i++)                                                                          \
            e[i] = (T)emulator::at(o, i);                                                                    \
    }                                                                                                        \
    template <class A, class B, class... C,                                                                  \
              class = enable_if_t<emulator::shape<A>::size + emulator::shape<B>::size +                      \
                                      (0 + ... + emulator::shape<C>::size) ==                                \
                                  N>>                                                                        \
    vec(const A &a, const B &b, const C &...c) {                                                             \
        int at = 0;                                                                                          \
        append(at, a), append(at, b);                                                                        \
        (append(at, c), ...);                                                                                \
    }                                                                                                        \
    T &operator[](size_t i) {                                                                                \
        return e[i];                                                                                         \
    }                                                                                                        \
    const T &operator[](size_t i) const {                                                                    \
        return e[i];                                                                                         \
    }                                                                                                        \
                                                                                                             \
  private:                                                                                                   \
    template <class A> void append(int &at, const A &a) {                                                    \
        for (int i = 0; i < emulator::shape<A>::size; i++)                                                   \
            e[at++] = (T)emulator::at(a, i);                                                                 \
    }

namespace metal {

template <class T> struct vec<T, 2> {
    union {
        emulator::whole<T, 2> all;
        T e[2];
        struct {
            T x, y;
        };
        struct {
            T r, g;
        };
        EMULATOR_SWIZZLES2(2)
    };
    EMULATOR_VECTOR_BODY(2)
};
template <class T> struct vec<T, 3> {
    union {
        emulator::whole<T, 3> all;
        T e[3];
        struct {
            T x, y, z;
        };
        struct {
            T r, g, b;
        };
        EMULATOR_SWIZZLES3(3)
    };
    EMULATOR_VECTOR_BODY(3)
};
template <class T> struct vec<T, 4> {
    union {
        emulator::whole<T, 4> all;
        T e[4];
        struct {
            T x, y, z, w;
        };
        struct {
            T r, g, b, a;
        };
        EMULATOR_SWIZZLES4(4)
    };
    EMULATOR_VECTOR_BODY(4)
};

/* Without padding, aligned as one element. */
template <class T, int N> struct packed_vec {
    T e[N];
    packed_vec() = default;
    packed_vec(const vec<T, N> &in) {
        for (int i = 0; i < N; i++)
            e[i] = in.e[i];
    }
    operator vec<T, N>() const {
        vec<T, N> out;
        for (int i = 0; i < N; i++)
            out.e[i] = e[i];
        return out;
    }
    T &operator[](size_t i) {
        return e[i];
    }
    const T &operator[](size_t i) const {
        return e[i];
    }
};

} // namespace metal

#define EMULATOR_OPERATOR(operation)                                                                         \
    template <class A, class B> inline emulator::pair_vector<A, B> operator operation(A a, B b) {            \
        using T = emulator::pair_element<A, B>;                                                              \
        emulator::pair_vector<A, B> out;                                                                     \
        for (int i = 0; i < emulator::pair_size<A, B>; i++)                                                  \
            out.e[i] = (T)((T)emulator::at(a, i) operation(T) emulator::at(b, i));                           \
        return out;                                                                                          \
    }                                                                                                        \
    template <class T, int N, class B>                                                                       \
    inline metal::vec<T, N> &operator operation##=(metal::vec<T, N> &a, const B &b) {                        \
        return a = a operation b;                                                                            \
    }                                                                                                        \
    template <class T, int N, int... I, class B>                                                             \
    inline emulator::swizzle<T, N, I...> &operator operation##=(emulator::swizzle<T, N, I...> &a,            \
                                                                const B &b) {                                \
        return a = a operation b;                                                                            \
    }
EMULATOR_OPERATOR(+)
EMULATOR_OPERATOR(-)
EMULATOR_OPERATOR(*)
EMULATOR_OPERATOR(/)
EMULATOR_OPERATOR(%)
EMULATOR_OPERATOR(&)
EMULATOR_OPERATOR(|)
EMULATOR_OPERATOR(^)
EMULATOR_OPERATOR(<<)
EMULATOR_OPERATOR(>>)
#undef EMULATOR_OPERATOR

#define EMULATOR_COMPARE(operation)                                                                          \
    template <class A, class B> inline emulator::pair_vector<A, B, bool> operator operation(A a, B b) {      \
        using T = emulator::pair_element<A, B>;                                                              \
        emulator::pair_vector<A, B, bool> out;                                                               \
        for (int i = 0; i < emulator::pair_size<A, B>; i++)                                                  \
            out.e[i] = (T)emulator::at(a, i) operation(T) emulator::at(b, i);                                \
        return out;                                                                                          \
    }
EMULATOR_COMPARE(<)
EMULATOR_COMPARE(>)
EMULATOR_COMPARE(<=)
EMULATOR_COMPARE(>=)
EMULATOR_COMPARE(==)
EMULATOR_COMPARE(!=)
EMULATOR_COMPARE(&&)
EMULATOR_COMPARE(||)
#undef EMULATOR_COMPARE

#define EMULATOR_UNARY(operation)                                                                            \
    template <class A>                                                                                       \
    inline metal::enable_if_t<(emulator::shape<A>::size > 1),                                                \
                              metal::vec<emulator::element_of<A>, emulator::shape<A>::size>>                 \
    operator operation(A a) {                                                                                \
        metal::vec<emulator::element_of<A>, emulator::shape<A>::size> out;                                   \
        for (int i = 0; i < emulator::shape<A>::size; i++)                                                   \
            out.e[i] = (emulator::element_of<A>)(operation emulator::at(a, i));                              \
        return out;                                                                                          \
    }
EMULATOR_UNARY(-)
EMULATOR_UNARY(~)
EMULATOR_UNARY(!)
#undef EMULATOR_UNARY

#define EMULATOR_NAMES(name, type)                                                                           \
    using name##2 = metal::vec<type, 2>;                                                                     \
    using name##3 = metal::vec<type, 3>;                                                                     \
    using name##4 = metal::vec<type, 4>;                                                                     \
    using packed_##name##2 = metal::packed_vec<type, 2>;                                                     \
    using packed_##name##3 = metal::packed_vec<type, 3>;                                                     \
    using packed_##name##4 = metal::packed_vec<type, 4>;
EMULATOR_NAMES(bool, bool)
EMULATOR_NUMBERS(EMULATOR_NAMES)
#undef EMULATOR_NAMES

static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(float3) == 16, "as in Metal");
static_assert(sizeof(bfloat4) == 8 && alignof(bfloat4) == 8 && sizeof(packed_float3) == 12, "as in Metal");

#endif
