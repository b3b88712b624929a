/* Barriers, simdgroup and quadgroup functions: what lanes do together. */
#ifndef EMULATOR_SIMD_H
#define EMULATOR_SIMD_H

#include "math.h"
#include "runtime.h"

namespace emulator {

/* The type in which the emulator reduces T, and its name there. */
template <class T> struct reduced;
#define EMULATOR_REDUCED(from, to, name)                                                                     \
    template <> struct reduced<from> {                                                                       \
        using type = to;                                                                                     \
        static constexpr emulator_type kind = name;                                                          \
    }
EMULATOR_REDUCED(float, float, EMULATOR_FLOAT);
EMULATOR_REDUCED(half, float, EMULATOR_FLOAT);
EMULATOR_REDUCED(bfloat, float, EMULATOR_FLOAT);
EMULATOR_REDUCED(int, int, EMULATOR_INT);
EMULATOR_REDUCED(short, int, EMULATOR_INT);
EMULATOR_REDUCED(signed char, int, EMULATOR_INT);
EMULATOR_REDUCED(char, int, EMULATOR_INT);
EMULATOR_REDUCED(uint, uint, EMULATOR_UINT);
EMULATOR_REDUCED(ushort, uint, EMULATOR_UINT);
EMULATOR_REDUCED(uchar, uint, EMULATOR_UINT);
EMULATOR_REDUCED(long, long, EMULATOR_LONG);
EMULATOR_REDUCED(ulong, ulong, EMULATOR_ULONG);
#undef EMULATOR_REDUCED

template <class A> EMULATOR_INLINE auto reduce(emulator_reduction reduction, const A &a, emulator_u32 width) {
    using T = element_of<A>;
    constexpr int size = shape<A>::size;
    typename reduced<T>::type values[size];
    for (int i = 0; i < size; i++)
        values[i] = (typename reduced<T>::type)at(a, i);
    emulator_reduce(reduction, reduced<T>::kind, values, size, width);
    if constexpr (size == 1) {
        return (T)values[0];
    } else {
        metal::vec<T, size> out;
        for (int i = 0; i < size; i++)
            out.e[i] = (T)values[i];
        return out;
    }
}

/* Swizzles become vectors, all else stays. */
template <class A> struct plain { using type = A; };
template <class T, int N, int... I> struct plain<swizzle<T, N, I...>> {
    using type = metal::vec<T, sizeof...(I)>;
};

template <class A>
EMULATOR_INLINE typename plain<A>::type shuffle(enum emulator_shuffle kind, const A &a, emulator_u32 index,
                                                emulator_u32 width) {
    static_assert(!metal::is_same_v<A, bool>, "Metal does not shuffle bool: use ushort");
    typename plain<A>::type value = a;
    emulator_shuffle(kind, &value, nullptr, sizeof value, index, width);
    return value;
}

template <class A>
EMULATOR_INLINE typename plain<A>::type shuffle_fill(enum emulator_shuffle kind, const A &a, const A &filling,
                                                     emulator_u32 index) {
    typename plain<A>::type value = a, fill = filling;
    emulator_shuffle(kind, &value, &fill, sizeof value, index, 32);
    return value;
}

} // namespace emulator

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
    return (mem_flags)((int)a | (int)b);
}

EMULATOR_INLINE void threadgroup_barrier(mem_flags flags) {
    emulator_group_barrier((emulator_u32)flags & 3);
}
EMULATOR_INLINE void simdgroup_barrier(mem_flags flags) {
    emulator_simd_barrier((emulator_u32)flags & 3);
}

#define EMULATOR_REDUCE(name, reduction)                                                                     \
    template <class A> EMULATOR_INLINE auto simd_##name(A a) {                                               \
        return emulator::reduce(reduction, a, 32);                                                           \
    }                                                                                                        \
    template <class A> EMULATOR_INLINE auto quad_##name(A a) {                                               \
        return emulator::reduce(reduction, a, 4);                                                            \
    }
EMULATOR_REDUCE(sum, EMULATOR_SUM)
EMULATOR_REDUCE(product, EMULATOR_PRODUCT)
EMULATOR_REDUCE(min, EMULATOR_MIN)
EMULATOR_REDUCE(max, EMULATOR_MAX)
EMULATOR_REDUCE(and, EMULATOR_AND)
EMULATOR_REDUCE(or, EMULATOR_OR)
EMULATOR_REDUCE(xor, EMULATOR_XOR)
EMULATOR_REDUCE(prefix_inclusive_sum, EMULATOR_INCLUSIVE_SUM)
EMULATOR_REDUCE(prefix_exclusive_sum, EMULATOR_EXCLUSIVE_SUM)
EMULATOR_REDUCE(prefix_inclusive_product, EMULATOR_INCLUSIVE_PRODUCT)
EMULATOR_REDUCE(prefix_exclusive_product, EMULATOR_EXCLUSIVE_PRODUCT)
#undef EMULATOR_REDUCE

#define EMULATOR_SHUFFLE(name, kind)                                                                         \
    template <class A> EMULATOR_INLINE auto simd_##name(A a, ushort index) {                                 \
        return emulator::shuffle(kind, a, index, 32);                                                        \
    }                                                                                                        \
    template <class A> EMULATOR_INLINE auto quad_##name(A a, ushort index) {                                 \
        return emulator::shuffle(kind, a, index, 4);                                                         \
    }
EMULATOR_SHUFFLE(broadcast, EMULATOR_BROADCAST)
EMULATOR_SHUFFLE(shuffle, EMULATOR_SHUFFLE)
EMULATOR_SHUFFLE(shuffle_xor, EMULATOR_SHUFFLE_XOR)
EMULATOR_SHUFFLE(shuffle_up, EMULATOR_SHUFFLE_UP)
EMULATOR_SHUFFLE(shuffle_down, EMULATOR_SHUFFLE_DOWN)
EMULATOR_SHUFFLE(shuffle_rotate_up, EMULATOR_ROTATE_UP)
EMULATOR_SHUFFLE(shuffle_rotate_down, EMULATOR_ROTATE_DOWN)
#undef EMULATOR_SHUFFLE
template <class A> EMULATOR_INLINE auto simd_broadcast_first(A a) {
    return emulator::shuffle(EMULATOR_BROADCAST_FIRST, a, 0, 32);
}
template <class A> EMULATOR_INLINE auto simd_shuffle_and_fill_up(A a, A fill, ushort delta) {
    return emulator::shuffle_fill(EMULATOR_FILL_UP, a, fill, delta);
}
template <class A> EMULATOR_INLINE auto simd_shuffle_and_fill_down(A a, A fill, ushort delta) {
    return emulator::shuffle_fill(EMULATOR_FILL_DOWN, a, fill, delta);
}

struct simd_vote {
    using vote_t = ulong;
    ulong votes;
    explicit operator ulong() const {
        return votes;
    }
    bool all() const {
        return votes == 0xffffffffu;
    }
    bool any() const {
        return votes != 0;
    }
};
EMULATOR_INLINE simd_vote simd_ballot(bool value) {
    return simd_vote{emulator_ballot(value)};
}
EMULATOR_INLINE bool simd_any(bool value) {
    return emulator_ballot(value) != 0;
}
EMULATOR_INLINE bool simd_all(bool value) {
    return emulator_ballot(!value) == 0;
}
EMULATOR_INLINE bool simd_is_first() {
    return (emulator_lane() & 31) == 0;
}

} // namespace metal

#endif
