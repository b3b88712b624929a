/* A plan in words and numbers: a table for people, JSON for programs. Both are appended to a buffer. */
#ifndef CALLA_PLAN_PLAN_PRINT_H
#define CALLA_PLAN_PLAN_PRINT_H

#include "base/buffer.h"
#include "plan/apple.h"
#include "plan/cost.h"
#include "plan/policy.h"

/* What is printed; everything is borrowed. */
struct plan_report {
    const struct plan *plan;
    const struct session_layout *layout; /* names the state, KV and step buffers */
    const char *const *weight_names;     /* by index */
    const char *model, *phase, *backend;
    const struct policy *policy;
    uint32_t layers;
    uint32_t position; /* tokens in the context before the plan's first row */
    double bandwidth;  /* bytes a second, 0: unknown */
    double rate;       /* FLOP a second, 0: unknown */
    /* What the Metal backend makes of the plan: kernels, and phases of kernels that need nothing of each
     * other. 0: another backend. */
    uint32_t kernels, kernel_phases;
};

/* Costs by kind of op, totals, the least time if a bandwidth or a rate is known, and what kernels would take
 * on Apple's chips; with `ops` every op with its operands too. */
bool plan_print_table(const struct plan_report *report, bool ops, struct buffer *out,
                      struct calla_error *error);

/* The same as one JSON object, every op included. */
bool plan_print_json(const struct plan_report *report, struct buffer *out, struct calla_error *error);

/* What both are made of. */

/* Kernels and sequential stages of one decoded token in the engine that this one is held against, from
 * Perplexity's article "Optimizing on-device inference for Apple silicon": for the 40-layer model. */
#define ARTICLE_LAYERS 40
#define ARTICLE_DECODE_KERNELS 795
#define ARTICLE_DECODE_PHASES 555

struct plan_totals {
    struct kind_total {
        uint32_t ops;
        struct cost cost;
        double seconds; /* the sum over the ops of each one's least time */
    } kinds[OP_KIND_COUNT], all;
    uint64_t scratch_memory; /* bytes to allocate for the scratch buffers */
};

void plan_totals(const struct plan_report *report, struct plan_totals *totals);

/* Whether the article's figures are for a plan like this one. */
bool plan_like_article(const struct plan_report *report);

/* Name of the buffer that an operand of the plan views. */
const char *plan_buffer_name(const struct plan_report *report, const struct operand *operand);

#endif
