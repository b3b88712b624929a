/* The operand lists of op.h as code: each op's function names its operands in order, with the shape, the
 * types and the access that the op expects. */
#include "plan/op_check.h"

#include <stdio.h>

#define TYPE(dtype) (1u << (dtype))
#define FLOATS TYPE(DTYPE_F32)
#define IDS TYPE(DTYPE_I32)
#define VECTOR (TYPE(DTYPE_F32) | TYPE(DTYPE_F16) | TYPE(DTYPE_BF16))
#define MATRIX (VECTOR | TYPE(DTYPE_AFFINE4) | TYPE(DTYPE_AFFINE8))
#define CACHE (TYPE(DTYPE_F32) | TYPE(DTYPE_BF16))

#define R ACCESS_READ
#define W ACCESS_WRITE
#define RW (ACCESS_READ | ACCESS_WRITE)

/* Walks through an op's operands; the first that is not as expected sets the error, and the rest is skipped.
 */
struct check {
    const struct op *op;
    struct calla_error *error;
    uint32_t next;
    bool failed;
};

static void fail(struct check *check, const char *what) {
    if (!check->failed)
        error_set(check->error, CALLA_BAD_INPUT, "Malformed plan: op %s of layer %d: %s.",
                  op_name(check->op->kind), check->op->layer, what);
    check->failed = true;
}

/* Whether a condition on the constants holds. */
static void require(struct check *check, bool holds, const char *what) {
    if (!holds)
        fail(check, what);
}

static void operand(struct check *check, const char *name, uint64_t rows, uint64_t columns, unsigned types,
                    unsigned access) {
    if (check->failed)
        return;
    uint32_t index = check->next++;
    if (index >= check->op->operand_count) {
        fail(check, "operands are missing");
        return;
    }
    const struct operand *found = &check->op->operands[index];
    bool typed = found->dtype < DTYPE_COUNT && (types & TYPE(found->dtype)) != 0;
    if (typed && found->rows == rows && found->columns == columns && found->stride >= columns &&
        found->access == access)
        return;
    char message[256];
    snprintf(
        message, sizeof message,
        "operand %u (%s) is %s [%u, %u], stride %u, access %u, where [%llu, %llu], access %u is expected",
        index, name, dtype_name(found->dtype), found->rows, found->columns, found->stride, found->access,
        (unsigned long long)rows, (unsigned long long)columns, access);
    fail(check, message);
}

static void record(struct check *check, unsigned access) {
    operand(check, "record", 1, sizeof(struct step_record), TYPE(DTYPE_U8), access);
}

/* Rows and columns of an operand that the others are measured by; 0 where it is missing. */
static uint64_t rows_of(const struct op *op, uint32_t index) {
    return index < op->operand_count ? op->operands[index].rows : 0;
}

static uint64_t columns_of(const struct op *op, uint32_t index) {
    return index < op->operand_count ? op->operands[index].columns : 0;
}

/* Affine matrices come in whole groups along the columns. */
static void matrix(struct check *check, const char *name, uint64_t rows, uint64_t columns) {
    operand(check, name, rows, columns, MATRIX, R);
}

/* x, and the weight of its norm where the op normalises. */
static void input(struct check *check, uint64_t rows, uint64_t columns) {
    operand(check, "x", rows, columns, FLOATS, R);
    if (check->op->constants.normalise)
        operand(check, "norm", 1, columns, VECTOR, R);
}

static void check_linear(struct check *check) {
    const struct op *op = check->op;
    uint64_t rows = rows_of(op, 0), in = columns_of(op, 0);
    require(check, op->constants.matrix_count > 0, "matrix_count is 0");
    input(check, rows, in);
    for (uint32_t i = 0; i < op->constants.matrix_count && !check->failed; i++) {
        uint64_t out = rows_of(op, check->next);
        matrix(check, "W", out, in);
        operand(check, "y", rows, out, FLOATS, op->constants.accumulate ? RW : W);
    }
}

static void conv_sizes(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    require(check, c->taps > 1 && c->key_size > 0 && c->value_size > 0, "taps or head sizes are too small");
}

static void check_conv_silu(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 1);
    uint64_t keys = (uint64_t)c->key_heads * c->key_size, values = (uint64_t)c->value_heads * c->value_size;
    uint64_t channels = 2 * keys + values;
    conv_sizes(check);
    record(check, R);
    operand(check, "x", rows, channels, FLOATS, R);
    operand(check, "taps", channels, c->taps, VECTOR, R);
    operand(check, "state", c->taps, channels, FLOATS, RW);
    operand(check, "q", rows, keys, FLOATS, W);
    operand(check, "k", rows, keys, FLOATS, W);
    operand(check, "v", rows, values, FLOATS, W);
}

