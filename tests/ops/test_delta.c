/* The gated delta layers' ops. The scan is compared with the block form of the same recurrence in double: a
 * triangular system for the whole chunk instead of a loop over its tokens. */
#define BENCH_METAL_POLICIES "delta_scan=block"
#include "op_bench.h"

struct shape {
    uint32_t rows, key_heads, value_heads, key_size, value_size, taps;
};

static const struct shape shapes[] = {
    {1, 1, 1, 16, 16, 4},
    {9, 2, 4, 16, 8, 4},
    {2, 2, 2, 24, 40, 3},
    {17, 1, 3, 32, 16, 2},
    {3, 2, 6, 20, 12, 6},
    /* Of 64 and 128 keys, with rows left over from every size of group. */
    {37, 1, 2, 128, 35, 4},
    {4, 1, 1, 128, 70, 4},
    {2, 1, 3, 128, 64, 4},
    {5, 2, 2, 64, 12, 4},
    {3, 1, 2, 64, 70, 4},
    {6, 1, 2, 8, 5, 4},
    {3, 2, 4, 128, 128, 4},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void set_constants(struct op *op, const struct shape *s) {
    op->constants.key_heads = s->key_heads;
    op->constants.value_heads = s->value_heads;
    op->constants.key_size = s->key_size;
    op->constants.value_size = s->value_size;
    op->constants.taps = s->taps;
    op->constants.epsilon = 1e-5f;
    op->constants.l2_epsilon = 1e-6f;
}

static double sigmoid_of(double x) {
    return 1 / (1 + exp(-x));
}

struct conv {
    struct operand x, taps, ring, q, k, v;
};

static struct conv conv_open(struct bench *bench, const struct shape *s, enum dtype dtype) {
    uint32_t keys = s->key_heads * s->key_size, values = s->value_heads * s->value_size;
    struct conv conv = {.x = bench_input(bench, s->rows, 2 * keys + values, 1),
                        .taps = bench_weight(bench, dtype, 2 * keys + values, s->taps, 0.5f, 0),
                        .ring = bench_input(bench, s->taps, 2 * keys + values, 1),
                        .q = bench_output(bench, s->rows, keys),
                        .k = bench_output(bench, s->rows, keys),
                        .v = bench_output(bench, s->rows, values)};
    conv.ring.access = ACCESS_READ | ACCESS_WRITE;
    return conv;
}

static void add_conv(struct bench *bench, const struct shape *s, const struct conv *c) {
    struct operand operands[] = {bench_record(ACCESS_READ), c->x, c->taps, c->ring, c->q, c->k, c->v};
    set_constants(bench_op(bench, OP_CONV_SILU, operands, 7), s);
}

/* Row t of a view. */
static struct operand row_of(struct operand view, uint32_t t) {
    return strided(view, 1, view.columns, view.columns, t * view.columns);
}

static struct conv conv_of_row(const struct conv *conv, uint32_t t) {
    return (struct conv){row_of(conv->x, t), conv->taps,         conv->ring,
                         row_of(conv->q, t), row_of(conv->k, t), row_of(conv->v, t)};
}

/* Silu of the convolution of channel c at row t, from the inputs laid end to end: history, then x. */
static double convolved(const float *inputs, const float *taps, const struct shape *s, uint32_t channels,
                        uint32_t t, uint32_t c) {
    double sum = 0;
    for (uint32_t j = 0; j < s->taps; j++)
        sum += (double)taps[c * s->taps + j] * inputs[(t + j) * channels + c];
    return sum * sigmoid_of(sum);
}

static void conv_silu_of_shapes(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 1);
        uint32_t keys = s->key_heads * s->key_size, values = s->value_heads * s->value_size;
        uint32_t channels = 2 * keys + values, history = s->taps - 1, position = s->taps + (uint32_t)i;
        struct conv conv = conv_open(&bench, s, i % 2 == 0 ? DTYPE_BF16 : DTYPE_F32);
        bench.record.position = position;
        float *inputs = calloc((size_t)(s->rows + history) * channels, sizeof *inputs);
        assert_non_null(inputs);
        for (uint32_t j = 0; j < history; j++)
            memcpy(inputs + j * channels,
                   bench_floats(&bench, conv.ring) + (position - history + j) % s->taps * channels,
                   channels * sizeof *inputs);
        memcpy(inputs + history * channels, bench_floats(&bench, conv.x), (size_t)s->rows * channels * 4);
        add_conv(&bench, s, &conv);
        bench_run(&bench);
        const float *taps = bench_values(&bench, conv.taps);
        for (uint32_t t = 0; t < s->rows; t++) {
            for (uint32_t part = 0; part < 2; part++)
                for (uint32_t head = 0; head < s->key_heads; head++) {
                    double squares = 0;
                    for (uint32_t j = 0; j < s->key_size; j++) {
                        double y =
                            convolved(inputs, taps, s, channels, t, part * keys + head * s->key_size + j);
                        squares += y * y;
                    }
                    double scale = 1 / sqrt(squares + 1e-6) / (part == 0 ? sqrt(s->key_size) : 1);
                    for (uint32_t j = 0; j < s->key_size; j++) {
                        uint32_t c = head * s->key_size + j;
                        assert_near(bench_floats(&bench, part == 0 ? conv.q : conv.k)[t * keys + c],
                                    scale * convolved(inputs, taps, s, channels, t, part * keys + c), 1e-5);
                    }
                }
            for (uint32_t c = 0; c < values; c++)
                assert_near(bench_floats(&bench, conv.v)[t * values + c],
                            convolved(inputs, taps, s, channels, t, 2 * keys + c), 1e-5);
        }
        for (uint32_t j = 0; j < s->taps; j++) /* the last W of history and x */
            assert_memory_equal(bench_floats(&bench, conv.ring) +
                                    (position + s->rows - s->taps + j) % s->taps * channels,
                                inputs + (s->rows - 1 + j) * channels, channels * sizeof *inputs);
        free(inputs);
        bench_close(&bench);
    }
}

