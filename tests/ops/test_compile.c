/* Plans that are not well formed are refused and scribble nowhere; sessions keep to their buffers. */
#include "op_bench.h"

#define F DTYPE_F32
#define I DTYPE_I32
#define READ ACCESS_READ
#define WRITE ACCESS_WRITE
#define UPDATE (ACCESS_READ | ACCESS_WRITE)

/* An op of each kind with the operands that it wants: T 2, H 64, V 10, E 4, K 2, I 64, S 128; Hk 1, Hv 2, Dk
 * 8, Dv 4, C 24, W 3; N 4, G 2, D 8, L 6. Type F16 stands for the record, AFFINE4 and BF16 for weights. */
struct sample_operand {
    uint32_t rows, columns, dtype, access;
};

static const struct sample_op {
    enum op_kind kind;
    struct sample_operand operands[OP_MAX_OPERANDS];
} samples[] = {
    {OP_EMBED, {{1, 2, I, READ}, {10, 64, DTYPE_AFFINE4, READ}, {2, 64, F, WRITE}}},
    {OP_RMS_NORM, {{2, 64, F, READ}, {1, 64, DTYPE_BF16, READ}, {2, 64, F, WRITE}}},
    {OP_LINEAR, {{2, 64, F, READ}, {5, 64, DTYPE_AFFINE4, READ}, {2, 5, F, WRITE}}},
    {OP_CONV_SILU,
     {{0, 0, DTYPE_F16, READ},
      {2, 24, F, READ},
      {24, 3, DTYPE_BF16, READ},
      {3, 24, F, UPDATE},
      {2, 8, F, WRITE},
      {2, 8, F, WRITE},
      {2, 8, F, WRITE}}},
    {OP_DELTA_GATES,
     {{2, 2, F, READ},
      {2, 2, F, READ},
      {1, 2, DTYPE_BF16, READ},
      {1, 2, DTYPE_BF16, READ},
      {2, 2, F, WRITE},
      {2, 2, F, WRITE}}},
    {OP_DELTA_SCAN,
     {{2, 8, F, READ},
      {2, 8, F, READ},
      {2, 8, F, READ},
      {2, 2, F, READ},
      {2, 2, F, READ},
      {8, 8, F, UPDATE},
      {2, 8, F, WRITE}}},
    {OP_GATED_NORM, {{2, 8, F, READ}, {2, 8, F, READ}, {1, 4, DTYPE_BF16, READ}, {2, 8, F, WRITE}}},
    {OP_DELTA_TAIL,
     {{2, 2, F, READ},
      {2, 2, F, READ},
      {1, 2, DTYPE_BF16, READ},
      {1, 2, DTYPE_BF16, READ},
      {2, 8, F, READ},
      {2, 8, F, READ},
      {2, 8, F, READ},
      {2, 8, F, READ},
      {1, 4, DTYPE_BF16, READ},
      {8, 8, F, UPDATE},
      {2, 8, F, WRITE}}},
    {OP_DELTA_STEP,
     {{0, 0, DTYPE_F16, READ},
      {1, 24, F, READ},
      {1, 2, F, READ},
      {1, 2, F, READ},
      {24, 3, DTYPE_BF16, READ},
      {1, 2, DTYPE_BF16, READ},
      {1, 2, DTYPE_BF16, READ},
      {1, 8, F, READ},
      {1, 4, DTYPE_BF16, READ},
      {3, 24, F, UPDATE},
      {8, 8, F, UPDATE},
      {1, 8, F, WRITE}}},
    {OP_HEAD_NORM, {{8, 8, F, READ}, {1, 8, DTYPE_BF16, READ}, {8, 8, F, WRITE}}},
    {OP_ROPE, {{0, 0, DTYPE_F16, READ}, {8, 8, F, UPDATE}}},
    {OP_KV_WRITE,
     {{0, 0, DTYPE_F16, READ}, {2, 16, F, READ}, {2, 16, F, READ}, {6, 16, F, WRITE}, {6, 16, F, WRITE}}},
    {OP_QK_PREP,
     {{0, 0, DTYPE_F16, READ},
      {8, 8, F, READ},
      {2, 16, F, READ},
      {2, 16, F, READ},
      {1, 8, DTYPE_BF16, READ},
      {1, 8, DTYPE_BF16, READ},
      {8, 8, F, WRITE},
      {6, 16, F, WRITE},
      {6, 16, F, WRITE}}},
    {OP_ATTENTION,
     {{0, 0, DTYPE_F16, READ},
      {8, 8, F, READ},
      {8, 8, F, READ},
      {6, 16, F, READ},
      {6, 16, F, READ},
      {8, 8, F, WRITE}}},
    {OP_ROUTER,
     {{2, 64, F, READ},
      {4, 64, DTYPE_AFFINE4, READ},
      {1, 64, DTYPE_AFFINE4, READ},
      {2, 2, I, WRITE},
      {2, 3, F, WRITE}}},
    {OP_EXPERT_SORT, {{2, 2, I, READ}, {1, 5, I, WRITE}, {1, 4, I, WRITE}}},
    {OP_EXPERT_LINEAR,
     {{2, 64, F, READ},
      {2, 2, I, READ},
      {1, 5, I, READ},
      {1, 4, I, READ},
      {4 * 7, 64, DTYPE_AFFINE4, READ},
      {4, 7, F, WRITE}}},
    {OP_EXPERT_LINEAR,
     {{1, 64, F, READ}, {1, 2, I, READ}, {4 * 7, 64, DTYPE_AFFINE4, READ}, {2, 7, F, WRITE}}},
    {OP_SWIGLU, {{4, 64, F, READ}, {4, 64, F, READ}, {4, 64, F, WRITE}}},
    {OP_EXPERT_COMBINE, {{4, 64, F, READ}, {2, 64, F, READ}, {2, 3, F, READ}, {2, 64, F, UPDATE}}},
    {OP_EXPERT_GATE_UP,
     {{2, 64, F, READ},
      {2, 2, I, READ},
      {1, 5, I, READ},
      {1, 4, I, READ},
      {4 * 64, 64, DTYPE_AFFINE4, READ},
      {4 * 64, 64, DTYPE_AFFINE4, READ},
      {128, 64, DTYPE_AFFINE4, READ},
      {128, 64, DTYPE_AFFINE4, READ},
      {4, 64, F, WRITE},
      {2, 128, F, WRITE}}},
    {OP_EXPERT_DOWN,
     {{4, 64, F, READ},
      {2, 128, F, READ},
      {2, 2, I, READ},
      {2, 3, F, READ},
      {1, 5, I, READ},
      {1, 4, I, READ},
      {4 * 64, 64, DTYPE_AFFINE4, READ},
      {64, 128, DTYPE_AFFINE4, READ},
      {2, 64, F, UPDATE}}},
    {OP_HEAD, {{2, 64, F, READ}, {10, 64, DTYPE_AFFINE4, READ}, {2, 10, F, WRITE}}},
    {OP_SAMPLE,
     {{0, 0, DTYPE_F16, UPDATE}, {1, 10, F, READ}, {1, 10, F, READ}, {1, 10, I, UPDATE}, {1, 1, I, WRITE}}},
};
#define SAMPLES (sizeof samples / sizeof *samples)

