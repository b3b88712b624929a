/* Costs of the full-size plan against the sizes of the published checkpoint, worked out by hand from the
 * tensors' shapes. */
#include "model_fixture.h"

#include "plan/cost.h"

#define KINDS(...)                                                                                           \
    (const enum op_kind[]) {                                                                                 \
        __VA_ARGS__, OP_KIND_COUNT                                                                           \
    }

#define NORM (2048 * 2) /* bytes of a norm's weight */

enum where { DELTA_LAYERS, ATTENTION_LAYERS, ALL_LAYERS, OUTSIDE };

static struct cost cost_of(const struct model_fixture *model, const struct plan *plan, uint32_t position,
                           enum where where, const enum op_kind *kinds) {
    struct cost total = {0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        if ((where == OUTSIDE) != (op->layer < 0))
            continue;
        if (where == DELTA_LAYERS && model->config.attention_layer[op->layer])
            continue;
        if (where == ATTENTION_LAYERS && !model->config.attention_layer[op->layer])
            continue;
        for (const enum op_kind *kind = kinds; *kind != OP_KIND_COUNT; kind++)
            if (*kind == op->kind) {
                struct cost cost = op_cost(op, position);
                cost_add(&total, &cost);
            }
    }
    return total;
}

static void weights_of_a_decode_step(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan fused, unfused;
    fixture_plan(&model, &fused, 1024, 1, LOGITS_LAST, true);
    set_fusions(&model.policy, false);
    fixture_plan(&model, &unfused, 1024, 1, LOGITS_LAST, true);

    struct cost cost = cost_of(&model, &fused, 0, DELTA_LAYERS, KINDS(OP_LINEAR, OP_DELTA_STEP));
    assert_int_equal(cost.weight_bytes, 570420480 + 30 * NORM);
    cost = cost_of(&model, &fused, 0, ATTENTION_LAYERS, KINDS(OP_LINEAR, OP_QK_PREP, OP_ATTENTION));
    assert_int_equal(cost.weight_bytes, 153364480 + 10 * NORM);
    cost = cost_of(&model, &unfused, 0, ALL_LAYERS, KINDS(OP_EXPERT_LINEAR));
    assert_int_equal(cost.weight_bytes, 566231040);
    cost = cost_of(&model, &fused, 0, ALL_LAYERS, KINDS(OP_ROUTER, OP_EXPERT_GATE_UP, OP_EXPERT_DOWN));
    /* Without the mixers' norms, and with the experts' own twice. */
    assert_int_equal(cost.weight_bytes, 566231040 + 93475840 - 40 * NORM + 40 * NORM);
    cost = cost_of(&model, &fused, 0, OUTSIDE, KINDS(OP_HEAD));
    assert_int_equal(cost.weight_bytes, 286064640 + NORM);
    cost = cost_of(&model, &fused, 0, OUTSIDE, KINDS(OP_EMBED));
    assert_int_equal(cost.weight_bytes, 5248 - NORM);
    assert_int_equal(plan_cost(&fused, 0).weight_bytes, 1669561728 + 40 * NORM);
    assert_int_equal(plan_cost(&unfused, 0).weight_bytes, 1669561728);
    plan_free(&fused);
    plan_free(&unfused);
    fixture_close(&model);
}

static void state_and_cache_of_a_decode_step(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan plan;
    fixture_plan(&model, &plan, 262144, 1, LOGITS_LAST, true);
    struct cost cost = cost_of(&model, &plan, 0, DELTA_LAYERS, KINDS(OP_DELTA_STEP));
    assert_int_equal(cost.state_bytes, 2 * 62914560 + 2949120 + 983040);
    for (uint64_t position = 0; position < 262144; position = position * 3 + 1) {
        cost = cost_of(&model, &plan, (uint32_t)position, ATTENTION_LAYERS, KINDS(OP_ATTENTION));
        assert_true(cost.kv_bytes == 20480 * (position + 1));
        cost = cost_of(&model, &plan, (uint32_t)position, ATTENTION_LAYERS, KINDS(OP_QK_PREP));
        assert_int_equal(cost.kv_bytes, 20480);
    }
    plan_free(&plan);
    fixture_close(&model);
}

