/* Atomics of 32 bits, relaxed. Conflicts between them are none; between one and a plain access they are. */
#ifndef EMULATOR_ATOMICS_H
#define EMULATOR_ATOMICS_H

#include "simd.h"

using atomic_int = metal::atomic<int>;
using atomic_uint = metal::atomic<uint>;
using atomic_float = metal::atomic<float>;

namespace emulator {
template <class T> uint atomic_bits(T value) {
    return __builtin_bit_cast(uint, value);
}
template <class T> T atomic_value(uint bits) {
    return __builtin_bit_cast(T, bits);
}
/* The value before `update` changed it. */
template <class T, class F> inline T atomic_update(volatile metal::atomic<T> *object, F update) {
    volatile uint *bits = (volatile uint *)&object->emulator_value;
    uint old = __atomic_load_n(bits, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(bits, &old, atomic_bits<T>(update(atomic_value<T>(old))), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return atomic_value<T>(old);
}
} // namespace emulator

namespace metal {

template <class T> inline T atomic_load_explicit(const volatile atomic<T> *object, memory_order) {
    return emulator::atomic_value<T>(
        __atomic_load_n((const volatile uint *)&object->emulator_value, __ATOMIC_RELAXED));
}
template <class T, class V>
inline void atomic_store_explicit(volatile atomic<T> *object, V value, memory_order) {
    __atomic_store_n((volatile uint *)&object->emulator_value, emulator::atomic_bits<T>((T)value),
                     __ATOMIC_RELAXED);
}
template <class T, class V>
inline T atomic_exchange_explicit(volatile atomic<T> *object, V value, memory_order) {
    return emulator::atomic_value<T>(__atomic_exchange_n(
        (volatile uint *)&object->emulator_value, emulator::atomic_bits<T>((T)value), __ATOMIC_RELAXED));
}
template <class T, class V>
inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T> *object, T *expected, V value,
                                                  memory_order, memory_order) {
    uint old = emulator::atomic_bits<T>(*expected);
    bool done = __atomic_compare_exchange_n((volatile uint *)&object->emulator_value, &old,
                                            emulator::atomic_bits<T>((T)value), false, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED);
    *expected = emulator::atomic_value<T>(old);
    return done;
}
#define EMULATOR_ATOMIC(name, expression)                                                                    \
    template <class T, class V>                                                                              \
    inline T atomic_fetch_##name##_explicit(volatile atomic<T> *object, V given, memory_order) {             \
        T value = (T)given;                                                                                  \
        return emulator::atomic_update(object, [value](T old) { return (T)(expression); });                  \
    }
EMULATOR_ATOMIC(add, old + value)
EMULATOR_ATOMIC(sub, old - value)
EMULATOR_ATOMIC(min, value < old ? value : old)
EMULATOR_ATOMIC(max, value > old ? value : old)
EMULATOR_ATOMIC(and, old &value)
EMULATOR_ATOMIC(or, old | value)
EMULATOR_ATOMIC(xor, old ^ value)
#undef EMULATOR_ATOMIC

inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

} // namespace metal

#endif
