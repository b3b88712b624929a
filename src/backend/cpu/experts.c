/* The mixture of experts: routing, and the experts' matrix products.
 *
 * A *pair* p is slot p%K of row p/K: one chosen expert of one token. With one row the pairs are visited as
 * they come; with more, expert by expert in the order of expert_sort, so that a panel of an expert's matrix
 * is unpacked once for all its tokens. The value of a pair is the same either way. */
#include <math.h>

#include "backend/cpu/products.h"
#include "backend/reference/reference.h"

/* Rows of x that the router takes at a time. */
#define ROUTER_ROWS 32

/* The router: with one row, a unit is half a panel, and the choice comes when all logits are there; with
 * more, a unit is ROUTER_ROWS rows. The pieces are those of the experts, then one for the shared expert's
 * gate. Logits stay float32: a rounded one can change the chosen experts. */
static size_t router_piece(const struct cpu_task *task) {
    return task->op->views[0].rows == 1 ? PANEL_ROWS / 2 : PANEL_ROWS;
}

static size_t router_pieces(const struct cpu_task *task) {
    return (task->op->op.constants.experts + router_piece(task) - 1) / router_piece(task) + 1;
}

static size_t router_units(const struct cpu_task *task) {
    size_t rows = task->op->views[0].rows;
    return rows == 1 ? router_pieces(task) : (rows + ROUTER_ROWS - 1) / ROUTER_ROWS;
}

/* Of one row of x: those of all experts, and the gate's. */
static size_t router_logit_count(const struct cpu_task *task) {
    return task->op->op.constants.experts + (size_t)1;
}

/* logits[count][router_logit_count] of rows [first, first + count) of x, those of pieces [begin, end). */
static void router_logits(const struct cpu_task *task, size_t first, size_t count, size_t begin, size_t end,
                          float *logits) {
    const struct view *router = after_input(task->op), *gate = router + 1;
    float *products = task->workspace;
    void *memory = (char *)task->workspace + BATCH_BYTES;
    for (size_t piece = begin; piece < end; piece++) {
        bool is_gate = piece + 1 == router_pieces(task);
        size_t row = is_gate ? 0 : piece * router_piece(task), last = is_gate ? 1 : end * router_piece(task);
        struct view matrix = until_row(is_gate ? gate : router, last);
        size_t rows = least(matrix.rows - row, router_piece(task));
        struct operand_rows input = input_for(task, &matrix);
        input.data += first * input.row_bytes;
        multiply(task, &matrix, row, rows, &input, NULL, count, products, memory);
        for (size_t i = 0; i < count; i++)
            memcpy(logits + i * router_logit_count(task) + (is_gate ? router->rows : row),
                   products + i * PANEL_ROWS, rows * sizeof *logits);
    }
}

/* ids and scores of rows [first, first + count) of x; the logits are overwritten. */
static void router_choose(const struct cpu_task *task, size_t first, size_t count, float *logits) {
    const struct view *ids = after_input(task->op) + 2, *scores_view = ids + 1;
    size_t experts = task->op->op.constants.experts, chosen = task->op->op.constants.experts_per_token;
    for (size_t i = 0; i < count; i++) {
        float *row = logits + i * router_logit_count(task), *scores = float_row(scores_view, first + i);
        scores[chosen] = sigmoid(row[experts]);
        route_row(row, experts, chosen, int_row(ids, first + i), scores);
    }
}

/* With one row all logits, in shared memory behind the input. */
static float *router_shared_logits(const struct cpu_task *task) {
    return (float *)((char *)task->shared + (input_shared(task) + 63) / 64 * 64);
}

static void router_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *x = &task->op->views[0];
    if (x->rows == 1) {
        router_logits(task, 0, 1, begin, end, router_shared_logits(task));
        return;
    }
    float *logits = (float *)((char *)task->workspace + BATCH_BYTES + PANEL_BYTES);
    for (size_t unit = begin; unit < end; unit++) {
        size_t first = unit * ROUTER_ROWS, count = least(x->rows - first, ROUTER_ROWS);
        router_logits(task, first, count, 0, router_pieces(task), logits);
        router_choose(task, first, count, logits);
    }
}

static void router_finish(const struct cpu_task *task) {
    if (task->op->views[0].rows == 1)
        router_choose(task, 0, 1, router_shared_logits(task));
}

static size_t router_shared(const struct cpu_task *task) {
    size_t logits = task->op->views[0].rows == 1 ? router_logit_count(task) * sizeof(float) : 0;
    return (input_shared(task) + 63) / 64 * 64 + logits;
}

