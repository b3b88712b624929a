/* Ops of as many rows as a prompt has, in the shapes that fast kernels are made for: several tiles of rows,
 * the last one partly filled, experts with many rows, few and none, a chunk that begins in the middle of the
 * cache. Samples of the results are compared with sums in double. */
#define BENCH_METAL_POLICIES                                                                                 \
    "dequant_in_gemm=off", "expert_tile=32", "tensor_operations=on", "tensor_operations=on expert_tile=32"
#include "op_bench.h"

static double product(const float *matrix, size_t row, size_t columns, const float *x) {
    double sum = 0;
    for (size_t i = 0; i < columns; i++)
        sum += (double)matrix[row * columns + i] * x[i];
    return sum;
}

static double silu_of(double x) {
    return x / (1 + exp(-x));
}

static double sigmoid_of(double x) {
    return 1 / (1 + exp(-x));
}

/* 157 rows of 192; three matrices, then one that is added. */
static void linear_of_many_rows(void **state) {
    (void)state;
    enum { ROWS = 157, IN = 192 };
    static const uint32_t outs[3] = {272, 16, 48};
    for (int turn = 0; turn < 4; turn++) {
        bool accumulate = turn % 2;
        struct bench bench;
        bench_open(&bench, 1 + accumulate);
        bench.bf16_scales = turn >= 2;
        struct operand x = bench_input(&bench, ROWS, IN, 1), operands[7] = {x};
        uint32_t count = accumulate ? 1 : 3;
        float *before = malloc(ROWS * (size_t)outs[0] * sizeof *before);
        assert_non_null(before);
        for (uint32_t i = 0; i < count; i++) {
            operands[1 + 2 * i] = bench_weight(&bench, DTYPE_AFFINE4, outs[i], IN, 0.1f, 0.01f);
            operands[2 + 2 * i] =
                accumulate ? bench_input(&bench, ROWS, outs[i], 1) : bench_output(&bench, ROWS, outs[i]);
            if (accumulate)
                operands[2].access = ACCESS_READ | ACCESS_WRITE;
        }
        memcpy(before, bench_floats(&bench, operands[2]), ROWS * (size_t)outs[0] * sizeof *before);
        struct op *op = bench_op(&bench, OP_LINEAR, operands, 1 + 2 * count);
        op->constants.matrix_count = count;
        op->constants.accumulate = accumulate;
        bench_run(&bench);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t t = 0; t < ROWS; t += t % 2 == 0 ? 5 : 2)
                for (uint32_t o = 0; o < outs[i]; o++) {
                    double expected = product(bench_values(&bench, operands[1 + 2 * i]), o, IN,
                                              bench_floats(&bench, x) + t * IN);
                    expected += accumulate ? before[t * outs[0] + o] : 0;
                    assert_near(bench_floats(&bench, operands[2 + 2 * i])[t * outs[i] + o], expected, 1e-5);
                }
        free(before);
        bench_close(&bench);
    }
}

/* As many rows and features as the largest tiles of CUDA's kernels are chosen for, the last ones of them
 * partly filled; the emulator of Metal has time for fewer. */
static void head_of_very_many_rows(void **state) {
    (void)state;
    enum { IN = 128 };
    bool metal = strcmp(bench_current.class->name, "metal") == 0;
    const uint32_t rows = metal ? 70 : 1090, out = metal ? 272 : 2096;
    struct bench bench;
    bench_open(&bench, 3);
    bench.bf16_scales = true;
    struct operand x = bench_input(&bench, rows, IN, 1), y = bench_output(&bench, rows, out);
    struct operand weight = bench_weight(&bench, DTYPE_AFFINE4, out, IN, 0.1f, 0.01f);
    bench_op(&bench, OP_HEAD, (struct operand[]){x, weight, y}, 3);
    bench_run(&bench);
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t o = t % 29; o < out; o += 29)
            assert_near(bench_floats(&bench, y)[t * out + o],
                        product(bench_values(&bench, weight), o, IN, bench_floats(&bench, x) + t * IN), 1e-5);
    bench_close(&bench);
}

