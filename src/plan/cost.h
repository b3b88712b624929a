/* What an op must move and compute at least: the roofline that every measurement is held against. */
#ifndef CALLA_PLAN_COST_H
#define CALLA_PLAN_COST_H

#include "plan/plan.h"

struct cost {
    uint64_t weight_bytes, state_bytes, kv_bytes, scratch_bytes; /* scratch: activations, step buffers */
    uint64_t flops;                                              /* a multiply-add is two */
};

/* Cost of one op when the context holds `position` tokens before the plan's first row. Of the routed experts
 * those count that are chosen at all: K for one row, for T rows the expected number E (1 - (1 - K/E)^T) of
 * distinct ones under uniform routing. */
struct cost op_cost(const struct op *op, uint32_t position);
struct cost plan_cost(const struct plan *plan, uint32_t position);
void cost_add(struct cost *total, const struct cost *more);
uint64_t cost_bytes(const struct cost *cost);

/* The least time of one op: moving its bytes at `bandwidth` bytes a second or computing at `rate` FLOP a
 * second, whichever takes longer; 0 leaves that side out. */
double cost_seconds(const struct cost *cost, double bandwidth, double rate);

#endif
