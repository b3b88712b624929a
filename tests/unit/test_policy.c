/* Defaults, assignments and descriptions of the policy. */
#include "unit.h"

#include <stdio.h>

#include "plan/policy.h"

static const char *const backends[] = {"reference", "cpu", "cuda", "metal"};

static void expect_set(struct policy *policy, const char *backend, const char *assignment) {
    struct calla_error error;
    if (!policy_set(policy, backend, assignment, &error))
        fail_msg("%s: %s", assignment, error.message);
}

static void expect_refusal(const char *backend, const char *assignment, const char *part) {
    struct policy policy, before;
    memset(&policy, 0, sizeof policy);
    policy_defaults(&policy, backend);
    memcpy(&before, &policy, sizeof policy);
    struct calla_error error = {0};
    assert_false(policy_set(&policy, backend, assignment, &error));
    if (strstr(error.message, part) == NULL)
        fail_msg("%s: %s", assignment, error.message);
    assert_memory_equal(&policy, &before, sizeof policy);
}

static void defaults_of_the_backends(void **state) {
    (void)state;
    struct policy policy;
    policy_defaults(&policy, "reference");
    assert_false(policy.fuse_projections || policy.fuse_delta_norm || policy.fuse_qk_prep);
    assert_false(policy.fuse_norm || policy.fuse_delta_conv);
    assert_false(policy.fuse_expert_gate_up || policy.fuse_expert_down || policy.concurrent);
    assert_int_equal(policy.kv_dtype, DTYPE_F32);
    assert_int_equal(policy.chunk_rows, 512);
    policy_defaults(&policy, "cpu");
    assert_true(policy.fuse_projections && policy.fuse_delta_norm && policy.fuse_qk_prep);
    assert_true(policy.fuse_norm && policy.fuse_delta_conv);
    assert_true(policy.fuse_expert_gate_up && policy.fuse_expert_down && policy.concurrent);
    assert_int_equal(policy.kv_dtype, DTYPE_BF16);
    policy_defaults(&policy, "metal");
    assert_true(policy.dequant_in_gemm && policy.token_on_device && policy.kv_coalesced);
    assert_int_equal(policy.attention_split, 32768);
    assert_int_equal(policy.gqa_pack, 4);
    assert_false(policy.speculate);
}

static void values_are_parsed(void **state) {
    (void)state;
    struct policy policy;
    policy_defaults(&policy, "metal");
    static const char *const off[] = {"concurrent=off", "concurrent=false", "concurrent=0"};
    static const char *const on[] = {"concurrent=on", "concurrent=true", "concurrent=1"};
    for (int i = 0; i < 3; i++) {
        expect_set(&policy, "metal", off[i]);
        assert_false(policy.concurrent);
        expect_set(&policy, "metal", on[i]);
        assert_true(policy.concurrent);
    }
    expect_set(&policy, "metal", "chunk_rows=1");
    assert_int_equal(policy.chunk_rows, 1);
    expect_set(&policy, "metal", "chunk_rows=8192");
    assert_int_equal(policy.chunk_rows, 8192);
    expect_set(&policy, "metal", "delta_scan=block");
    assert_int_equal(policy.delta_scan, 1);
    expect_set(&policy, "metal", "kv_dtype=f32");
    assert_int_equal(policy.kv_dtype, DTYPE_F32);
    expect_set(&policy, "metal", "gqa_pack=1");
    assert_int_equal(policy.gqa_pack, 1);
    assert_true(policy.tensor_operations);
    expect_set(&policy, "metal", "tensor_operations=off");
    assert_false(policy.tensor_operations);
    expect_set(&policy, "metal", "expert_tile=32");
    assert_int_equal(policy.expert_tile, 32);
    expect_set(&policy, "metal", "speculate=off");
}

