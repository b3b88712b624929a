/* Heads before attention: norm, rotary position, and the KV cache. */
#include <math.h>

#include "backend/cpu/cpu.h"

/* What a thread needs for heads: [rotary_size / 2] frequencies, cosines and sines, then [D] weights of the
 * norms of q and of k, and a key. */
struct heads_workspace {
    float *frequencies, *cosines, *sines, *q_norm, *k_norm, *key;
};

static size_t heads_workspace_bytes(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return (3 * (size_t)(c->rotary_size / 2) + 3 * (size_t)c->head_size) * sizeof(float);
}

static struct heads_workspace heads_workspace(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    size_t half = c->rotary_size / 2;
    struct heads_workspace w = {.frequencies = task->workspace};
    w.cosines = w.frequencies + half;
    w.sines = w.cosines + half;
    w.q_norm = w.sines + half;
    w.k_norm = w.q_norm + c->head_size;
    w.key = w.k_norm + c->head_size;
    for (size_t j = 0; j < half; j++)
        w.frequencies[j] = 1.0f / powf(c->rope_theta, (float)(2 * j) / (float)c->rotary_size);
    return w;
}

/* The angles are rounded to float32, as in transformers; their cosines and sines are exact up to 2^18 and
 * beyond only with the full reduction of the C library. */
static void angles_of(const struct heads_workspace *w, const struct op_constants *c, size_t position) {
    for (size_t j = 0; j < c->rotary_size / 2; j++) {
        float angle = (float)position * w->frequencies[j];
        w->cosines[j] = cosf(angle);
        w->sines[j] = sinf(angle);
    }
}

/* values[count] into elements column .. of a row of the cache, rounded to its type. */
static void cache_write(const struct cpu_task *task, const struct view *cache, size_t row, size_t column,
                        const float *values, size_t count) {
    size_t first = row * cache->stride + column;
    if (cache->dtype == DTYPE_BF16)
        task->kernels->attention->store_bf16(values, count, (uint16_t *)cache->data + first);
    else
        memcpy((float *)cache->data + first, values, count * sizeof *values);
}

static size_t position_of(const struct cpu_task *task) {
    return record_of(&task->op->views[0])->position;
}

static size_t rope_units(const struct cpu_task *task) {
    return task->op->views[1].rows / task->op->op.constants.heads;
}

/* Unit: the heads of a token. */
static void rope_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    struct heads_workspace w = heads_workspace(task);
    for (size_t t = begin; t < end; t++) {
        angles_of(&w, c, position_of(task) + t);
        for (size_t row = t * c->heads; row < (t + 1) * c->heads; row++)
            task->kernels->attention->rotate(float_row(&task->op->views[1], row), w.cosines, w.sines,
                                             c->rotary_size / 2);
    }
}

static size_t kv_write_units(const struct cpu_task *task) {
    return task->op->views[1].rows;
}

/* Unit: a token. */
static void kv_write_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views;
    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < 2; i++)
            cache_write(task, &views[3 + i], position_of(task) + t, 0, float_row(&views[1 + i], t),
                        views[1 + i].columns);
}

static size_t qk_prep_units(const struct cpu_task *task) {
    return task->op->views[2].rows;
}

/* Unit: a token. */
static void qk_prep_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    const struct attention_kernels *kernels = task->kernels->attention;
    struct heads_workspace w = heads_workspace(task);
    weight_vector(&views[4], w.q_norm);
    weight_vector(&views[5], w.k_norm);
    for (size_t t = begin; t < end; t++) {
        size_t position = position_of(task) + t;
        angles_of(&w, c, position);
        for (size_t row = t * c->heads; row < (t + 1) * c->heads; row++) {
            float *y = float_row(&views[6], row);
            task->kernels->vector->rms_norm(float_row(&views[1], row), w.q_norm, c->epsilon, y, c->head_size);
            kernels->rotate(y, w.cosines, w.sines, c->rotary_size / 2);
        }
        for (size_t head = 0; head < c->kv_heads; head++) {
            size_t column = head * c->head_size;
            task->kernels->vector->rms_norm(float_row(&views[2], t) + column, w.k_norm, c->epsilon, w.key,
                                            c->head_size);
            kernels->rotate(w.key, w.cosines, w.sines, c->rotary_size / 2);
            cache_write(task, &views[7], position, column, w.key, c->head_size);
        }
        cache_write(task, &views[8], position, 0, float_row(&views[3], t), views[3].columns);
    }
}

const struct cpu_op cpu_rope = {
    .units = rope_units, .run = rope_run, .workspace_bytes = heads_workspace_bytes};
const struct cpu_op cpu_kv_write = {.units = kv_write_units, .run = kv_write_run};
const struct cpu_op cpu_qk_prep = {
    .units = qk_prep_units, .run = qk_prep_run, .workspace_bytes = heads_workspace_bytes};