static size_t router_workspace(const struct cpu_task *task) {
    size_t products = BATCH_BYTES + PANEL_BYTES;
    return larger(products + ROUTER_ROWS * router_logit_count(task) * sizeof(float), input_workspace(task));
}

const struct cpu_op cpu_router = {
    .units = router_units,
    .run = router_run,
    .prepare_units = input_prepare_units,
    .prepare = input_prepare,
    .finish = router_finish,
    .shared_bytes = router_shared,
    .workspace_bytes = router_workspace,
};

/* The operands that say which pairs belong to which expert; starts and order are NULL when T is 1. */
struct routing {
    const struct view *ids;
    const int32_t *starts, *order;
};

static struct routing routing_of(const struct view *ids, bool sorted) {
    return (struct routing){ids, sorted ? int_row(&ids[1], 0) : NULL, sorted ? int_row(&ids[2], 0) : NULL};
}

/* Groups of pairs that share an expert: all experts, or where there is one row, each pair by itself. */
static size_t group_count(const struct cpu_task *task, bool sorted) {
    return sorted ? task->op->op.constants.experts : task->op->op.constants.experts_per_token;
}

/* A group: its expert, and the pairs first, first + 1, .. in the order of expert_sort. */
struct group {
    size_t expert, first, count;
};

static struct group group_at(const struct routing *routing, size_t index) {
    if (routing->starts == NULL)
        return (struct group){(size_t)int_row(routing->ids, 0)[index], index, 1};
    return (struct group){index, (size_t)routing->starts[index],
                          (size_t)(routing->starts[index + 1] - routing->starts[index])};
}

static size_t pair_at(const struct routing *routing, size_t position) {
    return routing->order == NULL ? position : (size_t)routing->order[position];
}

/* Memory of a thread for products of routed pairs: two batches, their input rows, a panel. */
struct expert_workspace {
    float first[BATCH_ROWS * PANEL_ROWS], second[BATCH_ROWS * PANEL_ROWS];
    unsigned char panel[PANEL_BYTES];
    uint32_t index[BATCH_ROWS];
};

static size_t expert_workspace_bytes(const struct cpu_task *task) {
    return larger(sizeof(struct expert_workspace), input_workspace(task));
}

/* The unfused product. Unit: a panel of columns of a group. */
static bool linear_is_sorted(const struct cpu_task *task) {
    return task->op->op.operand_count == 6;
}

static size_t expert_linear_units(const struct cpu_task *task) {
    const struct view *y = &task->op->views[task->op->op.operand_count - 1];
    return group_count(task, linear_is_sorted(task)) * panels_of(y->columns);
}

static void expert_linear_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *x = &task->op->views[0], *ids = &task->op->views[1];
    const struct view *matrix = &task->op->views[task->op->op.operand_count - 2], *y = matrix + 1;
    struct routing routing = routing_of(ids, linear_is_sorted(task));
    struct operand_rows input = input_for(task, matrix);
    struct expert_workspace *memory = task->workspace;
    size_t panels = panels_of(y->columns), out = y->columns;
    for (size_t unit = begin; unit < end; unit++) {
        struct group group = group_at(&routing, unit / panels);
        size_t column = unit % panels * PANEL_ROWS, rows = least(out - column, PANEL_ROWS);
        for (size_t done = 0, count; done < group.count; done += count) {
            count = least(group.count - done, BATCH_ROWS);
            for (size_t i = 0; i < count; i++) {
                size_t pair = pair_at(&routing, group.first + done + i);
                memory->index[i] = (uint32_t)(x->rows == ids->rows ? pair / ids->columns : pair);
            }
            multiply(task, matrix, group.expert * out + column, rows, &input, memory->index, count,
                     memory->first, memory->panel);
            for (size_t i = 0; i < count; i++)
                memcpy(float_row(y, pair_at(&routing, group.first + done + i)) + column,
                       memory->first + i * PANEL_ROWS, rows * sizeof(float));
        }
    }
}

const struct cpu_op cpu_expert_linear = {
    .units = expert_linear_units,
    .run = expert_linear_run,
    .prepare_units = input_prepare_units,
    .prepare = input_prepare,
    .shared_bytes = input_shared,
    .workspace_bytes = expert_workspace_bytes,
};

/* gate, up and swiglu. Unit: a panel of columns of the shared expert, then of a group. */
/* gate, up, shared_gate, shared_up, routed, shared */
static const struct view *gate_up_matrices(const struct cpu_task *task) {
    return &task->op->views[task->op->op.operand_count - 6];
}

