/* The mixture of experts: routing, the experts' matrix products, their weighted sum.
 *
 * A *pair* p is slot p%K of row p/K: one chosen expert of one token. With one row the pairs are visited as
 * they come; with more, expert by expert in the order of expert_sort, so that a row of an expert's matrix is
 * read once for all its tokens. The value of a pair is the same either way. */
#include "backend/reference/reference.h"

/* x[T,H], router[E,H], shared_gate[1,H] -> ids[T,K], scores[T,K+1]: p = softmax(router x) over all E; the K
 * largest in falling order, the lower id first on a tie; scores[k] = p[ids[k]] / sum_k p[ids[k]];
 * scores[K] = sigmoid(shared_gate x). Unit: a row. */
void reference_router(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct view *x = &op->views[0], *router = &op->views[1], *shared_gate = &op->views[2];
    size_t experts = op->op.constants.experts, chosen = op->op.constants.experts_per_token;
    float *row = workspace, *p = row + x->columns;
    for (size_t t = begin; t < end; t++) {
        const float *in = float_row(x, t);
        float largest = -INFINITY, total = 0;
        for (size_t e = 0; e < experts; e++) {
            matrix_row(router, e, row);
            p[e] = dot(row, in, x->columns);
            largest = p[e] > largest ? p[e] : largest;
        }
        for (size_t e = 0; e < experts; e++) {
            p[e] = expf(p[e] - largest);
            total += p[e];
        }
        for (size_t e = 0; e < experts; e++)
            p[e] /= total;

        int32_t *ids = int_row(&op->views[3], t);
        float *scores = float_row(&op->views[4], t), sum = 0;
        for (size_t k = 0; k < chosen; k++) {
            /* The first expert not chosen yet, unless a later one is larger: valid ids even among NaN. */
            size_t best = experts;
            for (size_t e = 0; e < experts; e++)
                if (p[e] != -1.0f && (best == experts || p[e] > p[best]))
                    best = e;
            ids[k] = (int32_t)best;
            scores[k] = p[best];
            sum += p[best];
            p[best] = -1.0f;
        }
        for (size_t k = 0; k < chosen; k++)
            scores[k] /= sum;
        matrix_row(shared_gate, 0, row);
        scores[chosen] = sigmoid(dot(row, in, x->columns));
    }
}

/* ids[T,K] -> starts[E+1], order[T*K]: the pairs sorted by expert, rising within one; expert e's are
 * order[starts[e]] .. order[starts[e+1] - 1]. Unit: all of it. */
void reference_expert_sort(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    if (begin == end)
        return;
    const struct view *ids = &op->views[0];
    int32_t *starts = int_row(&op->views[1], 0), *order = int_row(&op->views[2], 0), count = 0;
    for (size_t e = 0; e < op->op.constants.experts; e++) {
        starts[e] = count;
        for (size_t p = 0; p < (size_t)ids->rows * ids->columns; p++)
            if (int_row(ids, p / ids->columns)[p % ids->columns] == (int32_t)e)
                order[count++] = (int32_t)p;
    }
    starts[op->op.constants.experts] = count;
}

/* The operands that say which pairs belong to which expert; starts and order are NULL when T is 1. */
struct routing {
    const struct view *ids, *starts, *order;
};

/* The expert and the pairs that output row `unit` of an expert product is for, `out` rows an expert. With
 * starts: unit = expert * out + row, every pair of that expert. Without: unit = pair * out + row. */
struct expert_row {
    size_t matrix_row;    /* in W[E*out, in] */
    size_t column;        /* in y[T*K, out] */
    size_t count;         /* of pairs */
    const int32_t *pairs; /* NULL: the one pair `single` */
    size_t single;
};

static struct expert_row expert_row(const struct routing *routing, size_t unit, size_t out) {
    struct expert_row row = {.column = unit % out};
    if (routing->starts == NULL) {
        row.single = unit / out;
        row.count = 1;
        row.matrix_row = (size_t)int_row(routing->ids, 0)[row.single] * out + row.column;
        return row;
    }
    const int32_t *starts = int_row(routing->starts, 0) + unit / out;
    row.pairs = int_row(routing->order, 0) + starts[0];
    row.count = (size_t)(starts[1] - starts[0]);
    row.matrix_row = unit;
    return row;
}

static size_t pair_at(const struct expert_row *row, size_t index) {
    return row->pairs == NULL ? row->single : (size_t)row->pairs[index];
}

/* x[T or T*K,in], ids[T,K], (starts, order), W[E*out,in] -> y[T*K,out]: y[p] = W_e x[p/K], or W_e x[p] when x
 * has a row a pair, with e = ids[p]. Unit: a row of W if sorted, otherwise a row of y's pair p. */
void reference_expert_linear(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct view *x = &op->views[0], *ids = &op->views[1];
    const struct view *matrix = &op->views[op->op.operand_count - 2],
                      *y = &op->views[op->op.operand_count - 1];
    bool sorted = op->op.operand_count == 6;
    struct routing routing = {ids, sorted ? &op->views[2] : NULL, sorted ? &op->views[3] : NULL};
    float *weights = workspace;
    for (size_t unit = begin; unit < end; unit++) {
        struct expert_row row = expert_row(&routing, unit, y->columns);
        if (row.count > 0)
            matrix_row(matrix, row.matrix_row, weights);
        for (size_t i = 0; i < row.count; i++) {
            size_t pair = pair_at(&row, i), input = x->rows == ids->rows ? pair / ids->columns : pair;
            float_row(y, pair)[row.column] = dot(weights, float_row(x, input), x->columns);
        }
    }
}

