/* The gated delta layers: causal convolution, gates, the recurrence over the tokens. */
#include "backend/cpu/cpu.h"

#include <math.h>

/* Rows of a head's state that are a unit of the scan. */
#define UNIT_ROWS 128

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t conv_units(const struct cpu_task *task) {
    return 2 * (size_t)task->op->op.constants.key_heads + task->op->op.constants.value_heads;
}

/* The taps of a head's channels as [W, size], and a pointer to an input for each tap. */
static size_t conv_workspace(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return task->op->views[1].columns *
           (larger(c->key_size, c->value_size) * sizeof(float) + sizeof(const float *));
}

/* Rows are far apart, for a head's channels are a small part of them: the processor does not see them coming.
 */
#define AHEAD 4
static void prefetch(const float *input, const float *output, size_t size) {
    for (size_t i = 0; i < size; i += 16) {
        __builtin_prefetch(input + i);
        __builtin_prefetch(output + i, 1);
    }
}

/* Channels [first, first + size) of the convolution for all rows, into rows of `out` from `column`; with
 * factor above 0 each is then made a unit vector times it. The state is moved on by T rows at the end. */
static void conv_channels(const struct cpu_task *task, size_t first, size_t size, const struct view *out,
                          size_t column, float factor) {
    const struct view *x = &task->op->views[0], *taps = &task->op->views[1], *state = &task->op->views[2];
    const struct vector_kernels *kernels = task->kernels->vector;
    size_t width = taps->columns, history = width - 1, rows = x->rows;
    const float **inputs = task->workspace;
    float *weights = (float *)(inputs + width);
    if (width == 4 && taps->dtype == DTYPE_BF16) {
        kernels->conv_four_taps(taps->bytes + first * 4 * sizeof(uint16_t), size, weights);
    } else {
        for (size_t i = 0; i < size; i++)
            for (size_t j = 0; j < width; j++)
                weights[j * size + i] = float_load(taps->bytes, taps->dtype, (first + i) * width + j);
    }
    for (size_t t = 0; t < rows; t++) {
        for (size_t j = 0; j < width; j++)
            inputs[j] = first + (t + j < history ? float_row(state, t + j) : float_row(x, t + j - history));
        float *y = float_row(out, t) + column;
        if (t + AHEAD < rows)
            prefetch(float_row(x, t + AHEAD) + first, float_row(out, t + AHEAD) + column, size);
        kernels->conv_silu(inputs, weights, width, y, size);
        if (factor > 0)
            kernels->unit_norm(y, task->op->op.constants.epsilon, factor, size);
    }
    for (size_t j = 0; j < history; j++)
        memcpy(float_row(state, j) + first,
               first + (rows + j < history ? float_row(state, rows + j) : float_row(x, rows + j - history)),
               size * sizeof(float));
}

/* x[T,C], taps[C,W], state[W-1,C] -> q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], state. Unit: a head of q, then of k,
 * then of v. */
static void conv_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    size_t keys = c->key_heads;
    for (size_t unit = begin; unit < end; unit++) {
        if (unit < 2 * keys) {
            float factor = unit < keys ? 1.0f / sqrtf((float)c->key_size) : 1.0f;
            conv_channels(task, unit * c->key_size, c->key_size, &task->op->views[unit < keys ? 3 : 4],
                          unit % keys * c->key_size, factor);
        } else {
            size_t column = (unit - 2 * keys) * c->value_size;
            conv_channels(task, 2 * keys * c->key_size + column, c->value_size, &task->op->views[5], column,
                          0);
        }
    }
}

const struct cpu_op cpu_conv_silu = {.units = conv_units, .run = conv_run, .workspace_bytes = conv_workspace};

static size_t gates_units(const struct cpu_task *task) {
    return task->op->views[4].rows;
}

static size_t gates_workspace(const struct cpu_task *task) {
    return 2 * task->op->views[2].columns * sizeof(float);
}

