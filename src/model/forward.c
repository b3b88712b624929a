/* The forward pass: embedding, layers of a mixer and experts each, final norm, head, sampling.
 *
 * Nothing is computed here. Every function appends ops to a plan; the order in which they are written down is
 * one that computes the right thing, and plan_schedule finds out what of it may run side by side. */
#include "model/forward_emit.h"

#include <stdlib.h>

/* Logits of all rows of a chunk are kept within this, unless even one row takes more. */
#define LOGITS_BYTES_LIMIT (UINT64_C(64) << 20)

void list_add(struct operand_list *list, struct operand operand) {
    if (list->count < OP_MAX_OPERANDS)
        list->items[list->count] = operand;
    list->count++;
}

uint32_t emit_product(struct emitter *emitter, uint32_t a, uint32_t b) {
    uint64_t product = (uint64_t)a * b;
    /* Leaves room to add a few. */
    if (product > 1u << 30) {
        emitter->too_large = true;
        return 0;
    }
    return (uint32_t)product;
}

struct operand emit_weight(struct emitter *emitter, uint32_t index) {
    const struct weight *weight = &emitter->table->weights[index];
    return (struct operand){.space = SPACE_WEIGHT,
                            .dtype = (uint8_t)weight->dtype,
                            .access = ACCESS_READ,
                            .buffer = index,
                            .rows = emit_product(emitter, weight->matrices, weight->rows),
                            .columns = weight->columns,
                            .stride = weight->columns};
}

struct operand emit_scratch(struct emitter *emitter, const char *name, uint32_t rows, uint32_t columns) {
    return plan_scratch(emitter->plan, name, DTYPE_F32, rows, columns);
}

struct operand view_in_rows_of(struct operand view, uint32_t columns) {
    view.rows = (uint32_t)((uint64_t)view.rows * view.columns / columns);
    view.columns = columns;
    view.stride = columns;
    return view;
}

struct operand view_of_columns(struct operand view, uint32_t first, uint32_t columns) {
    view.offset += first * sizeof(float);
    view.columns = columns;
    return view;
}

struct operand view_of_step(enum step_buffer buffer, uint32_t rows, uint32_t columns) {
    static const enum dtype dtypes[STEP_BUFFER_COUNT] = {[STEP_RECORD] = DTYPE_U8,
                                                         [STEP_TOKENS] = DTYPE_I32,
                                                         [STEP_LOGITS] = DTYPE_F32,
                                                         [STEP_BIAS] = DTYPE_F32,
                                                         [STEP_COUNTS] = DTYPE_I32};
    return (struct operand){.space = SPACE_STEP,
                            .dtype = (uint8_t)dtypes[buffer],
                            .buffer = buffer,
                            .rows = rows,
                            .columns = columns,
                            .stride = columns};
}

struct op *emit(struct emitter *emitter, enum op_kind kind, const struct operand *operands, uint32_t count) {
    struct op *op = plan_add(emitter->plan, kind, emitter->layer, operands, count);
    op->constants = emitter->constants;
    return op;
}

struct input normalised_within(struct operand x, uint32_t weight) {
    return (struct input){.x = x, .normalise = true, .norm = weight};
}

struct input emit_norm(struct emitter *emitter, struct operand x, uint32_t weight, struct operand y) {
    EMIT(emitter, OP_RMS_NORM, reading(x), emit_weight(emitter, weight), writing(y));
    return (struct input){.x = y};
}

void list_add_input(struct operand_list *list, struct emitter *emitter, struct input input) {
    list_add(list, reading(input.x));
    if (input.normalise)
        list_add(list, emit_weight(emitter, input.norm));
}

struct op *emit_with_input(struct emitter *emitter, enum op_kind kind, struct input input,
                           const struct operand_list *list) {
    struct op *op = emit(emitter, kind, list->items, list->count);
    op->constants.normalise = input.normalise;
    return op;
}

void emit_projections(struct emitter *emitter, struct input input, const struct projection *projections,
                      uint32_t count) {
    uint32_t together = emitter->policy->fuse_projections ? count : 1;
    for (uint32_t first = 0; first < count; first += together) {
        struct operand_list list = {.count = 0};
        list_add_input(&list, emitter, input);
        for (uint32_t i = first; i < first + together; i++) {
            list_add(&list, emit_weight(emitter, projections[i].weight));
            list_add(&list, writing(projections[i].y));
        }
        emit_with_input(emitter, OP_LINEAR, input, &list)->constants.matrix_count = together;
    }
}

