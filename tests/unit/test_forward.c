/* The plans that the forward pass emits: counts, shapes of every operand, reads after writes, bounds. */
#include "model_fixture.h"

#include <time.h>

#include "plan/op_check.h"

static uint32_t count_kind(const struct plan *plan, enum op_kind kind) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->op_count; i++)
        count += plan->ops[i].kind == kind;
    return count;
}

/* Shapes: one row an operand, "r" read, "w" written, "b" both. Written down from the comments in op.h. */
struct shape {
    char access;
    enum space space;
    uint64_t rows, columns;
};

static uint32_t expected_shapes(const struct model_fixture *model, const struct plan *plan,
                                const struct op *op, struct shape *shapes) {
    const struct config *c = &model->config;
    uint32_t T = plan->rows, H = c->hidden_size, V = c->vocabulary, E = c->experts, K = c->experts_per_token;
    uint32_t I = c->expert_width, S = c->shared_width, W = c->taps, Hk = c->key_heads, Hv = c->value_heads;
    uint32_t Dk = c->key_size, Dv = c->value_size, C = 2 * Hk * Dk + Hv * Dv;
    uint32_t N = c->heads, G = c->kv_heads, D = c->head_size;
    uint32_t L = 1024, record = sizeof(struct step_record);
    uint32_t R = op->kind == OP_HEAD || op->layer < 0 ? op->operands[0].rows : T;
    uint32_t n = 0;
#define ADD(access, space, rows, columns)                                                                    \
    (shapes[n++] = (struct shape){access, SPACE_##space, (uint64_t)(rows), (uint64_t)(columns)})
    /* The weight of the norm, where the op normalises what comes before. */
#define ADD_NORM()                                                                                           \
    do {                                                                                                     \
        if (op->constants.normalise)                                                                         \
            ADD('r', WEIGHT, 1, H);                                                                          \
    } while (0)
    switch (op->kind) {
    case OP_EMBED:
        ADD('r', STEP, 1, T), ADD('r', WEIGHT, V, H), ADD('w', SCRATCH, T, H);
        break;
    case OP_RMS_NORM:
        ADD('r', SCRATCH, R, H), ADD('r', WEIGHT, 1, H), ADD('w', SCRATCH, R, H);
        break;
    case OP_LINEAR:
        ADD('r', SCRATCH, T, op->operands[1].columns);
        ADD_NORM();
        for (uint32_t m = 0; m < op->constants.matrix_count && n + 2 <= OP_MAX_OPERANDS; m++) {
            const struct weight *weight = &model->table.weights[op->operands[n].buffer];
            ADD('r', WEIGHT, weight->rows, weight->columns);
            ADD(op->constants.accumulate ? 'b' : 'w', SCRATCH, T, weight->rows);
        }
        break;
    case OP_CONV_SILU:
        ADD('r', STEP, 1, record), ADD('r', SCRATCH, T, C), ADD('r', WEIGHT, C, W), ADD('b', STATE, W, C);
        ADD('w', SCRATCH, T, Hk * Dk), ADD('w', SCRATCH, T, Hk * Dk), ADD('w', SCRATCH, T, Hv * Dv);
        break;
    case OP_DELTA_GATES:
        ADD('r', SCRATCH, T, Hv), ADD('r', SCRATCH, T, Hv), ADD('r', WEIGHT, 1, Hv), ADD('r', WEIGHT, 1, Hv);
        ADD('w', SCRATCH, T, Hv), ADD('w', SCRATCH, T, Hv);
        break;
    case OP_DELTA_SCAN:
        ADD('r', SCRATCH, T, Hk * Dk), ADD('r', SCRATCH, T, Hk * Dk), ADD('r', SCRATCH, T, Hv * Dv);
        ADD('r', SCRATCH, T, Hv), ADD('r', SCRATCH, T, Hv), ADD('b', STATE, Hv * Dv, Dk);
        ADD('w', SCRATCH, T, Hv * Dv);
        break;
    case OP_GATED_NORM:
        ADD('r', SCRATCH, T, Hv * Dv), ADD('r', SCRATCH, T, Hv * Dv), ADD('r', WEIGHT, 1, Dv);
        ADD('w', SCRATCH, T, Hv * Dv);
        break;
    case OP_DELTA_TAIL:
        assert_int_equal(T, 1);
        ADD('r', SCRATCH, T, Hv), ADD('r', SCRATCH, T, Hv), ADD('r', WEIGHT, 1, Hv), ADD('r', WEIGHT, 1, Hv);
        ADD('r', SCRATCH, T, Hk * Dk), ADD('r', SCRATCH, T, Hk * Dk), ADD('r', SCRATCH, T, Hv * Dv);
        ADD('r', SCRATCH, T, Hv * Dv), ADD('r', WEIGHT, 1, Dv), ADD('b', STATE, Hv * Dv, Dk);
        ADD('w', SCRATCH, T, Hv * Dv);
        break;
    case OP_DELTA_STEP:
        assert_int_equal(T, 1);
        ADD('r', STEP, 1, record), ADD('r', SCRATCH, 1, C), ADD('r', SCRATCH, 1, Hv);
        ADD('r', SCRATCH, 1, Hv), ADD('r', WEIGHT, C, W), ADD('r', WEIGHT, 1, Hv), ADD('r', WEIGHT, 1, Hv);
        ADD('r', SCRATCH, 1, Hv * Dv), ADD('r', WEIGHT, 1, Dv), ADD('b', STATE, W, C);
        ADD('b', STATE, Hv * Dv, Dk), ADD('w', SCRATCH, 1, Hv * Dv);
        break;
    case OP_HEAD_NORM: {
        uint32_t heads = op->operands[0].rows / T;
        assert_true(heads == N || heads == G);
        ADD('r', SCRATCH, T * heads, D), ADD('r', WEIGHT, 1, D), ADD('w', SCRATCH, T * heads, D);
        break;
    }
    case OP_ROPE:
        assert_true(op->constants.heads == N || op->constants.heads == G);
        ADD('r', STEP, 1, record), ADD('b', SCRATCH, T * op->constants.heads, D);
        break;
    case OP_KV_WRITE:
        ADD('r', STEP, 1, record), ADD('r', SCRATCH, T, G * D), ADD('r', SCRATCH, T, G * D);
        ADD('w', KV, L, G * D), ADD('w', KV, L, G * D);
        break;
    case OP_QK_PREP:
        ADD('r', STEP, 1, record), ADD('r', SCRATCH, T * N, D), ADD('r', SCRATCH, T, G * D);
        ADD('r', SCRATCH, T, G * D), ADD('r', WEIGHT, 1, D), ADD('r', WEIGHT, 1, D);
        ADD('w', SCRATCH, T * N, D), ADD('w', KV, L, G * D), ADD('w', KV, L, G * D);
        break;
    case OP_ATTENTION:
        ADD('r', STEP, 1, record), ADD('r', SCRATCH, T * N, D), ADD('r', SCRATCH, T * N, D);
        ADD('r', KV, L, G * D), ADD('r', KV, L, G * D), ADD('w', SCRATCH, T * N, D);
        break;
    case OP_ROUTER:
        ADD('r', SCRATCH, T, H);
        ADD_NORM();
        ADD('r', WEIGHT, E, H), ADD('r', WEIGHT, 1, H);
        ADD('w', SCRATCH, T, K), ADD('w', SCRATCH, T, K + 1);
        break;
    case OP_EXPERT_SORT:
        ADD('r', SCRATCH, T, K), ADD('w', SCRATCH, 1, E + 1), ADD('w', SCRATCH, 1, T * K);
        break;
    case OP_EXPERT_LINEAR: {
        const struct operand *matrix = &op->operands[T > 1 ? 4 : 2];
        bool down = op->operands[0].columns != H || op->operands[0].rows != T;
        ADD('r', SCRATCH, down ? T * K : T, down ? I : H), ADD('r', SCRATCH, T, K);
        if (T > 1)
            ADD('r', SCRATCH, 1, E + 1), ADD('r', SCRATCH, 1, T * K);
        ADD('r', WEIGHT, E * (down ? H : I), down ? I : H), ADD('w', SCRATCH, T * K, down ? H : I);
        assert_int_equal(matrix->space, SPACE_WEIGHT);
        break;
    }
    case OP_SWIGLU: {
        bool routed = op->operands[0].rows != T;
        for (int i = 0; i < 3; i++)
            ADD(i < 2 ? 'r' : 'w', SCRATCH, routed ? T * K : T, routed ? I : S);
        break;
    }
    case OP_EXPERT_COMBINE:
        ADD('r', SCRATCH, T * K, H), ADD('r', SCRATCH, T, H), ADD('r', SCRATCH, T, K + 1);
        ADD('b', SCRATCH, T, H);
        break;
    case OP_EXPERT_GATE_UP:
        ADD('r', SCRATCH, T, H);
        ADD_NORM();
        ADD('r', SCRATCH, T, K);
        if (T > 1)
            ADD('r', SCRATCH, 1, E + 1), ADD('r', SCRATCH, 1, T * K);
        ADD('r', WEIGHT, E * I, H), ADD('r', WEIGHT, E * I, H), ADD('r', WEIGHT, S, H),
            ADD('r', WEIGHT, S, H);
        ADD('w', SCRATCH, T * K, I), ADD('w', SCRATCH, T, S);
        break;
    case OP_EXPERT_DOWN:
        ADD('r', SCRATCH, T * K, I), ADD('r', SCRATCH, T, S), ADD('r', SCRATCH, T, K);
        ADD('r', SCRATCH, T, K + 1);
        if (T > 1)
            ADD('r', SCRATCH, 1, E + 1), ADD('r', SCRATCH, 1, T * K);
        ADD('r', WEIGHT, E * H, I), ADD('r', WEIGHT, H, S), ADD('b', SCRATCH, T, H);
        break;
    case OP_HEAD:
        ADD('r', SCRATCH, R, H);
        ADD_NORM();
        ADD('r', WEIGHT, V, H), ADD('w', STEP, R, V);
        break;
    case OP_SAMPLE:
        ADD('b', STEP, 1, record), ADD('r', STEP, 1, V), ADD('r', STEP, 1, V), ADD('b', STEP, 1, V);
        ADD('w', STEP, 1, 1);
        break;
    case OP_KIND_COUNT:
        fail();
    }
#undef ADD
#undef ADD_NORM
    return n;
}

static void check_shapes(const struct model_fixture *model, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        struct shape shapes[OP_MAX_OPERANDS];
        struct calla_error error;
        if (!op_check(op, &error))
            fail_msg("%s", error.message);
        assert_int_equal(op->operand_count, expected_shapes(model, plan, op, shapes));
        for (uint32_t j = 0; j < op->operand_count; j++) {
            const struct operand *operand = &op->operands[j];
            int access = shapes[j].access == 'r'   ? ACCESS_READ
                         : shapes[j].access == 'w' ? ACCESS_WRITE
                                                   : ACCESS_READ | ACCESS_WRITE;
            assert_int_equal(operand->access, access);
            assert_int_equal(operand->space, shapes[j].space);
            assert_int_equal(operand->rows, shapes[j].rows);
            assert_int_equal(operand->columns, shapes[j].columns);
            assert_true(operand->stride >= operand->columns);
        }
    }
}

static uint64_t end_of(const struct operand *view) {
    return view->offset +
           (uint64_t)(view->rows - 1) * dtype_row_bytes((enum dtype)view->dtype, view->stride) +
           dtype_row_bytes((enum dtype)view->dtype, view->columns);
}

/* No view leaves its buffer, every weight is read exactly once (a tied embedding twice; a norm by each op
 * that has it within), and scratch is written as a whole before it is read. */
static void check_memory(const struct model_fixture *model, const struct plan *plan) {
    struct session_layout layout;
    struct calla_error error;
    assert_true(forward_layout(&layout, &model->config, &model->policy, 1024, &error));
    uint32_t *weight_reads = calloc(model->table.count, sizeof *weight_reads);
    uint32_t *state_uses = calloc(layout.state_count + 1, sizeof *state_uses);
    bool *written = calloc(plan->scratch_count, sizeof *written);
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        for (uint32_t j = 0; j < op->operand_count; j++) {
            const struct operand *view = &op->operands[j];
            uint64_t size = 0;
            switch ((enum space)view->space) {
            case SPACE_WEIGHT:
                assert_in_range(view->buffer, 0, model->table.count - 1);
                size = weight_bytes(&model->table.weights[view->buffer]);
                if (!op->constants.normalise || j != 1 || weight_reads[view->buffer] == 0)
                    weight_reads[view->buffer]++;
                break;
            case SPACE_SCRATCH:
                assert_in_range(view->buffer, 0, plan->scratch_count - 1);
                size = buffer_shape_bytes(&plan->scratch[view->buffer]);
                if (view->access & ACCESS_READ)
                    assert_true(written[view->buffer]);
                break;
            case SPACE_STATE:
                assert_in_range(view->buffer, 0, layout.state_count - 1);
                size = buffer_shape_bytes(&layout.state[view->buffer]);
                assert_int_equal(size, end_of(view));
                state_uses[view->buffer]++;
                break;
            case SPACE_KV:
                assert_in_range(view->buffer, 0, layout.kv_count - 1);
                size = buffer_shape_bytes(&layout.kv[view->buffer]);
                assert_int_equal(view->dtype, layout.kv[view->buffer].dtype);
                break;
            case SPACE_STEP:
                size = buffer_shape_bytes(&layout.step[view->buffer]);
                assert_int_equal(view->dtype, layout.step[view->buffer].dtype);
                break;
            case SPACE_COUNT:
                fail();
            }
            assert_in_range(end_of(view), 1, size);
        }
        for (uint32_t j = 0; j < op->operand_count; j++) {
            const struct operand *view = &op->operands[j];
            if (view->space == SPACE_SCRATCH && view->access & ACCESS_WRITE) {
                assert_int_equal(operand_bytes(view), buffer_shape_bytes(&plan->scratch[view->buffer]));
                written[view->buffer] = true;
            }
        }
    }
    for (uint32_t i = 0; i < model->table.count; i++)
        assert_int_equal(weight_reads[i], i == model->table.embed && i == model->table.head ? 2 : 1);
    for (uint32_t i = 0; i < layout.state_count; i++)
        assert_int_equal(state_uses[i], 1);
    free(weight_reads);
    free(state_uses);
    free(written);
    session_layout_free(&layout);
}

