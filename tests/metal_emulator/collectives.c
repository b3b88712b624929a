/* What simdgroups compute together, and the emulator's table of functions for kernels. All lanes have put
 * their request down and wait; results are written straight into the variables on their stacks. */
#include <math.h>

#include "metal_emulator/emulator.h"

/* ---- Reductions and prefix sums */

union number {
    float real;
    int32_t integer;
    uint32_t natural;
    int64_t long_integer;
    uint64_t long_natural;
};

static size_t type_size(enum emulator_type type) {
    return type == EMULATOR_LONG || type == EMULATOR_ULONG ? 8 : 4;
}

static union number load(const void *values, enum emulator_type type, uint32_t index) {
    union number out = {.long_natural = 0};
    memcpy(&out, (const unsigned char *)values + index * type_size(type), type_size(type));
    return out;
}

static void store(void *values, enum emulator_type type, uint32_t index, union number number) {
    memcpy((unsigned char *)values + index * type_size(type), &number, type_size(type));
}

/* Of minimum and maximum a NaN loses, as with fmin. */
static float combine_real(enum emulator_reduction reduction, float a, float b) {
    switch (reduction) {
    case EMULATOR_SUM:
    case EMULATOR_INCLUSIVE_SUM:
    case EMULATOR_EXCLUSIVE_SUM:
        return a + b;
    case EMULATOR_MIN:
        return fminf(a, b);
    case EMULATOR_MAX:
        return fmaxf(a, b);
    default:
        return a * b;
    }
}

#define COMBINE(name, type, as_unsigned)                                                                     \
    static type name(enum emulator_reduction reduction, type a, type b) {                                    \
        switch (reduction) {                                                                                 \
        case EMULATOR_SUM:                                                                                   \
        case EMULATOR_INCLUSIVE_SUM:                                                                         \
        case EMULATOR_EXCLUSIVE_SUM:                                                                         \
            return (type)((as_unsigned)a + (as_unsigned)b);                                                  \
        case EMULATOR_MIN:                                                                                   \
            return a < b ? a : b;                                                                            \
        case EMULATOR_MAX:                                                                                   \
            return a > b ? a : b;                                                                            \
        case EMULATOR_AND:                                                                                   \
            return a & b;                                                                                    \
        case EMULATOR_OR:                                                                                    \
            return a | b;                                                                                    \
        case EMULATOR_XOR:                                                                                   \
            return a ^ b;                                                                                    \
        default:                                                                                             \
            return (type)((as_unsigned)a * (as_unsigned)b);                                                  \
        }                                                                                                    \
    }
COMBINE(combine_integer, int32_t, uint32_t)
COMBINE(combine_natural, uint32_t, uint32_t)
COMBINE(combine_long, int64_t, uint64_t)
COMBINE(combine_long_natural, uint64_t, uint64_t)

static union number combine(enum emulator_reduction reduction, enum emulator_type type, union number a,
                            union number b) {
    union number out = {.long_natural = 0};
    switch (type) {
    case EMULATOR_FLOAT:
        out.real = combine_real(reduction, a.real, b.real);
        break;
    case EMULATOR_INT:
        out.integer = combine_integer(reduction, a.integer, b.integer);
        break;
    case EMULATOR_LONG:
        out.long_integer = combine_long(reduction, a.long_integer, b.long_integer);
        break;
    case EMULATOR_ULONG:
        out.long_natural = combine_long_natural(reduction, a.long_natural, b.long_natural);
        break;
    default:
        out.natural = combine_natural(reduction, a.natural, b.natural);
        break;
    }
    return out;
}

/* Pairs of neighbours, then pairs of those: one order of many that a GPU may have. With a seed that is odd
 * the other way round, so that nothing depends on it. */
static union number reduce_all(enum emulator_reduction reduction, enum emulator_type type,
                               union number *values, uint32_t count, bool far_first) {
    for (uint32_t left = count; left > 1;) {
        uint32_t half = (left + 1) / 2;
        for (uint32_t i = 0; i < left / 2; i++)
            values[i] = far_first ? combine(reduction, type, values[i], values[i + half])
                                  : combine(reduction, type, values[2 * i], values[2 * i + 1]);
        if (!far_first && left % 2 != 0)
            values[left / 2] = values[left - 1];
        left = half;
    }
    return values[0];
}