/* A chunk and its tokens one by one give the same bits, results and state. */
static void conv_silu_token_by_token(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench chunk, single;
        bench_open(&chunk, i + 50);
        bench_open(&single, i + 50);
        struct conv a = conv_open(&chunk, s, DTYPE_BF16), b = conv_open(&single, s, DTYPE_BF16);
        add_conv(&chunk, s, &a);
        chunk.record.position = (uint32_t)i;
        bench_run(&chunk);
        for (uint32_t t = 0; t < s->rows; t++) {
            struct conv row = conv_of_row(&b, t);
            add_conv(&single, s, &row);
            single.record.position = (uint32_t)i + t;
            bench_run(&single);
            plan_free(&single.plan);
        }
        for (uint32_t j = 0; j < chunk.buffer_count; j++)
            assert_same_buffers(&chunk, &single, j);
        bench_close(&chunk);
        bench_close(&single);
    }
}

static void delta_gates_of_extremes(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, 3);
    enum { HEADS = 6 };
    struct operand a = bench_input(&bench, 4, HEADS, 3), b = bench_input(&bench, 4, HEADS, 3);
    float extremes[HEADS] = {-200, -30, 0, 30, 88.8f, 1000};
    memcpy(bench_floats(&bench, a), extremes, sizeof extremes);
    memcpy(bench_floats(&bench, b), extremes, sizeof extremes);
    struct operand A_log = bench_weight(&bench, DTYPE_BF16, 1, HEADS, 1, 0);
    struct operand dt_bias = bench_weight(&bench, DTYPE_F32, 1, HEADS, 1, 0);
    struct operand decay = bench_output(&bench, 4, HEADS), beta = bench_output(&bench, 4, HEADS);
    bench_op(&bench, OP_DELTA_GATES, (struct operand[]){a, b, A_log, dt_bias, decay, beta}, 6)
        ->constants.value_heads = HEADS;
    bench_run(&bench);
    for (uint32_t i = 0; i < 4 * HEADS; i++) {
        double x = (double)bench_floats(&bench, a)[i] + bench_values(&bench, dt_bias)[i % HEADS];
        double softplus = x > 30 ? x : log1p(exp(x));
        double expected = exp(-exp((double)bench_values(&bench, A_log)[i % HEADS]) * softplus);
        assert_near(bench_floats(&bench, decay)[i], expected, 1e-5);
        assert_true(bench_floats(&bench, decay)[i] >= 0 && bench_floats(&bench, decay)[i] <= 1);
        assert_near(bench_floats(&bench, beta)[i], sigmoid_of(bench_floats(&bench, b)[i]), 1e-6);
    }
    bench_close(&bench);
}

