/* Routing and the experts' products. */
#define BENCH_METAL_POLICIES "device_routing=off"
#include "op_bench.h"

struct shape {
    uint32_t rows, experts, chosen, hidden, width, shared;
};

/* One expert; all experts chosen; one row; far more experts than pairs (most without any); many rows. */
static const struct shape shapes[] = {
    {1, 1, 1, 64, 64, 64},  {3, 4, 4, 64, 128, 64},  {1, 8, 2, 128, 64, 192},
    {2, 32, 3, 64, 64, 64}, {13, 6, 2, 64, 64, 128},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void set_constants(struct op *op, const struct shape *s) {
    op->constants.experts = s->experts;
    op->constants.experts_per_token = s->chosen;
}

static double product(const float *matrix, size_t row, size_t columns, const float *x) {
    double sum = 0;
    for (size_t i = 0; i < columns; i++)
        sum += (double)matrix[row * columns + i] * x[i];
    return sum;
}

static double silu_of(double x) {
    return x / (1 + exp(-x));
}

static void router_chooses_the_largest(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 1);
        struct operand x = bench_input(&bench, s->rows, s->hidden, 1);
        struct operand router = bench_weight(&bench, DTYPE_AFFINE8, s->experts, s->hidden, 0.2f, 0);
        struct operand gate = bench_weight(&bench, DTYPE_AFFINE8, 1, s->hidden, 0.2f, 0);
        struct operand ids = bench_buffer(&bench, DTYPE_I32, s->rows, s->chosen, ACCESS_WRITE);
        struct operand scores = bench_output(&bench, s->rows, s->chosen + 1);
        set_constants(bench_op(&bench, OP_ROUTER, (struct operand[]){x, router, gate, ids, scores}, 5), s);
        bench_run(&bench);
        for (uint32_t t = 0; t < s->rows; t++) {
            const float *in = bench_floats(&bench, x) + t * s->hidden;
            const float *found = bench_floats(&bench, scores) + t * (s->chosen + 1);
            const int32_t *chosen = bench_ints(&bench, ids) + t * s->chosen;
            double weights[32], total = 0;
            for (uint32_t e = 0; e < s->experts; e++)
                weights[e] = exp(product(bench_values(&bench, router), e, s->hidden, in));
            for (uint32_t k = 0; k < s->chosen; k++)
                total += weights[chosen[k]];
            for (uint32_t k = 0; k < s->chosen; k++) {
                /* Exactly k experts, all chosen before, are above the k-th (random logits do not tie). */
                uint32_t above = 0;
                for (uint32_t e = 0; e < s->experts; e++)
                    above += weights[e] > weights[chosen[k]];
                assert_int_equal(above, k);
                assert_near(found[k], weights[chosen[k]] / total, 1e-5);
            }
            assert_near(found[s->chosen],
                        1 / (1 + exp(-product(bench_values(&bench, gate), 0, s->hidden, in))), 1e-5);
        }
        bench_close(&bench);
    }
}

/* Equal logits: the lower id first. NaN: still distinct ids of existing experts. */
static void router_of_ties_and_nan(void **state) {
    (void)state;
    const struct shape s = {2, 8, 3, 64, 64, 64};
    struct bench bench;
    bench_open(&bench, 5);
    struct operand x = bench_buffer(&bench, DTYPE_F32, 2, 64, ACCESS_READ);
    bench_floats(&bench, x)[64] = NAN;
    struct operand router = bench_weight(&bench, DTYPE_F32, 8, 64, 1, 0);
    struct operand gate = bench_weight(&bench, DTYPE_F32, 1, 64, 1, 0);
    struct operand ids = bench_buffer(&bench, DTYPE_I32, 2, 3, ACCESS_WRITE);
    struct operand scores = bench_output(&bench, 2, 4);
    set_constants(bench_op(&bench, OP_ROUTER, (struct operand[]){x, router, gate, ids, scores}, 5), &s);
    assert_true(bench_try(&bench, &reference_backend, 1, 1));
    for (int32_t i = 0; i < 6; i++)
        assert_int_equal(bench_ints(&bench, ids)[i], i % 3);
    assert_near(bench_floats(&bench, scores)[0], 1.0 / 3, 1e-6);
    assert_near(bench_floats(&bench, scores)[3], 0.5, 1e-6);
    assert_true(isnan(bench_floats(&bench, scores)[4]));
    bench_close(&bench);
}