static void reduce(const struct worker *worker, struct lane *lanes, uint32_t lane_count) {
    const struct request *request = &lanes[0].request;
    enum emulator_reduction reduction = (enum emulator_reduction)request->what;
    enum emulator_type type = (enum emulator_type)request->type;
    for (uint32_t from = 0; from < lane_count; from += request->width) {
        uint32_t width = lane_count - from < request->width ? lane_count - from : request->width;
        struct lane *part = &lanes[from];
        for (uint32_t i = 0; i < request->count; i++) {
            union number values[METAL_SIMD_WIDTH];
            for (uint32_t j = 0; j < width; j++)
                values[j] = load(part[j].request.value, type, i);
            if (reduction < EMULATOR_INCLUSIVE_SUM) {
                union number all =
                    reduce_all(reduction, type, values, width, worker->device->options.seed & 1);
                for (uint32_t j = 0; j < width; j++)
                    store(part[j].request.value, type, i, all);
                continue;
            }
            bool product = reduction == EMULATOR_INCLUSIVE_PRODUCT || reduction == EMULATOR_EXCLUSIVE_PRODUCT;
            bool exclusive = reduction == EMULATOR_EXCLUSIVE_SUM || reduction == EMULATOR_EXCLUSIVE_PRODUCT;
            union number sum = {.long_natural = product};
            if (type == EMULATOR_FLOAT)
                sum.real = product ? 1.0f : 0.0f;
            for (uint32_t j = 0; j < width; j++) {
                union number next = combine(reduction, type, sum, values[j]);
                store(part[j].request.value, type, i, exclusive ? sum : next);
                sum = next;
            }
        }
    }
}

/* ---- Shuffles */

static const char *const shuffle_names[EMULATOR_SHUFFLE_COUNT] = {"simd_broadcast",
                                                                  "simd_broadcast_first",
                                                                  "simd_shuffle",
                                                                  "simd_shuffle_xor",
                                                                  "simd_shuffle_up",
                                                                  "simd_shuffle_down",
                                                                  "simd_shuffle_rotate_up",
                                                                  "simd_shuffle_rotate_down",
                                                                  "simd_shuffle_and_fill_up",
                                                                  "simd_shuffle_and_fill_down"};

/* The lane that lane `own` of `width` reads; own for "keeps its value", -1 for its filling, -2 for none. */
static int source_of(enum emulator_shuffle shuffle, int own, int index, int width) {
    switch (shuffle) {
    case EMULATOR_BROADCAST_FIRST:
        return 0;
    case EMULATOR_BROADCAST:
    case EMULATOR_SHUFFLE:
        return index < width ? index : -2;
    case EMULATOR_SHUFFLE_XOR:
        return (own ^ index) < width ? own ^ index : -2;
    case EMULATOR_SHUFFLE_UP:
        return own >= index ? own - index : own;
    case EMULATOR_SHUFFLE_DOWN:
        return own + index < width ? own + index : own;
    case EMULATOR_ROTATE_UP:
        return (own + width - index % width) % width;
    case EMULATOR_ROTATE_DOWN:
        return (own + index) % width;
    case EMULATOR_FILL_UP:
        return own >= index ? own - index : -1;
    default:
        return own + index < width ? own + index : -1;
    }
}

static void shuffle(struct worker *worker, struct lane *lanes, uint32_t lane_count) {
    const struct request *request = &lanes[0].request;
    enum emulator_shuffle kind = (enum emulator_shuffle)request->what;
    uint32_t size = request->count;
    unsigned char values[METAL_SIMD_WIDTH][32];
    for (uint32_t i = 0; i < lane_count; i++)
        memcpy(values[i], lanes[i].request.value, size);
    bool uniform = kind != EMULATOR_SHUFFLE && kind != EMULATOR_BROADCAST_FIRST;
    for (uint32_t i = 0; i < lane_count; i++) {
        uint32_t from = i - i % request->width;
        uint32_t width = lane_count - from < request->width ? lane_count - from : request->width;
        uint32_t index = lanes[i].request.index;
        int source = source_of(kind, (int)(i - from), (int)index, (int)width);
        char name[96];
        if (uniform && index != request->index) {
            report(worker->device, worker->dispatch, METAL_BAD_LANE, request->site, NULL,
                   "%s with %u in %s, and %u in the first lane of its simdgroup", shuffle_names[kind], index,
                   lane_name(worker, lanes[i].index, name), request->index);
            worker_abort(worker);
        }
        if (source == -2) {
            report(worker->device, worker->dispatch, METAL_BAD_LANE, request->site, NULL,
                   "%s with %u in %s asks for a lane that is not there", shuffle_names[kind], index,
                   lane_name(worker, lanes[i].index, name));
            worker_abort(worker);
        }
        memcpy(lanes[i].request.value, source < 0 ? lanes[i].request.fill : values[from + (uint32_t)source],
               size);
    }
}

