/* embed, linear, head and the norms against sums in double. */
#include "op_bench.h"

static const enum dtype matrix_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_AFFINE4, DTYPE_AFFINE8};

/* sum_i W[row, i] x[i] in double */
static double product(const float *matrix, size_t row, size_t columns, const float *x) {
    double sum = 0;
    for (size_t i = 0; i < columns; i++)
        sum += (double)matrix[row * columns + i] * x[i];
    return sum;
}

static void linear_of_every_type(void **state) {
    (void)state;
    for (size_t type = 0; type < 5; type++)
        for (uint32_t rows = 1; rows <= 5; rows += 2) {
            struct bench bench;
            bench_open(&bench, type + 1);
            uint32_t in = 192, outs[2] = {37, 5};
            struct operand x = bench_input(&bench, rows, in, 1);
            struct operand a = bench_weight(&bench, matrix_types[type], outs[0], in, 0.1f, 0.01f);
            struct operand b = bench_weight(&bench, matrix_types[4 - type], outs[1], in, 0.1f, 0);
            struct operand y = bench_output(&bench, rows, outs[0]), z = bench_output(&bench, rows, outs[1]);
            struct op *op = bench_op(&bench, OP_LINEAR, (struct operand[]){x, a, y, b, z}, 5);
            op->constants.matrix_count = 2;
            bench_run(&bench);
            for (uint32_t t = 0; t < rows; t++) {
                const float *in_row = bench_floats(&bench, x) + t * in;
                for (uint32_t o = 0; o < outs[0]; o++)
                    assert_near(bench_floats(&bench, y)[t * outs[0] + o],
                                product(bench_values(&bench, a), o, in, in_row), 1e-5);
                for (uint32_t o = 0; o < outs[1]; o++)
                    assert_near(bench_floats(&bench, z)[t * outs[1] + o],
                                product(bench_values(&bench, b), o, in, in_row), 1e-5);
            }
            bench_close(&bench);
        }
}

static void linear_accumulates(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, 7);
    struct operand x = bench_input(&bench, 3, 64, 1), y = bench_input(&bench, 3, 9, 1);
    struct operand w = bench_weight(&bench, DTYPE_AFFINE4, 9, 64, 0.2f, 0);
    float before[27];
    memcpy(before, bench_floats(&bench, y), sizeof before);
    struct op *op =
        bench_op(&bench, OP_LINEAR, (struct operand[]){x, w, with_access(y, ACCESS_READ | ACCESS_WRITE)}, 3);
    op->constants.matrix_count = 1;
    op->constants.accumulate = true;
    bench_run(&bench);
    for (uint32_t i = 0; i < 27; i++)
        assert_near(bench_floats(&bench, y)[i],
                    before[i] +
                        product(bench_values(&bench, w), i % 9, 64, bench_floats(&bench, x) + i / 9 * 64),
                    1e-5);
    bench_close(&bench);
}

/* Rows of x lie apart, and so do those of y; between them nothing changes. */
static void linear_of_strided_views(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, 8);
    struct operand x = bench_input(&bench, 4, 200, 1), y = bench_output(&bench, 4, 12);
    struct operand w = bench_weight(&bench, DTYPE_BF16, 5, 100, 0.2f, 0);
    struct op *op = bench_op(&bench, OP_LINEAR,
                             (struct operand[]){strided(x, 4, 100, 200, 50), w, strided(y, 4, 5, 12, 3)}, 3);
    op->constants.matrix_count = 1;
    bench_run(&bench);
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t o = 0; o < 12; o++) {
            float found = bench_floats(&bench, y)[t * 12 + o];
            if (o < 3 || o >= 8)
                assert_true(found == 1e30f);
            else
                assert_near(
                    found,
                    product(bench_values(&bench, w), o - 3, 100, bench_floats(&bench, x) + t * 200 + 50),
                    1e-5);
        }
    bench_close(&bench);
}

/* A row's bits do not depend on the rows beside it. */
static void rows_at_once_equal_single_rows(void **state) {
    (void)state;
    enum { ROWS = 6, OUT = 11, IN = 128 };
    for (uint32_t type = 0; type < 5; type++) {
        struct bench bench;
        bench_open(&bench, 20 + type);
        struct operand x = bench_input(&bench, ROWS, IN, 1), all = bench_output(&bench, ROWS, OUT);
        struct operand single = bench_output(&bench, ROWS, OUT);
        struct operand w = bench_weight(&bench, matrix_types[type], OUT, IN, 0.2f, 0);
        bench_op(&bench, OP_HEAD, (struct operand[]){x, w, all}, 3);
        for (uint32_t t = 0; t < ROWS; t++)
            bench_op(
                &bench, OP_HEAD,
                (struct operand[]){strided(x, 1, IN, IN, t * IN), w, strided(single, 1, OUT, OUT, t * OUT)},
                3);
        bench_run(&bench);
        assert_same_floats(bench_floats(&bench, all), bench_floats(&bench, single), ROWS * OUT);
        bench_close(&bench);
    }
}

