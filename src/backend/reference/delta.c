/* The gated delta layers: causal convolution, gates, the recurrence over the tokens. */
#include "backend/reference/reference.h"

/* Channels [first, first + size) of the convolution for all rows, into out[T, size] rows from `column`. The
 * state holds the last W-1 inputs, oldest first; it is moved on by T rows at the end. */
static void conv_silu_channels(const struct bound_op *op, size_t first, size_t size, const struct view *out,
                               size_t column) {
    const struct view *x = &op->views[0], *taps = &op->views[1], *state = &op->views[2];
    size_t width = taps->columns, history = width - 1, rows = x->rows;
    for (size_t t = 0; t < rows; t++) {
        float *y = float_row(out, t) + column;
        for (size_t i = 0; i < size; i++) {
            size_t channel = first + i;
            float sum = 0;
            for (size_t j = 0; j < width; j++) {
                const float *input =
                    t + j < history ? float_row(state, t + j) : float_row(x, t + j - history);
                sum += vector_at(taps, channel * width + j) * input[channel];
            }
            y[i] = silu(sum);
        }
    }
    for (size_t j = 0; j < history; j++) {
        const float *input =
            rows + j < history ? float_row(state, rows + j) : float_row(x, rows + j - history);
        for (size_t channel = first; channel < first + size; channel++)
            float_row(state, j)[channel] = input[channel];
    }
}

/* x[T,C], taps[C,W], state[W-1,C] -> q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], state; C = 2 Hk Dk + Hv Dv:
 * y[t,c] = silu(sum_j taps[c,j] x[t-W+1+j, c]), rows before the first from the state; the channels are q,
 * then k, then v; q and k of a head: y / sqrt(sum(y^2) + epsilon), and q is scaled by Dk^-0.5 too. Unit: a
 * head of q, then of k, then of v. */
void reference_conv_silu(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    float q_scale = 1.0f / sqrtf((float)c->key_size);
    for (size_t unit = begin; unit < end; unit++) {
        if (unit >= 2 * (size_t)c->key_heads) {
            size_t column = (unit - 2 * (size_t)c->key_heads) * c->value_size;
            conv_silu_channels(op, 2 * (size_t)c->key_heads * c->key_size + column, c->value_size,
                               &op->views[5], column);
            continue;
        }
        const struct view *out = &op->views[unit < c->key_heads ? 3 : 4];
        size_t column = unit % c->key_heads * c->key_size;
        conv_silu_channels(op, unit * c->key_size, c->key_size, out, column);
        for (size_t t = 0; t < out->rows; t++) {
            float *y = float_row(out, t) + column;
            float scale = 1.0f / sqrtf(dot(y, y, c->key_size) + c->epsilon);
            for (size_t i = 0; i < c->key_size; i++)
                y[i] = unit < c->key_heads ? y[i] * scale * q_scale : y[i] * scale;
        }
    }
}

/* exp(-exp(A_log) softplus(a + dt_bias)), in (0, 1]; softplus(x) = log(1 + exp(x)) without overflow. */
static float decay_of(float a, float A_log, float dt_bias) {
    float x = a + dt_bias;
    float softplus = x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
    return expf(-expf(A_log) * softplus);
}

/* a[T,Hv], b[T,Hv], A_log[Hv], dt_bias[Hv] -> decay[T,Hv] = exp(-exp(A_log) softplus(a + dt_bias)),
 * beta[T,Hv] = sigmoid(b). Unit: a row. */
void reference_delta_gates(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct view *views = op->views;
    for (size_t t = begin; t < end; t++)
        for (size_t head = 0; head < views[0].columns; head++) {
            float_row(&views[4], t)[head] = decay_of(float_row(&views[0], t)[head],
                                                     vector_at(&views[2], head), vector_at(&views[3], head));
            float_row(&views[5], t)[head] = sigmoid(float_row(&views[1], t)[head]);
        }
}

/* One token of one row of a head's state S[Dv,Dk]; returns its element of y:
 * s = decay s; s += beta (v - s.k) k; y = s.q */
static float delta_step(float *s, const float *q, const float *k, float v, float decay, float beta,
                        size_t size) {
    for (size_t i = 0; i < size; i++)
        s[i] *= decay;
    float change = beta * (v - dot(s, k, size));
    for (size_t i = 0; i < size; i++)
        s[i] += change * k[i];
    return dot(s, q, size);
}

/* q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], decay[T,Hv], beta[T,Hv], state[Hv*Dv,Dk] -> y[T,Hv*Dv], state:
 * for value head h with key head h*Hk/Hv, and each token in order:
 * S = decay S; S += beta (v - S k) k^T; y = S q. Unit: a row of the state. */
void reference_delta_scan(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    const struct view *q = &op->views[0], *k = &op->views[1], *v = &op->views[2];
    const struct view *decay = &op->views[3], *beta = &op->views[4], *state = &op->views[5];
    const struct view *y = &op->views[6];
    for (size_t unit = begin; unit < end; unit++) {
        size_t head = unit / c->value_size;
        size_t key = head * c->key_heads / c->value_heads * c->key_size;
        for (size_t t = 0; t < q->rows; t++)
            float_row(y, t)[unit] = delta_step(
                float_row(state, unit), float_row(q, t) + key, float_row(k, t) + key, float_row(v, t)[unit],
                float_row(decay, t)[head], float_row(beta, t)[head], c->key_size);
    }
}

/* a, b, A_log, dt_bias, q, k, v, z, weight[Dv], state -> state, y[T,Hv*Dv]: delta_gates, delta_scan and
 * gated_norm in one. Unit: a value head. */
void reference_delta_tail(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    const struct view *views = op->views, *state = &views[9], *y = &views[10];
    size_t size = c->value_size;
    for (size_t head = begin; head < end; head++) {
        size_t key = head * c->key_heads / c->value_heads * c->key_size;
        for (size_t t = 0; t < y->rows; t++) {
            float decay = decay_of(float_row(&views[0], t)[head], vector_at(&views[2], head),
                                   vector_at(&views[3], head));
            float beta = sigmoid(float_row(&views[1], t)[head]);
            float *out = float_row(y, t) + head * size;
            for (size_t i = 0; i < size; i++)
                out[i] = delta_step(float_row(state, head * size + i), float_row(&views[4], t) + key,
                                    float_row(&views[5], t) + key, float_row(&views[6], t)[head * size + i],
                                    decay, beta, c->key_size);
            gated_norm_row(out, float_row(&views[7], t) + head * size, &views[8], c->epsilon, out);
        }
    }
}