/* With scratch buffers of its own for every layer no op has to wait for a buffer to be free. */
static void check_no_false_hazards(const struct plan *plan, uint32_t layers) {
    struct plan apart = {0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        struct op op = plan->ops[i];
        for (uint32_t j = 0; j < op.operand_count; j++) {
            struct operand *view = &op.operands[j];
            if (view->space == SPACE_SCRATCH && strcmp(plan->scratch[view->buffer].name, "hidden") != 0)
                view->buffer += plan->scratch_count * (uint32_t)(op.layer < 0 ? (int)layers : op.layer);
        }
        plan_add(&apart, op.kind, op.layer, op.operands, op.operand_count);
    }
    struct calla_error error;
    assert_true(plan_schedule(&apart, true, &error));
    assert_int_equal(apart.phase_count, plan->phase_count);
    plan_free(&apart);
}

static void decode_fused(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan plan;
    fixture_plan(&model, &plan, 1024, 1, LOGITS_LAST, true);
    /* A delta mixer: projections; step; out. An attention mixer: projections; query and key; attention; out.
     * Experts: router; gate and up; down. */
    assert_int_equal(plan.op_count, 30 * (3 + 3) + 10 * (4 + 3) + 3);
    assert_int_equal(plan.phase_count, 253);
    assert_int_equal(count_kind(&plan, OP_DELTA_STEP), 30);
    assert_int_equal(count_kind(&plan, OP_RMS_NORM), 0);
    assert_int_equal(count_kind(&plan, OP_QK_PREP), 10);
    assert_int_equal(count_kind(&plan, OP_EXPERT_SORT), 0);
    assert_int_equal(plan.ops[0].kind, OP_EMBED);
    assert_int_equal(plan.ops[plan.op_count - 1].kind, OP_SAMPLE);
    check_shapes(&model, &plan);
    check_memory(&model, &plan);
    check_no_false_hazards(&plan, model.config.layers);
    plan_free(&plan);
    fixture_close(&model);
}

