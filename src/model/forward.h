/* The forward pass, written once: it emits plans. */
#ifndef CALLA_MODEL_FORWARD_H
#define CALLA_MODEL_FORWARD_H

#include "model/config.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "plan/policy.h"

enum forward_logits { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

struct forward_options {
    uint32_t rows; /* T: 1 is a decode step, more is a prefill chunk, 0 only samples (from STEP_LOGITS) */
    enum forward_logits logits;
    bool sample; /* with rows it needs LOGITS_LAST, without LOGITS_NONE */
};

/* State, KV and step buffers of a session with room for `context` positions. Delta layer n (counted among its
 * kind) has its convolution state in state buffer 2 n and its recurrent state in 2 n + 1; attention layer n
 * has K in KV buffer 2 n and V in 2 n + 1. The caller frees it with session_layout_free. */
bool forward_layout(struct session_layout *layout, const struct config *config, const struct policy *policy,
                    uint32_t context, struct calla_error *error);

/* Rows of the logits buffer, which bound a plan with LOGITS_ALL: chunk_rows, or what 64 MiB hold if that is
 * less. */
uint32_t forward_logits_rows(const struct config *config, const struct policy *policy);

/* Emits and schedules the plan of one chunk or step. The plan must be freed with plan_free. */
bool forward_plan(struct plan *plan, const struct config *config, const struct weight_table *table,
                  const struct policy *policy, uint32_t context, const struct forward_options *options,
                  struct calla_error *error);

#endif