static void open_sample(struct bench *bench, const struct sample_op *sample) {
    bench_open(bench, sample->kind + 1);
    struct operand operands[OP_MAX_OPERANDS];
    uint32_t count = 0;
    for (; count < OP_MAX_OPERANDS && sample->operands[count].access != 0; count++) {
        const struct sample_operand *o = &sample->operands[count];
        if (o->dtype == DTYPE_F16)
            operands[count] = bench_record(o->access);
        else if (o->dtype == DTYPE_AFFINE4 || o->dtype == DTYPE_BF16)
            operands[count] = bench_weight(bench, o->dtype, o->rows, o->columns, 0.1f, 0);
        else
            operands[count] = bench_buffer(bench, o->dtype, o->rows, o->columns, o->access);
    }
    struct op *op = bench_op(bench, sample->kind, operands, count);
    op->constants = (struct op_constants){.key_heads = 1,
                                          .value_heads = 2,
                                          .key_size = 8,
                                          .value_size = 4,
                                          .taps = 3,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_size = 8,
                                          .rotary_size = 4,
                                          .experts = 4,
                                          .experts_per_token = 2,
                                          .matrix_count = 1,
                                          .epsilon = 1e-6f,
                                          .rope_theta = 10000};
    bench->record = (struct step_record){.rows = 1, .top_p = 1, .repetition_penalty = 1};
}

static void every_kind_compiles(void **state) {
    (void)state;
    bool seen[OP_KIND_COUNT] = {false};
    for (size_t i = 0; i < SAMPLES; i++) {
        struct bench bench;
        open_sample(&bench, &samples[i]);
        seen[samples[i].kind] = true;
        if (!bench_try(&bench, bench_current.class, 2, 2))
            fail_msg("%s", bench.error.message);
        bench_close(&bench);
    }
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        assert_true(seen[kind]);
}