/* Matrices of every kind: each alone, then all with one x. */
static void linear_of_each_kind(void **state) {
    (void)state;
    enum { ROWS = 45, IN = 128, KINDS = 4 };
    static const enum dtype kinds[KINDS] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_AFFINE8};
    static const uint32_t outs[KINDS] = {24, 72, 16, 40};
    bool rounds = bench_current.class != &cpu_backend && bench_current.class != &reference_backend;
    for (uint32_t round = 0; round <= KINDS; round++) {
        struct bench bench;
        bench_open(&bench, 20 + round);
        struct operand x = bench_input(&bench, ROWS, IN, 1), operands[1 + 2 * KINDS] = {x};
        uint32_t first = round < KINDS ? round : 0, count = round < KINDS ? 1 : KINDS;
        for (uint32_t i = 0; i < count; i++) {
            operands[1 + 2 * i] = bench_weight(&bench, kinds[first + i], outs[first + i], IN, 0.1f, 0.01f);
            operands[2 + 2 * i] = bench_output(&bench, ROWS, outs[first + i]);
        }
        bench_op(&bench, OP_LINEAR, operands, 1 + 2 * count)->constants.matrix_count = count;
        bench_run(&bench);
        for (uint32_t i = 0; i < count; i++) {
            /* A GPU multiplies bfloat16, but Metal not where the weights have more bits. */
            bool precise = !rounds || (strcmp(bench_current.class->name, "metal") == 0 && first + i < 2);
            for (uint32_t t = 0; t < ROWS; t += 3)
                for (uint32_t o = 0; o < outs[first + i]; o++)
                    assert_near(bench_floats(&bench, operands[2 + 2 * i])[t * outs[first + i] + o],
                                product(bench_values(&bench, operands[1 + 2 * i]), o, IN,
                                        bench_floats(&bench, x) + t * IN),
                                precise ? 1e-5 : 2e-2);
        }
        bench_close(&bench);
    }
}

enum { TOKENS = 150, EXPERTS = 7, CHOSEN = 3, HIDDEN = 192, WIDTH = 64, SHARED = 192 };

struct experts {
    struct operand x, ids, scores, starts, order, gate, up, shared_gate, shared_up, down, shared_down;
    struct operand routed, shared, y;
};

/* Of the experts' matrices and the shared ones: gate, up, down each. */
struct kinds {
    enum dtype gate, up, down, shared_gate, shared_up, shared_down;
};

/* Expert 0 is among almost all rows' choices, expert 6 is never chosen. */
static struct experts experts_open(struct bench *bench, struct kinds kinds) {
    struct experts e = {.x = bench_input(bench, TOKENS, HIDDEN, 1),
                        .ids = bench_buffer(bench, DTYPE_I32, TOKENS, CHOSEN, ACCESS_READ | ACCESS_WRITE),
                        .scores = bench_input(bench, TOKENS, CHOSEN + 1, 0.3f),
                        .starts = bench_buffer(bench, DTYPE_I32, 1, EXPERTS + 1, ACCESS_WRITE),
                        .order = bench_buffer(bench, DTYPE_I32, 1, TOKENS * CHOSEN, ACCESS_WRITE),
                        .gate = bench_weight(bench, kinds.gate, EXPERTS * WIDTH, HIDDEN, 0.08f, 0),
                        .up = bench_weight(bench, kinds.up, EXPERTS * WIDTH, HIDDEN, 0.08f, 0),
                        .shared_gate = bench_weight(bench, kinds.shared_gate, SHARED, HIDDEN, 0.08f, 0),
                        .shared_up = bench_weight(bench, kinds.shared_up, SHARED, HIDDEN, 0.08f, 0),
                        .down = bench_weight(bench, kinds.down, EXPERTS * HIDDEN, WIDTH, 0.1f, 0),
                        .shared_down = bench_weight(bench, kinds.shared_down, HIDDEN, SHARED, 0.1f, 0),
                        .routed = bench_output(bench, TOKENS * CHOSEN, WIDTH),
                        .shared = bench_output(bench, TOKENS, SHARED),
                        .y = bench_input(bench, TOKENS, HIDDEN, 1)};
    for (int32_t t = 0; t < TOKENS; t++) {
        int32_t *ids = bench_ints(bench, e.ids) + t * CHOSEN;
        ids[0] = t % 10 == 9 ? 1 : 0;
        ids[1] = 2 + t % 3;
        ids[2] = t % 50 == 0 ? 5 : 2 + (t + 1) % 3;
    }
    return e;
}

static struct op *expert_op(struct bench *bench, enum op_kind kind, const struct operand *operands,
                            uint32_t count) {
    struct op *op = bench_op(bench, kind, operands, count);
    op->constants.experts = EXPERTS;
    op->constants.experts_per_token = CHOSEN;
    return op;
}

