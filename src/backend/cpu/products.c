/* Projections and the head: y = x W^T. Unit: a panel of rows of a W, those of the first matrix first. */
#include "backend/cpu/products.h"

/* Panels [begin, end) of one matrix. The rows of x are taken in batches, so that a batch stays in the cache
 * while the panels pass by. */
static void product_panels(const struct cpu_task *task, const struct view *x, const struct view *matrix,
                           size_t begin, size_t end, bool accumulate, const struct view *y) {
    struct operand_rows all = rows_for(task, matrix, x, task->shared);
    float *products = task->workspace;
    void *panel = (char *)task->workspace + BATCH_BYTES;
    for (size_t row = 0, count; row < x->rows; row += count) {
        count = least(x->rows - row, BATCH_ROWS);
        struct operand_rows batch = all;
        batch.data += row * all.row_bytes;
        for (size_t first = begin * PANEL_ROWS; first < end * PANEL_ROWS; first += PANEL_ROWS) {
            size_t rows = least(matrix->rows - first, PANEL_ROWS);
            multiply(task, matrix, first, rows, &batch, NULL, count, products, panel);
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
    (void)task;
    return BATCH_BYTES + PANEL_BYTES;
}

static size_t linear_units(const struct cpu_task *task) {
    size_t units = 0;
    for (uint32_t i = 0; i < task->op->op.constants.matrix_count; i++)
        units += panels_of(task->op->views[1 + 2 * i].rows);
    return units;
}

static void linear_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *views = task->op->views;
    size_t first = 0;
    for (uint32_t i = 0; i < task->op->op.constants.matrix_count; i++) {
        const struct view *matrix = &views[1 + 2 * i];
        size_t last = first + panels_of(matrix->rows);
        size_t from = begin > first ? begin : first, to = least(end, last);
        if (from < to)
            product_panels(task, &views[0], matrix, from - first, to - first,
                           task->op->op.constants.accumulate, &views[2 + 2 * i]);
        first = last;
    }
}

static bool linear_prepares(const struct cpu_task *task) {
    for (uint32_t i = 0; i < task->op->op.constants.matrix_count; i++)
        if (takes_prepared(&task->op->views[1 + 2 * i]))
            return true;
    return false;
}

static size_t linear_prepare_units(const struct cpu_task *task) {
    return linear_prepares(task) ? task->op->views[0].rows : 0;
}

static size_t linear_shared(const struct cpu_task *task) {
    return linear_prepares(task) ? prepared_bytes(task, &task->op->views[0]) : 0;
}

/* Of the head as well: x is the first operand of both. */
static void linear_prepare(const struct cpu_task *task, size_t begin, size_t end) {
    prepare_rows(task, &task->op->views[0], begin, end, task->shared);
}

const struct cpu_op cpu_linear = {
    .units = linear_units,
    .run = linear_run,
    .prepare_units = linear_prepare_units,
    .prepare = linear_prepare,
    .shared_bytes = linear_shared,
    .workspace_bytes = products_workspace,
};

static size_t head_units(const struct cpu_task *task) {
    return panels_of(task->op->views[1].rows);
}

static void head_run(const struct cpu_task *task, size_t begin, size_t end) {
    product_panels(task, &task->op->views[0], &task->op->views[1], begin, end, false, &task->op->views[2]);
}

static size_t head_prepare_units(const struct cpu_task *task) {
    return takes_prepared(&task->op->views[1]) ? task->op->views[0].rows : 0;
}

static size_t head_shared(const struct cpu_task *task) {
    return takes_prepared(&task->op->views[1]) ? prepared_bytes(task, &task->op->views[0]) : 0;
}

const struct cpu_op cpu_head = {
    .units = head_units,
    .run = head_run,
    .prepare_units = head_prepare_units,
    .prepare = linear_prepare,
    .shared_bytes = head_shared,
    .workspace_bytes = products_workspace,
};