static void random_ids(struct bench *bench, struct operand ids, const struct shape *s) {
    for (uint32_t t = 0; t < s->rows; t++)
        for (uint32_t k = 0; k < s->chosen; k++) {
            int32_t *row = bench_ints(bench, ids) + t * s->chosen;
            bool taken;
            do {
                row[k] = (int32_t)(bench_bits(bench) % s->experts);
                taken = false;
                for (uint32_t j = 0; j < k; j++)
                    taken |= row[j] == row[k];
            } while (taken);
        }
}

static void expert_sort_is_stable(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 10);
        uint32_t pairs = s->rows * s->chosen;
        struct operand ids = bench_buffer(&bench, DTYPE_I32, s->rows, s->chosen, ACCESS_READ);
        random_ids(&bench, ids, s);
        struct operand starts = bench_buffer(&bench, DTYPE_I32, 1, s->experts + 1, ACCESS_WRITE);
        struct operand order = bench_buffer(&bench, DTYPE_I32, 1, pairs, ACCESS_WRITE);
        set_constants(bench_op(&bench, OP_EXPERT_SORT, (struct operand[]){ids, starts, order}, 3), s);
        bench_run(&bench);
        const int32_t *start = bench_ints(&bench, starts), *pair = bench_ints(&bench, order);
        assert_int_equal(start[0], 0);
        assert_int_equal(start[s->experts], pairs);
        for (uint32_t e = 0; e < s->experts; e++) {
            uint32_t expected = 0;
            for (uint32_t p = 0; p < pairs; p++)
                expected += bench_ints(&bench, ids)[p] == (int32_t)e;
            assert_int_equal(start[e + 1] - start[e], expected);
            for (int32_t j = start[e]; j < start[e + 1]; j++) {
                assert_int_equal(bench_ints(&bench, ids)[pair[j]], e);
                assert_true(j == start[e] || pair[j - 1] < pair[j]);
            }
        }
        bench_close(&bench);
    }
}

/* Everything from x to y, either as single ops or as the two fusions, with or without sorting. */
struct block {
    struct operand x, ids, scores, gate, up, down, shared_gate, shared_up, shared_down, y;
    struct operand routed, shared;
    float *before; /* y */
};

static struct block block_open(struct bench *bench, const struct shape *s) {
    struct block b;
    uint32_t pairs = s->rows * s->chosen;
    b.x = bench_input(bench, s->rows, s->hidden, 1);
    b.ids = bench_buffer(bench, DTYPE_I32, s->rows, s->chosen, ACCESS_READ);
    random_ids(bench, b.ids, s);
    b.scores = bench_input(bench, s->rows, s->chosen + 1, 1);
    b.gate = bench_weight(bench, DTYPE_AFFINE4, s->experts * s->width, s->hidden, 0.1f, 0);
    b.up = bench_weight(bench, DTYPE_AFFINE4, s->experts * s->width, s->hidden, 0.1f, 0);
    b.down = bench_weight(bench, DTYPE_AFFINE4, s->experts * s->hidden, s->width, 0.1f, 0);
    b.shared_gate = bench_weight(bench, DTYPE_AFFINE8, s->shared, s->hidden, 0.1f, 0);
    b.shared_up = bench_weight(bench, DTYPE_BF16, s->shared, s->hidden, 0.1f, 0);
    b.shared_down = bench_weight(bench, DTYPE_AFFINE4, s->hidden, s->shared, 0.1f, 0);
    b.y = bench_input(bench, s->rows, s->hidden, 1);
    b.routed = bench_output(bench, pairs, s->width);
    b.shared = bench_output(bench, s->rows, s->shared);
    size_t size = (size_t)s->rows * s->hidden * sizeof(float);
    b.before = malloc(size);
    assert_non_null(b.before);
    memcpy(b.before, bench_floats(bench, b.y), size);
    return b;
}