static void check_experts(struct kinds kinds, bool bf16_scales) {
    struct bench bench;
    bench_open(&bench, 5);
    bench.bf16_scales = bf16_scales;
    struct experts e = experts_open(&bench, kinds);
    static float before[TOKENS * HIDDEN];
    memcpy(before, bench_floats(&bench, e.y), sizeof before);
    expert_op(&bench, OP_EXPERT_SORT, (struct operand[]){with_access(e.ids, ACCESS_READ), e.starts, e.order},
              3);
    e.ids.access = e.starts.access = e.order.access = ACCESS_READ;
    expert_op(&bench, OP_EXPERT_GATE_UP,
              (struct operand[]){e.x, e.ids, e.starts, e.order, e.gate, e.up, e.shared_gate, e.shared_up,
                                 e.routed, e.shared},
              10);
    e.routed.access = e.shared.access = ACCESS_READ;
    expert_op(&bench, OP_EXPERT_DOWN,
              (struct operand[]){e.routed, e.shared, e.ids, e.scores, e.starts, e.order, e.down,
                                 e.shared_down, with_access(e.y, ACCESS_READ | ACCESS_WRITE)},
              9);
    bench_run(&bench);
    for (uint32_t t = 0; t < TOKENS; t += 7) {
        const float *x = bench_floats(&bench, e.x) + t * HIDDEN;
        const float *scores = bench_floats(&bench, e.scores) + t * (CHOSEN + 1);
        float routed[CHOSEN][WIDTH], shared[SHARED];
        for (uint32_t k = 0; k < CHOSEN; k++) {
            size_t first = (size_t)bench_ints(&bench, e.ids)[t * CHOSEN + k] * WIDTH;
            for (size_t i = 0; i < WIDTH; i++) {
                routed[k][i] = (float)(silu_of(product(bench_values(&bench, e.gate), first + i, HIDDEN, x)) *
                                       product(bench_values(&bench, e.up), first + i, HIDDEN, x));
                assert_near(bench_floats(&bench, e.routed)[(t * CHOSEN + k) * WIDTH + i], routed[k][i], 1e-5);
            }
        }
        for (size_t i = 0; i < SHARED; i++)
            shared[i] = (float)(silu_of(product(bench_values(&bench, e.shared_gate), i, HIDDEN, x)) *
                                product(bench_values(&bench, e.shared_up), i, HIDDEN, x));
        for (size_t i = 0; i < HIDDEN; i++) {
            double sum = before[t * HIDDEN + i];
            for (uint32_t k = 0; k < CHOSEN; k++)
                sum += scores[k] * product(bench_values(&bench, e.down),
                                           (size_t)bench_ints(&bench, e.ids)[t * CHOSEN + k] * HIDDEN + i,
                                           WIDTH, routed[k]);
            sum += scores[CHOSEN] * product(bench_values(&bench, e.shared_down), i, SHARED, shared);
            assert_near(bench_floats(&bench, e.y)[t * HIDDEN + i], sum, 1e-5);
        }
    }
    bench_close(&bench);
}

static void experts_of_many_rows(void **state) {
    (void)state;
    for (int bf16_scales = 0; bf16_scales < 2; bf16_scales++)
        check_experts((struct kinds){DTYPE_AFFINE4, DTYPE_AFFINE4, DTYPE_AFFINE4, DTYPE_AFFINE4,
                                     DTYPE_AFFINE4, DTYPE_AFFINE4},
                      bf16_scales);
}

/* Gate and up of two kinds, with and without one that is not rounded. */
static void experts_of_mixed_kinds(void **state) {
    (void)state;
    check_experts(
        (struct kinds){DTYPE_AFFINE4, DTYPE_AFFINE8, DTYPE_BF16, DTYPE_BF16, DTYPE_AFFINE4, DTYPE_AFFINE8},
        false);
    check_experts((struct kinds){DTYPE_F16, DTYPE_AFFINE4, DTYPE_F32, DTYPE_AFFINE4, DTYPE_F32, DTYPE_F16},
                  false);
}

