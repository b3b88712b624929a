#include "backend/binding.h"

#include <inttypes.h>

#include "plan/op_check.h"

const struct weight *binding_weight(const struct operand *operand, const struct weights *weights) {
    if (weights == NULL || operand->buffer >= weights->table.count || operand->rows == 0 ||
        operand->columns == 0)
        return NULL;
    const struct weight *weight = &weights->table.weights[operand->buffer];
    bool affine = weight->dtype == DTYPE_AFFINE4 || weight->dtype == DTYPE_AFFINE8;
    if (operand->access != ACCESS_READ || operand->offset != 0 || operand->dtype != weight->dtype ||
        operand->columns != weight->columns || operand->stride != weight->columns ||
        operand->rows > (uint64_t)weight->matrices * weight->rows ||
        (affine && weight->columns % DTYPE_AFFINE_GROUP != 0) || weight->part_count != (affine ? 3 : 1))
        return NULL;
    return weight;
}

bool binding_inside(const struct operand *operand, uint64_t size) {
    bool plain =
        operand->dtype < DTYPE_COUNT && operand->dtype != DTYPE_AFFINE4 && operand->dtype != DTYPE_AFFINE8;
    if (!plain || operand->rows == 0 || operand->columns == 0)
        return false;
    uint64_t element = dtype_bits((enum dtype)operand->dtype) / 8;
    if (operand->offset % element != 0 || operand->offset > size)
        return false;
    uint64_t elements = (uint64_t)(operand->rows - 1) * operand->stride + operand->columns;
    return elements <= (size - operand->offset) / element;
}

bool binding_refuse(const struct op *op, uint32_t index, struct calla_error *error) {
    const struct operand *operand = &op->operands[index];
    return error_set(error, CALLA_BAD_INPUT,
                     "Malformed plan: op %s of layer %d: operand %u, %s buffer %u, is not inside it.",
                     op_name(op->kind), op->layer, index, space_name((enum space)operand->space),
                     operand->buffer);
}

bool binding_not_in_session(enum space space, uint32_t buffer, uint64_t offset, uint64_t size,
                            struct calla_error *error) {
    return error_set(error, CALLA_BAD_INPUT,
                     "Bytes %" PRIu64 " to %" PRIu64 " of %s buffer %u are not in the session.", offset,
                     offset + size, space_name(space), buffer);
}

bool binding_cache_rows(const struct op *op, uint64_t *rows, uint64_t *limit) {
    if (op->kind == OP_KV_WRITE || op->kind == OP_QK_PREP) {
        *rows = op->operands[2].rows;
        *limit = op->operands[op->operand_count - 1].rows;
        return true;
    }
    if (op->kind == OP_ATTENTION) {
        *rows = op->operands[1].rows / op->constants.heads;
        *limit = op->operands[3].rows;
        return true;
    }
    return false;
}

bool binding_plan(const struct plan *plan, struct plan_facts *facts, struct calla_error *error) {
    *facts = (struct plan_facts){0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        if (!op_check(op, error))
            return false;
        facts->samples += op->kind == OP_SAMPLE;
        uint64_t rows, limit;
        if (binding_cache_rows(op, &rows, &limit) &&
            (facts->cache_limit == 0 ||
             (int64_t)limit - (int64_t)rows < (int64_t)facts->cache_limit - (int64_t)facts->cache_rows)) {
            facts->cache_rows = rows;
            facts->cache_limit = limit;
        }
    }
    const struct op *last = plan->op_count > 0 ? &plan->ops[plan->op_count - 1] : NULL;
    facts->posts_token = last != NULL && last->kind == OP_SAMPLE && last->operands[4].space == SPACE_STEP &&
                         last->operands[4].buffer == STEP_TOKENS && last->operands[4].offset == 0;
    return true;
}

bool binding_is_record(const struct operand *operand) {
    return operand->space == SPACE_STEP && operand->buffer == STEP_RECORD && operand->offset == 0;
}

bool binding_context_full(uint64_t rows, uint32_t position, uint64_t limit, struct calla_error *error) {
    return error_set(error, CALLA_CONTEXT_FULL,
                     "The context is full: %" PRIu64 " tokens at position %u do not fit into %" PRIu64
                     "; open the session with a longer context.",
                     rows, position, limit);
}

bool binding_has_room(const struct plan_facts *facts, uint32_t position, struct calla_error *error) {
    return facts->cache_limit == 0 || position + facts->cache_rows <= facts->cache_limit ||
           binding_context_full(facts->cache_rows, position, facts->cache_limit, error);
}
