/* What the GPU is asked to do for a plan, counted without a GPU. */
#ifndef CALLA_BACKEND_METAL_METAL_COUNT_H
#define CALLA_BACKEND_METAL_METAL_COUNT_H

#include "plan/plan.h"
#include "plan/policy.h"

struct metal_counts {
    uint32_t kernels; /* launches */
    uint32_t phases;  /* launches with no barrier between them are one */
};

/* Encodes the plan as for a run at `position`, for a GPU that allows any kernel 1,024 threads and has no
 * tensor operations, and counts what would be sent. The plan must be one that op_check takes. */
bool metal_count(struct metal_counts *counts, const struct plan *plan, const struct policy *policy,
                 uint32_t position, struct calla_error *error);

#endif
