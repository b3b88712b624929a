/* Between the emulator, which is C, and the kernels, which are compiled from .metal files as C++ into a
 * shared module of their own: the emulator calls kernels by their table, and kernels call the emulator by
 * its.
 *
 * A module is loaded with dlopen; its function emulator_module takes the emulator's table and returns its
 * own. */
#ifndef CALLA_METAL_EMULATOR_MODULE_H
#define CALLA_METAL_EMULATOR_MODULE_H

#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Fixed-width types without a header: metal_stdlib defines these names itself. */
typedef __UINT8_TYPE__ emulator_u8;
typedef __UINT16_TYPE__ emulator_u16;
typedef __UINT32_TYPE__ emulator_u32;
typedef __UINT64_TYPE__ emulator_u64;

#define EMULATOR_SLOTS 31

/* What an argument of a kernel is. From EMULATOR_FIRST_POSITION on: a value of three numbers. */
enum emulator_argument_kind {
    EMULATOR_BUFFER,
    EMULATOR_THREADGROUP,
    EMULATOR_FIRST_POSITION,
    EMULATOR_THREAD_POSITION_IN_GRID = EMULATOR_FIRST_POSITION,
    EMULATOR_THREADS_PER_GRID,
    EMULATOR_THREADGROUP_POSITION_IN_GRID,
    EMULATOR_THREADGROUPS_PER_GRID,
    EMULATOR_THREAD_POSITION_IN_THREADGROUP,
    EMULATOR_THREADS_PER_THREADGROUP,
    EMULATOR_THREAD_INDEX_IN_THREADGROUP,
    EMULATOR_THREAD_INDEX_IN_SIMDGROUP,
    EMULATOR_SIMDGROUP_INDEX_IN_THREADGROUP,
    EMULATOR_SIMDGROUPS_PER_THREADGROUP,
    EMULATOR_THREADS_PER_SIMDGROUP,
    EMULATOR_THREAD_INDEX_IN_QUADGROUP,
    EMULATOR_QUADGROUP_INDEX_IN_THREADGROUP,
    EMULATOR_POSITION_COUNT
};

struct emulator_argument {
    const char *name;
    enum emulator_argument_kind kind;
    emulator_u32 index;     /* slot */
    emulator_u32 alignment; /* of what it points to */
    emulator_u32 size;      /* of what it refers to; 0 for pointers */
    bool read_only;         /* const */
    const bool *condition;  /* the function constant it depends on, or NULL */
};

/* What one thread is started with. */
struct emulator_launch {
    void *buffers[EMULATOR_SLOTS];
    void *shared[EMULATOR_SLOTS];
    emulator_u32 positions[EMULATOR_POSITION_COUNT][3];
};

struct emulator_kernel {
    const char *name;
    void (*launch)(const struct emulator_launch *launch);
    const struct emulator_argument *arguments;
    emulator_u32 argument_count;
    emulator_u32 max_threads; /* [[max_total_threads_per_threadgroup]]; 0: not said */
    emulator_u32 required[3]; /* [[required_threads_per_threadgroup]]; 0: not said */
    const char *file;
    emulator_u32 line;
};

enum emulator_type {
    EMULATOR_FLOAT,
    EMULATOR_INT,
    EMULATOR_UINT,
    EMULATOR_SHORT,
    EMULATOR_USHORT,
    EMULATOR_CHAR,
    EMULATOR_UCHAR,
    EMULATOR_LONG,
    EMULATOR_ULONG,
    EMULATOR_BOOL
};

/* A program-scope `constant T name [[function_constant(index)]]`, or one computed from such. */
struct emulator_constant {
    struct emulator_constant *next;
    const char *name;
    emulator_u32 index;
    enum emulator_type type;
    void *value;
    bool *defined;
    void (*derive)(void); /* instead of index and value */
};

/* What one .metal file adds. */
struct emulator_unit {
    struct emulator_unit *next;
    const struct emulator_kernel *kernels;
    emulator_u32 kernel_count;
    struct emulator_constant **constants; /* newest first */
};

struct emulator_module {
    struct emulator_unit *units;
    bool checked; /* loads and stores are reported */
};

