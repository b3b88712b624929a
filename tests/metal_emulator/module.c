/* Linked into every module of kernels: its table, and the way from the kernels to the emulator.
 *
 * Kernels of a checked module are compiled with clang's thread sanitizer, which puts a call before every load
 * and store that could be seen by another thread. Its runtime library is not linked: the calls come here. */
#include "module.h"

#include <stddef.h>

static const struct emulator_runtime *emulator;
static struct emulator_module module;

#define SITE __builtin_return_address(0)
#define HIDDEN __attribute__((visibility("hidden")))

__attribute__((visibility("default"))) emulator_module_function emulator_module;

const struct emulator_module *emulator_module(const struct emulator_runtime *runtime) {
    emulator = runtime;
#ifdef EMULATOR_CHECKED
    module.checked = true;
#endif
    return &module;
}

HIDDEN void emulator_register(struct emulator_unit *unit);
void emulator_register(struct emulator_unit *unit) {
    unit->next = module.units;
    module.units = unit;
}

/* ---- What metal_stdlib calls (emulator/runtime.h) */

HIDDEN void *emulator_variable(emulator_u32 id, emulator_u32 size, emulator_u32 alignment, const char *name);
void *emulator_variable(emulator_u32 id, emulator_u32 size, emulator_u32 alignment, const char *name) {
    return emulator->variable(id, size, alignment, name);
}

HIDDEN void emulator_group_barrier(emulator_u32 memory);
void emulator_group_barrier(emulator_u32 memory) {
    emulator->group_barrier(memory, SITE);
}

HIDDEN void emulator_simd_barrier(emulator_u32 memory);
void emulator_simd_barrier(emulator_u32 memory) {
    emulator->simd_barrier(memory, SITE);
}

HIDDEN void emulator_reduce(enum emulator_reduction reduction, enum emulator_type type, void *values,
                            emulator_u32 count, emulator_u32 width);
void emulator_reduce(enum emulator_reduction reduction, enum emulator_type type, void *values,
                     emulator_u32 count, emulator_u32 width) {
    emulator->reduce(reduction, type, values, count, width, SITE);
}

HIDDEN void emulator_shuffle(enum emulator_shuffle shuffle, void *value, const void *fill, emulator_u32 size,
                             emulator_u32 index, emulator_u32 width);
void emulator_shuffle(enum emulator_shuffle shuffle, void *value, const void *fill, emulator_u32 size,
                      emulator_u32 index, emulator_u32 width) {
    emulator->shuffle(shuffle, value, fill, size, index, width, SITE);
}

HIDDEN emulator_u64 emulator_ballot(bool value);
emulator_u64 emulator_ballot(bool value) {
    return emulator->ballot(value, SITE);
}

HIDDEN void emulator_multiply(const float a[2], const float b[2], const float c[2], float d[2]);
void emulator_multiply(const float a[2], const float b[2], const float c[2], float d[2]) {
    emulator->multiply(a, b, c, d, SITE);
}

HIDDEN void emulator_together(const char *name);
void emulator_together(const char *name) {
    emulator->together(name, SITE);
}

HIDDEN void *emulator_meet(const char *name, emulator_u32 simdgroups, emulator_u32 size);
void *emulator_meet(const char *name, emulator_u32 simdgroups, emulator_u32 size) {
    return emulator->meet(name, simdgroups, size, SITE);
}

HIDDEN void emulator_fault(const char *text, bool fatal);
void emulator_fault(const char *text, bool fatal) {
    emulator->fault(text, fatal, SITE);
}

HIDDEN emulator_u32 emulator_lane(void);
emulator_u32 emulator_lane(void) {
    return emulator->lane();
}

HIDDEN enum emulator_layout emulator_layout(void);
enum emulator_layout emulator_layout(void) {
    return emulator->layout();
}

HIDDEN enum emulator_arithmetic emulator_arithmetic(void);
enum emulator_arithmetic emulator_arithmetic(void) {
    return emulator->arithmetic();
}

/* An access by a simdgroup as a whole: metal_stdlib itself is not instrumented. */
HIDDEN void emulator_collective(const void *address, emulator_u32 size, bool store);
void emulator_collective(const void *address, emulator_u32 size, bool store) {
#ifdef EMULATOR_CHECKED
    emulator->access(address, size, EMULATOR_COLLECTIVE | (store ? EMULATOR_STORE : EMULATOR_LOAD), SITE);
#else
    (void)address, (void)size, (void)store;
#endif
}

#ifdef EMULATOR_CHECKED

/* ---- What the thread sanitizer's instrumentation calls */

#define ACCESS(name, bytes, kind)                                                                            \
    HIDDEN void name(const void *address);                                                                   \
    void name(const void *address) {                                                                         \
        emulator->access(address, bytes, kind, SITE);                                                        \
    }
