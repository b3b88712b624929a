/* The gated delta layers: causal convolution, gates, the recurrence over the tokens. */
#include "backend/reference/reference.h"

struct convolution {
    const struct view *x, *taps, *ring;
    size_t position; /* of row 0 of x */
};

/* silu(sum_j taps[channel, j] x[t-W+1+j, channel]); rows before the first come from the ring. */
static float conv_silu_at(const struct convolution *conv, size_t t, size_t channel) {
    size_t width = conv->taps->columns, history = width - 1;
    float sum = 0;
    for (size_t j = 0; j < width; j++) {
        const float *input = t + j < history ? float_row(conv->ring, (conv->position + t + j + 1) % width)
                                             : float_row(conv->x, t + j - history);
        sum += vector_at(conv->taps, channel * width + j) * input[channel];
    }
    return silu(sum);
}

/* Puts channels [first, first + size) of the last rows of x into the ring, once they have been read. */
static void conv_remember(const struct convolution *conv, size_t first, size_t size) {
    size_t width = conv->taps->columns, rows = conv->x->rows;
    for (size_t t = rows > width ? rows - width : 0; t < rows; t++)
        memcpy(float_row(conv->ring, (conv->position + t) % width) + first, float_row(conv->x, t) + first,
               size * sizeof(float));
}

/* y / sqrt(sum(y^2) + epsilon) * factor */
static void l2_normalise(float *y, size_t size, float epsilon, float factor) {
    float scale = 1.0f / sqrtf(dot(y, y, size) + epsilon);
    for (size_t i = 0; i < size; i++)
        y[i] = y[i] * scale * factor;
}

/* x[T,C], taps[C,W], state[W,C] -> q[T,Hk*Dk], k[T,Hk*Dk], v[T,Hv*Dv], state; C = 2 Hk Dk + Hv Dv:
 * y[t,c] = silu(sum_j taps[c,j] x[t-W+1+j, c]), rows before the first from the state, where row p % W is that
 * of position p; the channels are q, then k, then v; q and k of a head: y / sqrt(sum(y^2) + l2_epsilon), and
 * q is scaled by Dk^-0.5 too. Unit: a head of q, then of k, then of v. */
void reference_conv_silu(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    struct convolution conv = {&op->views[1], &op->views[2], &op->views[3],
                               record_of(&op->views[0])->position};
    size_t heads = c->key_heads, keys = heads * c->key_size;
    for (size_t unit = begin; unit < end; unit++) {
        bool key = unit < 2 * heads;
        size_t size = key ? c->key_size : c->value_size;
        size_t first = key ? unit * size : 2 * keys + (unit - 2 * heads) * size;
        const struct view *out = &op->views[unit < heads ? 4 : key ? 5 : 6];
        size_t column = first - (unit < heads ? 0 : key ? keys : 2 * keys);
        for (size_t t = 0; t < out->rows; t++) {
            float *y = float_row(out, t) + column;
            for (size_t i = 0; i < size; i++)
                y[i] = conv_silu_at(&conv, t, first + i);
            if (key)
                l2_normalise(y, size, c->l2_epsilon, unit < heads ? 1.0f / sqrtf((float)size) : 1.0f);
        }
        conv_remember(&conv, first, size);
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

/* record, qkv[1,C], a, b, taps, A_log, dt_bias, z, weight[Dv], ring, state -> ring, state, y[1,Hv*Dv]:
 * conv_silu and delta_tail in one. Unit: a key head with its value heads. */
void reference_delta_step(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct op_constants *c = &op->op.constants;
    const struct view *views = op->views, *state = &views[10];
    struct convolution conv = {&views[1], &views[4], &views[9], record_of(&views[0])->position};
    size_t keys = (size_t)c->key_heads * c->key_size, size = c->key_size, values = c->value_size;
    size_t sharing = c->value_heads / c->key_heads;
    float *q = workspace, *k = q + size;
    for (size_t key_head = begin; key_head < end; key_head++) {
        size_t first = key_head * size;
        for (size_t i = 0; i < size; i++) {
            q[i] = conv_silu_at(&conv, 0, first + i);
            k[i] = conv_silu_at(&conv, 0, keys + first + i);
        }
        l2_normalise(q, size, c->l2_epsilon, 1.0f / sqrtf((float)size));
        l2_normalise(k, size, c->l2_epsilon, 1.0f);
        conv_remember(&conv, first, size);
        conv_remember(&conv, keys + first, size);
        for (size_t head = key_head * sharing; head < (key_head + 1) * sharing; head++) {
            float decay = decay_of(float_row(&views[2], 0)[head], vector_at(&views[5], head),
                                   vector_at(&views[6], head));
            float beta = sigmoid(float_row(&views[3], 0)[head]);
            float *y = float_row(&views[11], 0) + head * values;
            for (size_t i = 0; i < values; i++) {
                float v = conv_silu_at(&conv, 0, 2 * keys + head * values + i);
                y[i] = delta_step(float_row(state, head * values + i), q, k, v, decay, beta, size);
            }
            conv_remember(&conv, 2 * keys + head * values, values);
            gated_norm_row(y, float_row(&views[7], 0) + head * values, &views[8], c->epsilon, y);
        }
    }
}