static void decode_unfused(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    set_fusions(&model.policy, false);
    struct plan plan;
    fixture_plan(&model, &plan, 1024, 1, LOGITS_LAST, true);
    assert_int_equal(plan.op_count, 30 * 21 + 10 * 22 + 4);
    /* A delta mixer: norm; projections; conv and gates; scan; gated norm; out. An attention mixer: norm;
     * projections; head norms; rope; kv write; attention; out. Experts: norm; router, shared gate and up;
     * gate and up; swiglu; down; combine. */
    print_message("unfused decode: %u ops in %u phases\n", plan.op_count, plan.phase_count);
    assert_int_equal(plan.phase_count, 30 * (6 + 6) + 10 * (7 + 6) + 4);
    check_shapes(&model, &plan);
    check_memory(&model, &plan);
    check_no_false_hazards(&plan, model.config.layers);
    plan_free(&plan);
    fixture_close(&model);
}

static void prefill(void **state) {
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        struct model_fixture model;
        fixture_open(&model, "cpu", 0);
        set_fusions(&model.policy, fused);
        struct plan plan;
        fixture_plan(&model, &plan, 1024, 512, LOGITS_LAST, true);
        assert_int_equal(count_kind(&plan, OP_EXPERT_SORT), 40);
        assert_int_equal(count_kind(&plan, OP_DELTA_TAIL) + count_kind(&plan, OP_DELTA_STEP), 0);
        assert_int_equal(count_kind(&plan, OP_RMS_NORM), fused ? 0 : 81);
        assert_int_equal(count_kind(&plan, OP_QK_PREP), fused ? 10 : 0);
        check_shapes(&model, &plan);
        check_memory(&model, &plan);
        check_no_false_hazards(&plan, model.config.layers);
        uint64_t scratch = 0;
        for (uint32_t i = 0; i < plan.scratch_count; i++)
            scratch += buffer_shape_bytes(&plan.scratch[i]);
        print_message("prefill of 512 rows, %s: %u ops in %u phases, %llu bytes of scratch\n",
                      fused ? "fused" : "unfused", plan.op_count, plan.phase_count,
                      (unsigned long long)scratch);
        assert_in_range(scratch, 1, 200 << 20);
        plan_free(&plan);
        fixture_close(&model);
    }
}