/* Two chunks, one after the other: convolution, gates' outcomes, the recurrence. */
static void delta_of_many_rows(void **state) {
    (void)state;
    enum {
        ROWS = 150,
        KEYS = 1,
        VALUES = 2,
        SIZE = 128,
        CHANNELS = (2 * KEYS + VALUES) * SIZE,
        TAPS = 4,
        AT = 6
    };
    struct bench bench;
    bench_open(&bench, 9);
    bench.record.position = AT;
    struct operand x = bench_input(&bench, ROWS, CHANNELS, 1);
    struct operand taps = bench_weight(&bench, DTYPE_BF16, CHANNELS, TAPS, 0.5f, 0);
    struct operand ring = with_access(bench_input(&bench, TAPS, CHANNELS, 1), ACCESS_READ | ACCESS_WRITE);
    struct operand q = bench_output(&bench, ROWS, KEYS * SIZE), k = bench_output(&bench, ROWS, KEYS * SIZE);
    struct operand v = bench_output(&bench, ROWS, VALUES * SIZE),
                   y = bench_output(&bench, ROWS, VALUES * SIZE);
    struct operand decay = bench_input(&bench, ROWS, VALUES, 1), beta = bench_input(&bench, ROWS, VALUES, 1);
    struct operand memory =
        with_access(bench_input(&bench, VALUES * SIZE, SIZE, 0.3f), ACCESS_READ | ACCESS_WRITE);
    for (uint32_t i = 0; i < ROWS * VALUES; i++) {
        bench_floats(&bench, decay)[i] = (float)sigmoid_of(bench_floats(&bench, decay)[i] + 3);
        bench_floats(&bench, beta)[i] = (float)sigmoid_of(bench_floats(&bench, beta)[i]);
    }
    static double S[VALUES * SIZE][SIZE], old[TAPS][CHANNELS];
    for (size_t i = 0; i < VALUES * SIZE * (size_t)SIZE; i++)
        S[i / SIZE][i % SIZE] = bench_floats(&bench, memory)[i];
    for (size_t i = 0; i < TAPS * (size_t)CHANNELS; i++)
        old[i / CHANNELS][i % CHANNELS] = bench_floats(&bench, ring)[i];
    struct op *conv = bench_op(&bench, OP_CONV_SILU,
                               (struct operand[]){bench_record(ACCESS_READ), x, taps, ring, q, k, v}, 7);
    struct op *scan = bench_op(&bench, OP_DELTA_SCAN,
                               (struct operand[]){with_access(q, ACCESS_READ), with_access(k, ACCESS_READ),
                                                  with_access(v, ACCESS_READ), decay, beta, memory, y},
                               7);
    conv->constants = (struct op_constants){.key_heads = KEYS,
                                            .value_heads = VALUES,
                                            .key_size = SIZE,
                                            .value_size = SIZE,
                                            .taps = TAPS,
                                            .l2_epsilon = 1e-6f};
    scan->constants = conv->constants;
    bench_run(&bench);
    double largest = 0;
    for (int64_t t = 0; t < ROWS; t++) {
        double mixed[CHANNELS];
        for (uint32_t c = 0; c < CHANNELS; c++) {
            double sum = 0;
            for (int64_t j = 0; j < TAPS; j++) {
                int64_t at = t - TAPS + 1 + j;
                double input =
                    at >= 0 ? bench_floats(&bench, x)[at * CHANNELS + c] : old[(AT + at) % TAPS][c];
                sum += bench_values(&bench, taps)[c * TAPS + j] * input;
            }
            mixed[c] = silu_of(sum);
        }
        for (int part = 0; part < 2; part++) {
            double squares = 1e-6;
            for (int i = 0; i < SIZE; i++)
                squares += mixed[part * SIZE + i] * mixed[part * SIZE + i];
            for (int i = 0; i < SIZE; i++)
                mixed[part * SIZE + i] /= sqrt(squares) * (part == 0 ? sqrt(SIZE) : 1);
        }
        assert_near(bench_floats(&bench, q)[t * SIZE + 17], mixed[17], 1e-5);
        assert_near(bench_floats(&bench, k)[t * SIZE + 100], mixed[SIZE + 100], 1e-5);
        for (uint32_t row = 0; row < VALUES * SIZE; row++) {
            double d = bench_floats(&bench, decay)[t * VALUES + row / SIZE], projected = 0, out = 0;
            for (int i = 0; i < SIZE; i++)
                projected += (S[row][i] *= d) * mixed[SIZE + i];
            double change =
                bench_floats(&bench, beta)[t * VALUES + row / SIZE] * (mixed[2 * SIZE + row] - projected);
            for (int i = 0; i < SIZE; i++)
                out += (S[row][i] += change * mixed[SIZE + i]) * mixed[i];
            largest = fmax(largest, fabs(bench_floats(&bench, y)[t * VALUES * SIZE + row] - out));
        }
    }
    for (size_t i = 0; i < VALUES * SIZE * (size_t)SIZE; i++)
        assert_near(bench_floats(&bench, memory)[i], S[i / SIZE][i % SIZE], 2e-3);
    /* The matrix units multiply float16. */
    assert_true(largest < (strcmp(bench_current.class->name, "cuda") == 0 ? 1e-3 : 1e-5));
    for (size_t c = 0; c < CHANNELS; c++)
        for (int64_t p = AT + ROWS - TAPS; p < AT + ROWS; p++)
            assert_true(bench_floats(&bench, ring)[p % TAPS * CHANNELS + c] ==
                        bench_floats(&bench, x)[(p - AT) * CHANNELS + c]);
    bench_close(&bench);
}