static bool gate_up_is_sorted(const struct cpu_task *task) {
    return gate_up_matrices(task) > after_input(task->op) + 1;
}

static size_t gate_up_units(const struct cpu_task *task) {
    const struct view *matrices = gate_up_matrices(task);
    return panels_of(matrices[5].columns) +
           group_count(task, gate_up_is_sorted(task)) * panels_of(matrices[4].columns);
}

/* silu(gate x) up x of `rows` rows of two matrices from row `first`, for `count` rows of input; into
 * memory->first, [count][PANEL_ROWS]. Up to row `end` others follow. */
static void gate_up_products(const struct cpu_task *task, const struct view *gates, const struct view *ups,
                             size_t first, size_t rows, size_t end, size_t row, const uint32_t *index,
                             size_t count) {
    struct expert_workspace *memory = task->workspace;
    struct view gate_until_end = until_row(gates, end), up_until_end = until_row(ups, end);
    const struct view *gate = &gate_until_end, *up = &up_until_end;
    struct operand_rows gate_input = input_for(task, gate), up_input = input_for(task, up);
    gate_input.data += row * gate_input.row_bytes;
    up_input.data += row * up_input.row_bytes;
    multiply(task, gate, first, rows, &gate_input, index, count, memory->first, memory->panel);
    multiply(task, up, first, rows, &up_input, index, count, memory->second, memory->panel);
    for (size_t i = 0; i < count * PANEL_ROWS; i += PANEL_ROWS)
        task->kernels->vector->swiglu(memory->first + i, memory->second + i, memory->first + i, rows);
}

/* With one row: panels of the matrices one after the other, all of the gate's before the up's, so that memory
 * is read in long pieces. */
static void gate_up_run_one(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *matrices = gate_up_matrices(task), *ids = after_input(task->op);
    struct expert_workspace *memory = task->workspace;
    size_t shared_panels = panels_of(matrices[5].columns), panels = panels_of(matrices[4].columns);
    for (size_t unit = begin, count; unit < end; unit += count) {
        bool is_shared = unit < shared_panels;
        const struct view *out = &matrices[is_shared ? 5 : 4];
        size_t pair = is_shared ? 0 : (unit - shared_panels) / panels;
        size_t panel = is_shared ? unit : (unit - shared_panels) % panels;
        count = least(least(end - unit, panels_of(out->columns) - panel), BATCH_ROWS);
        size_t first = is_shared ? 0 : (size_t)int_row(ids, 0)[pair] * out->columns;
        size_t column = panel * PANEL_ROWS, last = least(out->columns, column + count * PANEL_ROWS);
        for (int i = 0; i < 2; i++) {
            struct view matrix = until_row(&matrices[is_shared ? 2 + i : i], first + last);
            struct operand_rows input = input_for(task, &matrix);
            float *products = i == 0 ? memory->first : memory->second;
            for (size_t row = column; row < last; row += PANEL_ROWS)
                multiply(task, &matrix, first + row, least(last - row, PANEL_ROWS), &input, NULL, 1,
                         products + row - column, memory->panel);
        }
        task->kernels->vector->swiglu(memory->first, memory->second, float_row(out, pair) + column,
                                      last - column);
    }
}

static void gate_up_run(const struct cpu_task *task, size_t begin, size_t end) {
    if (!gate_up_is_sorted(task)) {
        gate_up_run_one(task, begin, end);
        return;
    }
    const struct view *x = &task->op->views[0], *ids = after_input(task->op);
    const struct view *matrices = gate_up_matrices(task), *routed = &matrices[4], *shared = &matrices[5];
    struct routing routing = routing_of(ids, true);
    struct expert_workspace *memory = task->workspace;
    size_t shared_panels = panels_of(shared->columns), panels = panels_of(routed->columns);
    for (size_t unit = begin; unit < end; unit++) {
        if (unit < shared_panels) {
            size_t column = unit * PANEL_ROWS, rows = least(shared->columns - column, PANEL_ROWS);
            for (size_t row = 0, count; row < x->rows; row += count) {
                count = least(x->rows - row, BATCH_ROWS);
                gate_up_products(task, &matrices[2], &matrices[3], column, rows, end * PANEL_ROWS, row, NULL,
                                 count);
                for (size_t i = 0; i < count; i++)
                    memcpy(float_row(shared, row + i) + column, memory->first + i * PANEL_ROWS,
                           rows * sizeof(float));
            }
            continue;
        }
        struct group group = group_at(&routing, (unit - shared_panels) / panels);
        size_t column = (unit - shared_panels) % panels * PANEL_ROWS;
        size_t rows = least(routed->columns - column, PANEL_ROWS), first_row = group.expert * routed->columns;
        size_t end_row = first_row + least(routed->columns, column + (end - unit) * PANEL_ROWS);
        for (size_t done = 0, count; done < group.count; done += count) {
            count = least(group.count - done, BATCH_ROWS);
            for (size_t i = 0; i < count; i++)
                memory->index[i] = (uint32_t)(pair_at(&routing, group.first + done + i) / ids->columns);
            gate_up_products(task, &matrices[0], &matrices[1], first_row + column, rows, end_row, 0,
                             memory->index, count);
            for (size_t i = 0; i < count; i++)
                memcpy(float_row(routed, pair_at(&routing, group.first + done + i)) + column,
                       memory->first + i * PANEL_ROWS, rows * sizeof(float));
        }
    }
}

