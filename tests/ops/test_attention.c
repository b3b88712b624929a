/* Rotary embedding, the KV cache and attention. */
#define BENCH_METAL_POLICIES "kv_coalesced=off", "gqa_pack=1", "gqa_pack=2", "attention_split=0"
#include "op_bench.h"

enum { LIMIT = 24 };

struct shape {
    uint32_t rows, heads, kv_heads, size, rotary, position;
    enum dtype cache;
};

static const struct shape shapes[] = {
    {1, 1, 1, 16, 16, 0, DTYPE_F32},  {7, 4, 2, 16, 4, 0, DTYPE_F32},  {3, 8, 1, 32, 8, 5, DTYPE_BF16},
    {1, 6, 3, 20, 10, 23, DTYPE_F32}, {9, 2, 2, 8, 2, 15, DTYPE_BF16}, {5, 4, 1, 12, 0, 2, DTYPE_F32},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void set_constants(struct op *op, const struct shape *s) {
    op->constants.heads = s->heads;
    op->constants.kv_heads = s->kv_heads;
    op->constants.head_size = s->size;
    op->constants.rotary_size = s->rotary;
    op->constants.rope_theta = 10000;
    op->constants.epsilon = 1e-6f;
}

/* A cache buffer of random values; float32 copies of them in bench_floats' manner are read by cache_at. */
static struct operand cache_open(struct bench *bench, const struct shape *s, unsigned access) {
    struct operand cache = bench_buffer(bench, s->cache, LIMIT, s->kv_heads * s->size, access);
    for (uint32_t i = 0; i < LIMIT * s->kv_heads * s->size; i++) {
        float value = bench_normal(bench);
        if (s->cache == DTYPE_F32)
            ((float *)bench->data[cache.buffer])[i] = value;
        else
            ((uint16_t *)bench->data[cache.buffer])[i] = float_to_bf16(value);
    }
    return cache;
}

static double cache_at(const struct bench *bench, struct operand cache, uint32_t row, uint32_t column) {
    return float_load(bench->data[cache.buffer], (enum dtype)cache.dtype,
                      (size_t)row * cache.columns + column);
}

/* Rotation as multiplication of complex numbers. */
static void rope_turns_pairs(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 1);
        bench.record.position = s->position * 100;
        struct operand x = bench_input(&bench, s->rows * s->heads, s->size, 1);
        size_t count = (size_t)s->rows * s->heads * s->size;
        float *before = malloc(count * sizeof *before);
        assert_non_null(before);
        memcpy(before, bench_floats(&bench, x), count * sizeof *before);
        set_constants(bench_op(&bench, OP_ROPE,
                               (struct operand[]){bench_record(ACCESS_READ),
                                                  with_access(x, ACCESS_READ | ACCESS_WRITE)},
                               2),
                      s);
        bench_run(&bench);
        for (uint32_t row = 0; row < s->rows * s->heads; row++)
            for (uint32_t j = 0; j < s->size; j++) {
                const float *in = before + row * s->size;
                double expected = in[j], half = s->rotary / 2.0;
                if (j < s->rotary) {
                    uint32_t low = j % (s->rotary / 2);
                    double angle = (bench.record.position + row / s->heads) * pow(10000, -(double)low / half);
                    double real = in[low], imaginary = in[low + s->rotary / 2];
                    expected = j == low ? real * cos(angle) - imaginary * sin(angle)
                                        : real * sin(angle) + imaginary * cos(angle);
                }
                assert_near(bench_floats(&bench, x)[row * s->size + j], expected, 3e-4);
            }
        free(before);
        bench_close(&bench);
    }
}