void emit_linear_add(struct emitter *emitter, struct operand x, uint32_t weight, struct operand y) {
    struct op *op = EMIT(emitter, OP_LINEAR, reading(x), emit_weight(emitter, weight), updating(y));
    op->constants.matrix_count = 1;
    op->constants.accumulate = true;
}

static struct op_constants model_constants(const struct config *config) {
    return (struct op_constants){.key_heads = config->key_heads,
                                 .value_heads = config->value_heads,
                                 .key_size = config->key_size,
                                 .value_size = config->value_size,
                                 .taps = config->taps,
                                 .heads = config->heads,
                                 .kv_heads = config->kv_heads,
                                 .head_size = config->head_size,
                                 .rotary_size = config->rotary_size,
                                 .experts = config->experts,
                                 .experts_per_token = config->experts_per_token,
                                 .epsilon = config->epsilon,
                                 .l2_epsilon = FORWARD_L2_EPSILON,
                                 .rope_theta = config->rope_theta};
}

static uint32_t count_attention_layers(const struct config *config) {
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < config->layers; layer++)
        count += config->attention_layer[layer];
    return count;
}

uint32_t forward_logits_rows(const struct config *config, const struct policy *policy) {
    uint64_t rows = LOGITS_BYTES_LIMIT / (config->vocabulary * sizeof(float));
    if (rows >= 16)
        rows = rows / 16 * 16;
    if (rows > policy->chunk_rows)
        rows = policy->chunk_rows;
    return rows > 0 ? (uint32_t)rows : 1;
}

static void emit_sample(struct emitter *emitter) {
    uint32_t vocabulary = emitter->config->vocabulary;
    EMIT(emitter, OP_SAMPLE, updating(view_of_step(STEP_RECORD, 1, sizeof(struct step_record))),
         reading(view_of_step(STEP_LOGITS, 1, vocabulary)), reading(view_of_step(STEP_BIAS, 1, vocabulary)),
         updating(view_of_step(STEP_COUNTS, 1, vocabulary)), writing(view_of_step(STEP_TOKENS, 1, 1)));
}

static void emit_logits(struct emitter *emitter, const struct forward_options *options) {
    const struct config *config = emitter->config;
    struct operand hidden = emitter->hidden;
    if (options->logits == LOGITS_LAST) {
        hidden.offset += (uint64_t)(hidden.rows - 1) * hidden.stride * sizeof(float);
        hidden.rows = 1;
    }
    uint32_t norm = emitter->table->final_norm;
    struct input input =
        emitter->policy->fuse_norm
            ? normalised_within(hidden, norm)
            : emit_norm(emitter, hidden, norm,
                        emit_scratch(emitter, "final normed", hidden.rows, config->hidden_size));
    struct operand_list list = {.count = 0};
    list_add_input(&list, emitter, input);
    list_add(&list, emit_weight(emitter, emitter->table->head));
    list_add(&list, writing(view_of_step(STEP_LOGITS, hidden.rows, config->vocabulary)));
    emit_with_input(emitter, OP_HEAD, input, &list);
}

static void emit_all(struct emitter *emitter, const struct forward_options *options) {
    const struct config *config = emitter->config;
    uint32_t attention_layers = count_attention_layers(config);
    emitter->hidden = emit_scratch(emitter, "hidden", emitter->rows, config->hidden_size);
    if (!emitter->policy->fuse_norm)
        emitter->normed = emit_scratch(emitter, "normed", emitter->rows, config->hidden_size);
    if (attention_layers < config->layers)
        delta_scratch(emitter);
    if (attention_layers > 0)
        attention_scratch(emitter);
    experts_scratch(emitter);

    emitter->layer = -1;
    EMIT(emitter, OP_EMBED, reading(view_of_step(STEP_TOKENS, 1, emitter->rows)),
         emit_weight(emitter, emitter->table->embed), writing(emitter->hidden));
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        const struct layer_weights *weights = &emitter->table->layers[layer];
        emitter->layer = (int32_t)layer;
        struct input input = emitter->policy->fuse_norm
                                 ? normalised_within(emitter->hidden, weights->input_norm)
                                 : emit_norm(emitter, emitter->hidden, weights->input_norm, emitter->normed);
        if (config->attention_layer[layer])
            attention_emit(emitter, weights, input);
        else
            delta_emit(emitter, weights, input);
        experts_emit(emitter, weights);
    }
    emitter->layer = -1;
    if (options->logits != LOGITS_NONE)
        emit_logits(emitter, options);
    if (options->sample)
        emit_sample(emitter);
}

