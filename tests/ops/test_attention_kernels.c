/* The CPU backend's attention, on every instruction set that this processor has: against the reference, and
 * bit for bit the same whatever chunks the rows come in. */
#include "unit.h"

#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"

struct shape {
    uint32_t heads, kv_heads, size;
    enum dtype cache;
    uint32_t position, rows; /* rows at position .. */
};

/* Positions before, at and after the ends of blocks and spans; all whole vectors, and none. */
static const struct shape shapes[] = {
    {16, 2, 256, DTYPE_BF16, 505, 18}, {16, 2, 256, DTYPE_F32, 1022, 3}, {8, 8, 64, DTYPE_BF16, 60, 9},
    {4, 2, 128, DTYPE_F32, 127, 3},    {4, 1, 8, DTYPE_BF16, 510, 6},    {2, 1, 24, DTYPE_F32, 0, 70},
    {6, 3, 20, DTYPE_BF16, 1023, 2},   {9, 3, 10, DTYPE_F32, 63, 66},    {5, 1, 40, DTYPE_BF16, 62, 4},
    {16, 2, 32, DTYPE_BF16, 4095, 3},  {80, 1, 16, DTYPE_F32, 50, 20},   {3, 1, 7, DTYPE_BF16, 3, 5},
    {16, 2, 96, DTYPE_BF16, 0, 1},     {1, 1, 256, DTYPE_BF16, 511, 2},  {16, 2, 256, DTYPE_BF16, 63, 1},
    {16, 1, 128, DTYPE_BF16, 1535, 2}, {8, 1, 256, DTYPE_BF16, 30, 3},   {4, 1, 256, DTYPE_BF16, 60, 6},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

struct bench {
    struct shape shape;
    struct step_record record;
    float *q, *gate, *y; /* of all rows; q and gate side by side, as a projection gives them */
    void *keys, *values;
    size_t limit; /* rows of the cache */
    uint64_t random;
};

/* Even in (-1.7, 1.7): of deviation 1. */
static float any(struct bench *bench) {
    bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
    return (float)(bench->random >> 40) * (3.4f / 0x1p24f) - 1.7f;
}

static void *allocate(size_t size) {
    void *memory = malloc(size + 1);
    assert_non_null(memory);
    memset(memory, 0xff, size + 1); /* NaN for whoever reads what was not written */
    return memory;
}

static void cache_set(const struct bench *bench, void *cache, size_t element, float value) {
    if (bench->shape.cache == DTYPE_BF16)
        ((uint16_t *)cache)[element] = float_to_bf16(value);
    else
        ((float *)cache)[element] = value;
}

static void bench_open(struct bench *bench, const struct shape *shape, float scale) {
    *bench = (struct bench){.shape = *shape, .random = shape->position + shape->size};
    size_t rows = (size_t)shape->rows * shape->heads, width = (size_t)shape->kv_heads * shape->size;
    bench->limit = shape->position + shape->rows;
    bench->q = allocate(rows * 2 * shape->size * sizeof(float));
    bench->gate = bench->q + shape->size;
    bench->y = allocate(rows * shape->size * sizeof(float));
    bench->keys = allocate(bench->limit * width * sizeof(float));
    bench->values = allocate(bench->limit * width * sizeof(float));
    for (size_t i = 0; i < rows * 2 * shape->size; i++)
        bench->q[i] = any(bench) * scale;
    for (size_t i = 0; i < bench->limit * width; i++) {
        cache_set(bench, bench->keys, i, any(bench));
        cache_set(bench, bench->values, i, any(bench));
    }
}

static void bench_close(struct bench *bench) {
    free(bench->q);
    free(bench->y);
    free(bench->keys);
    free(bench->values);
}

/* The op for rows [row, row + count) of the bench, in a cache that is no longer than it must be. */
static struct bound_op op_of(struct bench *bench, uint32_t row, uint32_t count) {
    const struct shape *s = &bench->shape;
    bench->record = (struct step_record){.position = s->position + row, .rows = count};
    struct bound_op op = {
        .op = {.kind = OP_ATTENTION,
               .operand_count = 6,
               .constants = {.heads = s->heads, .kv_heads = s->kv_heads, .head_size = s->size}}};
    uint32_t rows = count * s->heads, width = s->kv_heads * s->size, limit = s->position + row + count;
    size_t first = (size_t)row * s->heads * s->size;
    op.views[0] = (struct view){.data = &bench->record};
    op.views[1] = (struct view){
        .data = bench->q + 2 * first, .rows = rows, .columns = s->size, .stride = 2 * (size_t)s->size};
    op.views[2] = op.views[1];
    op.views[2].data = bench->gate + 2 * first;
    op.views[3] = (struct view){
        .data = bench->keys, .dtype = s->cache, .rows = limit, .columns = width, .stride = width};
    op.views[4] = op.views[3];
    op.views[4].data = bench->values;
    op.views[5] =
        (struct view){.data = bench->y + first, .rows = rows, .columns = s->size, .stride = s->size};
    for (size_t i = 0; i < 6; i++)
        op.views[i].bytes = op.views[i].data;
    return op;
}

/* Runs units in slices of `slice`, the last slice first. */
static void run_units(void (*run)(const struct cpu_task *task, size_t begin, size_t end),
                      const struct cpu_task *task, size_t units, size_t slice) {
    for (size_t begin = (units + slice - 1) / slice * slice; begin > 0; begin -= slice)
        run(task, begin - slice, begin < units ? begin : units);
}

/* y of all rows, read in chunks. */
static void attend_in_chunks(struct bench *bench, const struct kernels *kernels, uint32_t chunk) {
    for (uint32_t row = 0; row < bench->shape.rows; row += chunk) {
        uint32_t left = bench->shape.rows - row;
        struct bound_op op = op_of(bench, row, left < chunk ? left : chunk);
        struct cpu_task task = {.op = &op, .kernels = kernels};
        size_t shared = cpu_attention.shared_bytes(&task), workspace = cpu_attention.workspace_bytes(&task);
        task.shared = aligned_alloc(64, (shared + 64) / 64 * 64);
        task.workspace = aligned_alloc(64, (workspace + 64) / 64 * 64);
        assert_true(task.shared != NULL && task.workspace != NULL);
        memset(task.shared, 0xff, shared);
        memset(task.workspace, 0xff, workspace);
        run_units(cpu_attention.prepare, &task, cpu_attention.prepare_units(&task), chunk);
        run_units(cpu_attention.run, &task, cpu_attention.units(&task), chunk);
        free(task.shared);
        free(task.workspace);
    }
}

static size_t y_count(const struct bench *bench) {
    return (size_t)bench->shape.rows * bench->shape.heads * bench->shape.size;
}

/* The reference's y, and then its own again. */
static float *expected_of(struct bench *bench) {
    struct bound_op op = op_of(bench, 0, bench->shape.rows);
    void *workspace = allocate(reference_ops[OP_ATTENTION].workspace_bytes(&op));
    float *expected = allocate(y_count(bench) * sizeof *expected), *y = bench->y;
    bench->y = expected;
    op = op_of(bench, 0, bench->shape.rows);
    reference_attention(&op, 0, reference_ops[OP_ATTENTION].units(&op), workspace);
    bench->y = y;
    free(workspace);
    return expected;
}

static void assert_close(const float *found, const float *expected, size_t count, float tolerance) {
    for (size_t i = 0; i < count; i++)
        if (isnan(expected[i]) ? !isnan(found[i])
                               : !(fabsf(found[i] - expected[i]) <= tolerance * (1 + fabsf(expected[i]))))
            fail_msg("element %zu: found %.9g, expected %.9g", i, found[i], expected[i]);
}

/* Large scores (scale 30) leave little but the largest of them. */
static void equals_the_reference_in_any_chunks(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        struct bench bench;
        bench_open(&bench, &shapes[i / 2], i % 2 == 0 ? 1 : 30);
        float *expected = expected_of(&bench), *whole = allocate(y_count(&bench) * sizeof *whole);
        const struct kernels *kernels;
        for (size_t n = 0; (kernels = kernels_at(n)) != NULL; n++) {
            if (!kernels->supported())
                continue;
            attend_in_chunks(&bench, kernels, bench.shape.rows);
            assert_close(bench.y, expected, y_count(&bench), i % 2 == 0 ? 1e-5f : 3e-4f);
            memcpy(whole, bench.y, y_count(&bench) * sizeof *whole);
            static const uint32_t chunks[] = {1, 2, 7, 32};
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks && i % 2 == 0; c++) {
                memset(bench.y, 0xff, y_count(&bench) * sizeof *whole);
                attend_in_chunks(&bench, kernels, chunks[c]);
                assert_memory_equal(bench.y, whole, y_count(&bench) * sizeof *whole);
            }
        }
        free(expected);
        free(whole);
        bench_close(&bench);
    }
}

