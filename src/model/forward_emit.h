/* What the files of the forward pass share: the emitter, and the blocks of a layer that each file emits.
 * Private to forward*.c. */
#ifndef CALLA_MODEL_FORWARD_EMIT_H
#define CALLA_MODEL_FORWARD_EMIT_H

#include "model/forward.h"

/* Of the l2 norm of q and k: the model's own constant, not the config's rms_norm_eps. */
#define FORWARD_L2_EPSILON 1e-6f

/* The state of one forward_plan call. The scratch views are of all rows; every layer uses the same ones. A
 * layer reads only what the residual stream brings it, so using them again makes no op wait for longer. */
struct emitter {
    struct plan *plan;
    const struct config *config;
    const struct weight_table *table;
    const struct policy *policy;
    uint32_t rows, context;        /* T, L */
    int32_t layer;                 /* being emitted, -1 outside */
    uint32_t delta_layers;         /* emitted so far: their state buffers are 2 n and 2 n + 1 */
    uint32_t attention_layers;     /* likewise: their KV buffers are 2 n (K) and 2 n + 1 (V) */
    struct op_constants constants; /* of the model, for every op */
    bool too_large;                /* a shape did not fit 32 bits */
    struct operand hidden, normed; /* [T,H]: the residual stream; a mixer's normalised input */
    struct {
        bool fused_tail, fused_step;
        struct operand qkv, z, b, a, q, k, v, decay, beta, scanned, mixed;
    } delta;
    struct {
        struct operand q_and_gate, k, v, query, key, mixed;
    } attention;
    struct {
        struct operand input, ids, scores, starts, order;
        struct operand gate, up, routed, routed_out, shared_gate, shared_up, shared, shared_out;
    } experts;
};

/* Operands of an op while they are being listed. */
struct operand_list {
    struct operand items[OP_MAX_OPERANDS];
    uint32_t count;
};

void list_add(struct operand_list *list, struct operand operand);

/* a * b; sets too_large when it does not fit. */
uint32_t emit_product(struct emitter *emitter, uint32_t a, uint32_t b);

/* Views: of weight `index`; of a new float32 scratch buffer; of the same contiguous elements as rows of
 * `columns`; of columns `first` .. `first + columns` of each row. */
struct operand emit_weight(struct emitter *emitter, uint32_t index);
struct operand emit_scratch(struct emitter *emitter, const char *name, uint32_t rows, uint32_t columns);
struct operand view_in_rows_of(struct operand view, uint32_t columns);
struct operand view_of_columns(struct operand view, uint32_t first, uint32_t columns);
struct operand view_of_step(enum step_buffer buffer, uint32_t rows, uint32_t columns);

/* Appends an op of the current layer with the model's constants. */
struct op *emit(struct emitter *emitter, enum op_kind kind, const struct operand *operands, uint32_t count);
#define EMIT(emitter, kind, ...)                                                                             \
    emit(emitter, kind, (const struct operand[]){__VA_ARGS__},                                               \
         sizeof((const struct operand[]){__VA_ARGS__}) / sizeof(struct operand))

/* What products multiply: x, or where the ops that read it normalise, rms_norm(x) with the weight `norm`. */
struct input {
    struct operand x;
    bool normalise;
    uint32_t norm;
};

/* rms_norm(x[T,H]), computed into y[T,H], unless those who read it do it themselves. */
struct input emit_norm(struct emitter *emitter, struct operand x, uint32_t weight, struct operand y);
struct input normalised_within(struct operand x, uint32_t weight);
void list_add_input(struct operand_list *list, struct emitter *emitter, struct input input);

/* Appends an op whose list begins with the input. */
struct op *emit_with_input(struct emitter *emitter, enum op_kind kind, struct input input,
                           const struct operand_list *list);

/* y = x W^T for each of up to four matrices: one op with fuse_projections, else one each. */
struct projection {
    uint32_t weight;
    struct operand y;
};
void emit_projections(struct emitter *emitter, struct input input, const struct projection *projections,
                      uint32_t count);

/* y += x W^T */
void emit_linear_add(struct emitter *emitter, struct operand x, uint32_t weight, struct operand y);

/* Each block: makes its scratch buffers once, then emits the ops of one layer. Mixers read their input and
 * add to `hidden`; the experts read and add to `hidden`. */
void delta_scratch(struct emitter *emitter);
void delta_emit(struct emitter *emitter, const struct layer_weights *weights, struct input input);
void attention_scratch(struct emitter *emitter);
void attention_emit(struct emitter *emitter, const struct layer_weights *weights, struct input input);
void experts_scratch(struct emitter *emitter);
void experts_emit(struct emitter *emitter, const struct layer_weights *weights);

#endif