struct scan {
    struct operand q, k, v, decay, beta, state, y;
};

/* Operands in the range that the ops before give: k of length 1, gates in (0, 1). */
static struct scan scan_open(struct bench *bench, const struct shape *s) {
    uint32_t keys = s->key_heads * s->key_size, values = s->value_heads * s->value_size;
    float unit = 1 / sqrtf((float)s->key_size);
    struct scan scan = {.q = bench_input(bench, s->rows, keys, unit),
                        .k = bench_input(bench, s->rows, keys, unit),
                        .v = bench_input(bench, s->rows, values, 1),
                        .decay = bench_input(bench, s->rows, s->value_heads, 1),
                        .beta = bench_input(bench, s->rows, s->value_heads, 1),
                        .state = bench_input(bench, values, s->key_size, 0.3f),
                        .y = bench_output(bench, s->rows, values)};
    scan.state.access = ACCESS_READ | ACCESS_WRITE;
    for (uint32_t i = 0; i < s->rows * s->value_heads; i++) {
        bench_floats(bench, scan.decay)[i] = (float)sigmoid_of(bench_floats(bench, scan.decay)[i] + 2);
        bench_floats(bench, scan.beta)[i] = (float)sigmoid_of(bench_floats(bench, scan.beta)[i]);
    }
    return scan;
}

#define MAX_ROWS 40
#define MAX_SIZE 128

/* One head in block form. G_t = sum of log decay up to t, L_ij = exp(G_i - G_j): u solves
 * (I + strict_lower(beta k k^T L)) u = beta (v - exp(G) S k); y_t = exp(G_t) S q_t + sum_{i<=t} L_ti
 * (q_t.k_i) u_i; S = exp(G_T) S + sum_i exp(G_T - G_i) u_i k_i^T. */
static void block_scan(const struct bench *bench, const struct scan *scan, const struct shape *s,
                       uint32_t head, double S[MAX_SIZE][MAX_SIZE], double y[MAX_ROWS][MAX_SIZE]) {
    double G[MAX_ROWS] = {0}, u[MAX_ROWS][MAX_SIZE];
    uint32_t keys = s->key_heads * s->key_size, values = s->value_heads * s->value_size;
    uint32_t key = head / (s->value_heads / s->key_heads) * s->key_size, value = head * s->value_size;
    const float *q = bench_floats(bench, scan->q) + key, *k = bench_floats(bench, scan->k) + key;
    const float *v = bench_floats(bench, scan->v) + value;
    for (uint32_t t = 0; t < s->rows; t++) {
        G[t] =
            (t > 0 ? G[t - 1] : 0) + log((double)bench_floats(bench, scan->decay)[t * s->value_heads + head]);
        double beta = bench_floats(bench, scan->beta)[t * s->value_heads + head];
        for (uint32_t d = 0; d < s->value_size; d++) {
            double known = 0;
            for (uint32_t j = 0; j < s->key_size; j++)
                known += exp(G[t]) * S[d][j] * k[t * keys + j];
            u[t][d] = beta * (v[t * values + d] - known);
        }
        for (uint32_t i = 0; i < t; i++) {
            double overlap = 0;
            for (uint32_t j = 0; j < s->key_size; j++)
                overlap += (double)k[t * keys + j] * k[i * keys + j];
            for (uint32_t d = 0; d < s->value_size; d++)
                u[t][d] -= beta * overlap * exp(G[t] - G[i]) * u[i][d];
        }
    }
    for (uint32_t t = 0; t < s->rows; t++)
        for (uint32_t d = 0; d < s->value_size; d++) {
            y[t][d] = 0;
            for (uint32_t j = 0; j < s->key_size; j++) {
                y[t][d] += exp(G[t]) * S[d][j] * q[t * keys + j];
                for (uint32_t i = 0; i <= t; i++)
                    y[t][d] += exp(G[t] - G[i]) * q[t * keys + j] * k[i * keys + j] * u[i][d];
            }
        }
    double last = G[s->rows - 1];
    for (uint32_t d = 0; d < s->value_size; d++)
        for (uint32_t j = 0; j < s->key_size; j++) {
            S[d][j] *= exp(last);
            for (uint32_t i = 0; i < s->rows; i++)
                S[d][j] += exp(last - G[i]) * u[i][d] * k[i * keys + j];
        }
}

