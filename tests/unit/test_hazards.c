/* Hazards and phases against brute force: random plans of random strided views over small buffers, compared
 * byte by byte. */
#include "unit.h"

#include <stdio.h>

#include "plan/plan.h"

#define BUFFERS 3
#define BUFFER_BYTES 96

static uint32_t random_below(uint32_t *seed, uint32_t bound) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed % bound;
}

/* Any view that stays within its buffer, empty ones included. */
static struct operand random_view(uint32_t *seed) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_I32, DTYPE_U8};
    for (;;) {
        enum dtype dtype = dtypes[random_below(seed, 4)];
        uint32_t size = dtype_bits(dtype) / 8;
        struct operand view = {.space = (uint8_t)(SPACE_SCRATCH + random_below(seed, 2)),
                               .dtype = (uint8_t)dtype,
                               .access = (uint8_t)(1 + random_below(seed, 3)),
                               .buffer = random_below(seed, BUFFERS),
                               .rows = random_below(seed, 6),
                               .columns = random_below(seed, 8),
                               .offset = random_below(seed, BUFFER_BYTES / 4) * 4};
        view.stride = view.columns + random_below(seed, 8);
        if (view.rows == 0 ||
            view.offset + ((uint64_t)(view.rows - 1) * view.stride + view.columns) * size <= BUFFER_BYTES)
            return view;
    }
}

static void mark_bytes(const struct operand *view, bool bytes[BUFFER_BYTES]) {
    uint32_t size = dtype_bits((enum dtype)view->dtype) / 8;
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t i = 0; i < view->columns * size; i++)
            bytes[view->offset + (uint64_t)row * view->stride * size + i] = true;
}

static bool overlap_by_bytes(const struct operand *a, const struct operand *b) {
    if (a->space != b->space || a->buffer != b->buffer)
        return false;
    bool of_a[BUFFER_BYTES] = {false}, of_b[BUFFER_BYTES] = {false};
    mark_bytes(a, of_a);
    mark_bytes(b, of_b);
    for (int i = 0; i < BUFFER_BYTES; i++)
        if (of_a[i] && of_b[i])
            return true;
    return false;
}

static bool conflict_by_bytes(const struct op *a, const struct op *b) {
    for (uint32_t i = 0; i < a->operand_count; i++)
        for (uint32_t j = 0; j < b->operand_count; j++)
            if (((a->operands[i].access | b->operands[j].access) & ACCESS_WRITE) &&
                overlap_by_bytes(&a->operands[i], &b->operands[j]))
                return true;
    return false;
}

static void overlap_is_exact(void **state) {
    (void)state;
    uint32_t seed = 12345, overlapping = 0, strided = 0;
    for (int trial = 0; trial < 200000; trial++) {
        struct operand a = random_view(&seed), b = random_view(&seed);
        b.space = a.space;
        b.buffer = a.buffer;
        bool expected = overlap_by_bytes(&a, &b);
        assert_int_equal(operands_overlap(&a, &b), expected);
        assert_int_equal(operands_overlap(&b, &a), expected);
        overlapping += expected;
        strided += a.rows > 1 && b.rows > 1 && a.stride > a.columns && b.stride > b.columns;
    }
    assert_true(overlapping > 20000 && overlapping < 180000);
    assert_true(strided > 20000);
}

/* The op's layer holds its place in the emitted order. */
static void random_plan(struct plan *plan, uint32_t *seed) {
    uint32_t ops = 1 + random_below(seed, 40);
    for (uint32_t i = 0; i < ops; i++) {
        struct operand operands[OP_MAX_OPERANDS];
        uint32_t count = random_below(seed, 4);
        for (uint32_t j = 0; j < count; j++)
            operands[j] = random_view(seed);
        plan_add(plan, OP_LINEAR, (int32_t)i, operands, count);
    }
}

static void phases_agree_with_brute_force(void **state) {
    (void)state;
    uint32_t seed = 99, conflicts = 0, shared_phases = 0;
    for (int trial = 0; trial < 2000; trial++) {
        struct plan plan = {0};
        random_plan(&plan, &seed);
        uint32_t count = plan.op_count, expected[64] = {0}, phase_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < i; j++)
                if (conflict_by_bytes(&plan.ops[j], &plan.ops[i]) && expected[j] + 1 > expected[i])
                    expected[i] = expected[j] + 1;
            if (expected[i] + 1 > phase_count)
                phase_count = expected[i] + 1;
        }
        struct calla_error error;
        assert_true(plan_schedule(&plan, true, &error));
        assert_int_equal(plan.op_count, count);
        assert_int_equal(plan.phase_count, phase_count);
        for (uint32_t i = 0; i < count; i++) {
            const struct op *op = &plan.ops[i];
            assert_int_equal(op->phase, expected[op->layer]);
            if (i > 0) {
                const struct op *before = &plan.ops[i - 1];
                assert_true(before->phase < op->phase ||
                            (before->phase == op->phase && before->layer < op->layer));
            }
            for (uint32_t j = 0; j < i; j++) {
                bool conflict = conflict_by_bytes(&plan.ops[j], op);
                assert_int_equal(ops_conflict(&plan.ops[j], op), conflict);
                shared_phases += plan.ops[j].phase == op->phase;
                if (!conflict)
                    continue;
                conflicts++;
                assert_true(plan.ops[j].phase < op->phase);
                assert_true(plan.ops[j].layer < op->layer);
            }
        }
        plan_free(&plan);
    }
    assert_true(conflicts > 10000);
    assert_true(shared_phases > 10000);
}

static void one_after_the_other_without_concurrency(void **state) {
    (void)state;
    uint32_t seed = 7;
    struct plan plan = {0};
    random_plan(&plan, &seed);
    struct calla_error error;
    assert_true(plan_schedule(&plan, false, &error));
    assert_int_equal(plan.phase_count, plan.op_count);
    for (uint32_t i = 0; i < plan.op_count; i++) {
        assert_int_equal(plan.ops[i].phase, i);
        assert_int_equal(plan.ops[i].layer, i);
    }
    plan_free(&plan);
}

static void far_apart_offsets_do_not_wrap(void **state) {
    (void)state;
    struct operand low = {
        .space = SPACE_KV, .dtype = DTYPE_BF16, .rows = 262144, .columns = 512, .stride = 65536};
    struct operand high = low;
    high.offset = UINT64_C(512) * 2;
    assert_false(operands_overlap(&low, &high));
    high.offset = UINT64_C(65536) * 2 * 262143 + 1022;
    high.rows = 1;
    assert_true(operands_overlap(&low, &high));
    high.offset += 2;
    assert_false(operands_overlap(&low, &high));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_is_exact),
        cmocka_unit_test(phases_agree_with_brute_force),
        cmocka_unit_test(one_after_the_other_without_concurrency),
        cmocka_unit_test(far_apart_offsets_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