/* Refused, with a sentence that names the op. */
static void assert_refused(struct bench *bench, const char *what) {
    bench->error = (struct calla_error){0};
    if (bench_try(bench, bench_current.class, 1, 1))
        fail_msg("accepted: %s", what);
    assert_int_equal(bench->error.status, CALLA_BAD_INPUT);
    assert_non_null(strstr(bench->error.message, op_name(bench->plan.ops[0].kind)));
}

/* A missing or surplus operand, and each operand made larger, moved out of its buffer, of another type or
 * access, or of a buffer that is not there. */
static void malformed_ops_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        struct bench bench;
        open_sample(&bench, &samples[i]);
        struct op *op = &bench.plan.ops[0], good = *op;
        op->operand_count--;
        assert_refused(&bench, "a missing operand");
        op->operand_count += 2;
        if (op->operand_count <= OP_MAX_OPERANDS)
            op->operands[op->operand_count - 1] = op->operands[op->operand_count - 2];
        assert_refused(&bench, "a surplus operand");
        for (uint32_t j = 0; j < good.operand_count; j++) {
            struct operand *view = &op->operands[j];
            *op = good;
            view->offset = view->space == SPACE_WEIGHT ? 4 : UINT64_MAX - 3;
            assert_refused(&bench, "a wild offset");
            *op = good;
            view->offset = view->space == SPACE_WEIGHT ? 1 : 4;
            assert_refused(&bench, "past the end");
            *op = good;
            view->stride += view->rows > 1 || view->space == SPACE_WEIGHT ? 1 : 0;
            if (view->stride != good.operands[j].stride)
                assert_refused(&bench, "rows past the end");
            *op = good;
            view->stride--;
            assert_refused(&bench, "overlapping rows");
            *op = good;
            view->dtype = view->dtype == DTYPE_I32 ? DTYPE_F32 : DTYPE_I32;
            assert_refused(&bench, "another type");
            *op = good;
            view->dtype = 200;
            assert_refused(&bench, "an unknown type");
            *op = good;
            view->access ^= ACCESS_WRITE;
            assert_refused(&bench, "another access");
            *op = good;
            view->buffer = 1000;
            assert_refused(&bench, "no such buffer");
            *op = good;
            view->space = SPACE_COUNT;
            assert_refused(&bench, "no such space");
            *op = good;
            view->space = SPACE_SCRATCH;
            assert_refused(&bench, "no such scratch");
            *op = good;
            view->rows = 0;
            assert_refused(&bench, "no rows");
        }
        *op = good;
        bench_close(&bench);
    }
    struct bench bench;
    open_sample(&bench, &samples[0]);
    bench.plan.ops[0].kind = OP_KIND_COUNT;
    assert_refused(&bench, "an unknown kind");
    bench_close(&bench);
}

/* Any change whatever either is refused or runs within the buffers (a sanitizer is the judge). */
static void changed_ops_stay_inside(void **state) {
    (void)state;
    int ran = 0, refused = 0;
    for (uint32_t round = 0; round < 1000; round++) {
        struct bench bench;
        open_sample(&bench, &samples[round % SAMPLES]);
        bench.random += round * 0x9e3779b97f4a7c15u;
        struct op *op = &bench.plan.ops[0];
        for (uint32_t change = 0; change < 1 + round % 2; change++) {
            struct operand *view = &op->operands[bench_bits(&bench) % op->operand_count];
            uint32_t *fields[] = {&view->rows,
                                  &view->columns,
                                  &view->stride,
                                  &view->buffer,
                                  &op->constants.key_heads,
                                  &op->constants.value_heads,
                                  &op->constants.key_size,
                                  &op->constants.value_size,
                                  &op->constants.taps,
                                  &op->constants.heads,
                                  &op->constants.kv_heads,
                                  &op->constants.head_size,
                                  &op->constants.rotary_size,
                                  &op->constants.experts,
                                  &op->constants.experts_per_token,
                                  &op->constants.matrix_count};
            static const uint32_t values[] = {0, 1, 2, 3, 5, 8, 64, 0x80000000u, UINT32_MAX};
            *fields[bench_bits(&bench) % 16] = values[bench_bits(&bench) % 9];
            bench.record.position = bench_bits(&bench) % 8;
        }
        if (bench_try(&bench, bench_current.class, 1, 1))
            ran++;
        else
            refused++;
        /* Outputs in the place of inputs may be a race, which is not outside of anything. */
        if (strstr(bench.error.message, "Kernel '") != NULL && strstr(bench.error.message, "barrier") == NULL)
            fail_msg("%s", bench.error.message);
        bench_close(&bench);
    }
    assert_true(ran > 100 && refused > 100);
}