static void delta_scan_equals_block_form(void **state) {
    (void)state;
    static double S[8][MAX_SIZE][MAX_SIZE], y[MAX_ROWS][MAX_SIZE];
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 100);
        struct scan scan = scan_open(&bench, s);
        for (uint32_t head = 0; head < s->value_heads; head++)
            for (uint32_t d = 0; d < s->value_size; d++)
                for (uint32_t j = 0; j < s->key_size; j++)
                    S[head][d][j] =
                        bench_floats(&bench, scan.state)[(head * s->value_size + d) * s->key_size + j];
        set_constants(
            bench_op(&bench, OP_DELTA_SCAN,
                     (struct operand[]){scan.q, scan.k, scan.v, scan.decay, scan.beta, scan.state, scan.y},
                     7),
            s);
        bench_run(&bench);
        uint32_t values = s->value_heads * s->value_size;
        for (uint32_t head = 0; head < s->value_heads; head++) {
            block_scan(&bench, &scan, s, head, S[head], y);
            for (uint32_t d = 0; d < s->value_size; d++) {
                uint32_t row = head * s->value_size + d;
                for (uint32_t t = 0; t < s->rows; t++)
                    assert_near(bench_floats(&bench, scan.y)[t * values + row], y[t][d], 1e-5);
                for (uint32_t j = 0; j < s->key_size; j++)
                    assert_near(bench_floats(&bench, scan.state)[row * s->key_size + j], S[head][d][j], 1e-5);
            }
        }
        bench_close(&bench);
    }
}

/* A NaN in an element of v spoils that row of the state and of y from its token on, and nothing else. */
static void a_nan_stays_in_its_row(void **state) {
    (void)state;
    const struct shape *s = &shapes[5];
    enum { TOKEN = 2, ROW = 34 };
    struct bench benches[2];
    struct scan scans[2];
    uint32_t values = s->value_heads * s->value_size;
    for (int i = 0; i < 2; i++) {
        bench_open(&benches[i], 300);
        scans[i] = scan_open(&benches[i], s);
        if (i == 1)
            bench_floats(&benches[1], scans[1].v)[TOKEN * values + ROW] = NAN;
        set_constants(bench_op(&benches[i], OP_DELTA_SCAN,
                               (struct operand[]){scans[i].q, scans[i].k, scans[i].v, scans[i].decay,
                                                  scans[i].beta, scans[i].state, scans[i].y},
                               7),
                      s);
        bench_run(&benches[i]);
    }
    for (uint32_t i = 0; i < s->rows * values; i++) {
        float found = bench_floats(&benches[1], scans[1].y)[i];
        if (i % values == ROW && i / values >= TOKEN)
            assert_true(isnan(found));
        else
            assert_true(found == bench_floats(&benches[0], scans[0].y)[i]);
    }
    for (uint32_t i = 0; i < values * s->key_size; i++) {
        float found = bench_floats(&benches[1], scans[1].state)[i];
        if (i / s->key_size == ROW)
            assert_true(isnan(found));
        else
            assert_true(found == bench_floats(&benches[0], scans[0].state)[i]);
    }
    bench_close(&benches[0]);
    bench_close(&benches[1]);
}

