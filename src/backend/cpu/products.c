/* Projections and the head: y = x W^T. Unit: a panel of rows of a W, those of the first matrix first. And the
 * inputs of these and the experts' products. */
#include "backend/cpu/products.h"

static bool is_prepared(const struct cpu_task *task, const struct view *matrix) {
    return takes_prepared(matrix) && task->op->op.kind != OP_ROUTER;
}

/* Whether any of the op's matrices takes its input made ready, or as it is. */
static bool has_matrix(const struct cpu_task *task, bool prepared) {
    const struct op *op = &task->op->op;
    for (uint32_t i = op->constants.normalise ? 2 : 1; i < op->operand_count; i++)
        if (op->operands[i].space == SPACE_WEIGHT && is_prepared(task, &task->op->views[i]) == prepared)
            return true;
    return false;
}

/* Shared memory begins with the normalised rows as float32, where there are any; then come the prepared ones.
 */
static size_t normalised_bytes(const struct cpu_task *task) {
    const struct view *x = &task->op->views[0];
    return task->op->op.constants.normalise ? (x->rows * (size_t)x->columns * sizeof(float) + 63) / 64 * 64
                                            : 0;
}

static void *prepared_rows(const struct cpu_task *task) {
    return (char *)task->shared + normalised_bytes(task);
}

size_t input_prepare_units(const struct cpu_task *task) {
    return task->op->op.constants.normalise || has_matrix(task, true) ? task->op->views[0].rows : 0;
}

void input_prepare(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *x = &task->op->views[0];
    bool prepared = has_matrix(task, true), floats = has_matrix(task, false);
    if (!task->op->op.constants.normalise) {
        prepare_rows(task, x, begin, end, prepared_rows(task));
        return;
    }
    size_t columns = x->columns, bytes = operand_row_bytes(task->format, columns);
    float *weights = task->workspace, *row = weights + columns;
    weight_vector(&task->op->views[1], weights);
    for (size_t t = begin; t < end; t++) {
        if (floats)
            row = (float *)task->shared + t * columns;
        task->kernels->vector->rms_norm(float_row(x, t), weights, task->op->op.constants.epsilon, row,
                                        columns);
        if (prepared)
            task->kernels->matrix->prepare[task->format](row, columns,
                                                         (char *)prepared_rows(task) + t * bytes);
    }
}

size_t input_shared(const struct cpu_task *task) {
    return normalised_bytes(task) + (has_matrix(task, true) ? prepared_bytes(task, &task->op->views[0]) : 0);
}

size_t input_workspace(const struct cpu_task *task) {
    return task->op->op.constants.normalise ? 2 * task->op->views[0].columns * sizeof(float) : 0;
}

struct operand_rows input_for(const struct cpu_task *task, const struct view *matrix) {
    const struct view *x = &task->op->views[0];
    if (is_prepared(task, matrix))
        return rows_for(task, matrix, x, prepared_rows(task));
    bool normalise = task->op->op.constants.normalise;
    return (struct operand_rows){OPERAND_F32, x->columns,
                                 (normalise ? x->columns : x->stride) * sizeof(float),
                                 normalise ? task->shared : x->bytes};
}

/* Panels [begin, end) of one matrix. The rows of x are taken in batches, so that a batch stays in the cache
 * while the panels pass by. */
static void product_panels(const struct cpu_task *task, const struct view *matrix, size_t begin, size_t end,
                           bool accumulate, const struct view *y) {
    const struct view *x = &task->op->views[0];
    struct operand_rows all = input_for(task, matrix);
    struct view until_end = until_row(matrix, end * PANEL_ROWS);
    float *products = task->workspace;
    void *panel = (char *)task->workspace + BATCH_BYTES;
    for (size_t row = 0, count; row < x->rows; row += count) {
        count = least(x->rows - row, BATCH_ROWS);
        struct operand_rows batch = all;
        batch.data += row * all.row_bytes;
        for (size_t first = begin * PANEL_ROWS; first < end * PANEL_ROWS; first += PANEL_ROWS) {
            size_t rows = least(matrix->rows - first, PANEL_ROWS);
            multiply(task, &until_end, first, rows, &batch, NULL, count, products, panel);
            for (size_t i = 0; i < count; i++) {
                float *out = float_row(y, row + i) + first;
                const float *product = products + i * PANEL_ROWS;
                for (size_t r = 0; r < rows; r++)
                    out[r] = accumulate ? out[r] + product[r] : product[r];
            }
        }
    }
}

static size_t products_workspace(const struct cpu_task *task) {
    return larger(BATCH_BYTES + PANEL_BYTES, input_workspace(task));
}

static size_t linear_units(const struct cpu_task *task) {
    size_t units = 0;
    for (uint32_t i = 0; i < task->op->op.constants.matrix_count; i++)
        units += panels_of(after_input(task->op)[2 * i].rows);
    return units;
}

static void linear_run(const struct cpu_task *task, size_t begin, size_t end) {
    size_t first = 0;
    for (uint32_t i = 0; i < task->op->op.constants.matrix_count; i++) {
        const struct view *matrix = after_input(task->op) + 2 * i;
        size_t last = first + panels_of(matrix->rows);
        size_t from = begin > first ? begin : first, to = least(end, last);
        if (from < to)
            product_panels(task, matrix, from - first, to - first, task->op->op.constants.accumulate,
                           matrix + 1);
        first = last;
    }
}

const struct cpu_op cpu_linear = {
    .units = linear_units,
    .run = linear_run,
    .prepare_units = input_prepare_units,
    .prepare = input_prepare,
    .shared_bytes = input_shared,
    .workspace_bytes = products_workspace,
};

static size_t head_units(const struct cpu_task *task) {
    return panels_of(after_input(task->op)->rows);
}

static void head_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *head = after_input(task->op);
    product_panels(task, head, begin, end, false, head + 1);
}

const struct cpu_op cpu_head = {
    .units = head_units,
    .run = head_run,
    .prepare_units = input_prepare_units,
    .prepare = input_prepare,
    .shared_bytes = input_shared,
    .workspace_bytes = products_workspace,
};
