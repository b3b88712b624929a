/* Building a plan, and from its reads and writes the phases.
 *
 * The scheduler keeps, for every buffer, the earlier accesses that a later op can still conflict with. A
 * write that covers an earlier access takes its place: whatever would conflict with the earlier one conflicts
 * with the write too, and the write's phase is no smaller. That keeps the lists short, so that a plan of 800
 * ops is scheduled in a fraction of a millisecond although its layers use the same scratch buffers. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

uint64_t buffer_shape_bytes(const struct buffer_shape *shape) {
    return dtype_row_bytes(shape->dtype, shape->columns) * shape->rows;
}

void session_layout_free(struct session_layout *layout) {
    free(layout->state);
    free(layout->kv);
    memset(layout, 0, sizeof *layout);
}

void plan_free(struct plan *plan) {
    free(plan->ops);
    free(plan->scratch);
    memset(plan, 0, sizeof *plan);
}

/* Makes room for one more element; *capacity doubles. */
static void *grow(void *array, size_t element, uint32_t count, uint32_t *capacity, bool *failed) {
    if (*failed || count < *capacity)
        return array;
    uint32_t larger = *capacity == 0 ? 64 : *capacity * 2;
    void *moved = larger > *capacity ? realloc(array, element * larger) : NULL;
    if (moved == NULL) {
        *failed = true;
        return array;
    }
    *capacity = larger;
    return moved;
}

struct operand plan_scratch(struct plan *plan, const char *name, enum dtype dtype, uint32_t rows,
                            uint32_t columns) {
    struct operand view = {.space = SPACE_SCRATCH,
                           .dtype = (uint8_t)dtype,
                           .buffer = plan->scratch_count,
                           .rows = rows,
                           .columns = columns,
                           .stride = columns};
    plan->scratch = grow(plan->scratch, sizeof *plan->scratch, plan->scratch_count, &plan->scratch_capacity,
                         &plan->failed);
    if (!plan->failed)
        plan->scratch[plan->scratch_count++] =
            (struct buffer_shape){.dtype = dtype, .rows = rows, .columns = columns, .name = name};
    return view;
}

struct op *plan_add(struct plan *plan, enum op_kind kind, int32_t layer, const struct operand *operands,
                    uint32_t count) {
    plan->ops = grow(plan->ops, sizeof *plan->ops, plan->op_count, &plan->op_capacity, &plan->failed);
    if (count > OP_MAX_OPERANDS)
        plan->failed = true;
    if (plan->failed) {
        plan->dummy = (struct op){0};
        return &plan->dummy;
    }
    struct op *op = &plan->ops[plan->op_count++];
    *op = (struct op){.kind = kind, .layer = layer, .operand_count = count};
    memcpy(op->operands, operands, count * sizeof *operands);
    return op;
}

struct operand reading(struct operand view) {
    view.access = ACCESS_READ;
    return view;
}

struct operand writing(struct operand view) {
    view.access = ACCESS_WRITE;
    return view;
}

struct operand updating(struct operand view) {
    view.access = ACCESS_READ | ACCESS_WRITE;
    return view;
}

/* The bytes that a view covers: `rows` runs of `length` bytes, `stride` bytes apart, from `offset`. */
struct byte_runs {
    int64_t offset, length, stride, rows;
};

/* Runs without gaps become one run. */
static struct byte_runs runs_of(const struct operand *view) {
    enum dtype dtype = (enum dtype)view->dtype;
    struct byte_runs runs = {.offset = (int64_t)view->offset,
                             .length = (int64_t)(((uint64_t)view->columns * dtype_bits(dtype) + 7) / 8),
                             .stride = (int64_t)((uint64_t)view->stride * dtype_bits(dtype) / 8),
                             .rows = view->columns == 0 ? 0 : view->rows};
    if (runs.rows > 1 && runs.length >= runs.stride) {
        runs.length += runs.stride * (runs.rows - 1);
        runs.rows = 1;
    }
    return runs;
}

