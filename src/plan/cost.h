/* What an op must move and compute at least: the roofline that every measurement is held against. */
#ifndef CALLA_PLAN_COST_H
#define CALLA_PLAN_COST_H

#include "plan/plan.h"

struct cost {
    uint64_t weight_bytes, state_bytes, kv_bytes, scratch_bytes; /* scratch: activations, step buffers */
    uint64_t flops;                                              /* a multiply-add is two */
};

/* Cost of one op when the context holds `position` tokens before the plan's first row. Routed experts count
 * once each: min(E, T*K) of them at most, the expected number of distinct ones for uniform routing when T
 * > 1. */
struct cost op_cost(const struct op *op, uint32_t position);
struct cost plan_cost(const struct plan *plan, uint32_t position);
uint64_t cost_bytes(const struct cost *cost);

#endif