static uint32_t append(struct operand *list, uint32_t count, struct operand view) {
    list[count] = view;
    return count + 1;
}

/* y = W_e x for the pairs, with starts and order where sorted is set. */
static void add_expert_linear(struct bench *bench, const struct shape *s, const struct block *b,
                              const struct operand *sorted, struct operand x, struct operand matrix,
                              struct operand y) {
    struct operand list[6] = {with_access(x, ACCESS_READ), b->ids};
    uint32_t count = 2;
    for (int i = 0; sorted != NULL && i < 2; i++)
        count = append(list, count, sorted[i]);
    count = append(list, count, matrix);
    count = append(list, count, with_access(y, ACCESS_WRITE));
    set_constants(bench_op(bench, OP_EXPERT_LINEAR, list, count), s);
}

static void add_linear(struct bench *bench, struct operand x, struct operand matrix, struct operand y) {
    bench_op(bench, OP_LINEAR,
             (struct operand[]){with_access(x, ACCESS_READ), matrix, with_access(y, ACCESS_WRITE)}, 3)
        ->constants.matrix_count = 1;
}

static void add_parts(struct bench *bench, const struct shape *s, const struct block *b,
                      const struct operand *sorted) {
    uint32_t pairs = s->rows * s->chosen;
    struct operand gate = bench_output(bench, pairs, s->width), up = bench_output(bench, pairs, s->width);
    struct operand down = bench_output(bench, pairs, s->hidden);
    struct operand shared_gate = bench_output(bench, s->rows, s->shared);
    struct operand shared_up = bench_output(bench, s->rows, s->shared);
    struct operand shared_down = bench_output(bench, s->rows, s->hidden);
    add_expert_linear(bench, s, b, sorted, b->x, b->gate, gate);
    add_expert_linear(bench, s, b, sorted, b->x, b->up, up);
    add_linear(bench, b->x, b->shared_gate, shared_gate);
    add_linear(bench, b->x, b->shared_up, shared_up);
    bench_op(bench, OP_SWIGLU,
             (struct operand[]){with_access(gate, ACCESS_READ), with_access(up, ACCESS_READ), b->routed}, 3);
    bench_op(bench, OP_SWIGLU,
             (struct operand[]){with_access(shared_gate, ACCESS_READ), with_access(shared_up, ACCESS_READ),
                                b->shared},
             3);
    add_expert_linear(bench, s, b, sorted, b->routed, b->down, down);
    add_linear(bench, b->shared, b->shared_down, shared_down);
    set_constants(
        bench_op(bench, OP_EXPERT_COMBINE,
                 (struct operand[]){with_access(down, ACCESS_READ), with_access(shared_down, ACCESS_READ),
                                    b->scores, with_access(b->y, ACCESS_READ | ACCESS_WRITE)},
                 4),
        s);
}

static void add_fusions(struct bench *bench, const struct shape *s, const struct block *b,
                        const struct operand *sorted) {
    struct operand list[10] = {b->x, b->ids};
    uint32_t count = 2;
    for (int i = 0; sorted != NULL && i < 2; i++)
        count = append(list, count, sorted[i]);
    const struct operand rest[] = {b->gate, b->up, b->shared_gate, b->shared_up, b->routed, b->shared};
    for (int i = 0; i < 6; i++)
        count = append(list, count, rest[i]);
    set_constants(bench_op(bench, OP_EXPERT_GATE_UP, list, count), s);

    struct operand down[10] = {with_access(b->routed, ACCESS_READ), with_access(b->shared, ACCESS_READ),
                               b->ids, b->scores};
    count = 4;
    for (int i = 0; sorted != NULL && i < 2; i++)
        count = append(down, count, sorted[i]);
    count = append(down, count, b->down);
    count = append(down, count, b->shared_down);
    count = append(down, count, with_access(b->y, ACCESS_READ | ACCESS_WRITE));
    set_constants(bench_op(bench, OP_EXPERT_DOWN, down, count), s);
}

