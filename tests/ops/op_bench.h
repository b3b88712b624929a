/* A bench to run single ops or short plans on any backend: random operands in, results out. A program of
 * tests runs as a whole once for each configuration: the reference, then the CPU backend with each of its
 * instruction sets that this processor has and with each kind of matrix operands, then the CUDA or Metal
 * backend where a GPU is; with CUDA a second time as on an older GPU.
 * CALLA_TEST_ONLY, a macro or in the environment, names a GPU's backend that it runs on alone.
 *
 * Weights go into a temporary file, every part at an odd offset, as in the published checkpoints; everything
 * else into the state buffers of a session, which can be written and read. A step record, if wanted, is the
 * session's own. */
#ifndef CALLA_TESTS_OP_BENCH_H
#define CALLA_TESTS_OP_BENCH_H

#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "backend/cpu/kernels.h"
#include "older_gpu.h"

#define BENCH_MAX 24

/* What a program of tests is also run with on Metal, beside the default policies without tensor operations: a
 * list of "NAME=VALUE NAME=VALUE ...", defined before this file is included. Each opening of a backend with
 * tensor operations runs their self-test, which takes a while in the emulator. */
#ifndef BENCH_METAL_POLICIES
#define BENCH_METAL_POLICIES
#endif

struct bench_configuration {
    const struct backend_class *class;
    struct policy policy;
    const char *name;
    bool older_gpu;
};

static struct bench_configuration bench_current;

/* How far the products of the last plan may be off because their operands were rounded: relative to 1 +
 * |value|. */
static double bench_rounding;

struct bench {
    FILE *file;
    char path[64];
    uint64_t file_size, random;
    struct weight weights[BENCH_MAX];
    float *values[BENCH_MAX]; /* of the weights, as float32 */
    uint32_t weight_count;
    struct buffer_shape shapes[BENCH_MAX];
    void *data[BENCH_MAX]; /* of the state buffers: before the run, and after it the results */
    uint32_t buffer_count;
    bool bf16_scales; /* of all affine matrices, as in the published checkpoints */
    struct step_record record;
    struct plan plan;
    struct calla_error error;
};

static inline void bench_open(struct bench *bench, uint64_t seed) {
    memset(bench, 0, sizeof *bench);
    bench->random = seed * 0x9e3779b97f4a7c15u + 1;
    strcpy(bench->path, "/tmp/calla-bench-XXXXXX");
    int descriptor = mkstemp(bench->path);
    assert_true(descriptor >= 0);
    bench->file = fdopen(descriptor, "wb");
    assert_non_null(bench->file);
    fputc(0, bench->file);
}

static inline void bench_close(struct bench *bench) {
    fclose(bench->file);
    unlink(bench->path);
    for (uint32_t i = 0; i < bench->weight_count; i++)
        free(bench->values[i]);
    for (uint32_t i = 0; i < bench->buffer_count; i++)
        free(bench->data[i]);
    plan_free(&bench->plan);
}

static inline uint32_t bench_bits(struct bench *bench) {
    bench->random ^= bench->random << 13;
    bench->random ^= bench->random >> 7;
    bench->random ^= bench->random << 17;
    return (uint32_t)(bench->random >> 32);
}

/* Roughly normal, of deviation 1. */
static inline float bench_normal(struct bench *bench) {
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += bench_bits(bench) * 0x1p-32;
    return (float)(sum - 6);
}

static inline void bench_store(FILE *file, enum dtype dtype, float value, float *stored) {
    if (dtype == DTYPE_F32) {
        fwrite(&value, 4, 1, file);
        *stored = value;
        return;
    }
    uint16_t bits = float_to_bf16(value);
    if (dtype == DTYPE_F16) { /* small enough values: exponent and the upper fraction bits, cut off */
        uint32_t full = float_to_bits(value);
        int exponent = (int)(full >> 23 & 255) - 112;
        bits = exponent <= 0
                   ? (uint16_t)(full >> 16 & 0x8000u)
                   : (uint16_t)((full >> 16 & 0x8000u) | (uint32_t)exponent << 10 | (full >> 13 & 1023));
    }
    fwrite(&bits, 2, 1, file);
    *stored = float_load(&bits, dtype, 0);
}

/* Moves the file on to an odd offset. */
static inline uint64_t bench_part(struct bench *bench) {
    long offset = ftell(bench->file);
    fputc(0, bench->file);
    if (offset % 2 == 0)
        return (uint64_t)offset + 1;
    fputc(0, bench->file);
    return (uint64_t)offset + 2;
}