/* The fusion writes the bits of head_norm, rope and kv_write, and only the rows that it should. */
static void qk_prep_equals_its_parts(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench benches[2];
        struct operand key_cache = {0}, value_cache = {0}, y = {0};
        for (int variant = 0; variant < 2; variant++) {
            struct bench *bench = &benches[variant];
            bench_open(bench, i + 20);
            bench->record.position = s->position;
            uint32_t width = s->kv_heads * s->size;
            /* q is interleaved with the gate, head by head. */
            struct operand projected = bench_input(bench, s->rows * s->heads, 2 * s->size, 1);
            struct operand q = strided(projected, s->rows * s->heads, s->size, 2 * s->size, 0);
            struct operand k = bench_input(bench, s->rows, width, 1),
                           v = bench_input(bench, s->rows, width, 1);
            struct operand q_norm = bench_weight(bench, DTYPE_BF16, 1, s->size, 0.1f, 1);
            struct operand k_norm = bench_weight(bench, DTYPE_F32, 1, s->size, 0.1f, 1);
            y = bench_output(bench, s->rows * s->heads, s->size);
            key_cache = cache_open(bench, s, ACCESS_WRITE);
            value_cache = cache_open(bench, s, ACCESS_WRITE);
            struct operand record = bench_record(ACCESS_READ);
            struct operand key = bench_output(bench, s->rows, width);
            struct operand key_heads = strided(key, s->rows * s->kv_heads, s->size, s->size, 0);
            if (variant == 1) {
                set_constants(
                    bench_op(bench, OP_QK_PREP,
                             (struct operand[]){record, q, k, v, q_norm, k_norm, y, key_cache, value_cache},
                             9),
                    s);
            } else {
                struct operand k_heads = strided(k, s->rows * s->kv_heads, s->size, s->size, 0);
                unsigned update = ACCESS_READ | ACCESS_WRITE;
                set_constants(bench_op(bench, OP_HEAD_NORM, (struct operand[]){q, q_norm, y}, 3), s);
                set_constants(
                    bench_op(bench, OP_HEAD_NORM, (struct operand[]){k_heads, k_norm, key_heads}, 3), s);
                set_constants(bench_op(bench, OP_ROPE, (struct operand[]){record, with_access(y, update)}, 2),
                              s);
                struct op *op =
                    bench_op(bench, OP_ROPE, (struct operand[]){record, with_access(key_heads, update)}, 2);
                set_constants(op, s);
                op->constants.heads = s->kv_heads;
                bench_op(bench, OP_KV_WRITE,
                         (struct operand[]){record, with_access(key, ACCESS_READ), v, key_cache, value_cache},
                         5);
            }
            bench_run(bench);
        }
        for (uint32_t j = 0; j < benches[0].buffer_count - 1; j++) /* all but the parts' own scratch */
            assert_same_buffers(&benches[0], &benches[1], j);
        bench_close(&benches[0]);
        bench_close(&benches[1]);
    }
}

static void kv_write_writes_its_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bench bench;
        bench_open(&bench, i + 40);
        bench.record.position = s->position;
        uint32_t width = s->kv_heads * s->size;
        struct operand k = bench_input(&bench, s->rows, width, 1), v = bench_input(&bench, s->rows, width, 1);
        struct operand caches[2] = {cache_open(&bench, s, ACCESS_WRITE), cache_open(&bench, s, ACCESS_WRITE)};
        double *before = malloc(2 * LIMIT * (size_t)width * sizeof *before);
        assert_non_null(before);
        for (uint32_t j = 0; j < 2 * LIMIT * width; j++)
            before[j] = cache_at(&bench, caches[j / (LIMIT * width)], 0, j % (LIMIT * width));
        bench_op(&bench, OP_KV_WRITE,
                 (struct operand[]){bench_record(ACCESS_READ), k, v, caches[0], caches[1]}, 5);
        bench_run(&bench);
        for (uint32_t j = 0; j < 2 * LIMIT * width; j++) {
            uint32_t part = j / (LIMIT * width), row = j % (LIMIT * width) / width, column = j % width;
            double expected = before[j];
            if (row >= s->position && row < s->position + s->rows) {
                float value = bench_floats(&bench, part == 0 ? k : v)[(row - s->position) * width + column];
                expected = s->cache == DTYPE_F32 ? value : bf16_to_float(float_to_bf16(value));
            }
            assert_true(cache_at(&bench, caches[part], row, column) == expected);
        }
        free(before);
        bench_close(&bench);
    }
}

struct attention {
    struct operand q, gate, key_cache, value_cache, y;
};

static struct attention attention_open(struct bench *bench, const struct shape *s, float scale) {
    bench->record.position = s->position;
    struct operand projected = bench_input(bench, s->rows * s->heads, 2 * s->size, scale);
    struct attention a = {.q = strided(projected, s->rows * s->heads, s->size, 2 * s->size, 0),
                          .gate = strided(projected, s->rows * s->heads, s->size, 2 * s->size, s->size),
                          .key_cache = cache_open(bench, s, ACCESS_READ),
                          .value_cache = cache_open(bench, s, ACCESS_READ),
                          .y = bench_output(bench, s->rows * s->heads, s->size)};
    set_constants(
        bench_op(bench, OP_ATTENTION,
                 (struct operand[]){bench_record(ACCESS_READ), a.q, a.gate, a.key_cache, a.value_cache, a.y},
                 6),
        s);
    return a;
}

