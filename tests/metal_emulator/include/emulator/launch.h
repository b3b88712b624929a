/* How a kernel is called: what prepare.py appends to every .metal file is made of these. */
#ifndef EMULATOR_LAUNCH_H
#define EMULATOR_LAUNCH_H

#include "matrix.h"

namespace emulator {

/* An argument of type A, from slot I or position K. */
template <emulator_argument_kind K, emulator_u32 I> struct source {};

template <class A> struct receiver;
template <class T> struct receiver<T *> {
    static constexpr emulator_u32 alignment = alignof(T), size = 0;
    static constexpr bool read_only = metal::is_same_v<T, const metal::remove_cv_t<T>>;
    static T *from(void *memory) {
        return (T *)memory;
    }
};
template <> struct receiver<void *> {
    static constexpr emulator_u32 alignment = 1, size = 0;
    static constexpr bool read_only = false;
    static void *from(void *memory) {
        return memory;
    }
};
template <> struct receiver<const void *> : receiver<void *> { static constexpr bool read_only = true; };
template <class T> struct receiver<T &> {
    static constexpr emulator_u32 alignment = alignof(T), size = sizeof(T);
    static constexpr bool read_only = metal::is_same_v<T, const metal::remove_cv_t<T>>;
    static T &from(void *memory) {
        return *(T *)memory;
    }
};

template <class A> A position(const emulator_u32 value[3]) {
    if constexpr (shape<A>::size == 1) {
        return (A)value[0];
    } else {
        A out;
        for (int i = 0; i < shape<A>::size; i++)
            out.e[i] = (element_of<A>)value[i];
        return out;
    }
}

template <class A, emulator_argument_kind K, emulator_u32 I>
decltype(auto) argument(const emulator_launch *launch, source<K, I>) {
    using T = metal::remove_cv_t<A>;
    if constexpr (K == EMULATOR_BUFFER)
        return receiver<T>::from(launch->buffers[I]);
    else if constexpr (K == EMULATOR_THREADGROUP)
        return receiver<T>::from(launch->shared[I]);
    else
        return position<T>(launch->positions[K]);
}

template <class... A, class... S>
void call(void (*function)(A...), const emulator_launch *launch, S... sources) {
    function(argument<A>(launch, sources)...);
}

template <class A, emulator_argument_kind K, emulator_u32 I>
constexpr emulator_argument describe(const char *name, const bool *condition) {
    using T = metal::remove_cv_t<A>;
    if constexpr (K == EMULATOR_BUFFER || K == EMULATOR_THREADGROUP)
        return {name, K, I, receiver<T>::alignment, receiver<T>::size, receiver<T>::read_only, condition};
    else
        return {name, K, I, 0, 0, true, condition};
}

/* The type of parameter I of a function. */
template <int I, class F> struct parameter_type;
template <class A, class... B> struct parameter_type<0, void (*)(A, B...)> { using type = A; };
template <int I, class A, class... B>
struct parameter_type<I, void (*)(A, B...)> : parameter_type<I - 1, void (*)(B...)> {};
template <int I, class F> using parameter = typename parameter_type<I, F>::type;

template <class T> struct constant_type;
#define EMULATOR_CONSTANT_TYPE(type, name)                                                                   \
    template <> struct constant_type<type> { static constexpr emulator_type kind = name; }
EMULATOR_CONSTANT_TYPE(bool, EMULATOR_BOOL);
EMULATOR_CONSTANT_TYPE(int, EMULATOR_INT);
EMULATOR_CONSTANT_TYPE(uint, EMULATOR_UINT);
EMULATOR_CONSTANT_TYPE(short, EMULATOR_SHORT);
EMULATOR_CONSTANT_TYPE(ushort, EMULATOR_USHORT);
EMULATOR_CONSTANT_TYPE(float, EMULATOR_FLOAT);
#undef EMULATOR_CONSTANT_TYPE

/* Puts a constant into the list of its file. */
struct adder {
    adder(emulator_constant **list, emulator_constant *added) {
        added->next = *list;
        *list = added;
    }
};

} // namespace emulator

/* The function constants of this file, newest first. */
static emulator_constant *emulator_constants;

#define is_function_constant_defined(name) (name##__defined)

#endif