/* A weight [rows, columns] of values scale * normal + shift; affine ones have random codes and offsets, and
 * scales of either sign. Half of the affine matrices have 32-bit scales, unless all shall be bfloat16. */
static inline struct operand bench_weight(struct bench *bench, enum dtype dtype, uint32_t rows,
                                          uint32_t columns, float scale, float shift) {
    assert_true(bench->weight_count < BENCH_MAX);
    uint32_t index = bench->weight_count++;
    struct weight *weight = &bench->weights[index];
    float *values = calloc((size_t)rows * columns, sizeof *values);
    assert_non_null(values);
    bench->values[index] = values;
    bool affine = dtype == DTYPE_AFFINE4 || dtype == DTYPE_AFFINE8;
    *weight = (struct weight){.dtype = dtype, .matrices = 1, .rows = rows, .columns = columns};
    weight->part_count = affine ? 3 : 1;
    weight->parts[0].offset = bench_part(bench);
    weight->parts[0].bytes = (uint64_t)rows * columns * dtype_bits(dtype) / 8;
    if (!affine) {
        for (size_t i = 0; i < (size_t)rows * columns; i++)
            bench_store(bench->file, dtype, bench_normal(bench) * scale + shift, &values[i]);
    } else {
        unsigned bits = dtype_bits(dtype), largest = (1u << bits) - 1;
        size_t groups = (size_t)rows * columns / 64;
        float *parts[2] = {calloc(groups, sizeof(float)), calloc(groups, sizeof(float))};
        uint8_t *codes = calloc((size_t)rows * columns, 1);
        assert_true(parts[0] != NULL && parts[1] != NULL && codes != NULL);
        for (size_t i = 0; i < (size_t)rows * columns; i++)
            codes[i] = (uint8_t)(bench_bits(bench) & largest);
        if (bits == 8) {
            fwrite(codes, 1, (size_t)rows * columns, bench->file);
        } else {
            for (size_t i = 0; i < (size_t)rows * columns; i += 2)
                fputc(codes[i] | codes[i + 1] << 4, bench->file);
        }
        static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16, DTYPE_BF16};
        for (int part = 0; part < 2; part++) {
            weight->parts[1 + part].offset = bench_part(bench);
            weight->parts[1 + part].dtype =
                bench->bf16_scales ? DTYPE_BF16 : dtypes[(index + (uint32_t)part) % 4];
            weight->parts[1 + part].bytes = groups * dtype_bits(weight->parts[1 + part].dtype) / 8;
            for (size_t g = 0; g < groups; g++) {
                float step = 4 * scale / (float)largest * (bench_bits(bench) % 3 == 0 ? -1.0f : 1.0f);
                float value = part == 0 ? step * (1 + 0.1f * bench_normal(bench))
                                        : shift - parts[0][g] * (float)largest / 2;
                bench_store(bench->file, weight->parts[1 + part].dtype, value, &parts[part][g]);
            }
        }
        for (size_t i = 0; i < (size_t)rows * columns; i++)
            values[i] = parts[0][i / 64] * codes[i] + parts[1][i / 64];
        free(parts[0]);
        free(parts[1]);
        free(codes);
    }
    return (struct operand){.space = SPACE_WEIGHT,
                            .dtype = (uint8_t)dtype,
                            .access = ACCESS_READ,
                            .buffer = index,
                            .rows = rows,
                            .columns = columns,
                            .stride = columns};
}

static inline const float *bench_values(const struct bench *bench, struct operand weight) {
    return bench->values[weight.buffer];
}

/* A buffer of zeros. */
static inline struct operand bench_buffer(struct bench *bench, enum dtype dtype, uint32_t rows,
                                          uint32_t columns, unsigned access) {
    assert_true(bench->buffer_count < BENCH_MAX);
    uint32_t index = bench->buffer_count++;
    bench->shapes[index] = (struct buffer_shape){dtype, rows, columns, "operand"};
    bench->data[index] = calloc((size_t)rows * columns, 4);
    assert_non_null(bench->data[index]);
    return (struct operand){.space = SPACE_STATE,
                            .dtype = (uint8_t)dtype,
                            .access = (uint8_t)access,
                            .buffer = index,
                            .rows = rows,
                            .columns = columns,
                            .stride = columns};
}