/* Two FLOPs for each of the 2.95 billion parameters that a token uses, and the state's arithmetic. */
static void flops_of_a_decode_step(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct plan plan;
    fixture_plan(&model, &plan, 1024, 1, LOGITS_LAST, true);
    uint64_t delta_matrices = 2048 * (8192 + 4096 + 32 + 32) + 4096 * 2048;
    struct cost cost = cost_of(&model, &plan, 0, DELTA_LAYERS, KINDS(OP_LINEAR));
    assert_int_equal(cost.flops, 30 * (2 * delta_matrices + 2048 + 4 * 2048));
    cost = cost_of(&model, &plan, 0, OUTSIDE, KINDS(OP_HEAD));
    assert_int_equal(cost.flops, 2u * 248320 * 2048 + 4 * 2048);
    cost = cost_of(&model, &plan, 99, ATTENTION_LAYERS, KINDS(OP_ATTENTION));
    assert_int_equal(cost.flops, 10 * 16 * (100 * (4 * 256 + 4) + 4 * 256));
    double total = (double)plan_cost(&plan, 0).flops;
    assert_true(total > 2 * 2.95e9 * 0.99 && total < 2 * 2.95e9 * 1.03);
    plan_free(&plan);
    fixture_close(&model);
}

static void experts_of_a_prefill_chunk(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    set_fusions(&model.policy, false);
    struct plan plan;
    uint64_t slices = 40 * UINT64_C(1769472);
    fixture_plan(&model, &plan, 1024, 2, LOGITS_NONE, false);
    struct cost cost = cost_of(&model, &plan, 0, ALL_LAYERS, KINDS(OP_EXPERT_LINEAR));
    assert_true(cost.weight_bytes == (uint64_t)(15.75 * (double)slices)); /* 256 (1 - (31/32)^2) */
    plan_free(&plan);
    fixture_plan(&model, &plan, 1024, 512, LOGITS_NONE, false);
    cost = cost_of(&model, &plan, 0, ALL_LAYERS, KINDS(OP_EXPERT_LINEAR));
    assert_true(cost.weight_bytes > 255 * slices && cost.weight_bytes <= 256 * slices);
    assert_true(cost.flops == UINT64_C(2) * 512 * 8 * 40 * 3 * 512 * 2048);
    plan_free(&plan);
    fixture_close(&model);
}

/* A fusion reads the same weights and does the same arithmetic, and moves fewer activations; but for the
 * experts' norm, which the router and the gate and up products both compute. */
static void fusions_save_only_scratch(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= 64; rows += 63) {
        struct model_fixture model;
        fixture_open(&model, "cpu", 0);
        struct plan plan;
        fixture_plan(&model, &plan, 1024, rows, LOGITS_LAST, true);
        struct cost fused = plan_cost(&plan, 17);
        plan_free(&plan);
        set_fusions(&model.policy, false);
        fixture_plan(&model, &plan, 1024, rows, LOGITS_LAST, true);
        struct cost unfused = plan_cost(&plan, 17);
        plan_free(&plan);
        assert_true(fused.flops == unfused.flops + 40 * 4 * 2048 * rows);
        assert_true(fused.weight_bytes == unfused.weight_bytes + 40 * NORM);
        assert_true(fused.state_bytes == unfused.state_bytes);
        assert_true(fused.kv_bytes == unfused.kv_bytes);
        assert_true(fused.scratch_bytes < unfused.scratch_bytes);
        fixture_close(&model);
    }
}

static void the_slower_side_counts(void **state) {
    (void)state;
    struct cost cost = {.weight_bytes = 100, .kv_bytes = 100, .flops = 1000};
    assert_float_equal(cost_seconds(&cost, 100, 0), 2, 1e-9);
    assert_float_equal(cost_seconds(&cost, 100, 1000), 2, 1e-9);
    assert_float_equal(cost_seconds(&cost, 100, 100), 10, 1e-9);
    assert_float_equal(cost_seconds(&cost, 0, 100), 10, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_a_decode_step),  cmocka_unit_test(state_and_cache_of_a_decode_step),
        cmocka_unit_test(flops_of_a_decode_step),    cmocka_unit_test(experts_of_a_prefill_chunk),
        cmocka_unit_test(fusions_save_only_scratch), cmocka_unit_test(the_slower_side_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