/* Large scores (scale 40) would overflow an exponential without its maximum taken off. */
static void attention_of_shapes(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        const struct shape *s = &shapes[i / 2];
        struct bench bench;
        bench_open(&bench, i + 60);
        struct attention a = attention_open(&bench, s, i % 2 == 0 ? 1 : 40);
        bench_run(&bench);
        for (uint32_t row = 0; row < s->rows * s->heads; row++) {
            const float *q = bench_floats(&bench, a.q) + row * 2 * s->size;
            const float *gate = bench_floats(&bench, a.gate) + row * 2 * s->size;
            uint32_t count = s->position + row / s->heads + 1, group = s->heads / s->kv_heads;
            uint32_t column = row % s->heads / group * s->size;
            double scores[LIMIT], total = 0, largest = -1e300;
            for (uint32_t p = 0; p < count; p++) {
                scores[p] = 0;
                for (uint32_t d = 0; d < s->size; d++)
                    scores[p] += q[d] * cache_at(&bench, a.key_cache, p, column + d);
                scores[p] /= sqrt(s->size);
                largest = fmax(largest, scores[p]);
            }
            for (uint32_t p = 0; p < count; p++)
                total += exp(scores[p] - largest);
            for (uint32_t d = 0; d < s->size; d++) {
                double sum = 0;
                for (uint32_t p = 0; p < count; p++)
                    sum += exp(scores[p] - largest) / total * cache_at(&bench, a.value_cache, p, column + d);
                assert_near(bench_floats(&bench, a.y)[row * s->size + d], sum / (1 + exp(-(double)gate[d])),
                            i % 2 == 0 ? 1e-5 : 2e-4);
            }
        }
        bench_close(&bench);
    }
}

/* Row t of a chunk has the bits of the same row run alone at its position. */
static void attention_row_by_row(void **state) {
    (void)state;
    const struct shape *s = &shapes[4];
    struct bench chunk;
    bench_open(&chunk, 80);
    struct attention whole = attention_open(&chunk, s, 1);
    bench_run(&chunk);
    for (uint32_t t = 0; t < s->rows; t++) {
        struct bench single;
        bench_open(&single, 80);
        struct attention a = attention_open(&single, s, 1);
        single.record.position = s->position + t;
        struct op *op = &single.plan.ops[0];
        uint32_t first = t * s->heads;
        op->operands[1] = strided(a.q, s->heads, s->size, 2 * s->size, first * 2 * s->size);
        op->operands[2] = strided(a.gate, s->heads, s->size, 2 * s->size, (first * 2 + 1) * s->size);
        op->operands[5] = strided(a.y, s->heads, s->size, s->size, 0);
        bench_run(&single);
        assert_same_floats(bench_floats(&single, a.y), bench_floats(&chunk, whole.y) + first * s->size,
                           (size_t)s->heads * s->size);
        bench_close(&single);
    }
    bench_close(&chunk);
}

/* Heads of 256, for which there are fast kernels: one token and several, few positions and so many that they
 * are worked on in parts, the last rows of the cache, groups of all sizes that share a KV head. */
