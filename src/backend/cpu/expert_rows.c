/* What the mixture of experts does besides products: sorting the chosen experts, swiglu, the weighted sum. */
#include "backend/cpu/cpu.h"
#include "backend/pair_order.h"

static size_t one_unit(const struct cpu_task *task) {
    (void)task;
    return 1;
}

/* ids[T,K] -> starts[E+1], order[T*K]. Unit: all of it. */
static void sort_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views, *ids = &views[0];
    if (begin < end)
        pair_order(int_row(ids, 0), ids->rows, ids->columns, (uint32_t)ids->stride,
                   task->op->op.constants.experts, int_row(&views[1], 0), int_row(&views[2], 0));
}

const struct cpu_op cpu_expert_sort = {.units = one_unit, .run = sort_run};

static size_t swiglu_units(const struct cpu_task *task) {
    return task->op->views[2].rows;
}

/* gate[R,I], up[R,I] -> y[R,I]. Unit: a row. */
static void swiglu_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views;
    for (size_t row = begin; row < end; row++)
        task->kernels->vector->swiglu(float_row(&views[0], row), float_row(&views[1], row),
                                      float_row(&views[2], row), views[0].columns);
}

const struct cpu_op cpu_swiglu = {.units = swiglu_units, .run = swiglu_run};

static size_t combine_units(const struct cpu_task *task) {
    return task->op->views[3].rows;
}

/* routed[T*K,H], shared[T,H], scores[T,K+1], y[T,H] -> y. Unit: a row. */
static void combine_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views;
    size_t chosen = task->op->op.constants.experts_per_token;
    for (size_t t = begin; t < end; t++)
        task->kernels->vector->expert_combine(float_row(&views[0], t * chosen), views[0].stride,
                                              float_row(&views[1], t), float_row(&views[2], t), chosen,
                                              float_row(&views[3], t), views[3].columns);
}

const struct cpu_op cpu_expert_combine = {.units = combine_units, .run = combine_run};