#define ACCESSES(bytes)                                                                                      \
    ACCESS(__tsan_read##bytes, bytes, EMULATOR_LOAD)                                                         \
    ACCESS(__tsan_write##bytes, bytes, EMULATOR_STORE)                                                       \
    ACCESS(__tsan_unaligned_read##bytes, bytes, EMULATOR_LOAD | EMULATOR_UNALIGNED)                          \
    ACCESS(__tsan_unaligned_write##bytes, bytes, EMULATOR_STORE | EMULATOR_UNALIGNED)                        \
    ACCESS(__tsan_volatile_read##bytes, bytes, EMULATOR_LOAD)                                                \
    ACCESS(__tsan_volatile_write##bytes, bytes, EMULATOR_STORE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

HIDDEN void __tsan_init(void);
void __tsan_init(void) {}
HIDDEN void __tsan_func_entry(void *address);
void __tsan_func_entry(void *address) {
    (void)address;
}
HIDDEN void __tsan_func_exit(void);
void __tsan_func_exit(void) {}

#define ATOMIC_UPDATE(bits, name, operation)                                                                 \
    HIDDEN emulator_u##bits __tsan_atomic##bits##_##name(volatile emulator_u##bits *address,                 \
                                                         emulator_u##bits value, int order);                 \
    emulator_u##bits __tsan_atomic##bits##_##name(volatile emulator_u##bits *address,                        \
                                                  emulator_u##bits value, int order) {                       \
        (void)order;                                                                                         \
        emulator->access((const void *)address, bits / 8, EMULATOR_STORE | EMULATOR_ATOMIC, SITE);           \
        return operation(address, value, __ATOMIC_SEQ_CST);                                                  \
    }
#define ATOMICS(bits)                                                                                        \
    HIDDEN emulator_u##bits __tsan_atomic##bits##_load(const volatile emulator_u##bits *address, int order); \
    emulator_u##bits __tsan_atomic##bits##_load(const volatile emulator_u##bits *address, int order) {       \
        (void)order;                                                                                         \
        emulator->access((const void *)address, bits / 8, EMULATOR_LOAD | EMULATOR_ATOMIC, SITE);            \
        return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                        \
    HIDDEN void __tsan_atomic##bits##_store(volatile emulator_u##bits *address, emulator_u##bits value,      \
                                            int order);                                                      \
    void __tsan_atomic##bits##_store(volatile emulator_u##bits *address, emulator_u##bits value,             \
                                     int order) {                                                            \
        (void)order;                                                                                         \
        emulator->access((const void *)address, bits / 8, EMULATOR_STORE | EMULATOR_ATOMIC, SITE);           \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                        \
    HIDDEN emulator_u##bits __tsan_atomic##bits##_compare_exchange_val(                                      \
        volatile emulator_u##bits *address, emulator_u##bits expected, emulator_u##bits value, int order,    \
        int failure_order);                                                                                  \
    emulator_u##bits __tsan_atomic##bits##_compare_exchange_val(                                             \
        volatile emulator_u##bits *address, emulator_u##bits expected, emulator_u##bits value, int order,    \
        int failure_order) {                                                                                 \
        (void)order, (void)failure_order;                                                                    \
        emulator->access((const void *)address, bits / 8, EMULATOR_STORE | EMULATOR_ATOMIC, SITE);           \
        __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        return expected;                                                                                     \
    }                                                                                                        \
    ATOMIC_UPDATE(bits, exchange, __atomic_exchange_n)                                                       \
    ATOMIC_UPDATE(bits, fetch_add, __atomic_fetch_add)                                                       \
    ATOMIC_UPDATE(bits, fetch_sub, __atomic_fetch_sub)                                                       \
    ATOMIC_UPDATE(bits, fetch_and, __atomic_fetch_and)                                                       \
    ATOMIC_UPDATE(bits, fetch_or, __atomic_fetch_or)                                                         \
    ATOMIC_UPDATE(bits, fetch_xor, __atomic_fetch_xor)
ATOMICS(32)
ATOMICS(64)

HIDDEN void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order) {
    (void)order;
}
HIDDEN void __tsan_atomic_signal_fence(int order);
void __tsan_atomic_signal_fence(int order) {
    (void)order;
}

/* Copies of structures come as calls of these, by one name or the other, and must be seen too. */
static void *copy(void *to, const void *from, size_t size, const void *site) {
    emulator->access(from, (emulator_u32)size, EMULATOR_LOAD | EMULATOR_UNALIGNED, site);
    emulator->access(to, (emulator_u32)size, EMULATOR_STORE | EMULATOR_UNALIGNED, site);
    volatile unsigned char *out = to;
    const unsigned char *in = from;
    if ((size_t)((unsigned char *)to - in) >= size)
        for (size_t i = 0; i < size; i++)
            out[i] = in[i];
    else
        for (size_t i = size; i-- > 0;)
            out[i] = in[i];
    return to;
}

static void *fill(void *to, int value, size_t size, const void *site) {
    emulator->access(to, (emulator_u32)size, EMULATOR_STORE | EMULATOR_UNALIGNED, site);
    volatile unsigned char *out = to;
    for (size_t i = 0; i < size; i++)
        out[i] = (unsigned char)value;
    return to;
}

#define COPY(name)                                                                                           \
    HIDDEN void *name(void *to, const void *from, size_t size);                                              \
    void *name(void *to, const void *from, size_t size) {                                                    \
        return copy(to, from, size, SITE);                                                                   \
    }
#define FILL(name)                                                                                           \
    HIDDEN void *name(void *to, int value, size_t size);                                                     \
    void *name(void *to, int value, size_t size) {                                                           \
        return fill(to, value, size, SITE);                                                                  \
    }
COPY(memcpy)
COPY(memmove)
COPY(__tsan_memcpy)
COPY(__tsan_memmove)
FILL(memset)
FILL(__tsan_memset)

#endif
