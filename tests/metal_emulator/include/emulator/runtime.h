/* The emulator's functions as kernels call them (module.c passes the calls on). Those that lanes do together
 * are convergent: the compiler may not move or copy them into branches. */
#ifndef EMULATOR_RUNTIME_H
#define EMULATOR_RUNTIME_H

#include "../../module.h"

#define EMULATOR_TOGETHER __attribute__((convergent))
/* Functions of metal_stdlib are part of the kernel that calls them, so that reports name its line, but are
 * not instrumented where they touch what only the emulator has. */
#define EMULATOR_INLINE inline __attribute__((always_inline, convergent))
#define EMULATOR_RAW inline __attribute__((no_sanitize("thread"), noinline))

extern "C" {
void emulator_register(struct emulator_unit *unit);
void *emulator_variable(emulator_u32 id, emulator_u32 size, emulator_u32 alignment, const char *name);
void emulator_group_barrier(emulator_u32 memory) EMULATOR_TOGETHER;
void emulator_simd_barrier(emulator_u32 memory) EMULATOR_TOGETHER;
void emulator_reduce(enum emulator_reduction reduction, enum emulator_type type, void *values,
                     emulator_u32 count, emulator_u32 width) EMULATOR_TOGETHER;
void emulator_shuffle(enum emulator_shuffle shuffle, void *value, const void *fill, emulator_u32 size,
                      emulator_u32 index, emulator_u32 width) EMULATOR_TOGETHER;
emulator_u64 emulator_ballot(bool value) EMULATOR_TOGETHER;
void emulator_multiply(const float a[2], const float b[2], const float c[2], float d[2]) EMULATOR_TOGETHER;
void emulator_together(const char *name) EMULATOR_TOGETHER;
void *emulator_meet(const char *name, emulator_u32 simdgroups, emulator_u32 size) EMULATOR_TOGETHER;
void emulator_fault(const char *text, bool fatal);
emulator_u32 emulator_lane(void);
enum emulator_layout emulator_layout(void);
enum emulator_arithmetic emulator_arithmetic(void);
void emulator_collective(const void *address, emulator_u32 size, bool store);
}

#endif