static void gated_norm_of_heads(void **state) {
    (void)state;
    const struct shape s = {5, 1, 3, 8, 24, 4};
    struct bench bench;
    bench_open(&bench, 9);
    struct operand x = bench_input(&bench, 5, 72, 1), z = bench_input(&bench, 5, 72, 2);
    struct operand weight = bench_weight(&bench, DTYPE_BF16, 1, 24, 0.1f, 1);
    struct operand y = bench_output(&bench, 5, 72);
    set_constants(bench_op(&bench, OP_GATED_NORM, (struct operand[]){x, z, weight, y}, 4), &s);
    bench_run(&bench);
    for (uint32_t i = 0; i < 5 * 72; i++) {
        const float *head = bench_floats(&bench, x) + i / 24 * 24;
        double squares = 0, gate = bench_floats(&bench, z)[i];
        for (uint32_t j = 0; j < 24; j++)
            squares += (double)head[j] * head[j];
        assert_near(bench_floats(&bench, y)[i],
                    head[i % 24] / sqrt(squares / 24 + 1e-5) * bench_values(&bench, weight)[i % 24] * gate *
                        sigmoid_of(gate),
                    1e-5);
    }
    bench_close(&bench);
}

/* The fusion has the bits of the ops that it replaces, at once and token by token. */
static void delta_tail_equals_its_parts(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        uint32_t heads = s->value_heads, values = heads * s->value_size;
        struct bench benches[3];
        for (int variant = 0; variant < 3; variant++) {
            struct bench *bench = &benches[variant];
            bench_open(bench, i + 200);
            struct scan scan = scan_open(bench, s);
            struct operand a = bench_input(bench, s->rows, heads, 2),
                           b = bench_input(bench, s->rows, heads, 2);
            struct operand z = bench_input(bench, s->rows, values, 1),
                           y = bench_output(bench, s->rows, values);
            struct operand A_log = bench_weight(bench, DTYPE_BF16, 1, heads, 1, 0);
            struct operand dt_bias = bench_weight(bench, DTYPE_BF16, 1, heads, 1, 0);
            struct operand weight = bench_weight(bench, DTYPE_BF16, 1, s->value_size, 0.1f, 1);
            if (variant == 0) {
                struct operand decay = with_access(scan.decay, ACCESS_WRITE);
                struct operand beta = with_access(scan.beta, ACCESS_WRITE);
                set_constants(
                    bench_op(bench, OP_DELTA_GATES, (struct operand[]){a, b, A_log, dt_bias, decay, beta}, 6),
                    s);
                set_constants(bench_op(bench, OP_DELTA_SCAN,
                                       (struct operand[]){scan.q, scan.k, scan.v, scan.decay, scan.beta,
                                                          scan.state, scan.y},
                                       7),
                              s);
                set_constants(bench_op(bench, OP_GATED_NORM,
                                       (struct operand[]){with_access(scan.y, ACCESS_READ), z, weight, y}, 4),
                              s);
            }
            uint32_t step = variant == 1 ? s->rows : 1;
            for (uint32_t t = 0; variant > 0 && t < s->rows; t += step) {
                struct operand operands[] = {a,      b, A_log,  dt_bias,    scan.q, scan.k,
                                             scan.v, z, weight, scan.state, y};
                for (uint32_t j = 0; j < 11; j++)
                    if (operands[j].rows == s->rows && operands[j].space == SPACE_STATE && j != 9)
                        operands[j] = strided(operands[j], step, operands[j].columns, operands[j].columns,
                                              t * operands[j].columns);
                set_constants(bench_op(bench, OP_DELTA_TAIL, operands, 11), s);
            }
            bench_run(bench);
        }
        for (int variant = 1; variant < 3; variant++) {
            uint32_t state_index = 5, y_index = benches[0].buffer_count - 1;
            assert_same_floats(benches[0].data[state_index], benches[variant].data[state_index],
                               (size_t)values * s->key_size);
            assert_same_floats(benches[0].data[y_index], benches[variant].data[y_index],
                               (size_t)s->rows * values);
        }
        for (int variant = 0; variant < 3; variant++)
            bench_close(&benches[variant]);
    }
}