const struct cpu_op cpu_expert_gate_up = {
    .units = gate_up_units,
    .run = gate_up_run,
    .prepare_units = input_prepare_units,
    .prepare = input_prepare,
    .shared_bytes = input_shared,
    .workspace_bytes = expert_workspace_bytes,
};

/* The down products and their weighted sum. Unit, with many rows: a panel of columns of y, for which the
 * products of all pairs are computed, in the order of expert_sort, and then added up row by row. With one
 * row: a panel of one expert, the shared one last, so that each matrix is read in long pieces; the products
 * are added up when all are there. */
static bool down_is_sorted(const struct cpu_task *task) {
    return task->op->op.operand_count == 9;
}

/* down, shared_down, y */
static const struct view *down_matrices(const struct cpu_task *task) {
    return &task->op->views[down_is_sorted(task) ? 6 : 4];
}

/* The experts of the one row, or 1. */
static size_t down_experts(const struct cpu_task *task) {
    return down_is_sorted(task) ? 1 : (size_t)task->op->views[0].rows + 1;
}

static size_t down_units(const struct cpu_task *task) {
    return down_experts(task) * panels_of(down_matrices(task)[2].columns);
}

/* Rows of routed, then of shared. */
static size_t down_prepare_units(const struct cpu_task *task) {
    const struct view *matrices = down_matrices(task);
    bool prepares = takes_prepared(&matrices[0]) || takes_prepared(&matrices[1]);
    return prepares ? (size_t)task->op->views[0].rows + task->op->views[1].rows : 0;
}

static size_t down_prepared(const struct cpu_task *task) {
    return down_prepare_units(task) == 0
               ? 0
               : prepared_bytes(task, &task->op->views[0]) + prepared_bytes(task, &task->op->views[1]);
}

static size_t down_columns(const struct cpu_task *task) {
    return panels_of(down_matrices(task)[2].columns) * PANEL_ROWS;
}

/* With one row the products, [experts, down_columns], in shared memory behind the input. */
static float *down_products(const struct cpu_task *task) {
    return (float *)((char *)task->shared + (down_prepared(task) + 63) / 64 * 64);
}

static size_t down_shared(const struct cpu_task *task) {
    size_t products = down_is_sorted(task) ? 0 : down_experts(task) * down_columns(task) * sizeof(float);
    return (down_prepared(task) + 63) / 64 * 64 + products;
}

static void down_prepare(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *routed = &task->op->views[0], *shared = &task->op->views[1];
    size_t pairs = routed->rows;
    if (begin < pairs)
        prepare_rows(task, routed, begin, least(end, pairs), task->shared);
    if (end > pairs)
        prepare_rows(task, shared, begin > pairs ? begin - pairs : 0, end - pairs,
                     (char *)task->shared + prepared_bytes(task, routed));
}

static size_t down_workspace(const struct cpu_task *task) {
    size_t pairs = task->op->views[0].rows, rows = task->op->views[1].rows;
    return PANEL_BYTES + (pairs + rows) * PANEL_ROWS * sizeof(float) + 2 * pairs * sizeof(uint32_t);
}

/* With one row: panels of the matrices one after the other. */
static void down_run_one(const struct cpu_task *task, size_t begin, size_t end) {
    const struct view *routed = &task->op->views[0], *matrices = down_matrices(task);
    size_t hidden = matrices[2].columns, panels = panels_of(hidden);
    for (size_t unit = begin; unit < end; unit++) {
        size_t expert = unit / panels, column = unit % panels * PANEL_ROWS;
        bool is_shared = expert == routed->rows;
        size_t first = is_shared ? 0 : (size_t)int_row(&task->op->views[2], 0)[expert] * hidden;
        struct view matrix =
            until_row(&matrices[is_shared], first + least(hidden, column + (end - unit) * PANEL_ROWS));
        const char *prepared = (const char *)task->shared + (is_shared ? prepared_bytes(task, routed) : 0);
        struct operand_rows input = rows_for(task, &matrix, &task->op->views[is_shared], prepared);
        const uint32_t row = is_shared ? 0 : (uint32_t)expert;
        multiply(task, &matrix, first + column, least(hidden - column, PANEL_ROWS), &input, &row, 1,
                 down_products(task) + expert * down_columns(task) + column, task->workspace);
    }
}