static void every_combination_of_fusions(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    for (unsigned bits = 0; bits < 128; bits++)
        for (uint32_t rows = 1; rows <= 2; rows++) {
            model.policy.fuse_expert_gate_up = bits & 1;
            model.policy.fuse_expert_down = bits & 2;
            model.policy.fuse_qk_prep = bits & 4;
            model.policy.fuse_delta_norm = bits & 8;
            model.policy.fuse_projections = bits & 16;
            model.policy.fuse_norm = bits & 32;
            model.policy.fuse_delta_conv = bits & 64;
            struct plan plan;
            fixture_plan(&model, &plan, 1024, rows, LOGITS_LAST, true);
            /* Where not all that read the experts' norm can have it within, the router does, and the norm is
             * computed beside it for the others. */
            uint32_t norms = !model.policy.fuse_norm ? 81 : model.policy.fuse_expert_gate_up ? 0 : 40;
            assert_int_equal(count_kind(&plan, OP_RMS_NORM), norms);
            assert_int_equal(count_kind(&plan, OP_DELTA_STEP), rows == 1 && (bits & 72) == 72 ? 30 : 0);
            check_shapes(&model, &plan);
            check_memory(&model, &plan);
            plan_free(&plan);
        }
    fixture_close(&model);
}

static void logits_of_no_row_one_row_or_all(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan plan;
    fixture_plan(&model, &plan, 1024, 48, LOGITS_NONE, false);
    assert_int_equal(count_kind(&plan, OP_HEAD), 0);
    uint32_t without = plan.op_count;
    plan_free(&plan);

    fixture_plan(&model, &plan, 1024, 48, LOGITS_LAST, false);
    assert_int_equal(plan.op_count, without + 1);
    const struct op *head = &plan.ops[plan.op_count - 1];
    assert_int_equal(head->kind, OP_HEAD);
    assert_int_equal(head->operands[0].rows, 1);
    assert_int_equal(head->operands[0].offset, 47 * 2048 * 4);
    assert_int_equal(head->operands[3].offset, 0);
    plan_free(&plan);

    model.policy.fuse_norm = false;
    fixture_plan(&model, &plan, 1024, 48, LOGITS_LAST, false);
    const struct op *norm = &plan.ops[plan.op_count - 2];
    assert_int_equal(norm->kind, OP_RMS_NORM);
    assert_int_equal(norm->operands[0].rows, 1);
    assert_int_equal(norm->operands[0].offset, 47 * 2048 * 4);
    assert_int_equal(norm->operands[2].offset, 0);
    plan_free(&plan);

    model.policy.fuse_norm = true;
    fixture_plan(&model, &plan, 1024, 48, LOGITS_ALL, false);
    head = &plan.ops[plan.op_count - 1];
    assert_int_equal(head->kind, OP_HEAD);
    assert_int_equal(head->operands[0].rows, 48);
    assert_int_equal(head->operands[3].rows, 48);
    check_shapes(&model, &plan);
    plan_free(&plan);
    fixture_close(&model);
}

