/* Choosing the next token: two launches, whatever the settings, which lie in the record on the device. */
#include <stddef.h>

#include "backend/metal/kernels/sample_parameters.h"
#include "backend/metal/metal_backend.h"

#define SAME_PLACE(field) (offsetof(struct sample_record, field) == offsetof(struct step_record, field))
_Static_assert(sizeof(struct sample_record) == sizeof(struct step_record) && SAME_PLACE(position) &&
                   SAME_PLACE(rows) && SAME_PLACE(draws) && SAME_PLACE(top_k) && SAME_PLACE(temperature) &&
                   SAME_PLACE(top_p) && SAME_PLACE(min_p) && SAME_PLACE(presence_penalty) &&
                   SAME_PLACE(frequency_penalty) && SAME_PLACE(repetition_penalty) && SAME_PLACE(seed) &&
                   SAMPLE_COUNT_IN_PROMPT == STEP_COUNT_IN_PROMPT,
               "the kernels see the record as the host does");

#define ADJUST_THREADS 256
#define CHOOSE_THREADS 1024

static uint32_t spans_of(const struct metal_op *op) {
    return (op->operands[1].columns + SAMPLE_SPAN - 1) / SAMPLE_SPAN;
}

/* Where the parts of the workspace begin: adjusted logits; of each span its largest, the id, the state. */
struct parts {
    uint64_t adjusted, largest, ids, states, end;
};

static struct parts parts_of(const struct metal_op *op) {
    struct parts parts = {.adjusted = 0};
    uint64_t span_bytes = metal_place(spans_of(op) * sizeof(float));
    parts.largest = metal_place(op->operands[1].columns * sizeof(float));
    parts.ids = parts.largest + span_bytes;
    parts.states = parts.ids + span_bytes;
    parts.end = parts.states + span_bytes;
    return parts;
}

static uint64_t sample_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return parts_of(op).end;
}

static uint32_t at_most(uint32_t wanted, const struct metal_encoder *encoder) {
    uint32_t most = metal_use_limits(encoder)->max_threads / METAL_SIMD_WIDTH * METAL_SIMD_WIDTH;
    return wanted < most ? wanted : most;
}

/* record, logits, bias, counts, tokens */
static void encode_sample(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *record = &op->operands[0], *counts = &op->operands[3];
    const struct metal_operand *workspace = &op->workspace;
    struct metal_operand posted = metal_token_slot(encoder);
    struct parts parts = parts_of(op);
    uint32_t vocabulary = op->operands[1].columns, spans = spans_of(op);
    uint64_t span_bytes = spans * sizeof(float);
    struct sample_parameters parameters = {.vocabulary = vocabulary, .spans = spans};
    uint32_t written = METAL_WRITE | METAL_ALL;

    metal_use(encoder, "sample_adjust", NULL, 0);
    metal_bind_rows(encoder, 0, record, 0, 1, METAL_READ);
    metal_bind(encoder, 1, &op->operands[1]);
    metal_bind(encoder, 2, &op->operands[2]);
    metal_bind_rows(encoder, 3, counts, 0, 1, METAL_READ);
    metal_bind_part(encoder, 4, workspace, parts.adjusted, vocabulary * sizeof(float), written);
    metal_bind_part(encoder, 5, workspace, parts.largest, span_bytes, written);
    metal_bind_part(encoder, 6, workspace, parts.ids, span_bytes, written);
    metal_bind_part(encoder, 7, workspace, parts.states, span_bytes, written);
    metal_bind_bytes(encoder, 8, &parameters, sizeof parameters);
    uint32_t threads = at_most(ADJUST_THREADS, encoder), each = threads / METAL_SIMD_WIDTH;
    metal_launch(encoder, (struct metal_size){(spans + each - 1) / each, 1, 1},
                 (struct metal_size){threads, 1, 1});
    metal_phase(encoder);

    metal_use(encoder, "sample_choose", NULL, 0);
    metal_bind(encoder, 0, record);
    metal_bind_part(encoder, 1, workspace, parts.adjusted, vocabulary * sizeof(float), METAL_READ);
    metal_bind_part(encoder, 2, workspace, parts.largest, span_bytes, METAL_READ);
    metal_bind_part(encoder, 3, workspace, parts.ids, span_bytes, METAL_READ);
    metal_bind_part(encoder, 4, workspace, parts.states, span_bytes, METAL_READ);
    metal_bind(encoder, 5, counts);
    metal_bind_output(encoder, 6, &op->operands[4]);
    metal_bind_output(encoder, 7, &posted);
    metal_bind_bytes(encoder, 8, &parameters, sizeof parameters);
    metal_launch(encoder, (struct metal_size){1, 1, 1},
                 (struct metal_size){at_most(CHOOSE_THREADS, encoder), 1, 1});
}

const struct metal_kernel metal_sample[] = {{.workspace = sample_workspace, .encode = encode_sample}};