static inline float *bench_floats(const struct bench *bench, struct operand view) {
    return (float *)bench->data[view.buffer] + view.offset / 4;
}

static inline int32_t *bench_ints(const struct bench *bench, struct operand view) {
    return bench->data[view.buffer];
}

/* A float buffer of random values. */
static inline struct operand bench_input(struct bench *bench, uint32_t rows, uint32_t columns, float scale) {
    struct operand view = bench_buffer(bench, DTYPE_F32, rows, columns, ACCESS_READ);
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        bench_floats(bench, view)[i] = bench_normal(bench) * scale;
    return view;
}

static inline struct operand bench_output(struct bench *bench, uint32_t rows, uint32_t columns) {
    struct operand view = bench_buffer(bench, DTYPE_F32, rows, columns, ACCESS_WRITE);
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        bench_floats(bench, view)[i] = 1e30f; /* whoever does not write it is found out */
    return view;
}

static inline struct operand with_access(struct operand view, unsigned access) {
    view.access = (uint8_t)access;
    return view;
}

/* rows of `columns` values, `stride` apart, from element `first`. */
static inline struct operand strided(struct operand view, uint32_t rows, uint32_t columns, uint32_t stride,
                                     uint32_t first) {
    view.rows = rows;
    view.columns = columns;
    view.stride = stride;
    view.offset = (uint64_t)first * 4;
    return view;
}

static inline struct operand bench_record(unsigned access) {
    return (struct operand){.space = SPACE_STEP,
                            .dtype = DTYPE_U8,
                            .access = (uint8_t)access,
                            .buffer = STEP_RECORD,
                            .rows = 1,
                            .columns = sizeof(struct step_record),
                            .stride = sizeof(struct step_record)};
}

static inline struct op *bench_op(struct bench *bench, enum op_kind kind, const struct operand *operands,
                                  uint32_t count) {
    return plan_add(&bench->plan, kind, 0, operands, count);
}

/* The weights as a checkpoint of one file. */
static inline struct weights bench_weights_open(struct bench *bench, struct file *file) {
    fflush(bench->file);
    assert_true(file_open(file, bench->path, NULL));
    return (struct weights){
        .table = {.weights = bench->weights, .count = bench->weight_count}, .files = file, .file_count = 1};
}

static inline void bench_weights_close(struct weights *weights) {
    if (weights->maps != NULL)
        file_unmap(weights->maps[0], weights->files[0].size);
    free((void *)weights->maps);
    file_close(weights->files);
}

/* Where tensor operations are wanted, they are tested and not what takes their place.
 * CALLA_TEST_WRONG_TENSORS: they are known to be wrong here, and must have been found out. */
static inline void bench_check_tensor_operations(const struct backend_class *class,
                                                 const struct backend *backend) {
    bool failed = false, wrong = getenv("CALLA_TEST_WRONG_TENSORS") != NULL;
    if (class->tensor_operations == NULL || !bench_current.policy.tensor_operations)
        return;
    const char *line = class->tensor_operations(backend, &failed);
    if (failed != wrong)
        fail_msg("tensor operations: %s", line);
}

/* Runs the plan `times` times; false with bench->error set if anything fails. */
static inline bool bench_try(struct bench *bench, const struct backend_class *class, int threads, int times) {
    struct file file;
    struct weights weights = bench_weights_open(bench, &file);
    struct session_layout layout = {.state = bench->shapes, .state_count = bench->buffer_count};
    for (int i = 0; i < STEP_BUFFER_COUNT; i++)
        layout.step[i] = (struct buffer_shape){DTYPE_U8, 1, sizeof(struct step_record), "step"};
    struct backend_options options = {.threads = threads,
                                      .policy = class == bench_current.class ? &bench_current.policy : NULL};
    struct calla_error *error = &bench->error;
    struct backend *backend = class->open(&options, error);
    assert_non_null(backend);
    if (class == bench_current.class && bench_current.older_gpu)
        older_gpu_pretend(backend);
    bench_check_tensor_operations(class, backend);
    assert_true(class->load(backend, &weights, NULL, error));
    struct device_session *session = class->session_open(backend, &layout, error);
    assert_non_null(session);
    for (uint32_t i = 0; i < bench->buffer_count; i++)
        assert_true(class->write(session, SPACE_STATE, i, 0, bench->data[i],
                                 buffer_shape_bytes(&bench->shapes[i]), error));
    assert_true(
        class->write(session, SPACE_STEP, STEP_RECORD, 0, &bench->record, sizeof bench->record, error));
    struct program *program = class->compile(session, &bench->plan, error);
    bool done = program != NULL;
    for (int i = 0; done && i < times; i++)
        done = class->run(session, program, INFINITY, &(bool){false}, error);
    /* A GPU may find out that it fails after the program was handed over. */
    struct calla_error reading = {0};
    bool read =
        class->read(session, SPACE_STEP, STEP_RECORD, 0, &bench->record, sizeof bench->record, &reading);
    for (uint32_t i = 0; read && i < bench->buffer_count; i++)
        read = class->read(session, SPACE_STATE, i, 0, bench->data[i], buffer_shape_bytes(&bench->shapes[i]),
                           &reading);
    if (done && !read)
        *error = reading;
    done = done && read;
    class->program_free(program);
    class->session_close(session);
    class->close(backend);
    bench_weights_close(&weights);
    return done;
}