static void embed_reads_rows(void **state) {
    (void)state;
    for (size_t type = 0; type < 5; type++) {
        struct bench bench;
        bench_open(&bench, 30 + type);
        int32_t ids[] = {3, 0, 6, -1, 7, INT32_MAX, 5}, rows[] = {3, 0, 6, 0, 0, 0, 5};
        struct operand tokens = bench_buffer(&bench, DTYPE_I32, 1, 7, ACCESS_READ);
        memcpy(bench_ints(&bench, tokens), ids, sizeof ids);
        struct operand table = bench_weight(&bench, matrix_types[type], 7, 64, 1, 0);
        struct operand y = bench_output(&bench, 7, 64);
        bench_op(&bench, OP_EMBED, (struct operand[]){tokens, table, y}, 3);
        bench_run(&bench);
        for (uint32_t t = 0; t < 7; t++)
            for (uint32_t i = 0; i < 64; i++)
                assert_near(bench_floats(&bench, y)[t * 64 + i],
                            bench_values(&bench, table)[rows[t] * 64 + (int32_t)i], 1e-6);
        bench_close(&bench);
    }
}

static void rms_norm_of_rows(void **state) {
    (void)state;
    for (uint32_t type = 0; type < 3; type++) {
        struct bench bench;
        bench_open(&bench, 40 + type);
        uint32_t size = 100;
        struct operand x = bench_input(&bench, 3, size, 2), y = bench_output(&bench, 3, size);
        for (uint32_t i = 0; i < size; i++)
            bench_floats(&bench, x)[size + i] = 0; /* epsilon alone: no division by zero */
        struct operand w = bench_weight(&bench, matrix_types[type], 1, size, 0.1f, 1);
        struct op *op = bench_op(&bench, OP_RMS_NORM, (struct operand[]){x, w, y}, 3);
        op->constants.epsilon = 1e-6f;
        bench_run(&bench);
        for (uint32_t t = 0; t < 3; t++) {
            const float *row = bench_floats(&bench, x) + t * size;
            double squares = 0;
            for (uint32_t i = 0; i < size; i++)
                squares += (double)row[i] * row[i];
            for (uint32_t i = 0; i < size; i++)
                assert_near(bench_floats(&bench, y)[t * size + i],
                            row[i] / sqrt(squares / size + 1e-6) * bench_values(&bench, w)[i], 1e-5);
        }
        bench_close(&bench);
    }
}

/* An op that normalises its input has the bits of rms_norm before it. */
static void norms_within_products(void **state) {
    (void)state;
    enum { IN = 192, OUT = 37, ROWS = 3 };
    for (uint32_t type = 0; type < 5; type++) {
        struct bench benches[2];
        struct operand outputs[3];
        for (uint32_t fused = 0; fused < 2; fused++) {
            struct bench *bench = &benches[fused];
            bench_open(bench, 60 + type);
            struct operand all = bench_input(bench, ROWS, IN + 8, 2);
            struct operand x = strided(all, ROWS, IN, IN + 8, 5), input = x;
            struct operand norm = bench_weight(bench, matrix_types[type % 3], 1, IN, 0.1f, 1);
            struct operand a = bench_weight(bench, matrix_types[type], OUT, IN, 0.1f, 0);
            struct operand b = bench_weight(bench, matrix_types[4 - type], 5, IN, 0.1f, 0);
            struct operand normed = bench_output(bench, ROWS, IN);
            outputs[0] = bench_output(bench, ROWS, OUT);
            outputs[1] = bench_output(bench, ROWS, 5);
            outputs[2] = bench_output(bench, ROWS, OUT);
            if (!fused) {
                bench_op(bench, OP_RMS_NORM, (struct operand[]){x, norm, normed}, 3)->constants.epsilon =
                    1e-6f;
                input = with_access(normed, ACCESS_READ);
            }
            struct operand linear[6] = {input, norm}, head[4] = {input, norm};
            const struct operand rest[] = {a, outputs[0], b, outputs[1]};
            memcpy(linear + 1 + fused, rest, sizeof rest);
            memcpy(head + 1 + fused, (struct operand[]){a, outputs[2]}, 2 * sizeof *head);
            struct op *op = bench_op(bench, OP_LINEAR, linear, 5 + fused);
            op->constants = (struct op_constants){.matrix_count = 2, .normalise = fused, .epsilon = 1e-6f};
            op = bench_op(bench, OP_HEAD, head, 3 + fused);
            op->constants = (struct op_constants){.normalise = fused, .epsilon = 1e-6f};
            bench_run(bench);
        }
        for (int i = 0; i < 3; i++)
            assert_same_floats(bench_floats(&benches[0], outputs[i]), bench_floats(&benches[1], outputs[i]),
                               (size_t)ROWS * outputs[i].columns);
        bench_close(&benches[0]);
        bench_close(&benches[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_of_every_type),    cmocka_unit_test(linear_accumulates),
        cmocka_unit_test(linear_of_strided_views), cmocka_unit_test(rows_at_once_equal_single_rows),
        cmocka_unit_test(embed_reads_rows),        cmocka_unit_test(rms_norm_of_rows),
        cmocka_unit_test(norms_within_products),
    };
    return BENCH_RUN_TESTS(tests);
}