/* Columns [column, column + PANEL_ROWS) of row t of y += the products of its experts, weighted. Product k
 * begins at products + stride * place, the place being k or positions[k]. */
static void down_add(const struct cpu_task *task, size_t t, size_t column, const float *products,
                     size_t stride, const uint32_t *positions, const float *from_shared) {
    const struct view *y = &down_matrices(task)[2];
    const float *weights = float_row(&task->op->views[3], t);
    size_t chosen = task->op->views[2].columns;
    float sums[PANEL_ROWS] = {0}, *out = float_row(y, t) + column;
    for (size_t k = 0; k < chosen; k++) {
        const float *product = products + (positions == NULL ? k : positions[k]) * stride;
        for (size_t r = 0; r < PANEL_ROWS; r++)
            sums[r] += weights[k] * product[r];
    }
    for (size_t r = 0; r < least(y->columns - column, PANEL_ROWS); r++)
        out[r] += sums[r] + weights[chosen] * from_shared[r];
}

static void down_finish(const struct cpu_task *task) {
    if (down_is_sorted(task))
        return;
    const float *products = down_products(task), *from_shared = products;
    size_t stride = down_columns(task);
    from_shared += task->op->views[0].rows * stride;
    for (size_t column = 0; column < stride; column += PANEL_ROWS)
        down_add(task, 0, column, products + column, stride, NULL, from_shared + column);
}

static void down_run(const struct cpu_task *task, size_t begin, size_t end) {
    if (!down_is_sorted(task)) {
        down_run_one(task, begin, end);
        return;
    }
    const struct view *routed = &task->op->views[0], *shared = &task->op->views[1];
    const struct view *ids = &task->op->views[2];
    const struct view *matrices = down_matrices(task), *y = &matrices[2];
    struct routing routing = {ids, int_row(&task->op->views[4], 0), int_row(&task->op->views[5], 0)};
    struct operand_rows routed_input = rows_for(task, &matrices[0], routed, task->shared);
    struct operand_rows shared_input =
        rows_for(task, &matrices[1], shared, (const char *)task->shared + prepared_bytes(task, routed));
    size_t pairs = routed->rows, chosen = ids->columns, hidden = y->columns;
    void *panel = task->workspace;
    float *products = (float *)((char *)task->workspace + PANEL_BYTES); /* [pairs, PANEL_ROWS] as sorted */
    float *from_shared = products + pairs * PANEL_ROWS;                 /* [T, PANEL_ROWS] */
    uint32_t *index = (uint32_t *)(from_shared + y->rows * PANEL_ROWS), *position_of = index + pairs;
    memset(position_of, 0, pairs * sizeof *position_of);
    for (size_t position = 0; position < pairs; position++) {
        index[position] = (uint32_t)pair_at(&routing, position);
        position_of[index[position]] = (uint32_t)position;
    }
    struct view shared_until_end = until_row(&matrices[1], end * PANEL_ROWS);
    for (size_t unit = begin; unit < end; unit++) {
        size_t column = unit * PANEL_ROWS, rows = least(hidden - column, PANEL_ROWS);
        for (size_t g = 0; g < group_count(task, true); g++) {
            struct group group = group_at(&routing, g);
            struct view until_end = until_row(&matrices[0], group.expert * hidden + end * PANEL_ROWS);
            if (group.count > 0)
                multiply(task, &until_end, group.expert * hidden + column, rows, &routed_input,
                         index + group.first, group.count, products + group.first * PANEL_ROWS, panel);
        }
        multiply(task, &shared_until_end, column, rows, &shared_input, NULL, y->rows, from_shared, panel);
        for (size_t t = 0; t < y->rows; t++)
            down_add(task, t, column, products, PANEL_ROWS, position_of + t * chosen,
                     from_shared + t * PANEL_ROWS);
    }
}

const struct cpu_op cpu_expert_down = {
    .units = down_units,
    .run = down_run,
    .prepare_units = down_prepare_units,
    .prepare = down_prepare,
    .finish = down_finish,
    .shared_bytes = down_shared,
    .workspace_bytes = down_workspace,
};