/* 41 tokens of 4 heads after 90 others, KV heads of 256, a bf16 cache. */
static void attention_of_many_rows(void **state) {
    (void)state;
    enum { ROWS = 41, HEADS = 4, KV_HEADS = 2, SIZE = 256, AT = 90, LIMIT = 140 };
    struct bench bench;
    bench_open(&bench, 13);
    bench.record.position = AT;
    struct operand projected = bench_input(&bench, ROWS * HEADS, 2 * SIZE, 1);
    struct operand q = strided(projected, ROWS * HEADS, SIZE, 2 * SIZE, 0);
    struct operand gate = strided(projected, ROWS * HEADS, SIZE, 2 * SIZE, SIZE);
    struct operand caches[2];
    for (int i = 0; i < 2; i++) {
        caches[i] = bench_buffer(&bench, DTYPE_BF16, LIMIT, KV_HEADS * SIZE, ACCESS_READ);
        for (uint32_t j = 0; j < LIMIT * KV_HEADS * SIZE; j++)
            ((uint16_t *)bench.data[caches[i].buffer])[j] = float_to_bf16(bench_normal(&bench));
    }
    struct operand y = bench_output(&bench, ROWS * HEADS, SIZE);
    struct op *op =
        bench_op(&bench, OP_ATTENTION,
                 (struct operand[]){bench_record(ACCESS_READ), q, gate, caches[0], caches[1], y}, 6);
    op->constants.heads = HEADS;
    op->constants.kv_heads = KV_HEADS;
    op->constants.head_size = SIZE;
    bench_run(&bench);
    /* On a GPU the products are of bfloat16. */
    bool rounds = bench_current.class != &cpu_backend && bench_current.class != &reference_backend;
    double rounding = rounds ? 1e-2 : 1e-5;
    for (uint32_t row = 0; row < ROWS * HEADS; row += 3) {
        const float *in = bench_floats(&bench, q) + row * 2 * SIZE,
                    *gates = bench_floats(&bench, gate) + row * 2 * SIZE;
        uint32_t count = AT + row / HEADS + 1, column = row % HEADS / (HEADS / KV_HEADS) * SIZE;
        double weights[LIMIT], total = 0, most = -1e300;
        for (uint32_t p = 0; p < count; p++) {
            weights[p] = 0;
            for (uint32_t d = 0; d < SIZE; d++)
                weights[p] +=
                    in[d] * bf16_to_float(
                                ((uint16_t *)bench.data[caches[0].buffer])[p * KV_HEADS * SIZE + column + d]);
            weights[p] /= 16;
            most = fmax(most, weights[p]);
        }
        for (uint32_t p = 0; p < count; p++)
            total += weights[p] = exp(weights[p] - most);
        for (uint32_t d = 0; d < SIZE; d++) {
            double sum = 0;
            for (uint32_t p = 0; p < count; p++)
                sum += weights[p] / total *
                       bf16_to_float(
                           ((uint16_t *)bench.data[caches[1].buffer])[p * KV_HEADS * SIZE + column + d]);
            assert_near(bench_floats(&bench, y)[row * SIZE + d], sum * sigmoid_of(gates[d]), rounding);
        }
    }
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_of_many_rows),    cmocka_unit_test(head_of_very_many_rows),
        cmocka_unit_test(linear_of_each_kind),    cmocka_unit_test(experts_of_many_rows),
        cmocka_unit_test(experts_of_mixed_kinds), cmocka_unit_test(delta_of_many_rows),
        cmocka_unit_test(attention_of_many_rows),
    };
    return BENCH_RUN_TESTS(tests);
}