static int64_t runs_end(const struct byte_runs *runs) {
    return runs->offset + runs->stride * (runs->rows - 1) + runs->length;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

/* Both with rows `stride` apart (one row has any stride). Row i of a meets row j of b exactly when
 * -b.length < d + k stride < a.length, where d = b.offset - a.offset and k = j - i: is there such a k among
 * -(a.rows - 1) .. b.rows - 1? */
static bool equal_strides_overlap(const struct byte_runs *a, const struct byte_runs *b, int64_t stride) {
    int64_t d = b->offset - a->offset;
    int64_t first = floor_divide(-b->length - d, stride) + 1;
    int64_t last = floor_divide(a->length - d - 1, stride);
    if (first < -(a->rows - 1))
        first = -(a->rows - 1);
    if (last > b->rows - 1)
        last = b->rows - 1;
    return first <= last;
}

static bool runs_overlap(struct byte_runs a, struct byte_runs b) {
    if (a.rows == 0 || b.rows == 0 || a.offset >= runs_end(&b) || b.offset >= runs_end(&a))
        return false;
    if (a.rows == 1 && b.rows == 1)
        return true;
    if (a.rows == 1 || b.rows == 1 || a.stride == b.stride)
        return equal_strides_overlap(&a, &b, a.rows == 1 ? b.stride : a.stride);
    const struct byte_runs *fewer = a.rows < b.rows ? &a : &b, *more = a.rows < b.rows ? &b : &a;
    struct byte_runs row = {.offset = fewer->offset, .length = fewer->length, .rows = 1};
    for (int64_t i = 0; i < fewer->rows; i++, row.offset += fewer->stride)
        if (equal_strides_overlap(&row, more, more->stride))
            return true;
    return false;
}

bool operands_overlap(const struct operand *a, const struct operand *b) {
    return a->space == b->space && a->buffer == b->buffer && runs_overlap(runs_of(a), runs_of(b));
}

bool ops_conflict(const struct op *a, const struct op *b) {
    for (uint32_t i = 0; i < a->operand_count; i++)
        for (uint32_t j = 0; j < b->operand_count; j++)
            if (((a->operands[i].access | b->operands[j].access) & ACCESS_WRITE) != 0 &&
                operands_overlap(&a->operands[i], &b->operands[j]))
                return true;
    return false;
}

/* An access that later ops may conflict with; `next` links those of one buffer. */
struct past_access {
    struct byte_runs runs;
    bool writes;
    uint32_t phase, next;
};

#define NONE UINT32_MAX

/* Buffers by (space, buffer), open addressing; `first` is the newest access. */
struct buffer_slot {
    bool used;
    uint8_t space;
    uint32_t buffer, first;
};

struct hazards {
    struct past_access *accesses;
    uint32_t access_count;
    struct buffer_slot *slots;
    uint32_t slot_mask;
};

static struct buffer_slot *find_slot(struct hazards *hazards, const struct operand *operand) {
    uint32_t at = (operand->buffer * SPACE_COUNT + operand->space) * 2654435761u >> 7;
    for (;; at++) {
        struct buffer_slot *slot = &hazards->slots[at & hazards->slot_mask];
        if (!slot->used)
            *slot = (struct buffer_slot){
                .used = true, .space = operand->space, .buffer = operand->buffer, .first = NONE};
        if (slot->space == operand->space && slot->buffer == operand->buffer)
            return slot;
    }
}

static uint32_t earliest_phase(struct hazards *hazards, const struct op *op) {
    uint32_t phase = 0;
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct operand *operand = &op->operands[i];
        struct byte_runs runs = runs_of(operand);
        bool writes = (operand->access & ACCESS_WRITE) != 0;
        for (uint32_t at = find_slot(hazards, operand)->first; at != NONE; at = hazards->accesses[at].next) {
            const struct past_access *past = &hazards->accesses[at];
            if (past->phase >= phase && (writes || past->writes) && runs_overlap(runs, past->runs))
                phase = past->phase + 1;
        }
    }
    return phase;
}

static void remember(struct hazards *hazards, const struct op *op) {
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct operand *operand = &op->operands[i];
        struct buffer_slot *slot = find_slot(hazards, operand);
        struct past_access access = {
            .runs = runs_of(operand), .writes = (operand->access & ACCESS_WRITE) != 0, .phase = op->phase};
        if (access.runs.rows == 0)
            continue;
        if (access.writes && access.runs.rows == 1)
            for (uint32_t *link = &slot->first; *link != NONE;) {
                struct past_access *past = &hazards->accesses[*link];
                if (past->runs.offset >= access.runs.offset &&
                    runs_end(&past->runs) <= runs_end(&access.runs))
                    *link = past->next;
                else
                    link = &past->next;
            }
        access.next = slot->first;
        slot->first = hazards->access_count;
        hazards->accesses[hazards->access_count++] = access;
    }
}

static bool find_phases(struct plan *plan, struct calla_error *error) {
    uint32_t operand_count = 0;
    for (uint32_t i = 0; i < plan->op_count; i++)
        operand_count += plan->ops[i].operand_count;
    uint32_t slot_count = 64;
    while (slot_count < operand_count * 2)
        slot_count *= 2;
    struct hazards hazards = {.slot_mask = slot_count - 1};
    hazards.accesses = calloc((size_t)operand_count + 1, sizeof *hazards.accesses);
    hazards.slots = calloc(slot_count, sizeof *hazards.slots);
    bool ok = hazards.accesses != NULL && hazards.slots != NULL;
    for (uint32_t i = 0; ok && i < plan->op_count; i++) {
        struct op *op = &plan->ops[i];
        op->phase = earliest_phase(&hazards, op);
        if (op->phase + 1 > plan->phase_count)
            plan->phase_count = op->phase + 1;
        remember(&hazards, op);
    }
    free(hazards.accesses);
    free(hazards.slots);
    return ok || error_memory(error, "the hazards of a plan", slot_count * sizeof *hazards.slots);
}

/* A stable counting sort. */
static bool sort_by_phase(struct plan *plan, struct calla_error *error) {
    struct op *sorted = malloc((plan->op_count + 1) * sizeof *sorted);
    uint32_t *starts = calloc((size_t)plan->phase_count + 1, sizeof *starts);
    if (sorted == NULL || starts == NULL) {
        free(sorted);
        free(starts);
        return error_memory(error, "sorting a plan", plan->op_count * sizeof *sorted);
    }
    for (uint32_t i = 0; i < plan->op_count; i++)
        starts[plan->ops[i].phase + 1]++;
    for (uint32_t phase = 0; phase < plan->phase_count; phase++)
        starts[phase + 1] += starts[phase];
    for (uint32_t i = 0; i < plan->op_count; i++)
        sorted[starts[plan->ops[i].phase]++] = plan->ops[i];
    free(plan->ops);
    free(starts);
    plan->ops = sorted;
    plan->op_capacity = plan->op_count + 1;
    return true;
}

bool plan_schedule(struct plan *plan, bool concurrent, struct calla_error *error) {
    if (plan->failed)
        return error_memory(error, "a plan", (size_t)plan->op_capacity * sizeof *plan->ops);
    plan->phase_count = 0;
    if (concurrent)
        return find_phases(plan, error) && sort_by_phase(plan, error);
    for (uint32_t i = 0; i < plan->op_count; i++)
        plan->ops[i].phase = i;
    plan->phase_count = plan->op_count;
    return true;
}
