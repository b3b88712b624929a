/* The CPU backend's matrix kernels of every instruction set that this processor has: values against sums in
 * double, and bits that do not depend on how the work is cut. Weights and scales end where memory ends. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/kernels.h"

#define MAX_COUNT 70
#define CANARY 12345.0f

static uint32_t random_bits(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static size_t random_below(size_t limit) {
    return random_bits() % limit;
}

/* In (-1, 1). */
static float random_float(void) {
    return ((float)(random_bits() >> 8) + 0.5f) * 0x1p-23f - 1;
}

/* Memory between two pages that cannot be read; bytes[size] is in the second one but for `slack`. */
struct guarded {
    unsigned char *map, *bytes;
    size_t map_size;
};

static struct guarded guarded_new(size_t size, size_t slack) {
    struct guarded memory;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (size + slack + page - 1) / page * page;
    memory.map_size = inside + 2 * page;
    memory.map = mmap(NULL, memory.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory.map != MAP_FAILED);
    assert_int_equal(mprotect(memory.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(memory.map + page + inside, page, PROT_NONE), 0);
    memory.bytes = memory.map + page + inside - slack - size;
    return memory;
}

static void guarded_free(struct guarded *memory) {
    munmap(memory->map, memory->map_size);
}

/* Values of so few bits that all three types hold them, and that scale * code + offset is exact. */
static float scale_values[64];
static uint16_t scale_halves[64];

static void make_scale_values(void) {
    for (size_t i = 1; i < 64; i++)
        scale_values[i] = (float)((int)random_below(255) - 127) * 0x1p-9f;
    for (size_t i = 0; i < 64; i++)
        for (uint32_t half = 0; half < 0x10000; half++)
            if (half_to_float((uint16_t)half) == scale_values[i])
                scale_halves[i] = (uint16_t)half;
}

static void store_random(unsigned char *array, enum dtype dtype, size_t index) {
    size_t i = random_below(64);
    uint16_t half = dtype == DTYPE_F16 ? scale_halves[i] : float_to_bf16(scale_values[i]);
    if (dtype == DTYPE_F32)
        memcpy(array + index * 4, &scale_values[i], 4);
    else
        memcpy(array + index * 2, &half, 2);
}

struct problem {
    struct view matrix;
    size_t first, rows, count;
    struct operand_rows x;
    bool indexed;
    uint32_t index[MAX_COUNT];
    float *inputs; /* [count][columns] as float32, those that `index` chooses */
    struct guarded codes, scales, offsets;
    unsigned char *operands;
};

static void fill_weights(struct problem *problem) {
    struct view *matrix = &problem->matrix;
    size_t slack[] = {0, 0, 1, 3, 5}, before = problem->first, rows = problem->rows;
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    if (matrix->dtype == DTYPE_AFFINE4 || matrix->dtype == DTYPE_AFFINE8) {
        size_t row_bytes = matrix->columns * dtype_bits(matrix->dtype) / 8;
        size_t scale_size = dtype_bits(matrix->scale_dtype) / 8,
               bias_size = dtype_bits(matrix->bias_dtype) / 8;
        problem->codes = guarded_new(rows * row_bytes, slack[random_below(5)]);
        problem->scales = guarded_new(rows * groups * scale_size, slack[random_below(5)]);
        problem->offsets = guarded_new(rows * groups * bias_size, slack[random_below(5)]);
        for (size_t i = 0; i < rows * row_bytes; i++)
            problem->codes.bytes[i] = (unsigned char)random_bits();
        for (size_t i = 0; i < rows * groups; i++) {
            store_random(problem->scales.bytes, matrix->scale_dtype, i);
            store_random(problem->offsets.bytes, matrix->bias_dtype, i);
        }
        matrix->bytes = problem->codes.bytes - before * row_bytes;
        matrix->scales = problem->scales.bytes - before * groups * scale_size;
        matrix->biases = problem->offsets.bytes - before * groups * bias_size;
        return;
    }
    size_t size = dtype_bits(matrix->dtype) / 8;
    size_t elements = (rows - 1) * matrix->stride + matrix->columns;
    problem->codes = guarded_new(elements * size, slack[random_below(5)]);
    for (size_t i = 0; i < elements; i++)
        store_random(problem->codes.bytes, matrix->dtype, i);
    matrix->bytes = problem->codes.bytes - before * matrix->stride * size;
}

/* More rows of input than are used, some of them twice. */
static void fill_inputs(struct problem *problem, const struct matrix_kernels *kernels) {
    struct operand_rows *x = &problem->x;
    size_t columns = x->columns, available = problem->count + 3;
    x->row_bytes = operand_row_bytes(x->format, columns) + (x->format == OPERAND_F32 ? 4 : 64);
    problem->operands = aligned_alloc(64, (available * x->row_bytes + 63) / 64 * 64);
    problem->inputs = malloc(problem->count * columns * sizeof(float));
    float *values = malloc(available * columns * sizeof *values);
    assert_true(problem->operands != NULL && problem->inputs != NULL && values != NULL);
    x->data = problem->operands;
    for (size_t i = 0; i < available; i++) {
        float size = ldexpf(1, (int)random_below(9) - 4);
        for (size_t j = 0; j < columns; j++)
            values[i * columns + j] = random_float() * size;
        if (x->format == OPERAND_F32)
            memcpy(problem->operands + i * x->row_bytes, values + i * columns, columns * sizeof *values);
        else
            kernels->prepare[x->format](values + i * columns, columns, problem->operands + i * x->row_bytes);
    }
    for (size_t i = 0; i < problem->count; i++) {
        problem->index[i] = (uint32_t)(problem->indexed ? random_below(available) : i);
        memcpy(problem->inputs + i * columns, values + problem->index[i] * columns, columns * sizeof *values);
    }
    free(values);
}

static void problem_free(struct problem *problem) {
    guarded_free(&problem->codes);
    if (problem->matrix.scales != NULL) {
        guarded_free(&problem->scales);
        guarded_free(&problem->offsets);
    }
    free(problem->operands);
    free(problem->inputs);
}

static float weight_value(const struct problem *problem, size_t row, size_t column) {
    const struct view *matrix = &problem->matrix;
    if (matrix->dtype != DTYPE_AFFINE4 && matrix->dtype != DTYPE_AFFINE8)
        return float_load(matrix->bytes, matrix->dtype, row * matrix->stride + column);
    size_t at = row * matrix->columns + column;
    unsigned code =
        matrix->dtype == DTYPE_AFFINE8 ? matrix->bytes[at] : matrix->bytes[at / 2] >> at % 2 * 4 & 15u;
    float scale = float_load(matrix->scales, matrix->scale_dtype, at / DTYPE_AFFINE_GROUP);
    return scale * (float)code + float_load(matrix->biases, matrix->bias_dtype, at / DTYPE_AFFINE_GROUP);
}

/* An element of an input, as the operand row holds it. */
static double input_value(const struct problem *problem, size_t input, size_t column) {
    const struct operand_rows *x = &problem->x;
    const unsigned char *row = x->data + problem->index[input] * x->row_bytes;
    if (x->format == OPERAND_F32)
        return float_load(row, DTYPE_F32, column);
    if (x->format == OPERAND_BF16)
        return float_load(row, DTYPE_BF16, column);
    size_t group = column / DTYPE_AFFINE_GROUP;
    const int8_t *codes = (const int8_t *)row + column / 128 * 128 + column % 2 * 64 + column % 128 / 2;
    return (double)*codes * float_load(row + int8_scales_offset(x->columns), DTYPE_F32, group);
}

static void check_values(const struct problem *problem, const float *out) {
    size_t columns = problem->matrix.columns;
    double *weights = malloc(columns * sizeof *weights);
    assert_non_null(weights);
    for (size_t r = 0; r < problem->rows; r++) {
        for (size_t j = 0; j < columns; j++) {
            float value = weight_value(problem, problem->first + r, j);
            weights[j] = problem->x.format == OPERAND_BF16 ? bf16_to_float(float_to_bf16(value)) : value;
        }
        for (size_t i = 0; i < problem->count; i++) {
            double sum = 0, magnitude = 0;
            for (size_t j = 0; j < columns; j++) {
                double term = weights[j] * input_value(problem, i, j);
                sum += term;
                magnitude += fabs(term);
            }
            if (!(fabs(sum - (double)out[i * PANEL_ROWS + r]) <= magnitude * 1e-5))
                fail_msg("row %zu of %zu, input %zu of %zu: %.9g instead of %.9g", r, problem->rows, i,
                         problem->count, (double)out[i * PANEL_ROWS + r], sum);
        }
    }
    free(weights);
}

/* out[count][PANEL_ROWS] of the problem in pieces: `inputs` of input and `rows` of the weight at a time. */
static void multiply(const struct problem *problem, const struct matrix_kernels *kernels, size_t inputs,
                     size_t rows, float *out) {
    size_t size = (inputs + 1) * PANEL_ROWS * sizeof(float);
    float *piece = aligned_alloc(64, size);
    struct guarded panel = guarded_new(PANEL_BYTES, 0);
    assert_non_null(piece);
    memset(panel.bytes, 0xff, PANEL_BYTES); /* NaNs, if they are ever used */
    for (size_t i = 0, count; i < problem->count; i += count) {
        count = problem->count - i < inputs ? problem->count - i : inputs;
        for (size_t r = 0, height; r < problem->rows; r += height) {
            height = problem->rows - r < rows ? problem->rows - r : rows;
            for (size_t j = 0; j < (inputs + 1) * PANEL_ROWS; j++)
                piece[j] = CANARY;
            struct operand_rows x = problem->x;
            if (!problem->indexed)
                x.data += i * x.row_bytes;
            kernels->multiply[x.format](&problem->matrix, problem->first + r, height, &x,
                                        problem->indexed ? problem->index + i : NULL, count, piece,
                                        panel.bytes);
            for (size_t j = count * PANEL_ROWS; j < (inputs + 1) * PANEL_ROWS; j++)
                assert_true(piece[j] == CANARY);
            for (size_t j = 0; j < count; j++)
                memcpy(out + (i + j) * PANEL_ROWS + r, piece + j * PANEL_ROWS, height * sizeof *out);
        }
    }
    guarded_free(&panel);
    free(piece);
}

static void assert_same_bits(const struct problem *problem, const float *a, const float *b) {
    for (size_t i = 0; i < problem->count; i++)
        for (size_t r = 0; r < problem->rows; r++)
            if (float_to_bits(a[i * PANEL_ROWS + r]) != float_to_bits(b[i * PANEL_ROWS + r]))
                fail_msg("row %zu, input %zu: %.9g and %.9g", r, i, (double)a[i * PANEL_ROWS + r],
                         (double)b[i * PANEL_ROWS + r]);
}

/* One value of one input is no number, or infinite: so are its outputs, and no others change. */
static void check_poison(struct problem *problem, const struct matrix_kernels *kernels, const float *before) {
    static float out[MAX_COUNT * PANEL_ROWS];
    size_t poisoned = problem->index[random_below(problem->count)];
    size_t columns = problem->x.columns, column = random_below(columns);
    const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
    float *row = malloc(columns * sizeof *row);
    assert_non_null(row);
    for (size_t j = 0; j < columns; j++)
        row[j] = random_float();
    row[column] = values[random_below(4)];
    unsigned char *operand = problem->operands + poisoned * problem->x.row_bytes;
    if (problem->x.format == OPERAND_F32)
        memcpy(operand, row, columns * sizeof *row);
    else
        kernels->prepare[problem->x.format](row, columns, operand);
    multiply(problem, kernels, problem->count, PANEL_ROWS, out);
    for (size_t i = 0; i < problem->count; i++)
        for (size_t r = 0; r < problem->rows; r++) {
            size_t at = i * PANEL_ROWS + r;
            if (problem->index[i] == poisoned)
                assert_false(isfinite(out[at]));
            else
                assert_int_equal(float_to_bits(out[at]), float_to_bits(before[at]));
        }
    free(row);
}

static void check_problem(struct problem *problem, const struct matrix_kernels *kernels) {
    static float out[MAX_COUNT * PANEL_ROWS], other[MAX_COUNT * PANEL_ROWS];
    fill_weights(problem);
    fill_inputs(problem, kernels);
    multiply(problem, kernels, problem->count, PANEL_ROWS, out);
    check_values(problem, out);
    const size_t inputs[] = {1, 2, 3, 1 + random_below(problem->count)};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        multiply(problem, kernels, inputs[i], 1 + random_below(PANEL_ROWS), other);
        assert_same_bits(problem, out, other);
    }
    check_poison(problem, kernels, out);
    problem_free(problem);
}

