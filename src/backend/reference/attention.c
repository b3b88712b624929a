/* The attention layers: rotary embedding, the KV cache, causal attention with an output gate. */
#include "backend/reference/reference.h"

/* Rotates x[D] to `position`: for j < rotary_size/2 the pair (x[j], x[j + rotary_size/2]) turns by position *
 * rope_theta^(-2j / rotary_size). The frequency and the angle are rounded to float32, as in transformers. */
static void rotate(float *x, uint32_t position, const struct op_constants *c) {
    size_t half = c->rotary_size / 2;
    for (size_t j = 0; j < half; j++) {
        float frequency = 1.0f / powf(c->rope_theta, (float)(2 * j) / (float)c->rotary_size);
        float angle = (float)position * frequency;
        float cosine = cosf(angle), sine = sinf(angle);
        float first = x[j], second = x[j + half];
        x[j] = first * cosine - second * sine;
        x[j + half] = second * cosine + first * sine;
    }
}

/* record, x[T*heads,D] -> x: row t*heads + h turned to position + t. Unit: a row. */
void reference_rope(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    uint32_t position = record_of(&op->views[0])->position;
    for (size_t row = begin; row < end; row++)
        rotate(float_row(&op->views[1], row), position + (uint32_t)(row / op->op.constants.heads),
               &op->op.constants);
}

/* values[count] into elements column .. of a row of the cache, rounded to its type. */
static void cache_write(const struct view *cache, size_t row, size_t column, const float *values,
                        size_t count) {
    size_t first = row * cache->stride + column;
    for (size_t i = 0; i < count; i++) {
        if (cache->dtype == DTYPE_BF16)
            ((uint16_t *)cache->data)[first + i] = float_to_bf16(values[i]);
        else
            ((float *)cache->data)[first + i] = values[i];
    }
}

/* count elements from `column` of a row of the cache as float32. */
static void cache_read(const struct view *cache, size_t row, size_t column, float *values, size_t count) {
    size_t first = row * cache->stride + column;
    for (size_t i = 0; i < count; i++)
        values[i] = float_load(cache->data, cache->dtype, first + i);
}

/* record, k[T,G*D], v[T,G*D] -> K[L,G*D], V[L,G*D]: rows position .. position+T-1. Unit: a row t. */
void reference_kv_write(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct view *k = &op->views[1], *v = &op->views[2];
    for (size_t t = begin; t < end; t++) {
        size_t row = record_of(&op->views[0])->position + t;
        cache_write(&op->views[3], row, 0, float_row(k, t), k->columns);
        cache_write(&op->views[4], row, 0, float_row(v, t), v->columns);
    }
}

/* y[D] = x / sqrt(mean(x^2) + epsilon) * weight, turned to `position` */
static void norm_and_rotate(const float *x, const struct view *weight, uint32_t position,
                            const struct op_constants *c, float *y) {
    float scale = rms_scale(x, c->head_size, c->epsilon);
    for (size_t i = 0; i < c->head_size; i++)
        y[i] = x[i] * scale * vector_at(weight, i);
    rotate(y, position, c);
}

/* record, q[T*N,D], k[T,G*D], v[T,G*D], q_norm[D], k_norm[D] -> y[T*N,D], K, V: head_norm and rope of q into
 * y, of k into the cache, and v into the cache. Unit: a head of a row, its N query heads before its G KV
 * heads. */
void reference_qk_prep(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct op_constants *c = &op->op.constants;
    const struct view *views = op->views;
    float *key = workspace;
    size_t heads = c->heads + c->kv_heads;
    for (size_t unit = begin; unit < end; unit++) {
        size_t t = unit / heads, head = unit % heads;
        uint32_t position = record_of(&views[0])->position + (uint32_t)t;
        if (head < c->heads) {
            size_t row = t * c->heads + head;
            norm_and_rotate(float_row(&views[1], row), &views[4], position, c, float_row(&views[6], row));
            continue;
        }
        size_t column = (head - c->heads) * c->head_size;
        norm_and_rotate(float_row(&views[2], t) + column, &views[5], position, c, key);
        cache_write(&views[7], position, column, key, c->head_size);
        cache_write(&views[8], position, column, float_row(&views[3], t) + column, c->head_size);
    }
}

/* record, q[T*N,D], gate[T*N,D], K[L,G*D], V[L,G*D] -> y[T*N,D]: with the positions p = 0 .. position+t and
 * KV head n*G/N: s_p = q.K_p D^-0.5; y = sum_p exp(s_p - max) V_p / sum_p exp(s_p - max) * sigmoid(gate).
 * Sums run over rising positions. Unit: a query head n of a row t. */
void reference_attention(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct op_constants *c = &op->op.constants;
    const struct view *q = &op->views[1], *gate = &op->views[2], *y = &op->views[5];
    const struct view *key_cache = &op->views[3], *value_cache = &op->views[4];
    size_t size = c->head_size;
    float scale = 1.0f / sqrtf((float)size);
    float *cached = workspace, *scores = cached + size;
    for (size_t row = begin; row < end; row++) {
        size_t count = record_of(&op->views[0])->position + row / c->heads + 1;
        size_t column = row % c->heads * c->kv_heads / c->heads * size;
        float largest = -INFINITY;
        for (size_t p = 0; p < count; p++) {
            cache_read(key_cache, p, column, cached, size);
            scores[p] = dot(float_row(q, row), cached, size) * scale;
            largest = scores[p] > largest ? scores[p] : largest;
        }
        float *out = float_row(y, row), total = 0;
        for (size_t i = 0; i < size; i++)
            out[i] = 0;
        for (size_t p = 0; p < count; p++) {
            float weight = expf(scores[p] - largest);
            total += weight;
            cache_read(value_cache, p, column, cached, size);
            for (size_t i = 0; i < size; i++)
                out[i] += weight * cached[i];
        }
        for (size_t i = 0; i < size; i++)
            out[i] = out[i] / total * sigmoid(float_row(gate, row)[i]);
    }
}