static bool only_samples(const struct forward_options *options) {
    return options->rows == 0 && options->logits == LOGITS_NONE && options->sample;
}

static bool check_options(const struct config *config, const struct policy *policy, uint32_t context,
                          const struct forward_options *options, struct calla_error *error) {
    if (only_samples(options))
        return true;
    if (options->rows == 0 || options->rows > policy->chunk_rows)
        return error_set(error, CALLA_BAD_INPUT,
                         "A plan of %u rows was asked for: it must have 1 to %u (chunk_rows).", options->rows,
                         policy->chunk_rows);
    if (options->rows > context)
        return error_set(error, CALLA_BAD_INPUT, "A plan of %u rows does not fit a context of %u positions.",
                         options->rows, context);
    if (options->sample && options->logits != LOGITS_LAST)
        return error_set(error, CALLA_BAD_INPUT, "A plan that samples needs the logits of its last row.");
    if (options->logits == LOGITS_ALL && options->rows > forward_logits_rows(config, policy))
        return error_set(
            error, CALLA_BAD_INPUT,
            "A plan with the logits of all its %u rows was asked for: it can have at most %u rows.",
            options->rows, forward_logits_rows(config, policy));
    return true;
}

bool forward_plan(struct plan *plan, const struct config *config, const struct weight_table *table,
                  const struct policy *policy, uint32_t context, const struct forward_options *options,
                  struct calla_error *error) {
    *plan = (struct plan){.rows = options->rows};
    if (!check_options(config, policy, context, options, error))
        return false;
    struct emitter emitter = {.plan = plan,
                              .config = config,
                              .table = table,
                              .policy = policy,
                              .rows = options->rows,
                              .context = context,
                              .constants = model_constants(config),
                              .delta.fused_tail = policy->fuse_delta_norm && options->rows == 1};
    emitter.delta.fused_step = emitter.delta.fused_tail && policy->fuse_delta_conv;
    if (only_samples(options)) {
        emitter.layer = -1;
        emit_sample(&emitter);
    } else {
        emit_all(&emitter, options);
    }
    bool ok =
        emitter.too_large
            ? error_set(error, CALLA_UNSUPPORTED,
                        "The shapes in config.json are too large for a plan of %u rows: an operand would "
                        "have more than 2^30 rows or columns.",
                        options->rows)
            : plan_schedule(plan, policy->concurrent, error);
    if (!ok)
        plan_free(plan);
    return ok;
}

bool forward_layout(struct session_layout *layout, const struct config *config, const struct policy *policy,
                    uint32_t context, struct calla_error *error) {
    uint32_t attention_layers = count_attention_layers(config);
    uint32_t delta_layers = config->layers - attention_layers;
    uint32_t value_width = config->value_heads * config->value_size;
    uint32_t channels = 2 * config->key_heads * config->key_size + value_width;
    *layout = (struct session_layout){
        .state_count = 2 * delta_layers,
        .kv_count = 2 * attention_layers,
        .step = {
            [STEP_RECORD] = {DTYPE_U8, 1, sizeof(struct step_record), "step record"},
            [STEP_TOKENS] = {DTYPE_I32, 1, policy->chunk_rows, "tokens"},
            [STEP_LOGITS] = {DTYPE_F32, forward_logits_rows(config, policy), config->vocabulary, "logits"},
            [STEP_BIAS] = {DTYPE_F32, 1, config->vocabulary, "logit bias"},
            [STEP_COUNTS] = {DTYPE_I32, 1, config->vocabulary, "token counts"}}};
    layout->state = calloc((size_t)layout->state_count + 1, sizeof *layout->state);
    layout->kv = calloc((size_t)layout->kv_count + 1, sizeof *layout->kv);
    if (layout->state == NULL || layout->kv == NULL) {
        session_layout_free(layout);
        return error_memory(error, "the layout of a session", config->layers * sizeof *layout->state);
    }
    for (uint32_t i = 0; i < delta_layers; i++) {
        layout->state[2 * i] = (struct buffer_shape){DTYPE_F32, config->taps, channels, "convolution state"};
        layout->state[2 * i + 1] =
            (struct buffer_shape){DTYPE_F32, value_width, config->key_size, "delta state"};
    }
    uint32_t kv_width = config->kv_heads * config->head_size;
    for (uint32_t i = 0; i < attention_layers; i++) {
        layout->kv[2 * i] = (struct buffer_shape){policy->kv_dtype, context, kv_width, "keys"};
        layout->kv[2 * i + 1] = (struct buffer_shape){policy->kv_dtype, context, kv_width, "values"};
    }
    return true;
}