/* gate[R,I], up[R,I] -> y[R,I] = silu(gate) up. Unit: a row. */
void reference_swiglu(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    for (size_t row = begin; row < end; row++)
        for (size_t i = 0; i < op->views[0].columns; i++)
            float_row(&op->views[2], row)[i] =
                silu(float_row(&op->views[0], row)[i]) * float_row(&op->views[1], row)[i];
}

/* routed[T*K,H], shared[T,H], scores[T,K+1], y[T,H] -> y: y += sum_k scores[k] routed[k] + scores[K] shared,
 * summed in this order and then added. Unit: a row. */
void reference_expert_combine(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    size_t chosen = op->op.constants.experts_per_token;
    for (size_t t = begin; t < end; t++) {
        const float *scores = float_row(&op->views[2], t);
        for (size_t i = 0; i < op->views[3].columns; i++) {
            float sum = 0;
            for (size_t k = 0; k < chosen; k++)
                sum += scores[k] * float_row(&op->views[0], t * chosen + k)[i];
            sum += scores[chosen] * float_row(&op->views[1], t)[i];
            float_row(&op->views[3], t)[i] += sum;
        }
    }
}

/* x[T,H], ids[T,K], (starts, order), gate[E*I,H], up[E*I,H], shared_gate[S,H], shared_up[S,H] ->
 * routed[T*K,I] = silu(gate_e x) up_e x, shared[T,S] = silu(shared_gate x) shared_up x: the gate and up
 * products and swiglu in one. Unit: a row of the shared matrices, then as in expert_linear. */
void reference_expert_gate_up(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    bool sorted = op->op.operand_count == 10;
    const struct view *x = &op->views[0], *ids = &op->views[1], *matrices = &op->views[sorted ? 4 : 2];
    const struct view *routed = &matrices[4], *shared = &matrices[5];
    struct routing routing = {ids, sorted ? &op->views[2] : NULL, sorted ? &op->views[3] : NULL};
    float *gate = workspace, *up = gate + x->columns;
    for (size_t unit = begin; unit < end; unit++) {
        if (unit < shared->columns) {
            matrix_row(&matrices[2], unit, gate);
            matrix_row(&matrices[3], unit, up);
            for (size_t t = 0; t < x->rows; t++)
                float_row(shared, t)[unit] =
                    silu(dot(gate, float_row(x, t), x->columns)) * dot(up, float_row(x, t), x->columns);
            continue;
        }
        struct expert_row row = expert_row(&routing, unit - shared->columns, routed->columns);
        if (row.count > 0) {
            matrix_row(&matrices[0], row.matrix_row, gate);
            matrix_row(&matrices[1], row.matrix_row, up);
        }
        for (size_t i = 0; i < row.count; i++) {
            size_t pair = pair_at(&row, i);
            const float *in = float_row(x, pair / ids->columns);
            float_row(routed, pair)[row.column] = silu(dot(gate, in, x->columns)) * dot(up, in, x->columns);
        }
    }
}

/* routed[T*K,I], shared[T,S], ids[T,K], scores[T,K+1], (starts, order), down[E*H,I], shared_down[H,S], y[T,H]
 * -> y += sum_k scores[k] down_e routed[k] + scores[K] shared_down shared: the down products and
 * expert_combine in one. Unit: a column of y. */
void reference_expert_down(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    bool sorted = op->op.operand_count == 9;
    const struct view *routed = &op->views[0], *shared = &op->views[1], *ids = &op->views[2];
    const struct view *matrices = &op->views[sorted ? 6 : 4], *y = &matrices[2];
    struct routing routing = {ids, sorted ? &op->views[4] : NULL, sorted ? &op->views[5] : NULL};
    size_t chosen = ids->columns, hidden = y->columns;
    size_t blocks = sorted ? op->op.constants.experts : chosen;
    float *weights = workspace;
    float *products = weights + (routed->columns > shared->columns ? routed->columns : shared->columns);
    for (size_t column = begin; column < end; column++) {
        for (size_t block = 0; block < blocks; block++) {
            struct expert_row row = expert_row(&routing, block * hidden + column, hidden);
            if (row.count > 0)
                matrix_row(&matrices[0], row.matrix_row, weights);
            for (size_t i = 0; i < row.count; i++) {
                size_t pair = pair_at(&row, i);
                products[pair] = dot(weights, float_row(routed, pair), routed->columns);
            }
        }
        matrix_row(&matrices[1], column, weights);
        for (size_t t = 0; t < y->rows; t++) {
            const float *scores = float_row(&op->views[3], t);
            float sum = 0;
            for (size_t k = 0; k < chosen; k++)
                sum += scores[k] * products[t * chosen + k];
            sum += scores[chosen] * dot(weights, float_row(shared, t), shared->columns);
            float_row(y, t)[column] += sum;
        }
    }
}
