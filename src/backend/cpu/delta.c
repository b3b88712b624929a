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

/* A convolution's operands, and memory for a pointer to an input and the taps of a head's channels, one for
 * each tap. */
struct convolution {
    const struct view *x, *taps, *ring;
    size_t position; /* of row 0 of x */
    const float **inputs;
};

static size_t head_channels(const struct op_constants *c) {
    return larger(c->key_size, c->value_size);
}

static size_t conv_memory(const struct op_constants *c) {
    return c->taps * (head_channels(c) * sizeof(float) + sizeof(const float *));
}

static size_t conv_workspace(const struct cpu_task *task) {
    return conv_memory(&task->op->op.constants);
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

/* Channels [first, first + size) of the convolution for all rows, into y[T, size] of this stride; with factor
 * above 0 each row is then made a unit vector times it. */
static void conv_channels(const struct cpu_task *task, const struct convolution *conv, size_t first,
                          size_t size, float factor, float *y, size_t stride) {
    const struct view *taps = conv->taps;
    const struct vector_kernels *kernels = task->kernels->vector;
    size_t width = taps->columns, history = width - 1, rows = conv->x->rows;
    float *weights = (float *)(conv->inputs + width);
    if (width == 4 && taps->dtype == DTYPE_BF16) {
        kernels->conv_four_taps(taps->bytes + first * 4 * sizeof(uint16_t), size, weights);
    } else {
        for (size_t i = 0; i < size; i++)
            for (size_t j = 0; j < width; j++)
                weights[j * size + i] = float_load(taps->bytes, taps->dtype, (first + i) * width + j);
    }
    for (size_t t = 0; t < rows; t++, y += stride) {
        for (size_t j = 0; j < width; j++)
            conv->inputs[j] =
                first + (t + j < history ? float_row(conv->ring, (conv->position + t + j + 1) % width)
                                         : float_row(conv->x, t + j - history));
        if (t + AHEAD < rows)
            prefetch(float_row(conv->x, t + AHEAD) + first, y + AHEAD * stride, size);
        kernels->conv_silu(conv->inputs, weights, width, y, size);
        if (factor > 0)
            kernels->unit_norm(y, task->op->op.constants.l2_epsilon, factor, size);
    }
}

/* Puts channels [first, first + size) of the last rows of x into the ring, once they have been read. */
static void conv_remember(const struct convolution *conv, size_t first, size_t size) {
    size_t width = conv->taps->columns, rows = conv->x->rows;
    for (size_t t = rows > width ? rows - width : 0; t < rows; t++)
        memcpy(float_row(conv->ring, (conv->position + t) % width) + first, float_row(conv->x, t) + first,
               size * sizeof(float));
}

/* record, x[T,C], taps[C,W], state[W,C] -> q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], state. Unit: a head of q, then
 * of k, then of v. */
static void conv_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    struct convolution conv = {&views[1], &views[2], &views[3], record_of(&views[0])->position,
                               task->workspace};
    size_t heads = c->key_heads, keys = heads * c->key_size;
    for (size_t unit = begin; unit < end; unit++) {
        bool key = unit < 2 * heads;
        size_t size = key ? c->key_size : c->value_size;
        size_t first = key ? unit * size : 2 * keys + (unit - 2 * heads) * size;
        const struct view *out = &views[unit < heads ? 4 : key ? 5 : 6];
        size_t column = first - (unit < heads ? 0 : key ? keys : 2 * keys);
        float factor = unit < heads ? 1.0f / sqrtf((float)size) : key ? 1.0f : 0.0f;
        conv_channels(task, &conv, first, size, factor, float_row(out, 0) + column, out->stride);
        conv_remember(&conv, first, size);
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

static size_t value_heads(const struct cpu_task *task) {
    return task->op->op.constants.value_heads;
}

/* One token of one value head: delta_gates, delta_scan and gated_norm. */
struct head_step {
    float a, b;
    const struct view *A_log, *dt_bias, *state;
    const float *q, *k, *v, *z, *weights; /* of the head; the norm's */
    float *y;
};

static void step_head(const struct cpu_task *task, size_t head, const struct head_step *step) {
    const struct op_constants *c = &task->op->op.constants;
    const struct vector_kernels *kernels = task->kernels->vector;
    float A_log = float_load(step->A_log->bytes, step->A_log->dtype, head);
    float dt_bias = float_load(step->dt_bias->bytes, step->dt_bias->dtype, head);
    float decay, beta;
    kernels->delta_gates(&step->a, &step->b, &A_log, &dt_bias, &decay, &beta, 1);
    struct delta_rows rows = {
        .state = float_row(step->state, head * c->value_size),
        .q = step->q,
        .k = step->k,
        .v = step->v,
        .decay = &decay,
        .beta = &beta,
        .y = step->y,
        .tokens = 1,
        .rows = c->value_size,
        .keys = c->key_size,
    };
    kernels->delta_scan(&rows);
    kernels->gated_norm(step->y, step->z, step->weights, c->epsilon, step->y, c->value_size);
}

static size_t tail_workspace(const struct cpu_task *task) {
    return task->op->op.constants.value_size * sizeof(float);
}

/* a, b, A_log, dt_bias, q, k, v, z, weight[Dv], state -> state, y[T,Hv*Dv]: delta_gates, delta_scan and
 * gated_norm in one, token by token. Unit: a value head. */
static void tail_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    float *weights = task->workspace;
    weight_vector(&views[8], weights);
    for (size_t head = begin; head < end; head++) {
        size_t key = head * c->key_heads / c->value_heads * c->key_size, value = head * c->value_size;
        for (size_t t = 0; t < views[10].rows; t++) {
            struct head_step step = {
                .a = float_row(&views[0], t)[head],
                .b = float_row(&views[1], t)[head],
                .A_log = &views[2],
                .dt_bias = &views[3],
                .q = float_row(&views[4], t) + key,
                .k = float_row(&views[5], t) + key,
                .v = float_row(&views[6], t) + value,
                .z = float_row(&views[7], t) + value,
                .weights = weights,
                .state = &views[9],
                .y = float_row(&views[10], t) + value,
            };
            step_head(task, head, &step);
        }
    }
}

const struct cpu_op cpu_delta_tail = {
    .units = value_heads, .run = tail_run, .workspace_bytes = tail_workspace};

/* The operands of a step's convolution. */
static struct convolution step_convolution(const struct cpu_task *task) {
    const struct view *views = task->op->views;
    return (struct convolution){&views[1], &views[4], &views[9], record_of(&views[0])->position,
                                task->workspace};
}

/* q and k of all key heads, which several value heads share. */
static size_t step_shared(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return 2 * (size_t)c->key_heads * c->key_size * sizeof(float);
}

static size_t step_prepare_units(const struct cpu_task *task) {
    return task->op->op.constants.key_heads;
}

/* Unit: a key head. */
static void step_prepare(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    struct convolution conv = step_convolution(task);
    size_t size = c->key_size, keys = c->key_heads * size;
    float *q = task->shared, *k = q + keys;
    for (size_t key = begin * size; key < end * size; key += size) {
        conv_channels(task, &conv, key, size, 1.0f / sqrtf((float)size), q + key, size);
        conv_channels(task, &conv, keys + key, size, 1.0f, k + key, size);
        conv_remember(&conv, key, size);
        conv_remember(&conv, keys + key, size);
    }
}

/* The convolution's memory, v of a head, the norm's weights. */
static size_t step_workspace(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return conv_memory(c) + 2 * c->value_size * sizeof(float);
}

/* record, qkv[1,C], a, b, taps, A_log, dt_bias, z, weight[Dv], ring, state -> ring, state, y[1,Hv*Dv]:
 * conv_silu and delta_tail in one. Unit: a value head. */
static void step_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    struct convolution conv = step_convolution(task);
    size_t size = c->key_size, values = c->value_size, keys = c->key_heads * size;
    const float *q = task->shared, *k = q + keys;
    float *v = (float *)((char *)task->workspace + conv_memory(c)), *weights = v + values;
    weight_vector(&views[8], weights);
    for (size_t head = begin; head < end; head++) {
        size_t key = head * c->key_heads / c->value_heads * size, value = head * values;
        conv_channels(task, &conv, 2 * keys + value, values, 0, v, values);
        conv_remember(&conv, 2 * keys + value, values);
        struct head_step step = {
            .a = float_row(&views[2], 0)[head],
            .b = float_row(&views[3], 0)[head],
            .A_log = &views[5],
            .dt_bias = &views[6],
            .q = q + key,
            .k = k + key,
            .v = v,
            .z = float_row(&views[7], 0) + value,
            .weights = weights,
            .state = &views[10],
            .y = float_row(&views[11], 0) + value,
        };
        step_head(task, head, &step);
    }
}

const struct cpu_op cpu_delta_step = {
    .units = value_heads,
    .run = step_run,
    .prepare_units = step_prepare_units,
    .prepare = step_prepare,
    .shared_bytes = step_shared,
    .workspace_bytes = step_workspace,
};
