/* The mixture of experts: routing, the experts' matrix products, their weighted sum.
 *
 * A *pair* p is slot p%K of row p/K: one chosen expert of one token. With one row the pairs are visited as
 * they come; with more, expert by expert in the order of expert_sort, so that a row of an expert's matrix is
 * read once for all its tokens. The value of a pair is the same either way. */
#include "backend/reference/reference.h"

/* x[T,H], (norm), router[E,H], shared_gate[1,H] -> ids[T,K], scores[T,K+1]: p = softmax(router x) over all E;
 * the K largest in falling order, the lower id first on a tie; scores[k] = p[ids[k]] / sum_k p[ids[k]];
 * scores[K] = sigmoid(shared_gate x). Unit: a row. */
void reference_router(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct view *router = after_input(op), *shared_gate = &router[1], *ids = &router[2];
    size_t experts = op->op.constants.experts, chosen = op->op.constants.experts_per_token;
    float *row = workspace, *logits = row + router->columns;
    struct view x = product_input(op, logits + experts);
    for (size_t t = begin; t < end; t++) {
        const float *in = float_row(&x, t);
        float *scores = float_row(&ids[1], t);
        for (size_t e = 0; e < experts; e++) {
            matrix_row(router, e, row);
            logits[e] = dot(row, in, x.columns);
        }
        route_row(logits, experts, chosen, int_row(ids, t), scores);
        matrix_row(shared_gate, 0, row);
        scores[chosen] = sigmoid(dot(row, in, x.columns));
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

/* A block of neighbouring output rows of one expert's matrix, and the pairs that they are for; `out` rows an
 * expert. With starts: unit = expert * out + row, and every pair of that expert. Without: unit = pair * out +
 * row, and that pair alone. */
struct expert_block {
    size_t matrix_row;    /* the first, in W[E*out, in] */
    size_t column;        /* the first, in y[T*K, out] */
    size_t rows;          /* BLOCK_ROWS at most */
    size_t count;         /* of pairs */
    const int32_t *pairs; /* NULL: the one pair `single` */
    size_t single;
};

/* The block that begins at unit `begin` and ends at `end` at the latest. */
static struct expert_block expert_block(const struct routing *routing, size_t begin, size_t end, size_t out) {
    struct expert_block block = {.column = begin % out};
    size_t left = out - block.column;
    block.rows = block_rows(end - begin < left ? end - begin : left);
    if (routing->starts == NULL) {
        block.single = begin / out;
        block.count = 1;
        block.matrix_row = (size_t)int_row(routing->ids, 0)[block.single] * out + block.column;
        return block;
    }
    const int32_t *starts = int_row(routing->starts, 0) + begin / out;
    block.pairs = int_row(routing->order, 0) + starts[0];
    block.count = (size_t)(starts[1] - starts[0]);
    block.matrix_row = begin;
    return block;
}

static size_t pair_at(const struct expert_block *block, size_t index) {
    return block->pairs == NULL ? block->single : (size_t)block->pairs[index];
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
    for (size_t unit = begin, rows; unit < end; unit += rows) {
        struct expert_block block = expert_block(&routing, unit, end, y->columns);
        rows = block.rows;
        if (block.count > 0)
            matrix_block(matrix, block.matrix_row, rows, weights);
        for (size_t i = 0; i < block.count; i++) {
            size_t pair = pair_at(&block, i), input = x->rows == ids->rows ? pair / ids->columns : pair;
            dot_block(weights, rows, float_row(x, input), x->columns, float_row(y, pair) + block.column);
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

/* out[i] = silu(gate_i x) up_i x for a block of rows of both matrices. */
static void gate_up_block(const float *gate, const float *up, size_t rows, const float *x, size_t columns,
                          float *out) {
    float gates[BLOCK_ROWS], ups[BLOCK_ROWS];
    dot_block(gate, rows, x, columns, gates);
    dot_block(up, rows, x, columns, ups);
    for (size_t i = 0; i < rows; i++)
        out[i] = silu(gates[i]) * ups[i];
}

/* x[T,H], (norm), ids[T,K], (starts, order), gate[E*I,H], up[E*I,H], shared_gate[S,H], shared_up[S,H] ->
 * routed[T*K,I] = silu(gate_e x) up_e x, shared[T,S] = silu(shared_gate x) shared_up x: the gate and up
 * products and swiglu in one. Unit: a row of the shared matrices, then as in expert_linear. */
void reference_expert_gate_up(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    const struct view *ids = after_input(op), *shared = &op->views[op->op.operand_count - 1];
    const struct view *routed = shared - 1, *matrices = shared - 5;
    bool sorted = matrices > ids + 1;
    struct routing routing = {ids, sorted ? &ids[1] : NULL, sorted ? &ids[2] : NULL};
    size_t shared_units = shared->columns, columns = op->views[0].columns;
    float *gate = workspace, *up = gate + BLOCK_ROWS * columns;
    struct view x = product_input(op, up + BLOCK_ROWS * columns);
    for (size_t unit = begin, rows; unit < end; unit += rows) {
        if (unit < shared_units) {
            rows = block_rows((end < shared_units ? end : shared_units) - unit);
            matrix_block(&matrices[2], unit, rows, gate);
            matrix_block(&matrices[3], unit, rows, up);
            for (size_t t = 0; t < x.rows; t++)
                gate_up_block(gate, up, rows, float_row(&x, t), columns, float_row(shared, t) + unit);
            continue;
        }
        struct expert_block block =
            expert_block(&routing, unit - shared_units, end - shared_units, routed->columns);
        rows = block.rows;
        if (block.count > 0) {
            matrix_block(&matrices[0], block.matrix_row, rows, gate);
            matrix_block(&matrices[1], block.matrix_row, rows, up);
        }
        for (size_t i = 0; i < block.count; i++) {
            size_t pair = pair_at(&block, i);
            gate_up_block(gate, up, rows, float_row(&x, pair / ids->columns), columns,
                          float_row(routed, pair) + block.column);
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
    size_t groups = sorted ? op->op.constants.experts : chosen;
    size_t widest = routed->columns > shared->columns ? routed->columns : shared->columns;
    float *weights = workspace, *products = weights + BLOCK_ROWS * widest; /* [T*K, BLOCK_ROWS] */
    for (size_t column = begin, rows; column < end; column += rows) {
        rows = block_rows(end - column);
        for (size_t group = 0; group < groups; group++) {
            size_t unit = group * hidden + column;
            struct expert_block block = expert_block(&routing, unit, unit + rows, hidden);
            if (block.count > 0)
                matrix_block(&matrices[0], block.matrix_row, rows, weights);
            for (size_t i = 0; i < block.count; i++) {
                size_t pair = pair_at(&block, i);
                dot_block(weights, rows, float_row(routed, pair), routed->columns,
                          products + pair * BLOCK_ROWS);
            }
        }
        matrix_block(&matrices[1], column, rows, weights);
        for (size_t t = 0; t < y->rows; t++) {
            const float *scores = float_row(&op->views[3], t);
            float from_shared[BLOCK_ROWS];
            dot_block(weights, rows, float_row(shared, t), shared->columns, from_shared);
            for (size_t i = 0; i < rows; i++) {
                float sum = 0;
                for (size_t k = 0; k < chosen; k++)
                    sum += scores[k] * products[(t * chosen + k) * BLOCK_ROWS + i];
                sum += scores[chosen] * from_shared[i];
                float_row(y, t)[column + i] += sum;
            }
        }
    }
}