/* 0 for plans without products of 4-bit weights, and on the reference.
 *
 * Of a product of n terms x_i w_i, both rounded to bfloat16, each factor is off by at most u = 2^-9 of
 * itself, evenly spread: the sum by u sqrt(2/3) sqrt(sum (x_i w_i)^2) as a standard deviation. Six are 0.0096
 * of that root, which is nowhere here much more than 1 + |sum|; where two products follow each other, both
 * add up. Metal multiplies float32 where there are so few rows that matrices are read row by row. */
static inline double rounding_of(const struct plan *plan) {
    enum { METAL_FEW_ROWS = 8 };
    bool metal = strcmp(bench_current.class->name, "metal") == 0;
    if (bench_current.class == &reference_backend)
        return 0;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        for (uint32_t j = 0; op->kind != OP_EMBED && j < op->operand_count; j++)
            if (op->operands[j].dtype == DTYPE_AFFINE4 && !(metal && op->operands[0].rows <= METAL_FEW_ROWS))
                return bench_current.class == &cpu_backend &&
                               bench_current.policy.matrix_operands == MATRIX_INT8
                           ? 0.1
                           : 0.02;
    }
    return 0;
}

/* Runs the plan once in the current configuration, with one thread and with three, and asserts that every
 * byte is the same. */
static inline void bench_run(struct bench *bench) {
    assert_true(plan_schedule(&bench->plan, true, &bench->error));
    bench_rounding = rounding_of(&bench->plan);
    void *before[BENCH_MAX], *alone[BENCH_MAX];
    struct step_record record = bench->record;
    for (uint32_t i = 0; i < bench->buffer_count; i++) {
        size_t size = buffer_shape_bytes(&bench->shapes[i]);
        before[i] = malloc(size + 1);
        alone[i] = malloc(size + 1);
        assert_true(before[i] != NULL && alone[i] != NULL);
        memcpy(before[i], bench->data[i], size);
    }
    if (!bench_try(bench, bench_current.class, 1, 1))
        fail_msg("%s", bench->error.message);
    struct step_record record_after = bench->record;
    bench->record = record;
    for (uint32_t i = 0; i < bench->buffer_count; i++) {
        size_t size = buffer_shape_bytes(&bench->shapes[i]);
        memcpy(alone[i], bench->data[i], size);
        memcpy(bench->data[i], before[i], size);
    }
    if (!bench_try(bench, bench_current.class, 3, 1))
        fail_msg("%s", bench->error.message);
    assert_memory_equal(&record_after, &bench->record, sizeof record_after);
    for (uint32_t i = 0; i < bench->buffer_count; i++) {
        assert_memory_equal(alone[i], bench->data[i], buffer_shape_bytes(&bench->shapes[i]));
        free(before[i]);
        free(alone[i]);
    }
}