static bool delta_heads(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    require(check,
            c->key_heads > 0 && c->value_heads > 0 && c->value_heads % c->key_heads == 0 && c->value_size > 0,
            "value heads are not a multiple of key heads");
    return !check->failed;
}

static void check_delta_gates(struct check *check) {
    uint64_t rows = rows_of(check->op, 0), heads = check->op->constants.value_heads;
    operand(check, "a", rows, heads, FLOATS, R);
    operand(check, "b", rows, heads, FLOATS, R);
    operand(check, "A_log", 1, heads, VECTOR, R);
    operand(check, "dt_bias", 1, heads, VECTOR, R);
    operand(check, "decay", rows, heads, FLOATS, W);
    operand(check, "beta", rows, heads, FLOATS, W);
}

static void check_delta_scan(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 0);
    if (!delta_heads(check))
        return;
    uint64_t keys = (uint64_t)c->key_heads * c->key_size, values = (uint64_t)c->value_heads * c->value_size;
    operand(check, "q", rows, keys, FLOATS, R);
    operand(check, "k", rows, keys, FLOATS, R);
    operand(check, "v", rows, values, FLOATS, R);
    operand(check, "decay", rows, c->value_heads, FLOATS, R);
    operand(check, "beta", rows, c->value_heads, FLOATS, R);
    operand(check, "state", values, c->key_size, FLOATS, RW);
    operand(check, "y", rows, values, FLOATS, W);
}

static void check_gated_norm(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 0), values = (uint64_t)c->value_heads * c->value_size;
    operand(check, "x", rows, values, FLOATS, R);
    operand(check, "z", rows, values, FLOATS, R);
    operand(check, "weight", 1, c->value_size, VECTOR, R);
    operand(check, "y", rows, values, FLOATS, W);
}

static void check_delta_tail(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 0);
    if (!delta_heads(check))
        return;
    uint64_t keys = (uint64_t)c->key_heads * c->key_size, values = (uint64_t)c->value_heads * c->value_size;
    operand(check, "a", rows, c->value_heads, FLOATS, R);
    operand(check, "b", rows, c->value_heads, FLOATS, R);
    operand(check, "A_log", 1, c->value_heads, VECTOR, R);
    operand(check, "dt_bias", 1, c->value_heads, VECTOR, R);
    operand(check, "q", rows, keys, FLOATS, R);
    operand(check, "k", rows, keys, FLOATS, R);
    operand(check, "v", rows, values, FLOATS, R);
    operand(check, "z", rows, values, FLOATS, R);
    operand(check, "weight", 1, c->value_size, VECTOR, R);
    operand(check, "state", values, c->key_size, FLOATS, RW);
    operand(check, "y", rows, values, FLOATS, W);
}

static void check_delta_step(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    conv_sizes(check);
    if (!delta_heads(check))
        return;
    uint64_t keys = (uint64_t)c->key_heads * c->key_size, values = (uint64_t)c->value_heads * c->value_size;
    uint64_t channels = 2 * keys + values;
    record(check, R);
    operand(check, "qkv", 1, channels, FLOATS, R);
    operand(check, "a", 1, c->value_heads, FLOATS, R);
    operand(check, "b", 1, c->value_heads, FLOATS, R);
    operand(check, "taps", channels, c->taps, VECTOR, R);
    operand(check, "A_log", 1, c->value_heads, VECTOR, R);
    operand(check, "dt_bias", 1, c->value_heads, VECTOR, R);
    operand(check, "z", 1, values, FLOATS, R);
    operand(check, "weight", 1, c->value_size, VECTOR, R);
    operand(check, "conv state", c->taps, channels, FLOATS, RW);
    operand(check, "state", values, c->key_size, FLOATS, RW);
    operand(check, "y", 1, values, FLOATS, W);
}

static void check_rope(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 1), size = columns_of(check->op, 1);
    require(check, c->heads > 0 && rows % c->heads == 0, "the rows are not a multiple of the heads");
    require(check, c->rotary_size % 2 == 0 && c->rotary_size <= size, "rotary_size does not fit the head");
    record(check, R);
    operand(check, "x", rows, size, FLOATS, RW);
}

static bool attention_heads(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    require(check, c->heads > 0 && c->kv_heads > 0 && c->heads % c->kv_heads == 0 && c->head_size > 0,
            "query heads are not a multiple of KV heads");
    require(check, c->rotary_size % 2 == 0 && c->rotary_size <= c->head_size,
            "rotary_size does not fit the head");
    return !check->failed;
}

static void check_kv_write(struct check *check) {
    uint64_t rows = rows_of(check->op, 1), width = columns_of(check->op, 1), limit = rows_of(check->op, 3);
    record(check, R);
    operand(check, "k", rows, width, FLOATS, R);
    operand(check, "v", rows, width, FLOATS, R);
    operand(check, "K", limit, width, CACHE, W);
    operand(check, "V", limit, width, CACHE, W);
}