static void what_is_wrong_is_refused(void **state) {
    (void)state;
    expect_refusal("cpu", "fuse_everything=on", "fuse_qk_prep");
    expect_refusal("cpu", "concurrent", "NAME=VALUE");
    expect_refusal("cpu", "=on", "no policy");
    expect_refusal("cpu", "concurrent=", "on or off");
    expect_refusal("cpu", "concurrent=maybe", "maybe");
    expect_refusal("cpu", "concurrent=on ", "on or off");
    expect_refusal("cpu", "chunk_rows=0", "1 to 8192");
    expect_refusal("cpu", "chunk_rows=8193", "1 to 8192");
    expect_refusal("cpu", "chunk_rows=-1", "1 to 8192");
    expect_refusal("cpu", "chunk_rows=99999999999999999999", "1 to 8192");
    expect_refusal("cpu", "chunk_rows=1e3", "1 to 8192");
    expect_refusal("cpu", "kv_dtype=f16", "bf16 or f32");
    expect_refusal("metal", "expert_tile=24", "power of two");
    expect_refusal("metal", "delta_scan=2", "register or block");
    expect_refusal("cuda", "tensor_operations=on", "means nothing on the backend cuda");
    expect_refusal("cpu", "kv_coalesced=on", "means nothing on the backend cpu");
    expect_refusal("reference", "gqa_pack=4", "chunk_rows");
    expect_refusal("cpu", "speculate=on", "only be off");
    expect_refusal("metal", "speculate=1", "only be off");
    expect_refusal("tpu", "concurrent=on", "reference, cpu, cuda or metal");
}

/* What is printed can be given back, and a policy that does not apply is n/a and refused. */
static void descriptions_and_assignments_agree(void **state) {
    (void)state;
    for (size_t b = 0; b < 4; b++) {
        struct policy policy, again;
        policy_defaults(&policy, backends[b]);
        const char *name;
        char value[32];
        bool applies;
        size_t count = 0, applying = 0;
        for (; policy_describe(&policy, backends[b], count, &name, value, &applies); count++) {
            char assignment[96];
            snprintf(assignment, sizeof assignment, "%s=%s", name, value);
            policy_defaults(&again, backends[b]);
            struct calla_error error;
            assert_int_equal(policy_set(&again, backends[b], assignment, &error), applies);
            assert_int_equal(strcmp(value, "n/a") == 0, !applies);
            applying += applies;
        }
        assert_int_equal(count, 23);
        static const size_t expected[] = {11, 13, 14, 21};
        assert_int_equal(applying, expected[b]);
    }
}

/* Every choice that means something has another value, which is not the one it has and which can be set. */
static void alternatives_can_be_set(void **state) {
    (void)state;
    for (size_t b = 0; b < 4; b++) {
        struct policy policy;
        policy_defaults(&policy, backends[b]);
        const char *name;
        char value[32], other[32], assignment[96];
        bool applies;
        for (size_t i = 0; policy_describe(&policy, backends[b], i, &name, value, &applies); i++) {
            size_t count = 0;
            for (; policy_alternative(&policy, backends[b], i, count, other); count++) {
                assert_string_not_equal(value, other);
                snprintf(assignment, sizeof assignment, "%s=%s", name, other);
                struct policy changed = policy;
                struct calla_error error;
                bool set = policy_set(&changed, backends[b], assignment, &error);
                assert_true(set == (strcmp(name, "speculate") != 0));
            }
            assert_true(applies ? count >= 1 && count <= 8 : count == 0);
        }
        assert_false(policy_alternative(&policy, backends[b], 1000, 0, other));
    }
}

static void expect_alternatives(const char *backend, const char *wanted, const char *expected) {
    struct policy policy;
    policy_defaults(&policy, backend);
    const char *name;
    char value[32], other[32], list[128] = "";
    bool applies;
    for (size_t i = 0; policy_describe(&policy, backend, i, &name, value, &applies); i++)
        for (size_t nth = 0; strcmp(name, wanted) == 0 && policy_alternative(&policy, backend, i, nth, other);
             nth++) {
            strcat(list, nth > 0 ? " " : "");
            strcat(list, other);
        }
    assert_string_equal(list, expected);
}

static void alternatives_of_each_kind(void **state) {
    (void)state;
    expect_alternatives("cpu", "concurrent", "off");
    expect_alternatives("reference", "concurrent", "on");
    expect_alternatives("metal", "delta_scan", "block");
    expect_alternatives("metal", "gqa_pack", "1 2");
    expect_alternatives("metal", "attention_split", "16384 65536 1073741824");
    expect_alternatives("cpu", "attention_split", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_the_backends), cmocka_unit_test(values_are_parsed),
        cmocka_unit_test(what_is_wrong_is_refused), cmocka_unit_test(descriptions_and_assignments_agree),
        cmocka_unit_test(alternatives_can_be_set),  cmocka_unit_test(alternatives_of_each_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