/* ---- Matrices: a lane has elements (row, column) and (row, column + 1) */

static uint32_t matrix_row(uint32_t lane) {
    return (lane / 4 & 4) + lane / 2 % 4;
}

static uint32_t matrix_column(uint32_t lane) {
    return 2 * (lane / 4 & 2) + lane % 2 * 2;
}

/* d += a b, each sum one fused operation after the other. */
static inline __attribute__((always_inline)) void add_products(const float a[8][8], const float b[8][8],
                                                               float d[8][8], bool reversed) {
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t at = reversed ? 7 - k : k;
            for (uint32_t j = 0; j < 8; j++)
                d[i][j] = fmaf(a[i][at], b[at][j], d[i][j]);
        }
}

#ifdef __x86_64__
/* Where the processor has the operation; elsewhere the C library computes it, which is slow. */
__attribute__((target("avx2,fma"))) static void add_products_fused(const float a[8][8], const float b[8][8],
                                                                   float d[8][8], bool reversed) {
    add_products(a, b, d, reversed);
}
#endif

static void multiply(const struct worker *worker, struct lane *lanes, uint32_t lane_count) {
    float a[8][8], b[8][8], d[8][8];
    bool reversed = worker->device->options.sums == METAL_SUMS_REVERSED;
    for (uint32_t i = 0; i < lane_count; i++)
        for (uint32_t j = 0; j < 2; j++) {
            a[matrix_row(i)][matrix_column(i) + j] = lanes[i].request.matrices[0][j];
            b[matrix_row(i)][matrix_column(i) + j] = lanes[i].request.matrices[1][j];
            d[matrix_row(i)][matrix_column(i) + j] = lanes[i].request.matrices[2][j];
        }
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        add_products_fused((const float(*)[8])a, (const float(*)[8])b, d, reversed);
    else
#endif
        add_products((const float(*)[8])a, (const float(*)[8])b, d, reversed);
    for (uint32_t i = 0; i < lane_count; i++)
        for (uint32_t j = 0; j < 2; j++)
            ((float *)lanes[i].request.value)[j] = d[matrix_row(i)][matrix_column(i) + j];
}

void simdgroup_complete(struct worker *worker, struct simdgroup *simdgroup, struct lane *first) {
    uint64_t votes = 0;
    switch (first->request.kind) {
    case REQUEST_SIMD_BARRIER:
        for (int memory = 0; memory < 2; memory++)
            simdgroup->epoch[memory] += first->request.what >> memory & 1;
        break;
    case REQUEST_REDUCE:
        reduce(worker, first, simdgroup->lanes);
        break;
    case REQUEST_SHUFFLE:
        shuffle(worker, first, simdgroup->lanes);
        break;
    case REQUEST_BALLOT:
        for (uint32_t i = 0; i < simdgroup->lanes; i++)
            votes |= first[i].request.votes << i;
        for (uint32_t i = 0; i < simdgroup->lanes; i++)
            *(uint64_t *)first[i].request.value = votes;
        break;
    case REQUEST_MULTIPLY:
        multiply(worker, first, simdgroup->lanes);
        break;
    case REQUEST_MEET:
        shared_reserve(worker, &simdgroup->shared, first->request.count);
        break;
    default:
        break;
    }
}

/* ---- The functions that kernels call */

static void request_group_barrier(uint32_t memory, const void *site) {
    struct request request = {.kind = REQUEST_GROUP_BARRIER,
                              .whole_group = true,
                              .what = (int32_t)memory,
                              .name = "threadgroup_barrier",
                              .site = site};
    lane_wait(worker_current(), &request);
}

static void request_simd_barrier(uint32_t memory, const void *site) {
    struct request request = {
        .kind = REQUEST_SIMD_BARRIER, .what = (int32_t)memory, .name = "simdgroup_barrier", .site = site};
    lane_wait(worker_current(), &request);
}

static void request_reduce(enum emulator_reduction reduction, enum emulator_type type, void *values,
                           uint32_t count, uint32_t width, const void *site) {
    static const char *const names[EMULATOR_REDUCTION_COUNT] = {"simd_sum",
                                                                "simd_product",
                                                                "simd_min",
                                                                "simd_max",
                                                                "simd_and",
                                                                "simd_or",
                                                                "simd_xor",
                                                                "simd_prefix_inclusive_sum",
                                                                "simd_prefix_exclusive_sum",
                                                                "simd_prefix_inclusive_product",
                                                                "simd_prefix_exclusive_product"};
    struct request request = {.kind = REQUEST_REDUCE,
                              .what = (int32_t)reduction,
                              .type = (int32_t)type,
                              .count = count,
                              .width = width,
                              .value = values,
                              .name = names[reduction],
                              .site = site};
    lane_wait(worker_current(), &request);
}