static void without_rows_it_only_samples(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan plan;
    fixture_plan(&model, &plan, 1024, 0, LOGITS_NONE, true);
    assert_int_equal(plan.op_count, 1);
    assert_int_equal(plan.ops[0].kind, OP_SAMPLE);
    assert_int_equal(plan.scratch_count, 0);
    plan_free(&plan);
    fixture_close(&model);
}

/* Tied embeddings; models all of whose layers are of one kind. */
static void other_models_of_the_family(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 8; bits++) {
        struct model_fixture model;
        fixture_open(&model, "cpu", 3);
        weight_table_free(&model.table);
        set_fusions(&model.policy, bits & 1);
        model.config.tied_embeddings = (bits & 2) != 0;
        for (uint32_t layer = 0; layer < 3; layer++)
            model.config.attention_layer[layer] = (bits & 4) != 0;
        model.config.shared_width = 192;
        model.config.expert_width = 320;
        model.config.value_heads = 48;
        model.config.kv_heads = 16;
        struct calla_error error;
        assert_true(weight_table_new(&model.table, &model.config, &error));
        for (uint32_t rows = 1; rows <= 5; rows += 4) {
            struct plan plan;
            fixture_plan(&model, &plan, 1024, rows, LOGITS_LAST, true);
            check_shapes(&model, &plan);
            check_memory(&model, &plan);
            check_no_false_hazards(&plan, 3);
            plan_free(&plan);
        }
        fixture_close(&model);
    }
}

