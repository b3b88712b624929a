/* What every backend checks before it lets a plan near its memory. Plans come from the same tables as weights
 * and sessions, so a mismatch is a bug; it must not become a wild read. */
#ifndef CALLA_BACKEND_BINDING_H
#define CALLA_BACKEND_BINDING_H

#include "model/weights.h"
#include "plan/plan.h"

/* The weight that an operand of SPACE_WEIGHT names, if the operand lies inside it and both agree; NULL if
 * not. */
const struct weight *binding_weight(const struct operand *operand, const struct weights *weights);

/* Whether an operand is a view of plain elements that are aligned within, and inside of, a buffer of `size`
 * bytes. */
bool binding_inside(const struct operand *operand, uint64_t size);

/* The error for operand `index` of an op, where one of these says no; returns false. */
bool binding_refuse(const struct op *op, uint32_t index, struct calla_error *error);

/* The error for bytes [offset, offset + size) that a session's buffer does not have; returns false. */
bool binding_not_in_session(enum space space, uint32_t buffer, uint64_t offset, uint64_t size,
                            struct calla_error *error);

/* The rows that an op (checked) puts into or expects in the KV cache after the record's position, and the
 * cache's rows; false for other ops. */
bool binding_cache_rows(const struct op *op, uint64_t *rows, uint64_t *limit);

/* What a host must know of a plan that runs on a device, ahead of it. */
struct plan_facts {
    uint32_t samples;                 /* sampling ops: each moves the record on */
    bool posts_token;                 /* the last op samples into element 0 of STEP_TOKENS */
    uint64_t cache_rows, cache_limit; /* of the op that needs the cache most; 0: none does */
};

/* Checks every op, and finds these. */
bool binding_plan(const struct plan *plan, struct plan_facts *facts, struct calla_error *error);

/* Whether the cache has room, from `position`, for the rows of every op of the plan that reads or writes it;
 * an error where not. */
bool binding_has_room(const struct plan_facts *facts, uint32_t position, struct calla_error *error);

/* Whether an operand is the step record. Its place is known to the host, which must know positions before the
 * device does. */
bool binding_is_record(const struct operand *operand);

/* The error where `rows` rows from `position` do not fit into a cache of `limit`; returns false. */
bool binding_context_full(uint64_t rows, uint32_t position, uint64_t limit, struct calla_error *error);

#endif