static void request_shuffle(enum emulator_shuffle kind, void *value, const void *fill, uint32_t size,
                            uint32_t index, uint32_t width, const void *site) {
    struct request request = {.kind = REQUEST_SHUFFLE,
                              .what = (int32_t)kind,
                              .count = size,
                              .width = width,
                              .index = index,
                              .value = value,
                              .fill = fill,
                              .name = shuffle_names[kind],
                              .site = site};
    lane_wait(worker_current(), &request);
}

static uint64_t request_ballot(bool value, const void *site) {
    uint64_t votes = 0;
    struct request request = {.kind = REQUEST_BALLOT,
                              .votes = value,
                              .value = &votes,
                              .name = "simd_ballot, simd_any or simd_all",
                              .site = site};
    lane_wait(worker_current(), &request);
    return votes;
}

static void request_multiply(const float a[2], const float b[2], const float c[2], float d[2],
                             const void *site) {
    struct request request = {.kind = REQUEST_MULTIPLY,
                              .value = d,
                              .matrices = {a, b, c},
                              .name = "simdgroup_multiply_accumulate",
                              .site = site};
    struct worker *worker = worker_current();
    if (worker->simdgroups[worker->current->index / METAL_SIMD_WIDTH].lanes != METAL_SIMD_WIDTH) {
        report(worker->device, worker->dispatch, METAL_PARTIAL_SIMDGROUP, site, NULL,
               "simdgroup_multiply_accumulate in a simdgroup of fewer than 32 threads");
        worker_abort(worker);
    }
    lane_wait(worker, &request);
}

static void request_together(const char *name, const void *site) {
    struct worker *worker = worker_current();
    if (!worker->device->options.checked)
        return; /* such an operation by itself moves nothing between lanes */
    struct request request = {.kind = REQUEST_TOGETHER, .name = name, .site = site};
    lane_wait(worker, &request);
}

static void *request_meet(const char *name, uint32_t simdgroups, uint32_t size, const void *site) {
    struct worker *worker = worker_current();
    bool whole = simdgroups != 1;
    if (worker->lane_count % METAL_SIMD_WIDTH != 0 || (whole && simdgroups != worker->simdgroup_count)) {
        report(worker->device, worker->dispatch, METAL_BAD_TENSOR, site, NULL,
               "%s for %u simdgroups in a threadgroup of %u threads", name, simdgroups, worker->lane_count);
        worker_abort(worker);
    }
    struct request request = {.kind = REQUEST_MEET,
                              .whole_group = whole,
                              .what = (int32_t)simdgroups,
                              .count = size,
                              .name = name,
                              .site = site};
    struct lane *lane = worker->current;
    lane_wait(worker, &request);
    return whole ? worker->shared.memory : worker->simdgroups[lane->index / METAL_SIMD_WIDTH].shared.memory;
}

static void request_fault(const char *text, bool fatal, const void *site) {
    struct worker *worker = worker_current();
    report(worker->device, worker->dispatch, METAL_BAD_TENSOR, site, NULL, "%s", text);
    if (fatal)
        worker_abort(worker);
}

static enum emulator_layout current_layout(void) {
    return worker_current()->device->options.padded_layout ? EMULATOR_LAYOUT_PADDED : EMULATOR_LAYOUT_M5;
}

static enum emulator_arithmetic current_arithmetic(void) {
    switch (worker_current()->device->options.sums) {
    case METAL_SUMS_M5:
        return EMULATOR_ARITHMETIC_M5;
    case METAL_SUMS_SEQUENTIAL:
        return EMULATOR_ARITHMETIC_SEQUENTIAL;
    case METAL_SUMS_WRONG:
        return EMULATOR_ARITHMETIC_WRONG;
    default:
        return EMULATOR_ARITHMETIC_REVERSED;
    }
}

static uint32_t current_lane(void) {
    return worker_current()->current->index;
}

const struct emulator_runtime emulator_runtime = {
    .access = memory_access,
    .variable = memory_variable,
    .group_barrier = request_group_barrier,
    .simd_barrier = request_simd_barrier,
    .reduce = request_reduce,
    .shuffle = request_shuffle,
    .ballot = request_ballot,
    .multiply = request_multiply,
    .together = request_together,
    .meet = request_meet,
    .fault = request_fault,
    .layout = current_layout,
    .arithmetic = current_arithmetic,
    .lane = current_lane,
};