static void check_format(const struct matrix_kernels *kernels, enum operand_format format) {
    static const enum dtype types[] = {DTYPE_AFFINE4, DTYPE_AFFINE8, DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 31, MAX_COUNT};
    static const size_t groups[] = {1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 64};
    for (size_t type = 0; type < (format == OPERAND_INT8 ? 1 : 5); type++)
        for (size_t repeat = 0; repeat < (type < 2 ? 60 : 20); repeat++) {
            size_t columns = groups[random_below(11)] * DTYPE_AFFINE_GROUP;
            if (type >= 2)
                columns = 1 + random_below(300);
            size_t count = counts[random_below(15)], most = 20000 / columns;
            if (repeat >= 4 && count > most)
                count = most == 0 ? 1 : most;
            size_t first = random_below(3) * 7,
                   rows = repeat % 2 == 0 ? PANEL_ROWS : 1 + random_below(PANEL_ROWS);
            struct problem problem = {
                .matrix = {.dtype = types[type],
                           .scale_dtype = types[repeat % 3 != 0 ? 4 : 2 + random_below(2)],
                           .bias_dtype = types[repeat % 5 != 0 ? 4 : 2 + random_below(2)],
                           .rows = (uint32_t)(first + rows + random_below(2) * 40),
                           .columns = (uint32_t)columns,
                           .stride = columns + (type >= 2 ? random_below(2) * 3 : 0)},
                .first = first,
                .rows = rows,
                .count = count,
                .x = {.format = format, .columns = columns},
                .indexed = random_below(2) == 0,
            };
            check_problem(&problem, kernels);
        }
}

