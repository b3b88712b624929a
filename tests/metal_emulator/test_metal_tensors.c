/* Whether tensor operations are used: only where GPU, system and policy have them, and the self-test of the
 * backend finds nothing. */
#include "unit.h"

#include "backend/metal/metal_backend.h"
#include "metal_emulator/metal_emulator.h"
#include "plan/policy.h"
#include "scratch.h"

static struct metal_backend *opened(const struct metal_emulator_options *options, bool policy_on) {
    struct policy policy;
    struct calla_error error = {0};
    metal_emulator_use(options);
    policy_defaults(&policy, "metal");
    assert_true(policy.tensor_operations);
    policy.tensor_operations = policy_on;
    struct backend *backend = metal_backend.open(&(struct backend_options){.policy = &policy}, &error);
    if (backend == NULL)
        fail_msg("%s", error.message);
    return (struct metal_backend *)backend;
}

/* `failed`: whether a user is to be warned. */
static void expect(const struct metal_emulator_options *options, bool policy_on, bool used, bool failed,
                   const char *part) {
    struct metal_backend *backend = opened(options, policy_on);
    bool warned = !failed;
    const char *line = metal_backend.tensor_operations(&backend->base, &warned);
    if (backend->tensors != used || warned != failed || strstr(line, part) == NULL)
        fail_msg("used %d, expected %d; warned %d, expected %d; \"%s\" lacks \"%s\"", backend->tensors, used,
                 warned, failed, line, part);
    assert_int_equal(backend->used, 0);
    assert_null(backend->pipelines.entries);
    metal_backend.close(&backend->base);
}

/* However cooperative tensors lie and sums are ordered. */
static void right_ones_are_used(void **state) {
    (void)state;
    struct metal_emulator_options options = metal_emulator_options(true);
    for (int padded = 0; padded < 2; padded++)
        for (int sums = METAL_SUMS_M5; sums <= METAL_SUMS_REVERSED; sums++) {
            options.padded_layout = padded;
            options.sums = sums;
            options.seed = (uint64_t)(3 * padded + sums);
            expect(&options, true, true, false, "used for prompts");
        }
}

static void wrong_ones_are_not(void **state) {
    (void)state;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.sums = METAL_SUMS_WRONG;
    expect(&options, true, false, true, "products of many rows differ");
    options.sums = METAL_SUMS_M5;
    static const char *const kernels[] = {"tensor_gemm_32", "tensor_gemm_64", "tensor_gemm_16",
                                          "tensor_gate_up_16", "tensor_attention"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        options.refuse_kernel = kernels[i];
        expect(&options, true, false, true, kernels[i]);
        options.refuse_kernel = NULL;
        options.fail_kernel = kernels[i];
        expect(&options, true, false, true, kernels[i]);
        options.fail_kernel = NULL;
    }
}

/* A matter of GPU, system or policy is no failure. */
static void absent_ones_are_not(void **state) {
    (void)state;
    struct metal_emulator_options options = metal_emulator_options(true);
    expect(&options, false, false, false, "policy tensor_operations is off");
    options.facts.tensor_operations = false;
    expect(&options, true, false, false, "macOS 26.2");
    options = metal_emulator_options(false);
    expect(&options, true, false, false, "family Apple8");
    options = metal_emulator_options(true);
    options.facts.language = METAL_LANGUAGE(3, 2);
    expect(&options, true, false, true, "need Metal 4.0");
    options = metal_emulator_options(true);
    options.facts.working_set = 10000;
    expect(&options, true, false, true, "too little memory");
}

static struct calla_session *session_on(const struct metal_emulator_options *options,
                                        struct calla_model **model) {
    struct calla_model_options with = {.path = "models/calla-tiny", .backend = "metal"};
    struct calla_error error = {0};
    metal_emulator_use(options);
    *model = calla_model_open(&with, &error);
    struct calla_session *session =
        *model != NULL ? calla_session_open(*model, &(struct calla_session_options){.context = 64}, &error)
                       : NULL;
    if (session == NULL)
        fail_msg("%s", error.message);
    return session;
}

/* What tensor operations have begun, simdgroup matrices would go on with in other bits: a saved session is
 * taken up by the same kernels alone, though policy and GPU are the same. */
static void saved_sessions_belong_to_their_kernels(void **state) {
    (void)state;
    struct metal_emulator_options with = metal_emulator_options(true), without;
    with.checked = false;
    without = with;
    without.refuse_kernel = "tensor_attention";
    const struct metal_emulator_options *begun[] = {&with, &without};
    static const int32_t prompt[] = {20, 27, 34};
    char *folder = scratch_new(), *path = scratch_path(folder, "session");
    for (int i = 0; i < 2; i++) {
        struct calla_model *model;
        struct calla_session *session = session_on(begun[i], &model);
        assert_true(calla_session_read(session, prompt, 3, NULL, NULL, NULL));
        assert_true(calla_session_save(session, path, NULL));
        calla_session_close(session);
        calla_model_close(model);
        for (int j = 0; j < 2; j++) {
            struct calla_error error = {0};
            session = session_on(begun[j], &model);
            if (calla_session_load(session, path, &error) != (i == j))
                fail_msg("begun %s tensor operations, gone on with %s: %s", i == 0 ? "with" : "without",
                         j == 0 ? "them" : "simdgroup matrices", error.message);
            assert_true(i == j || strstr(error.message, "set of kernels") != NULL);
            calla_session_close(session);
            calla_model_close(model);
        }
    }
    free(path);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_ones_are_used), cmocka_unit_test(wrong_ones_are_not),
        cmocka_unit_test(absent_ones_are_not), cmocka_unit_test(saved_sessions_belong_to_their_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