/* Every y in double, straight from the formula of the block. */
static void assert_block(const struct bench *bench, const struct shape *s, const struct block *b) {
    for (uint32_t t = 0; t < s->rows; t++) {
        const float *x = bench_floats(bench, b->x) + t * s->hidden;
        const float *scores = bench_floats(bench, b->scores) + t * (s->chosen + 1);
        double y[192] = {0}; /* hidden at most */
        for (uint32_t k = 0; k <= s->chosen; k++) {
            bool is_shared = k == s->chosen;
            uint32_t width = is_shared ? s->shared : s->width;
            uint32_t e = is_shared ? 0 : (uint32_t)bench_ints(bench, b->ids)[t * s->chosen + k];
            const float *gate = bench_values(bench, is_shared ? b->shared_gate : b->gate);
            const float *up = bench_values(bench, is_shared ? b->shared_up : b->up);
            const float *down = bench_values(bench, is_shared ? b->shared_down : b->down);
            for (uint32_t i = 0; i < width; i++) {
                size_t row = (size_t)e * width + i;
                double inner = silu_of(product(gate, row, s->hidden, x)) * product(up, row, s->hidden, x);
                for (uint32_t o = 0; o < s->hidden; o++)
                    y[o] += scores[k] * inner * down[((size_t)e * s->hidden + o) * width + i];
            }
        }
        for (uint32_t o = 0; o < s->hidden; o++)
            assert_near(bench_floats(bench, b->y)[t * s->hidden + o], b->before[t * s->hidden + o] + y[o],
                        2e-5);
    }
}

/* Variants: parts, fusions, and for one row both without sorting too. All have the same bits. */
static void blocks_of_every_make(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench benches[4];
        struct block blocks[4];
        int variants = s->rows == 1 ? 4 : 2;
        for (int variant = 0; variant < variants; variant++) {
            struct bench *bench = &benches[variant];
            bench_open(bench, i + 30);
            struct block *b = &blocks[variant];
            *b = block_open(bench, s);
            struct operand starts = bench_buffer(bench, DTYPE_I32, 1, s->experts + 1, ACCESS_WRITE);
            struct operand order = bench_buffer(bench, DTYPE_I32, 1, s->rows * s->chosen, ACCESS_WRITE);
            struct operand sorted[] = {with_access(starts, ACCESS_READ), with_access(order, ACCESS_READ)};
            set_constants(bench_op(bench, OP_EXPERT_SORT, (struct operand[]){b->ids, starts, order}, 3), s);
            if (variant % 2 == 0)
                add_parts(bench, s, b, variant < 2 ? sorted : NULL);
            else
                add_fusions(bench, s, b, variant < 2 ? sorted : NULL);
            bench_run(bench);
            assert_block(bench, s, b);
        }
        for (int variant = 1; variant < variants; variant++)
            assert_same_floats(bench_floats(&benches[0], blocks[0].y),
                               bench_floats(&benches[variant], blocks[variant].y),
                               (size_t)s->rows * s->hidden);
        for (int variant = 0; variant < variants; variant++) {
            free(blocks[variant].before);
            bench_close(&benches[variant]);
        }
    }
}

/* The router and the products of the experts that it chooses, in one plan: a backend may choose within the
 * products' launch. */
