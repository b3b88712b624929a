/* Making a plan when memory is short: whichever allocation fails, the error says so, and nothing is left. */
/* wrap: malloc calloc realloc */
#include "model_fixture.h"

#include <limits.h>

static long allocations_left = LONG_MAX;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size) {
    return allocations_left-- > 0 ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
    return allocations_left-- > 0 ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size) {
    return allocations_left-- > 0 ? __real_realloc(old, size) : NULL;
}

static bool make_plan(const struct model_fixture *model, struct calla_error *error) {
    struct forward_options options = {.rows = 1, .logits = LOGITS_LAST, .sample = true};
    struct session_layout layout;
    struct plan plan;
    if (!forward_layout(&layout, &model->config, &model->policy, 1024, error))
        return false;
    bool ok = forward_plan(&plan, &model->config, &model->table, &model->policy, 1024, &options, error);
    assert_true(ok || (plan.ops == NULL && plan.scratch == NULL));
    plan_free(&plan);
    session_layout_free(&layout);
    return ok;
}

static void any_allocation_may_fail(void **state) {
    (void)state;
    struct model_fixture model;
    fixture_open(&model, "cpu", 0);
    struct calla_error error;
    long limit = 0;
    for (bool ok = false; !ok; limit++) {
        error.status = CALLA_OK;
        allocations_left = limit;
        ok = make_plan(&model, &error);
        allocations_left = LONG_MAX;
        assert_true(ok || error.status == CALLA_OUT_OF_MEMORY);
        assert_true(limit < 1000);
    }
    assert_true(limit > 6);
    fixture_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