static void products(void **state) {
    (void)state;
    make_scale_values();
    for (size_t i = 0; kernels_at(i) != NULL; i++)
        if (kernels_at(i)->supported()) {
            printf("products of %s\n", kernels_at(i)->name);
            for (enum operand_format format = 0; format < OPERAND_FORMAT_COUNT; format++)
                check_format(kernels_at(i)->matrix, format);
        } else {
            printf("this processor has no %s\n", kernels_at(i)->name);
        }
}

/* A row with all that can happen to a group: zeros, tiny and huge values, ties, no numbers. */
static void special_row(float *x, size_t columns) {
    /* The last two are NaNs that a carry from rounding would turn into numbers. */
    const float specials[] = {0,
                              -0.0f,
                              NAN,
                              -NAN,
                              INFINITY,
                              -INFINITY,
                              1e-45f,
                              1e-38f,
                              3e-37f,
                              3.4e38f,
                              -3.4e38f,
                              float_from_bits(0x7fffffff),
                              float_from_bits(0xffffffff)};
    float size = ldexpf(1, (int)random_below(200) - 120);
    for (size_t j = 0; j < columns; j++)
        x[j] = random_below(8) == 0 ? rintf(random_float() * 254) * 0.5f * size : random_float() * size;
    for (size_t g = 0; g < columns; g += DTYPE_AFFINE_GROUP) {
        size_t left = columns - g, width = left < DTYPE_AFFINE_GROUP ? left : DTYPE_AFFINE_GROUP;
        if (random_below(4) == 0)
            x[g + random_below(width)] = specials[random_below(sizeof specials / sizeof *specials)];
        if (random_below(8) == 0)
            for (size_t j = 0; j < width; j++)
                x[g + j] = specials[random_below(2) == 0 ? random_below(2) : 6 + random_below(3)];
        if (random_below(8) == 0) /* half of a code's step: ties */
            for (size_t j = 0; j < width; j++)
                x[g + j] = (float)((int)random_below(255) - 127) * 0.5f + (j == 0 ? 63.5f : 0);
    }
}