enum emulator_access_kind {
    EMULATOR_LOAD = 0,
    EMULATOR_STORE = 1,
    EMULATOR_ATOMIC = 2,
    EMULATOR_UNALIGNED = 4,  /* of a type that needs no alignment */
    EMULATOR_COLLECTIVE = 8, /* by a simdgroup as a whole */
};

enum emulator_memory {
    EMULATOR_MEMORY_NONE = 0,
    EMULATOR_MEMORY_DEVICE = 1,
    EMULATOR_MEMORY_THREADGROUP = 2
};

enum emulator_reduction {
    EMULATOR_SUM,
    EMULATOR_PRODUCT,
    EMULATOR_MIN,
    EMULATOR_MAX,
    EMULATOR_AND,
    EMULATOR_OR,
    EMULATOR_XOR,
    EMULATOR_INCLUSIVE_SUM,
    EMULATOR_EXCLUSIVE_SUM,
    EMULATOR_INCLUSIVE_PRODUCT,
    EMULATOR_EXCLUSIVE_PRODUCT,
    EMULATOR_REDUCTION_COUNT
};

enum emulator_shuffle {
    EMULATOR_BROADCAST,
    EMULATOR_BROADCAST_FIRST,
    EMULATOR_SHUFFLE,
    EMULATOR_SHUFFLE_XOR,
    EMULATOR_SHUFFLE_UP,
    EMULATOR_SHUFFLE_DOWN,
    EMULATOR_ROTATE_UP,
    EMULATOR_ROTATE_DOWN,
    EMULATOR_FILL_UP,
    EMULATOR_FILL_DOWN,
    EMULATOR_SHUFFLE_COUNT
};

/* How cooperative tensors are spread over lanes, and how products are summed. */
enum emulator_layout { EMULATOR_LAYOUT_M5, EMULATOR_LAYOUT_PADDED };
enum emulator_arithmetic {
    EMULATOR_ARITHMETIC_M5,
    EMULATOR_ARITHMETIC_SEQUENTIAL,
    EMULATOR_ARITHMETIC_REVERSED,
    EMULATOR_ARITHMETIC_WRONG
};

/* The emulator's functions. All but `access`, `variable` and those at the end are operations of several lanes
 * together: they return when all of them have come. `width` is 32 for a simdgroup, 4 for a quadgroup. `site`
 * is an address in the kernel's code, for reports. */
struct emulator_runtime {
    void (*access)(const void *address, emulator_u32 size, emulator_u32 kind, const void *site);
    /* Memory that all threads of the group share, the same for one `id` and group. */
    void *(*variable)(emulator_u32 id, emulator_u32 size, emulator_u32 alignment, const char *name);
    void (*group_barrier)(emulator_u32 memory, const void *site);
    void (*simd_barrier)(emulator_u32 memory, const void *site);
    /* In place, on `count` values of `type`, of which the implementation takes FLOAT, INT, UINT, LONG, ULONG.
     */
    void (*reduce)(enum emulator_reduction reduction, enum emulator_type type, void *values,
                   emulator_u32 count, emulator_u32 width, const void *site);
    /* In place; `fill` for EMULATOR_FILL_... alone, else NULL. size <= 32. */
    void (*shuffle)(enum emulator_shuffle shuffle, void *value, const void *fill, emulator_u32 size,
                    emulator_u32 index, emulator_u32 width, const void *site);
    emulator_u64 (*ballot)(bool value, const void *site);
    /* 8x8 matrices, two elements a lane: d = a b + c. */
    void (*multiply)(const float a[2], const float b[2], const float c[2], float d[2], const void *site);
    /* Something else that all lanes of a simdgroup do together. */
    void (*together)(const char *name, const void *site);
    /* All lanes of `simdgroups` simdgroups, which must be the whole threadgroup or one simdgroup, meet.
     * Returns memory of at least `size` bytes that they share until their next meeting with a size. */
    void *(*meet)(const char *name, emulator_u32 simdgroups, emulator_u32 size, const void *site);
    /* The kernel did what it must not. Ends the commands when `fatal`, and then does not return. */
    void (*fault)(const char *text, bool fatal, const void *site);
    enum emulator_layout (*layout)(void);
    enum emulator_arithmetic (*arithmetic)(void);
    emulator_u32 (*lane)(void); /* in its threadgroup */
};

typedef const struct emulator_module *emulator_module_function(const struct emulator_runtime *runtime);

#ifdef __cplusplus
}
#endif

#endif