static void experts_that_were_just_chosen(void **state) {
    (void)state;
    static const struct shape some[] = {
        {1, 1, 1, 64, 64, 64}, {1, 8, 2, 128, 64, 192}, {1, 70, 40, 64, 64, 64}, {1, 256, 8, 64, 320, 64}};
    for (size_t i = 0; i < 2 * sizeof some / sizeof *some; i++) {
        const struct shape *s = &some[i / 2];
        bool normalise = i % 2 == 1;
        struct bench bench;
        bench_open(&bench, i + 120);
        struct block b = block_open(&bench, s);
        struct operand norm = bench_weight(&bench, DTYPE_BF16, 1, s->hidden, 0.1f, 1);
        struct operand router = bench_weight(&bench, DTYPE_AFFINE8, s->experts, s->hidden, 0.2f, 0);
        struct operand gate = bench_weight(&bench, DTYPE_AFFINE8, 1, s->hidden, 0.2f, 0);
        struct operand ids = bench_buffer(&bench, DTYPE_I32, 1, s->chosen, ACCESS_WRITE);
        struct operand scores = bench_output(&bench, 1, s->chosen + 1);
        struct operand list[12] = {b.x, norm};
        uint32_t first = normalise ? 2 : 1, count = append(list, first, router);
        count = append(list, count, gate);
        count = append(list, count, ids);
        struct op *op = bench_op(&bench, OP_ROUTER, list, append(list, count, scores));
        set_constants(op, s);
        op->constants.normalise = normalise;
        op->constants.epsilon = 1e-6f;
        count = append(list, first, with_access(ids, ACCESS_READ));
        const struct operand rest[] = {b.gate, b.up, b.shared_gate, b.shared_up, b.routed, b.shared};
        for (int j = 0; j < 6; j++)
            count = append(list, count, rest[j]);
        op = bench_op(&bench, OP_EXPERT_GATE_UP, list, count);
        set_constants(op, s);
        op->constants.normalise = normalise;
        op->constants.epsilon = 1e-6f;
        set_constants(bench_op(&bench, OP_EXPERT_DOWN,
                               (struct operand[]){
                                   with_access(b.routed, ACCESS_READ), with_access(b.shared, ACCESS_READ),
                                   with_access(ids, ACCESS_READ), with_access(scores, ACCESS_READ), b.down,
                                   b.shared_down, with_access(b.y, ACCESS_READ | ACCESS_WRITE)},
                               7),
                      s);
        bench_run(&bench);
        float *x = bench_floats(&bench, b.x);
        if (normalise) {
            double squares = 0;
            for (uint32_t j = 0; j < s->hidden; j++)
                squares += (double)x[j] * x[j];
            for (uint32_t j = 0; j < s->hidden; j++)
                x[j] *= bench_values(&bench, norm)[j] / (float)sqrt(squares / s->hidden + 1e-6);
        }
        const int32_t *chosen = bench_ints(&bench, ids);
        double weights[256];
        for (uint32_t e = 0; e < s->experts; e++)
            weights[e] = exp(product(bench_values(&bench, router), e, s->hidden, x));
        for (uint32_t k = 0; k < s->chosen; k++) {
            uint32_t above = 0;
            for (uint32_t e = 0; e < s->experts; e++)
                above += weights[e] > weights[chosen[k]];
            assert_int_equal(above, k);
        }
        b.ids = ids;
        b.scores = scores;
        assert_block(&bench, s, &b);
        free(b.before);
        bench_close(&bench);
    }
}

/* A row of a chunk has the bits of the same row alone, unsorted. */
static void rows_at_once_equal_single_rows(void **state) {
    (void)state;
    const struct shape *s = &shapes[4];
    struct bench chunk;
    bench_open(&chunk, 70);
    struct block whole = block_open(&chunk, s);
    struct operand starts = bench_buffer(&chunk, DTYPE_I32, 1, s->experts + 1, ACCESS_WRITE);
    struct operand order = bench_buffer(&chunk, DTYPE_I32, 1, s->rows * s->chosen, ACCESS_WRITE);
    struct operand sorted[] = {with_access(starts, ACCESS_READ), with_access(order, ACCESS_READ)};
    set_constants(bench_op(&chunk, OP_EXPERT_SORT, (struct operand[]){whole.ids, starts, order}, 3), s);
    add_fusions(&chunk, s, &whole, sorted);
    bench_run(&chunk);
    double rounding = bench_rounding;

    struct bench single;
    bench_open(&single, 70);
    struct block b = block_open(&single, s), row = b;
    struct shape one = *s;
    one.rows = 1;
    for (uint32_t t = 0; t < s->rows; t++) {
        row.x = strided(b.x, 1, s->hidden, s->hidden, t * s->hidden);
        row.ids = strided(b.ids, 1, s->chosen, s->chosen, t * s->chosen);
        row.scores = strided(b.scores, 1, s->chosen + 1, s->chosen + 1, t * (s->chosen + 1));
        row.y = strided(b.y, 1, s->hidden, s->hidden, t * s->hidden);
        row.routed = strided(b.routed, s->chosen, s->width, s->width, t * s->chosen * s->width);
        row.shared = strided(b.shared, 1, s->shared, s->shared, t * s->shared);
        add_fusions(&single, &one, &row, NULL);
    }
    bench_run(&single);
    bench_rounding = rounding; /* which single rows may not have */
    assert_same_floats(bench_floats(&chunk, whole.y), bench_floats(&single, b.y),
                       (size_t)s->rows * s->hidden);
    free(whole.before);
    free(b.before);
    bench_close(&chunk);
    bench_close(&single);
}