static void sessions_keep_to_their_buffers(void **state) {
    (void)state;
    const struct backend_class *const classes[] = {&cpu_backend, &reference_backend,
                                                   backend_find("cuda", NULL), backend_find("metal", NULL)};
    for (int i = 0; i < 4; i++) {
        const struct backend_class *class = classes[i];
        if (class == NULL)
            continue;
        struct backend_options options = {.threads = 2};
        struct calla_error error = {0};
        struct backend *backend = class->open(&options, &error);
        assert_non_null(backend);
        assert_ptr_equal(backend->class, class);
        assert_int_equal(class->threads(backend), i == 0 ? 2 : 1);
        struct buffer_shape state_shape = {DTYPE_F32, 2, 3, "state"};
        struct buffer_shape kv_shapes[2] = {{DTYPE_BF16, 4, 4, "K"}, {DTYPE_BF16, 4, 4, "V"}};
        struct session_layout layout = {
            .state = &state_shape, .state_count = 1, .kv = kv_shapes, .kv_count = 2};
        for (int j = 0; j < STEP_BUFFER_COUNT; j++)
            layout.step[j] = (struct buffer_shape){DTYPE_F32, 1, 4, "step"};
        struct device_session *a = class->session_open(backend, &layout, &error);
        struct device_session *b = class->session_open(backend, &layout, &error);
        assert_true(a != NULL && b != NULL);
        float values[6] = {1, 2, 3, 4, 5, 6}, found[6];
        assert_true(class->write(a, SPACE_STATE, 0, 0, values, 24, &error));
        assert_true(class->read(b, SPACE_STATE, 0, 0, found, 24, &error));
        for (int j = 0; j < 6; j++)
            assert_true(found[j] == 0);
        assert_true(class->write(a, SPACE_KV, 1, 8, values, 24, &error));
        assert_true(class->read(a, SPACE_KV, 1, 8, found, 24, &error));
        assert_memory_equal(found, values, 24);
        assert_true(class->reset(a, &error));
        assert_true(class->read(a, SPACE_STATE, 0, 4, found, 20, &error));
        for (int j = 0; j < 5; j++)
            assert_true(found[j] == 0);
        assert_false(class->write(a, SPACE_STATE, 0, 1, values, 24, &error));
        assert_int_equal(error.status, CALLA_BAD_INPUT);
        assert_false(class->read(a, SPACE_KV, 2, 0, found, 1, &error));
        assert_false(class->read(a, SPACE_STEP, STEP_BUFFER_COUNT, 0, found, 1, &error));
        assert_false(class->read(a, SPACE_STATE, 0, UINT64_MAX, found, 2, &error));
        assert_false(class->read(a, SPACE_WEIGHT, 0, 0, found, 1, &error));
        class->session_close(a);
        class->session_close(b);
        class->session_close(NULL);
        class->close(backend);
    }
}

static void backends_by_name(void **state) {
    (void)state;
    struct calla_error error = {0};
    const struct backend_class *first = NULL;
    static const char *const gpus[] = {"cuda", "metal"};
    for (int i = 0; i < 2; i++) {
        const struct backend_class *gpu = backend_find(gpus[i], &error);
        if (gpu == NULL)
            assert_non_null(strstr(error.message, "--backend cpu"));
        first = first == NULL ? gpu : first;
    }
    assert_ptr_equal(backend_find("auto", &error), first != NULL ? first : &cpu_backend);
    assert_ptr_equal(backend_find("cpu", &error), &cpu_backend);
    assert_ptr_equal(backend_find("reference", &error), &reference_backend);
    assert_null(backend_find("abacus", &error));
    assert_non_null(strstr(error.message, "'abacus'"));
    assert_non_null(strstr(error.message, "reference"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_compiles),     cmocka_unit_test(malformed_ops_are_refused),
        cmocka_unit_test(changed_ops_stay_inside), cmocka_unit_test(sessions_keep_to_their_buffers),
        cmocka_unit_test(backends_by_name),
    };
    return BENCH_RUN_TESTS(tests);
}
