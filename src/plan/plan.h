/* A plan: the ops of one prefill chunk or one decode step, in order, with the scratch memory they share. */
#ifndef CALLA_PLAN_PLAN_H
#define CALLA_PLAN_PLAN_H

#include "plan/op.h"

/* The shape of one buffer. */
struct buffer_shape {
    enum dtype dtype;
    uint32_t rows, columns;
    const char *name; /* static: what plan printing calls it */
};

uint64_t buffer_shape_bytes(const struct buffer_shape *shape);

/* What a session must allocate besides scratch. Owned arrays. */
struct session_layout {
    struct buffer_shape *state, *kv, step[STEP_BUFFER_COUNT];
    uint32_t state_count, kv_count;
};

void session_layout_free(struct session_layout *layout);

struct plan {
    struct op *ops;
    uint32_t op_count, op_capacity;
    struct buffer_shape *scratch;
    uint32_t scratch_count, scratch_capacity;
    uint32_t phase_count; /* filled by plan_schedule */
    uint32_t rows;        /* T */
    bool failed;          /* an allocation failed while building: plan_schedule reports it */
    struct op dummy;      /* what plan_add returns then */
};

/* A zeroed plan is empty. */
void plan_free(struct plan *plan);

/* Adds a scratch buffer and returns a view of all of it, access 0. */
struct operand plan_scratch(struct plan *plan, const char *name, enum dtype dtype, uint32_t rows,
                            uint32_t columns);

/* Appends an op and returns it for its constants to be filled; never NULL (a dummy after a failed
 * allocation). */
struct op *plan_add(struct plan *plan, enum op_kind kind, int32_t layer, const struct operand *operands,
                    uint32_t count);

/* The view with read, write or both. */
struct operand reading(struct operand view);
struct operand writing(struct operand view);
struct operand updating(struct operand view);

/* Whether two views share a byte, exactly, and whether their ops must keep their order. */
bool operands_overlap(const struct operand *a, const struct operand *b);
bool ops_conflict(const struct op *a, const struct op *b);

/* Gives every op its phase (0, 1, ...: one more than the latest earlier op it conflicts with) and stably
 * sorts the ops by phase. With `concurrent` false every op is a phase of its own. Fails if building ran out
 * of memory. */
bool plan_schedule(struct plan *plan, bool concurrent, struct calla_error *error);

#endif