/* The router and the gate and up products, normalising their input, have the bits of rms_norm before them. */
static void norms_within_products(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        const struct shape *s = &shapes[i / 2];
        enum dtype router_type = i % 2 == 0 ? DTYPE_AFFINE8 : DTYPE_AFFINE4;
        struct bench benches[2];
        struct block blocks[2];
        struct operand ids, scores;
        for (uint32_t fused = 0; fused < 2; fused++) {
            struct bench *bench = &benches[fused];
            bench_open(bench, i + 80);
            struct block *b = &blocks[fused];
            *b = block_open(bench, s);
            struct operand norm = bench_weight(bench, DTYPE_BF16, 1, s->hidden, 0.1f, 1);
            struct operand router = bench_weight(bench, router_type, s->experts, s->hidden, 0.2f, 0);
            struct operand gate = bench_weight(bench, DTYPE_AFFINE8, 1, s->hidden, 0.2f, 0);
            struct operand normed = bench_output(bench, s->rows, s->hidden), input = b->x;
            struct operand starts = bench_buffer(bench, DTYPE_I32, 1, s->experts + 1, ACCESS_WRITE);
            struct operand order = bench_buffer(bench, DTYPE_I32, 1, s->rows * s->chosen, ACCESS_WRITE);
            ids = bench_buffer(bench, DTYPE_I32, s->rows, s->chosen, ACCESS_WRITE);
            scores = bench_output(bench, s->rows, s->chosen + 1);
            set_constants(bench_op(bench, OP_EXPERT_SORT, (struct operand[]){b->ids, starts, order}, 3), s);
            if (!fused) {
                bench_op(bench, OP_RMS_NORM, (struct operand[]){b->x, norm, normed}, 3)->constants.epsilon =
                    1e-6f;
                input = with_access(normed, ACCESS_READ);
            }
            struct operand list[11] = {input, norm};
            uint32_t count = append(list, 1 + fused, router);
            count = append(list, count, gate);
            count = append(list, count, ids);
            count = append(list, count, scores);
            struct op *op = bench_op(bench, OP_ROUTER, list, count);
            set_constants(op, s);
            op->constants.normalise = fused;
            op->constants.epsilon = 1e-6f;
            count = append(list, 1 + fused, b->ids);
            if (s->rows > 1) {
                count = append(list, count, with_access(starts, ACCESS_READ));
                count = append(list, count, with_access(order, ACCESS_READ));
            }
            const struct operand rest[] = {b->gate,      b->up,     b->shared_gate,
                                           b->shared_up, b->routed, b->shared};
            for (int j = 0; j < 6; j++)
                count = append(list, count, rest[j]);
            op = bench_op(bench, OP_EXPERT_GATE_UP, list, count);
            set_constants(op, s);
            op->constants.normalise = fused;
            op->constants.epsilon = 1e-6f;
            bench_run(bench);
        }
        const struct operand results[] = {ids, scores, blocks[0].routed, blocks[0].shared};
        for (int j = 0; j < 4; j++)
            assert_same_buffers(&benches[0], &benches[1], results[j].buffer);
        for (int j = 0; j < 2; j++) {
            free(blocks[j].before);
            bench_close(&benches[j]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_chooses_the_largest),     cmocka_unit_test(router_of_ties_and_nan),
        cmocka_unit_test(expert_sort_is_stable),          cmocka_unit_test(blocks_of_every_make),
        cmocka_unit_test(rows_at_once_equal_single_rows), cmocka_unit_test(norms_within_products),
        cmocka_unit_test(experts_that_were_just_chosen),
    };
    return BENCH_RUN_TESTS(tests);
}
