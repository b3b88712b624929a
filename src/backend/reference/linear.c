/* Matrix products with weights: embedding rows, projections, the head. */
#include "backend/reference/reference.h"

/* tokens[T], table[V,H] -> y[T,H]: y[t] = table[tokens[t]]; an id outside the table reads row 0.
 * Unit: a row t. */
void reference_embed(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    (void)workspace;
    const struct view *tokens = &op->views[0], *table = &op->views[1], *y = &op->views[2];
    for (size_t t = begin; t < end; t++) {
        int32_t id = int_row(tokens, 0)[t];
        matrix_row(table, id >= 0 && (uint32_t)id < table->rows ? (size_t)id : 0, float_row(y, t));
    }
}

/* Columns [begin, end) of y = x W^T (or, accumulating, y += x W^T) for all rows. `block`: memory for a block
 * of rows of W. */
static void product_columns(const struct view *x, const struct view *matrix, size_t begin, size_t end,
                            bool accumulate, float *block, const struct view *y) {
    for (size_t out = begin, rows; out < end; out += rows) {
        rows = block_rows(end - out);
        matrix_block(matrix, out, rows, block);
        for (size_t t = 0; t < x->rows; t++) {
            float sums[BLOCK_ROWS], *result = float_row(y, t) + out;
            dot_block(block, rows, float_row(x, t), x->columns, sums);
            for (size_t i = 0; i < rows; i++)
                result[i] = accumulate ? result[i] + sums[i] : sums[i];
        }
    }
}

/* x[T,in], (norm), then matrix_count times W[out,in] -> y[T,out]: y = x W^T; with accumulate y += x W^T.
 * Unit: a row of a W, those of the first matrix first. */
void reference_linear(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    float *block = workspace;
    struct view x = product_input(op, block + BLOCK_ROWS * (size_t)op->views[0].columns);
    size_t first = 0;
    for (uint32_t i = 0; i < op->op.constants.matrix_count; i++) {
        const struct view *matrix = after_input(op) + 2 * i, *y = matrix + 1;
        size_t last = first + matrix->rows;
        size_t from = begin > first ? begin : first, to = end < last ? end : last;
        if (from < to)
            product_columns(&x, matrix, from - first, to - first, op->op.constants.accumulate, block, y);
        first = last;
    }
}

/* x[R,H], (norm), head[V,H] -> logits[R,V] = x head^T. Unit: a row of the head. */
void reference_head(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    float *block = workspace;
    struct view x = product_input(op, block + BLOCK_ROWS * (size_t)op->views[0].columns);
    const struct view *head = after_input(op);
    product_columns(&x, head, begin, end, false, block, head + 1);
}