static void check_qk_prep(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    if (!attention_heads(check))
        return;
    uint64_t rows = rows_of(check->op, 2), limit = rows_of(check->op, 7), size = c->head_size;
    uint64_t width = c->kv_heads * size;
    record(check, R);
    operand(check, "q", rows * c->heads, size, FLOATS, R);
    operand(check, "k", rows, width, FLOATS, R);
    operand(check, "v", rows, width, FLOATS, R);
    operand(check, "q_norm", 1, size, VECTOR, R);
    operand(check, "k_norm", 1, size, VECTOR, R);
    operand(check, "y", rows * c->heads, size, FLOATS, W);
    operand(check, "K", limit, width, CACHE, W);
    operand(check, "V", limit, width, CACHE, W);
}

static void check_attention(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    if (!attention_heads(check))
        return;
    uint64_t rows = rows_of(check->op, 1), limit = rows_of(check->op, 3), size = c->head_size;
    require(check, rows % c->heads == 0, "the rows are not a multiple of the heads");
    record(check, R);
    operand(check, "q", rows, size, FLOATS, R);
    operand(check, "gate", rows, size, FLOATS, R);
    operand(check, "K", limit, c->kv_heads * size, CACHE, R);
    operand(check, "V", limit, c->kv_heads * size, CACHE, R);
    operand(check, "y", rows, size, FLOATS, W);
}

static bool expert_counts(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    require(check, c->experts_per_token > 0 && c->experts_per_token <= c->experts,
            "experts_per_token is not between 1 and the number of experts");
    return !check->failed;
}

static void check_router(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 0), hidden = columns_of(check->op, 0);
    if (!expert_counts(check))
        return;
    input(check, rows, hidden);
    matrix(check, "router", c->experts, hidden);
    matrix(check, "shared_gate", 1, hidden);
    operand(check, "ids", rows, c->experts_per_token, IDS, W);
    operand(check, "scores", rows, (uint64_t)c->experts_per_token + 1, FLOATS, W);
}

static void check_expert_sort(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint64_t rows = rows_of(check->op, 0);
    if (!expert_counts(check))
        return;
    operand(check, "ids", rows, c->experts_per_token, IDS, R);
    operand(check, "starts", 1, (uint64_t)c->experts + 1, IDS, W);
    operand(check, "order", 1, rows * c->experts_per_token, IDS, W);
}

/* Where the op has them (it has `sorted` operands then) starts and order. */
static void expert_order(struct check *check, uint64_t rows, uint32_t sorted) {
    const struct op_constants *c = &check->op->constants;
    if (check->op->operand_count == sorted) {
        operand(check, "starts", 1, (uint64_t)c->experts + 1, IDS, R);
        operand(check, "order", 1, rows * c->experts_per_token, IDS, R);
    } else {
        require(check, rows == 1, "starts and order are missing");
    }
}

static void check_expert_linear(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    if (!expert_counts(check))
        return;
    uint64_t rows = rows_of(check->op, 1), in = columns_of(check->op, 0), given = rows_of(check->op, 0);
    uint64_t out = columns_of(check->op, check->op->operand_count - 1), pairs = rows * c->experts_per_token;
    operand(check, "x", given == rows ? rows : pairs, in, FLOATS, R);
    operand(check, "ids", rows, c->experts_per_token, IDS, R);
    expert_order(check, rows, 6);
    matrix(check, "W", c->experts * out, in);
    operand(check, "y", pairs, out, FLOATS, W);
}

static void check_expert_combine(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    if (!expert_counts(check))
        return;
    uint64_t rows = rows_of(check->op, 1), hidden = columns_of(check->op, 1);
    operand(check, "routed", rows * c->experts_per_token, hidden, FLOATS, R);
    operand(check, "shared", rows, hidden, FLOATS, R);
    operand(check, "scores", rows, (uint64_t)c->experts_per_token + 1, FLOATS, R);
    operand(check, "y", rows, hidden, FLOATS, RW);
}

static void check_expert_gate_up(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint32_t count = check->op->operand_count, sorted = c->normalise ? 11 : 10;
    if (!expert_counts(check))
        return;
    require(check, count == sorted - 2 || count == sorted, "operands are missing");
    if (check->failed)
        return;
    uint64_t rows = rows_of(check->op, 0), hidden = columns_of(check->op, 0);
    uint64_t width = columns_of(check->op, count - 2), shared = columns_of(check->op, count - 1);
    input(check, rows, hidden);
    operand(check, "ids", rows, c->experts_per_token, IDS, R);
    expert_order(check, rows, sorted);
    matrix(check, "gate", c->experts * width, hidden);
    matrix(check, "up", c->experts * width, hidden);
    matrix(check, "shared_gate", shared, hidden);
    matrix(check, "shared_up", shared, hidden);
    operand(check, "routed", rows * c->experts_per_token, width, FLOATS, W);
    operand(check, "shared", rows, shared, FLOATS, W);
}

