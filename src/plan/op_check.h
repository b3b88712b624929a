/* Whether an op is well formed: the number, shapes, types and accesses of its operands, as op.h lists them.
 */
#ifndef CALLA_PLAN_OP_CHECK_H
#define CALLA_PLAN_OP_CHECK_H

#include "plan/op.h"

/* Fails with a sentence that names the op, the operand, what was found and what is expected. An op that
 * passes indexes nothing outside its operands' views, whoever executes it. */
bool op_check(const struct op *op, struct calla_error *error);

#endif
