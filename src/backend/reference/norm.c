/* Norms over the last dimension. */
#include "backend/reference/reference.h"

static void rms_norm_row(const float *x, const struct view *weight, float epsilon, float *y) {
    float scale = rms_scale(x, weight->columns, epsilon);
    for (size_t i = 0; i < weight->columns; i++)
        y[i] = x[i] * scale * vector_at(weight, i);
}

/* x[T,n], weight[n] -> y[T,n] = x / sqrt(mean(x^2) + epsilon) * weight, the mean over a row.
 * rms_norm: rows of the hidden state; head_norm: heads of q or k. Unit: a row. */
void reference_rms_norm(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    for (size_t t = begin; t < end; t++)
        rms_norm_row(float_row(&op->views[0], t), &op->views[1], op->op.constants.epsilon,
                     float_row(&op->views[2], t));
}

struct view product_input(const struct bound_op *op, float *rows) {
    struct view input = op->views[0];
    if (!op->op.constants.normalise)
        return input;
    for (size_t t = 0; t < input.rows; t++)
        rms_norm_row(float_row(&op->views[0], t), &op->views[1], op->op.constants.epsilon,
                     rows + t * input.columns);
    input.data = rows;
    input.bytes = input.data;
    input.stride = input.columns;
    return input;
}

void gated_norm_row(const float *x, const float *z, const struct view *weight, float epsilon, float *y) {
    size_t size = weight->columns;
    float scale = rms_scale(x, size, epsilon);
    for (size_t i = 0; i < size; i++)
        y[i] = x[i] * scale * vector_at(weight, i) * silu(z[i]);
}

/* x[T,Hv*Dv], z[T,Hv*Dv], weight[Dv] -> y[T,Hv*Dv]: per head y = x / sqrt(mean(x^2) + epsilon) * weight *
 * silu(z). Unit: a head of a row. */
void reference_gated_norm(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct view *x = &op->views[0], *z = &op->views[1], *weight = &op->views[2], *y = &op->views[3];
    size_t heads = op->op.constants.value_heads, size = weight->columns;
    for (size_t unit = begin; unit < end; unit++) {
        size_t t = unit / heads, first = unit % heads * size;
        gated_norm_row(float_row(x, t) + first, float_row(z, t) + first, weight, op->op.constants.epsilon,
                       float_row(y, t) + first);
    }
}
