/* Norms over the last dimension: rms_norm, head_norm, gated_norm. */
#include "backend/cpu/cpu.h"

void weight_vector(const struct view *weight, float *out) {
    if (weight->dtype == DTYPE_BF16)
        for (size_t i = 0; i < weight->columns; i++) /* with the type known, in vectors */
            out[i] = float_load(weight->bytes, DTYPE_BF16, i);
    else
        for (size_t i = 0; i < weight->columns; i++)
            out[i] = float_load(weight->bytes, weight->dtype, i);
}

static size_t rms_norm_units(const struct cpu_task *task) {
    return task->op->views[2].rows;
}

static size_t rms_norm_workspace(const struct cpu_task *task) {
    return task->op->views[1].columns * sizeof(float);
}

/* x[T,n], weight[n] -> y[T,n]. Unit: a row. */
static void rms_norm_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *x = &task->op->views[0], *weight = &task->op->views[1], *y = &task->op->views[2];
    float *weights = task->workspace;
    weight_vector(weight, weights);
    for (size_t t = begin; t < end; t++)
        task->kernels->vector->rms_norm(float_row(x, t), weights, task->op->op.constants.epsilon,
                                        float_row(y, t), x->columns);
}

const struct cpu_op cpu_rms_norm = {
    .units = rms_norm_units, .run = rms_norm_run, .workspace_bytes = rms_norm_workspace};

static size_t gated_norm_units(const struct cpu_task *task) {
    return (size_t)task->op->views[3].rows * task->op->op.constants.value_heads;
}

static size_t gated_norm_workspace(const struct cpu_task *task) {
    return task->op->views[2].columns * sizeof(float);
}

/* x[T,Hv*Dv], z[T,Hv*Dv], weight[Dv] -> y[T,Hv*Dv]. Unit: a head of a row. */
static void gated_norm_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views, *weight = &views[2];
    size_t heads = task->op->op.constants.value_heads, size = weight->columns;
    float *weights = task->workspace;
    weight_vector(weight, weights);
    for (size_t unit = begin; unit < end; unit++) {
        size_t t = unit / heads, first = unit % heads * size;
        task->kernels->vector->gated_norm(float_row(&views[0], t) + first, float_row(&views[1], t) + first,
                                          weights, task->op->op.constants.epsilon,
                                          float_row(&views[3], t) + first, size);
    }
}

const struct cpu_op cpu_gated_norm = {
    .units = gated_norm_units, .run = gated_norm_run, .workspace_bytes = gated_norm_workspace};