static void prepared_rows(void **state) {
    (void)state;
    for (size_t k = 0; kernels_at(k) != NULL; k++) {
        if (!kernels_at(k)->supported())
            continue;
        const struct matrix_kernels *kernels = kernels_at(k)->matrix;
        for (size_t repeat = 0; repeat < 400; repeat++) {
            bool bf16 = repeat % 2 != 0;
            enum operand_format format = bf16 ? OPERAND_BF16 : OPERAND_INT8;
            size_t columns = bf16 ? 1 + random_below(300) : (1 + random_below(40)) * DTYPE_AFFINE_GROUP;
            size_t size = operand_row_bytes(format, columns);
            struct guarded x = guarded_new(columns * sizeof(float), 0);
            unsigned char *row = aligned_alloc(64, size + 64), *expected = aligned_alloc(64, size);
            assert_true(row != NULL && expected != NULL);
            special_row((float *)(void *)x.bytes, columns);
            memset(row, 0xa5, size + 64);
            kernels->prepare[format]((const float *)(void *)x.bytes, columns, row);
            portable_matrix_kernels.prepare[format]((const float *)(void *)x.bytes, columns, expected);
            for (size_t i = size; i < size + 64; i++)
                assert_int_equal(row[i], 0xa5);
            if (bf16) {
                for (size_t i = 0; i < size / 2; i++) {
                    float a = float_load(row, DTYPE_BF16, i), b = float_load(expected, DTYPE_BF16, i);
                    assert_true(float_to_bits(a) == float_to_bits(b) || (isnan(a) && isnan(b)));
                }
            } else {
                size_t at = int8_scales_offset(columns), floats = 4 * int8_blocks(columns);
                assert_memory_equal(row, expected, at);
                for (size_t i = 0; i < floats; i++) {
                    float a = float_load(row + at, DTYPE_F32, i), b = float_load(expected + at, DTYPE_F32, i);
                    if (float_to_bits(a) != float_to_bits(b) && !(isnan(a) && isnan(b)))
                        fail_msg("%s, %zu columns, number %zu: %.9g instead of %.9g", kernels_at(k)->name,
                                 columns, i, (double)a, (double)b);
                }
            }
            guarded_free(&x);
            free(row);
            free(expected);
        }
    }
}

static void kernels_are_found(void **state) {
    (void)state;
    struct calla_error error;
    const struct kernels *best = kernels_find(INSTRUCTIONS_AUTO, &error);
    assert_non_null(best);
    bool first = true;
    for (size_t i = 0; kernels_at(i) != NULL; i++) {
        const struct kernels *found = kernels_find(kernels_at(i)->instruction_set, &error);
        if (!kernels_at(i)->supported()) {
            assert_null(found);
            assert_non_null(strstr(error.message, best->name));
            continue;
        }
        assert_ptr_equal(found, kernels_at(i));
        if (first)
            assert_ptr_equal(found, best);
        first = false;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_found),
        cmocka_unit_test(prepared_rows),
        cmocka_unit_test(products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