/* The fusion of a step has the bits of the ops that it replaces, all around the ring. */
static void delta_step_equals_its_parts(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        uint32_t heads = s->value_heads, values = heads * s->value_size;
        struct bench benches[2];
        for (uint32_t fused = 0; fused < 2; fused++) {
            struct bench *bench = &benches[fused];
            bench_open(bench, i + 400);
            struct conv conv = conv_open(bench, s, i % 2 == 0 ? DTYPE_BF16 : DTYPE_F32);
            struct operand scan_state = bench_input(bench, values, s->key_size, 0.3f);
            scan_state.access = ACCESS_READ | ACCESS_WRITE;
            struct operand a = bench_input(bench, s->rows, heads, 2);
            struct operand b = bench_input(bench, s->rows, heads, 2);
            struct operand z = bench_input(bench, s->rows, values, 1);
            struct operand y = bench_output(bench, s->rows, values);
            struct operand A_log = bench_weight(bench, DTYPE_BF16, 1, heads, 1, 0);
            struct operand dt_bias = bench_weight(bench, DTYPE_F32, 1, heads, 1, 0);
            struct operand weight = bench_weight(bench, DTYPE_BF16, 1, s->value_size, 0.1f, 1);
            for (uint32_t t = 0; t < s->rows; t++) {
                struct conv row = conv_of_row(&conv, t);
                bench->record.position = (uint32_t)i + t;
                if (fused) {
                    struct operand operands[] = {bench_record(ACCESS_READ),
                                                 row.x,
                                                 row_of(a, t),
                                                 row_of(b, t),
                                                 conv.taps,
                                                 A_log,
                                                 dt_bias,
                                                 row_of(z, t),
                                                 weight,
                                                 conv.ring,
                                                 scan_state,
                                                 row_of(y, t)};
                    set_constants(bench_op(bench, OP_DELTA_STEP, operands, 12), s);
                } else {
                    add_conv(bench, s, &row);
                    struct operand operands[] = {row_of(a, t),
                                                 row_of(b, t),
                                                 A_log,
                                                 dt_bias,
                                                 with_access(row.q, ACCESS_READ),
                                                 with_access(row.k, ACCESS_READ),
                                                 with_access(row.v, ACCESS_READ),
                                                 row_of(z, t),
                                                 weight,
                                                 scan_state,
                                                 row_of(y, t)};
                    set_constants(bench_op(bench, OP_DELTA_TAIL, operands, 11), s);
                }
                bench_run(bench);
                plan_free(&bench->plan);
            }
        }
        for (uint32_t j = 0; j < benches[0].buffer_count; j++)
            if (j < 2 || j > 4) /* q, k and v are the parts' own */
                assert_same_buffers(&benches[0], &benches[1], j);
        bench_close(&benches[0]);
        bench_close(&benches[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_silu_of_shapes),         cmocka_unit_test(conv_silu_token_by_token),
        cmocka_unit_test(delta_gates_of_extremes),     cmocka_unit_test(delta_scan_equals_block_form),
        cmocka_unit_test(a_nan_stays_in_its_row),      cmocka_unit_test(gated_norm_of_heads),
        cmocka_unit_test(delta_tail_equals_its_parts), cmocka_unit_test(delta_step_equals_its_parts),
    };
    return BENCH_RUN_TESTS(tests);
}