/* a[T,Hv], b[T,Hv], A_log[Hv], dt_bias[Hv] -> decay[T,Hv], beta[T,Hv]. Unit: a row. */
static void gates_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views;
    size_t heads = views[0].columns;
    float *A_log = task->workspace, *dt_bias = A_log + heads;
    weight_vector(&views[2], A_log);
    weight_vector(&views[3], dt_bias);
    for (size_t t = begin; t < end; t++)
        task->kernels->vector->delta_gates(float_row(&views[0], t), float_row(&views[1], t), A_log, dt_bias,
                                           float_row(&views[4], t), float_row(&views[5], t), heads);
}

const struct cpu_op cpu_delta_gates = {
    .units = gates_units, .run = gates_run, .workspace_bytes = gates_workspace};

static size_t units_a_head(const struct op_constants *c) {
    return (c->value_size + UNIT_ROWS - 1) / UNIT_ROWS;
}

static size_t scan_units(const struct cpu_task *task) {
    return task->op->op.constants.value_heads * units_a_head(&task->op->op.constants);
}

/* q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], decay[T,Hv], beta[T,Hv], state[Hv*Dv,Dk] -> y[T,Hv*Dv], state. Unit:
 * UNIT_ROWS rows of a value head's state, or the last of them. */
static void scan_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    size_t units = units_a_head(c);
    for (size_t unit = begin; unit < end; unit++) {
        size_t head = unit / units, row = unit % units * UNIT_ROWS;
        size_t key = head * c->key_heads / c->value_heads * c->key_size, value = head * c->value_size + row;
        struct delta_rows rows = {
            .state = float_row(&views[5], value),
            .q = float_row(&views[0], 0) + key,
            .k = float_row(&views[1], 0) + key,
            .v = float_row(&views[2], 0) + value,
            .decay = float_row(&views[3], 0) + head,
            .beta = float_row(&views[4], 0) + head,
            .y = float_row(&views[6], 0) + value,
            .q_stride = views[0].stride,
            .k_stride = views[1].stride,
            .v_stride = views[2].stride,
            .decay_stride = views[3].stride,
            .beta_stride = views[4].stride,
            .y_stride = views[6].stride,
            .tokens = views[0].rows,
            .rows = c->value_size - row < UNIT_ROWS ? c->value_size - row : UNIT_ROWS,
            .keys = c->key_size,
        };
        task->kernels->vector->delta_scan(&rows);
    }
}

const struct cpu_op cpu_delta_scan = {.units = scan_units, .run = scan_run};

static size_t tail_units(const struct cpu_task *task) {
    return task->op->op.constants.value_heads;
}

static size_t tail_workspace(const struct cpu_task *task) {
    return task->op->op.constants.value_size * sizeof(float);
}

/* a, b, A_log, dt_bias, q, k, v, z, weight[Dv], state -> state, y[T,Hv*Dv]: delta_gates, delta_scan and
 * gated_norm in one, token by token. Unit: a value head. */
static void tail_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct vector_kernels *kernels = task->kernels->vector;
    const struct view *views = task->op->views;
    float *weights = task->workspace;
    weight_vector(&views[8], weights);
    for (size_t head = begin; head < end; head++) {
        size_t key = head * c->key_heads / c->value_heads * c->key_size, value = head * c->value_size;
        float A_log = float_load(views[2].bytes, views[2].dtype, head);
        float dt_bias = float_load(views[3].bytes, views[3].dtype, head);
        for (size_t t = 0; t < views[10].rows; t++) {
            float decay, beta, *y = float_row(&views[10], t) + value;
            kernels->delta_gates(float_row(&views[0], t) + head, float_row(&views[1], t) + head, &A_log,
                                 &dt_bias, &decay, &beta, 1);
            struct delta_rows rows = {
                .state = float_row(&views[9], value),
                .q = float_row(&views[4], t) + key,
                .k = float_row(&views[5], t) + key,
                .v = float_row(&views[6], t) + value,
                .decay = &decay,
                .beta = &beta,
                .y = y,
                .tokens = 1,
                .rows = c->value_size,
                .keys = c->key_size,
            };
            kernels->delta_scan(&rows);
            kernels->gated_norm(y, float_row(&views[7], t) + value, weights, c->epsilon, y, c->value_size);
        }
    }
}

const struct cpu_op cpu_delta_tail = {
    .units = tail_units, .run = tail_run, .workspace_bytes = tail_workspace};
