/* What the ops that are matrix products share: inputs made ready, products of one panel. */
#ifndef CALLA_BACKEND_CPU_PRODUCTS_H
#define CALLA_BACKEND_CPU_PRODUCTS_H

#include "backend/cpu/cpu.h"

/* Input rows that go through a panel at a time: their products stay in the cache. */
#define BATCH_ROWS 256
#define BATCH_BYTES (BATCH_ROWS * PANEL_ROWS * sizeof(float))

static inline size_t panels_of(size_t rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

static inline size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Whether products with a weight take inputs that are made ready first. */
static inline bool takes_prepared(const struct view *matrix) {
    return matrix->dtype == DTYPE_AFFINE4;
}

/* Of ops whose matrices all multiply the one input x, their first operand: x made ready, normalised before if
 * the op does that. They are such an op's prepare_units, prepare and what it needs of shared memory, at its
 * begin, and of each thread's workspace. A router's products are all of float32. */
size_t input_prepare_units(const struct cpu_task *task);
void input_prepare(const struct cpu_task *task, size_t begin, size_t end);
size_t input_shared(const struct cpu_task *task);
size_t input_workspace(const struct cpu_task *task);
/* The input rows of products with `matrix`. */
struct operand_rows input_for(const struct cpu_task *task, const struct view *matrix);

/* The input rows of products with `matrix`: those of x, or what prepare_rows made of them at `prepared`. */
static inline struct operand_rows rows_for(const struct cpu_task *task, const struct view *matrix,
                                           const struct view *x, const void *prepared) {
    if (!takes_prepared(matrix))
        return (struct operand_rows){OPERAND_F32, x->columns, x->stride * sizeof(float), x->bytes};
    return (struct operand_rows){task->format, x->columns, operand_row_bytes(task->format, x->columns),
                                 prepared};
}

static inline size_t prepared_bytes(const struct cpu_task *task, const struct view *x) {
    return x->rows * operand_row_bytes(task->format, x->columns);
}

/* Rows [begin, end) of x. */
static inline void prepare_rows(const struct cpu_task *task, const struct view *x, size_t begin, size_t end,
                                void *prepared) {
    size_t bytes = operand_row_bytes(task->format, x->columns);
    for (size_t row = begin; row < end; row++)
        task->kernels->matrix->prepare[task->format](float_row(x, row), x->columns,
                                                     (char *)prepared + row * bytes);
}

/* The weight as far as row `end`: kernels read ahead within it. */
static inline struct view until_row(const struct view *matrix, size_t end) {
    struct view view = *matrix;
    view.rows = (uint32_t)least(view.rows, end);
    return view;
}

/* `rows` rows of `matrix` from `first` times `count` rows of input, into out[count][PANEL_ROWS]. */
static inline void multiply(const struct cpu_task *task, const struct view *matrix, size_t first, size_t rows,
                            const struct operand_rows *x, const uint32_t *index, size_t count, float *out,
                            void *panel) {
    task->kernels->matrix->multiply[x->format](matrix, first, rows, x, index, count, out, panel);
}

#endif