/* NaN and infinities reach the rows that see them and no others; scores of -infinity weigh nothing. */
static void odd_values_stay_in_their_rows(void **state) {
    (void)state;
    struct shape shape = {4, 2, 16, DTYPE_F32, 505, 40};
    const struct kernels *kernels;
    for (size_t n = 0; (kernels = kernels_at(n)) != NULL; n++) {
        for (int variant = 0; kernels->supported() && variant < 6; variant++) {
            struct bench bench;
            bench_open(&bench, &shape, 1);
            float *keys = bench.keys, *values = bench.values;
            size_t width = 2 * shape.size, at = (size_t)(shape.position + 21) * width + 3;
            if (variant == 0)
                keys[at] = NAN;
            else if (variant == 1)
                values[at + shape.size] = NAN;
            else if (variant == 2)
                values[at] = INFINITY;
            else if (variant == 3)
                bench.q[7 * 2 * shape.size] = NAN;
            else
                for (size_t p = 0; p < (variant == 4 ? 100 : bench.limit); p++) {
                    keys[p * width] = INFINITY; /* scores of -infinity for the heads of the first KV head */
                    for (size_t row = 0; row < shape.rows * shape.heads; row++)
                        bench.q[row * 2 * shape.size] = -1;
                }
            float *expected = expected_of(&bench);
            size_t odd = 0;
            for (size_t i = 0; i < y_count(&bench); i++)
                odd += isfinite(expected[i]) ? 0 : 1;
            assert_true(variant == 4 ? odd == 0 : odd > 0 && odd <= y_count(&bench) / 2);
            static const uint32_t chunks[] = {1, 7, 40};
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                attend_in_chunks(&bench, kernels, chunks[c]);
                for (size_t i = 0; i < y_count(&bench); i++)
                    if (isinf(expected[i]))
                        assert_true(bench.y[i] == expected[i]);
                    else if (isnan(expected[i]))
                        assert_true(isnan(bench.y[i]));
                    else
                        assert_true(fabsf(bench.y[i] - expected[i]) <= 1e-5f);
            }
            free(expected);
            bench_close(&bench);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference_in_any_chunks),
        cmocka_unit_test(odd_values_stay_in_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