static void attention_of_large_heads(void **state) {
    (void)state;
    enum { SIZE = 256, MOST = 1301 };
    static const struct {
        uint32_t rows, heads, kv_heads, position, limit;
        enum dtype cache;
    } cases[] = {
        {1, 8, 1, 0, 1, DTYPE_BF16},      {1, 4, 2, 75, 80, DTYPE_F32},    {1, 16, 2, 1300, MOST, DTYPE_BF16},
        {1, 3, 1, 41, 50, DTYPE_BF16},    {1, 2, 2, 130, 140, DTYPE_BF16}, {5, 8, 1, 66, 71, DTYPE_F32},
        {9, 8, 1, 0, 9, DTYPE_BF16},      {2, 4, 4, 126, 131, DTYPE_BF16}, {3, 3, 1, 9, 12, DTYPE_BF16},
        {1, 4, 1, 1100, 1110, DTYPE_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t rows = cases[i].rows, heads = cases[i].heads, group = heads / cases[i].kv_heads;
        uint32_t width = cases[i].kv_heads * SIZE;
        struct bench bench;
        bench_open(&bench, i + 120);
        bench.record.position = cases[i].position;
        struct operand projected = bench_input(&bench, rows * heads, 2 * SIZE, 1);
        struct operand q = strided(projected, rows * heads, SIZE, 2 * SIZE, 0);
        struct operand gate = strided(projected, rows * heads, SIZE, 2 * SIZE, SIZE), caches[2];
        for (int j = 0; j < 2; j++) {
            caches[j] = bench_buffer(&bench, cases[i].cache, cases[i].limit, width, ACCESS_READ);
            for (uint32_t k = 0; k < cases[i].limit * width; k++) {
                float value = bench_normal(&bench);
                if (cases[i].cache == DTYPE_F32)
                    ((float *)bench.data[caches[j].buffer])[k] = value;
                else
                    ((uint16_t *)bench.data[caches[j].buffer])[k] = float_to_bf16(value);
            }
        }
        struct operand y = bench_output(&bench, rows * heads, SIZE);
        struct op *op =
            bench_op(&bench, OP_ATTENTION,
                     (struct operand[]){bench_record(ACCESS_READ), q, gate, caches[0], caches[1], y}, 6);
        op->constants.heads = heads;
        op->constants.kv_heads = cases[i].kv_heads;
        op->constants.head_size = SIZE;
        bench_run(&bench);
        /* On a GPU the products of many tokens are of bfloat16. */
        bool rounds = bench_current.class != &cpu_backend && bench_current.class != &reference_backend;
        double tolerance = rounds && rows > 1 && cases[i].cache == DTYPE_BF16 ? 1e-2 : 1e-5;
        for (uint32_t row = 0; row < rows * heads; row++) {
            static double weights[MOST];
            const float *in = bench_floats(&bench, q) + row * 2 * SIZE;
            uint32_t count = cases[i].position + row / heads + 1, column = row % heads / group * SIZE;
            double total = 0, most = -1e300;
            for (uint32_t p = 0; p < count; p++) {
                weights[p] = 0;
                for (uint32_t d = 0; d < SIZE; d++)
                    weights[p] += in[d] * cache_at(&bench, caches[0], p, column + d);
                weights[p] /= 16;
                most = fmax(most, weights[p]);
            }
            for (uint32_t p = 0; p < count; p++)
                total += weights[p] = exp(weights[p] - most);
            for (uint32_t d = row % 3; d < SIZE; d += 3) {
                double sum = 0;
                for (uint32_t p = 0; p < count; p++)
                    sum += weights[p] / total * cache_at(&bench, caches[1], p, column + d);
                assert_near(bench_floats(&bench, y)[row * SIZE + d],
                            sum * (1 / (1 + exp(-(double)in[SIZE + d]))), tolerance);
            }
        }
        bench_close(&bench);
    }
}

static void a_full_cache_is_an_error(void **state) {
    (void)state;
    const struct shape *s = &shapes[4]; /* 9 rows */
    for (int threads = 1; threads < 3; threads++) {
        struct bench bench;
        bench_open(&bench, 90);
        attention_open(&bench, s, 1);
        bench.record.position = LIMIT - 9;
        assert_true(bench_try(&bench, &cpu_backend, threads, 1));
        bench.record.position = LIMIT - 8;
        assert_false(bench_try(&bench, &cpu_backend, threads, 1));
        assert_int_equal(bench.error.status, CALLA_CONTEXT_FULL);
        bench.record.position = UINT32_MAX;
        assert_false(bench_try(&bench, &reference_backend, 1, 1));
        assert_int_equal(bench.error.status, CALLA_CONTEXT_FULL);
        bench_close(&bench);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_turns_pairs),         cmocka_unit_test(qk_prep_equals_its_parts),
        cmocka_unit_test(kv_write_writes_its_rows), cmocka_unit_test(attention_of_shapes),
        cmocka_unit_test(attention_row_by_row),     cmocka_unit_test(attention_of_large_heads),
        cmocka_unit_test(a_full_cache_is_an_error),
    };
    return BENCH_RUN_TESTS(tests);
}