/* On a GPU, where there is one. */
static inline int bench_run_gpu(const char *backend, const char *name, const struct CMUnitTest *tests,
                                size_t count) {
    char title[128];
    struct calla_error error;
    const struct backend_class *class = backend_find(backend, &error);
    if (class == NULL) {
        print_message("%s: not run on a GPU. %s\n", name, error.message);
        return 0;
    }
    static const char *const listed[] = {"", BENCH_METAL_POLICIES};
    const char *const *policies = listed, *only = getenv("CALLA_TEST_POLICY");
    bool metal = strcmp(backend, "metal") == 0;
    size_t policy_count = metal ? sizeof listed / sizeof *listed : 1;
    if (only != NULL) { /* instead of those listed */
        policies = &only;
        policy_count = 1;
    }
    int failed = 0;
    for (size_t i = 0; i < policy_count; i++) {
        bench_current = (struct bench_configuration){.class = class, .name = backend};
        policy_defaults(&bench_current.policy, backend);
        bench_current.policy.tensor_operations = false;
        char words[128], *rest = words;
        snprintf(words, sizeof words, "%s", policies[i]);
        for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;)
            if (!policy_set(&bench_current.policy, backend, word, &error)) {
                print_error("%s\n", error.message);
                return failed + 1;
            }
        for (int older = 0; older < (metal ? 1 : 2); older++) {
            bench_current.older_gpu = older;
            snprintf(title, sizeof title, "%s, %s %s%s", name, backend, policies[i],
                     older ? "as on an older GPU" : "");
            failed += _cmocka_run_group_tests(title, tests, count, NULL, NULL);
        }
    }
    return failed;
}

/* Runs the tests in every configuration: the number of failed ones. */
static inline int bench_run_tests(const char *name, const struct CMUnitTest *tests, size_t count) {
    char title[128];
#ifdef CALLA_TEST_ONLY
    return bench_run_gpu(CALLA_TEST_ONLY, name, tests, count);
#endif
    const char *only = getenv("CALLA_TEST_CUDA_ONLY") != NULL ? "cuda" : getenv("CALLA_TEST_ONLY");
    if (only != NULL)
        return bench_run_gpu(only, name, tests, count);
    bench_current = (struct bench_configuration){.class = &reference_backend, .name = "reference"};
    policy_defaults(&bench_current.policy, "reference");
    snprintf(title, sizeof title, "%s, reference", name);
    int failed = _cmocka_run_group_tests(title, tests, count, NULL, NULL);
    const struct kernels *kernels;
    for (size_t i = 0; (kernels = kernels_at(i)) != NULL; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (!kernels->supported()) {
                print_message("%s: this processor has no %s.\n", name, kernels->name);
                break;
            }
            bench_current = (struct bench_configuration){.class = &cpu_backend, .name = kernels->name};
            policy_defaults(&bench_current.policy, "cpu");
            bench_current.policy.instruction_set = kernels->instruction_set;
            bench_current.policy.matrix_operands = bf16 ? MATRIX_BF16 : MATRIX_INT8;
            snprintf(title, sizeof title, "%s, cpu %s %s", name, kernels->name, bf16 ? "bf16" : "int8");
            failed += _cmocka_run_group_tests(title, tests, count, NULL, NULL);
        }
    failed += bench_run_gpu("cuda", name, tests, count);
    return failed + bench_run_gpu("metal", name, tests, count);
}

#define BENCH_RUN_TESTS(tests) bench_run_tests(__FILE__, tests, sizeof(tests) / sizeof *(tests))

/* |found - expected| <= tolerance * (1 + |expected|), where products of rounded operands are allowed their
 * error */
static inline void assert_near(double found, double expected, double tolerance) {
    tolerance = bench_rounding > tolerance ? bench_rounding : tolerance;
    if (!(fabs(found - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("found %.9g, expected %.9g", found, expected);
}

/* Two ways to compute the same: on the processor every bit, on a GPU all but rounding. */
static inline void assert_same(const void *found, const void *expected, enum dtype dtype, size_t count) {
    if (bench_current.class == &cpu_backend || bench_current.class == &reference_backend ||
        dtype_bits(dtype) == 8 || dtype == DTYPE_I32) {
        assert_memory_equal(found, expected, count * dtype_bits(dtype) / 8);
        return;
    }
    for (size_t i = 0; i < count; i++)
        assert_near(float_load(found, dtype, i), float_load(expected, dtype, i),
                    dtype == DTYPE_F32 ? 2e-5 : 1e-2);
}

static inline void assert_same_floats(const float *found, const float *expected, size_t count) {
    assert_same(found, expected, DTYPE_F32, count);
}

/* Buffer `index` of two benches after their runs. */
static inline void assert_same_buffers(const struct bench *a, const struct bench *b, uint32_t index) {
    const struct buffer_shape *shape = &a->shapes[index];
    assert_same(a->data[index], b->data[index], shape->dtype, (size_t)shape->rows * shape->columns);
}

#endif
