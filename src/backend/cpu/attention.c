/* Attention over the KV cache. Many rows are cut into blocks of neighbouring tokens, each for one KV head. A
 * single row, whose work is reading the cache, is cut into spans of positions instead; what they give is
 * combined head by head. */
#include "backend/cpu/cpu.h"

/* Rows of queries in a block: enough to make little of what loading a key costs, few enough for a core's own
 * cache. */
#define BLOCK_ROWS 128
/* Blocks are made smaller where there would be fewer units than this. */
#define UNITS 16
#define FEW_SPANS 8

static size_t token_count(const struct cpu_task *task) {
    return task->op->views[1].rows / task->op->op.constants.heads;
}

/* Whether the op is cut into spans. */
static bool one_token(const struct cpu_task *task) {
    return token_count(task) == 1;
}

static size_t position_of(const struct cpu_task *task) {
    return record_of(&task->op->views[0])->position;
}

static size_t group_of(const struct cpu_task *task) {
    return task->op->op.constants.heads / task->op->op.constants.kv_heads;
}

static size_t block_tokens_of(const struct cpu_task *task) {
    size_t group = group_of(task), largest = group < BLOCK_ROWS ? BLOCK_ROWS / group : 1;
    size_t tokens = token_count(task) * task->op->op.constants.kv_heads / UNITS;
    return tokens < 1 ? 1 : tokens < largest ? tokens : largest;
}

/* The rows of `kv_heads` KV heads from one and a token on. */
static struct attention_rows rows_of(const struct cpu_task *task, size_t kv_head, size_t kv_heads,
                                     size_t token, size_t tokens) {
    const struct op_constants *c = &task->op->op.constants;
    const struct view *views = task->op->views;
    return (struct attention_rows){.q = &views[1],
                                   .gate = &views[2],
                                   .keys = &views[3],
                                   .values = &views[4],
                                   .y = &views[5],
                                   .row = token * c->heads + kv_head * group_of(task),
                                   .heads = c->heads,
                                   .tokens = tokens,
                                   .kv_heads = kv_heads,
                                   .group = group_of(task),
                                   .position = position_of(task) + token,
                                   .column = kv_head * c->head_size,
                                   .size = c->head_size};
}

static size_t spans_of(size_t positions) {
    return (positions + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
}

/* KV heads in a unit of a single row: all, so that the cache is read as it lies, but one where that would
 * give few units. */
static size_t span_kv_heads(const struct cpu_task *task) {
    return spans_of(position_of(task) + 1) < FEW_SPANS ? 1 : task->op->op.constants.kv_heads;
}

static size_t span_units(const struct cpu_task *task) {
    return one_token(task)
               ? spans_of(position_of(task) + 1) * task->op->op.constants.kv_heads / span_kv_heads(task)
               : 0;
}

/* The partial result of a head of a single row: [spans][heads] in the op's shared memory. */
static float *partial_of(const struct cpu_task *task, size_t span, size_t head) {
    return (float *)task->shared + (span * task->op->op.constants.heads + head) *
                                       attention_partial_floats(task->op->op.constants.head_size);
}

/* Unit: a span in one KV head or in all. */
static void attend_spans(const struct cpu_task *task, size_t begin, size_t end) {
    size_t kv_heads = span_kv_heads(task), positions = position_of(task) + 1;
    size_t parts = task->op->op.constants.kv_heads / kv_heads;
    for (size_t unit = begin; unit < end; unit++) {
        size_t span = unit / parts, head = unit % parts;
        size_t first = span * ATTENTION_SPAN, last = first + ATTENTION_SPAN;
        struct attention_rows rows = rows_of(task, head, kv_heads, 0, 1);
        task->kernels->attention->attend_span(&rows, first, last < positions ? last : positions,
                                              partial_of(task, span, head * rows.group), task->workspace);
    }
}

static size_t attention_units(const struct cpu_task *task) {
    if (one_token(task))
        return task->op->op.constants.heads;
    size_t tokens = block_tokens_of(task);
    return (token_count(task) + tokens - 1) / tokens * task->op->op.constants.kv_heads;
}

/* Unit: a KV head for a block of tokens, the last block, which sees most, first; of a single row a head. */
static void attention_run(const struct cpu_task *task, size_t begin, size_t end) {
    const struct op_constants *c = &task->op->op.constants;
    if (one_token(task)) {
        size_t stride = c->heads * attention_partial_floats(c->head_size);
        for (size_t head = begin; head < end; head++)
            task->kernels->attention->combine(
                partial_of(task, 0, head), stride, spans_of(position_of(task) + 1), c->head_size,
                float_row(&task->op->views[2], head), float_row(&task->op->views[5], head), task->workspace);
        return;
    }
    size_t tokens = block_tokens_of(task), count = token_count(task);
    size_t blocks = (count + tokens - 1) / tokens;
    for (size_t unit = begin; unit < end; unit++) {
        size_t first = (blocks - 1 - unit / c->kv_heads) * tokens, left = count - first;
        struct attention_rows rows =
            rows_of(task, unit % c->kv_heads, 1, first, left < tokens ? left : tokens);
        task->kernels->attention->attend(&rows, task->workspace);
    }
}

static size_t attention_shared(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return one_token(task) ? spans_of(task->op->views[3].rows) * c->heads *
                                 attention_partial_floats(c->head_size) * sizeof(float)
                           : 0;
}

static size_t attention_workspace(const struct cpu_task *task) {
    const struct op_constants *c = &task->op->op.constants;
    return task->kernels->attention->workspace_bytes(block_tokens_of(task) * group_of(task), c->head_size,
                                                     one_token(task) ? c->kv_heads : 1);
}

const struct cpu_op cpu_attention = {.units = attention_units,
                                     .run = attention_run,
                                     .prepare_units = span_units,
                                     .prepare = attend_spans,
                                     .shared_bytes = attention_shared,
                                     .workspace_bytes = attention_workspace};