static void check_expert_down(struct check *check) {
    const struct op_constants *c = &check->op->constants;
    uint32_t count = check->op->operand_count;
    if (!expert_counts(check))
        return;
    require(check, count == 7 || count == 9, "operands are missing");
    if (check->failed)
        return;
    uint64_t rows = rows_of(check->op, 1), hidden = columns_of(check->op, count - 1);
    uint64_t width = columns_of(check->op, 0), shared = columns_of(check->op, 1);
    operand(check, "routed", rows * c->experts_per_token, width, FLOATS, R);
    operand(check, "shared", rows, shared, FLOATS, R);
    operand(check, "ids", rows, c->experts_per_token, IDS, R);
    operand(check, "scores", rows, (uint64_t)c->experts_per_token + 1, FLOATS, R);
    expert_order(check, rows, 9);
    matrix(check, "down", c->experts * hidden, width);
    matrix(check, "shared_down", hidden, shared);
    operand(check, "y", rows, hidden, FLOATS, RW);
}

static void check_head(struct check *check) {
    const struct op *op = check->op;
    uint64_t rows = rows_of(op, 0), hidden = columns_of(op, 0);
    uint64_t vocabulary = rows_of(op, op->constants.normalise ? 2 : 1);
    input(check, rows, hidden);
    matrix(check, "head", vocabulary, hidden);
    operand(check, "logits", rows, vocabulary, FLOATS, W);
}

static void check_sample(struct check *check) {
    uint64_t vocabulary = columns_of(check->op, 1);
    record(check, RW);
    operand(check, "logits", 1, vocabulary, FLOATS, R);
    operand(check, "bias", 1, vocabulary, FLOATS, R);
    operand(check, "counts", 1, vocabulary, IDS, RW);
    operand(check, "tokens", 1, 1, IDS, W);
}

bool op_check(const struct op *op, struct calla_error *error) {
    struct check check = {.op = op, .error = error};
    uint64_t rows = rows_of(op, 0), columns = columns_of(op, 0);
    require(&check, op->operand_count <= OP_MAX_OPERANDS, "it has too many operands");
    require(&check, !op->constants.normalise || op_normalises(op->kind), "it cannot normalise its input");
    switch (op->kind) {
    case OP_EMBED:
        operand(&check, "tokens", 1, columns, IDS, R);
        matrix(&check, "table", rows_of(op, 1), columns_of(op, 1));
        operand(&check, "y", columns, columns_of(op, 1), FLOATS, W);
        break;
    case OP_RMS_NORM:
    case OP_HEAD_NORM:
        operand(&check, "x", rows, columns, FLOATS, R);
        operand(&check, "weight", 1, columns, VECTOR, R);
        operand(&check, "y", rows, columns, FLOATS, W);
        break;
    case OP_LINEAR:
        check_linear(&check);
        break;
    case OP_CONV_SILU:
        check_conv_silu(&check);
        break;
    case OP_DELTA_GATES:
        check_delta_gates(&check);
        break;
    case OP_DELTA_SCAN:
        check_delta_scan(&check);
        break;
    case OP_GATED_NORM:
        check_gated_norm(&check);
        break;
    case OP_DELTA_TAIL:
        check_delta_tail(&check);
        break;
    case OP_DELTA_STEP:
        check_delta_step(&check);
        break;
    case OP_ROPE:
        check_rope(&check);
        break;
    case OP_KV_WRITE:
        check_kv_write(&check);
        break;
    case OP_QK_PREP:
        check_qk_prep(&check);
        break;
    case OP_ATTENTION:
        check_attention(&check);
        break;
    case OP_ROUTER:
        check_router(&check);
        break;
    case OP_EXPERT_SORT:
        check_expert_sort(&check);
        break;
    case OP_EXPERT_LINEAR:
        check_expert_linear(&check);
        break;
    case OP_SWIGLU:
        operand(&check, "gate", rows, columns, FLOATS, R);
        operand(&check, "up", rows, columns, FLOATS, R);
        operand(&check, "y", rows, columns, FLOATS, W);
        break;
    case OP_EXPERT_COMBINE:
        check_expert_combine(&check);
        break;
    case OP_EXPERT_GATE_UP:
        check_expert_gate_up(&check);
        break;
    case OP_EXPERT_DOWN:
        check_expert_down(&check);
        break;
    case OP_HEAD:
        check_head(&check);
        break;
    case OP_SAMPLE:
        check_sample(&check);
        break;
    case OP_KIND_COUNT:
        fail(&check, "the kind is unknown");
        break;
    }
    if (!check.failed && check.next != op->operand_count)
        fail(&check, "it has too many operands");
    return !check.failed;
}