static void expect_refusal(const struct model_fixture *model, uint32_t context,
                           struct forward_options options, const char *part) {
    struct plan plan;
    struct calla_error error = {0};
    assert_false(
        forward_plan(&plan, &model->config, &model->table, &model->policy, context, &options, &error));
    assert_non_null(strstr(error.message, part));
    plan_free(&plan);
}

static void refuses_what_makes_no_sense(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    expect_refusal(&model, 1024, (struct forward_options){.rows = 0}, "0 rows");
    expect_refusal(&model, 1024, (struct forward_options){.rows = 513}, "chunk_rows");
    expect_refusal(&model, 8, (struct forward_options){.rows = 9}, "context of 8");
    expect_refusal(&model, 1024, (struct forward_options){.rows = 4, .sample = true}, "samples");
    expect_refusal(&model, 1024, (struct forward_options){.rows = 65, .logits = LOGITS_ALL},
                   "at most 64 rows");
    model.config.experts_per_token = 1u << 29;
    expect_refusal(&model, 1024, (struct forward_options){.rows = 3}, "too large");
    fixture_close(&model);
}

static void the_layout_of_a_session(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct session_layout layout;
    struct calla_error error;
    assert_true(forward_layout(&layout, &model.config, &model.policy, 262144, &error));
    uint64_t recurrent = 0, convolution = 0, kv = 0;
    for (uint32_t i = 0; i < layout.state_count; i++)
        *(i % 2 == 0 ? &convolution : &recurrent) += buffer_shape_bytes(&layout.state[i]);
    for (uint32_t i = 0; i < layout.kv_count; i++)
        kv += buffer_shape_bytes(&layout.kv[i]);
    assert_int_equal(recurrent, 62914560);
    assert_int_equal(convolution, 3932160);
    assert_true(kv == UINT64_C(20480) * 262144);
    assert_int_equal(layout.step[STEP_TOKENS].columns, 512);
    assert_int_equal(layout.step[STEP_LOGITS].rows, 64);
    session_layout_free(&layout);
    fixture_close(&model);
}

/* Emitting and scheduling happen while a person waits for the first token: well under a few milliseconds. The
 * bound is loose because test machines are busy. */
static void planning_is_fast(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    set_fusions(&model.policy, false);
    double best = 1;
    for (int trial = 0; trial < 20; trial++) {
        struct timespec start, end;
        struct plan plan;
        clock_gettime(CLOCK_MONOTONIC, &start);
        fixture_plan(&model, &plan, 1024, 1, LOGITS_LAST, true);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        if (seconds < best)
            best = seconds;
        plan_free(&plan);
    }
    print_message("emitting and scheduling an unfused decode step: %.3f ms\n", best * 1e3);
    assert_true(best < 0.02);
    fixture_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_fused),
        cmocka_unit_test(decode_unfused),
        cmocka_unit_test(prefill),
        cmocka_unit_test(every_combination_of_fusions),
        cmocka_unit_test(logits_of_no_row_one_row_or_all),
        cmocka_unit_test(without_rows_it_only_samples),
        cmocka_unit_test(other_models_of_the_family),
        cmocka_unit_test(refuses_what_makes_no_sense),
        cmocka_unit_test(the_layout_of_a_session),
        cmocka_unit_test(planning_is_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
