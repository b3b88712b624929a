/* The table of weights: one line per module of the model, in the order in which a token meets them. */
#include <stdlib.h>
#include <string.h>

#include "model/weights.h"

#define LAYER_MAX_WEIGHTS 19

enum form {
    FORM_VECTOR,  /* module.weight [columns] */
    FORM_BARE,    /* module [columns], without the suffix */
    FORM_TAPS,    /* module.weight [rows, columns, 1] */
    FORM_MATRIX,  /* module.weight [rows, columns], affine if the config says so */
    FORM_MATRICES /* module.weight [matrices, rows, columns], the same */
};

struct builder {
    struct weight_table *table;
    const struct config *config;
    struct calla_error *error;
    bool failed;
};

static char *take_name(struct builder *builder, struct buffer *name) {
    char *taken = buffer_take(name, NULL);
    if (taken == NULL) {
        error_memory(builder->error, "the weights' names", 64);
        builder->failed = true;
    }
    return taken;
}

static void add_part(struct builder *builder, struct weight *weight, const char *suffix, enum dtype dtype,
                     enum form form, uint64_t columns) {
    struct weight_part *part = &weight->parts[weight->part_count];
    part->dtype = dtype;
    switch (form) {
    case FORM_VECTOR:
    case FORM_BARE:
        part->rank = 1;
        part->shape[0] = columns;
        break;
    case FORM_TAPS:
        part->rank = 3;
        part->shape[0] = weight->rows, part->shape[1] = columns, part->shape[2] = 1;
        break;
    case FORM_MATRIX:
        part->rank = 2;
        part->shape[0] = weight->rows, part->shape[1] = columns;
        break;
    case FORM_MATRICES:
        part->rank = 3;
        part->shape[0] = weight->matrices, part->shape[1] = weight->rows, part->shape[2] = columns;
        break;
    }
    part->bytes = (uint64_t)weight->matrices * weight->rows * columns * (dtype_bits(dtype) / 8);
    struct buffer name = {0};
    buffer_printf(&name, "%s%s", weight->module, suffix);
    part->name = take_name(builder, &name);
    weight->part_count += part->name != NULL;
}

/* `layer` < 0: the module stands outside the layers. Returns the new weight's index; after a failure any. */
static uint32_t add(struct builder *builder, int64_t layer, const char *leaf, enum form form,
                    uint32_t matrices, uint32_t rows, uint32_t columns) {
    struct weight_table *table = builder->table;
    if (builder->failed)
        return WEIGHT_NONE;
    struct weight *weight = &table->weights[table->count];
    struct buffer name = {0};
    if (layer < 0)
        buffer_printf(&name, "language_model.%s", leaf);
    else
        buffer_printf(&name, "language_model.model.layers.%u.%s", (unsigned)layer, leaf);
    weight->module = take_name(builder, &name);
    if (weight->module == NULL)
        return WEIGHT_NONE;
    table->count++;
    weight->matrices = matrices;
    weight->rows = rows;
    weight->columns = columns;
    bool matrix = form == FORM_MATRIX || form == FORM_MATRICES;
    uint32_t bits = matrix ? config_bits(builder->config, weight->module) : 0;
    if (bits == 0) {
        weight->dtype = DTYPE_BF16;
        add_part(builder, weight, form == FORM_BARE ? "" : ".weight", DTYPE_BF16, form, columns);
        return table->count - 1;
    }
    if (columns % CONFIG_GROUP_SIZE != 0) {
        builder->failed = true;
        error_set(builder->error, CALLA_UNSUPPORTED,
                  "%s has %u columns and cannot be quantised; a multiple of the group size %d is expected.",
                  weight->module, columns, CONFIG_GROUP_SIZE);
        return WEIGHT_NONE;
    }
    weight->dtype = bits == 4 ? DTYPE_AFFINE4 : DTYPE_AFFINE8;
    add_part(builder, weight, ".weight", DTYPE_U32, form, (uint64_t)columns * bits / 32);
    if (!builder->failed)
        add_part(builder, weight, ".scales", DTYPE_BF16, form, columns / CONFIG_GROUP_SIZE);
    if (!builder->failed)
        add_part(builder, weight, ".biases", DTYPE_BF16, form, columns / CONFIG_GROUP_SIZE);
    return table->count - 1;
}

static void add_delta(struct builder *builder, int64_t layer, struct layer_weights *of) {
    const struct config *c = builder->config;
    uint32_t keys = c->key_heads * c->key_size, values = c->value_heads * c->value_size;
    uint32_t channels = 2 * keys + values;
    of->qkv = add(builder, layer, "linear_attn.in_proj_qkv", FORM_MATRIX, 1, channels, c->hidden_size);
    of->z = add(builder, layer, "linear_attn.in_proj_z", FORM_MATRIX, 1, values, c->hidden_size);
    of->b = add(builder, layer, "linear_attn.in_proj_b", FORM_MATRIX, 1, c->value_heads, c->hidden_size);
    of->a = add(builder, layer, "linear_attn.in_proj_a", FORM_MATRIX, 1, c->value_heads, c->hidden_size);
    of->conv = add(builder, layer, "linear_attn.conv1d", FORM_TAPS, 1, channels, c->taps);
    of->A_log = add(builder, layer, "linear_attn.A_log", FORM_BARE, 1, 1, c->value_heads);
    of->dt_bias = add(builder, layer, "linear_attn.dt_bias", FORM_BARE, 1, 1, c->value_heads);
    of->delta_norm = add(builder, layer, "linear_attn.norm", FORM_VECTOR, 1, 1, c->value_size);
    of->delta_out = add(builder, layer, "linear_attn.out_proj", FORM_MATRIX, 1, c->hidden_size, values);
}

static void add_attention(struct builder *builder, int64_t layer, struct layer_weights *of) {
    const struct config *c = builder->config;
    uint32_t query = c->heads * c->head_size, key = c->kv_heads * c->head_size;
    /* Each query head is followed by its output gate, hence twice the rows. */
    of->q = add(builder, layer, "self_attn.q_proj", FORM_MATRIX, 1, 2 * query, c->hidden_size);
    of->k = add(builder, layer, "self_attn.k_proj", FORM_MATRIX, 1, key, c->hidden_size);
    of->v = add(builder, layer, "self_attn.v_proj", FORM_MATRIX, 1, key, c->hidden_size);
    of->q_norm = add(builder, layer, "self_attn.q_norm", FORM_VECTOR, 1, 1, c->head_size);
    of->k_norm = add(builder, layer, "self_attn.k_norm", FORM_VECTOR, 1, 1, c->head_size);
    of->o = add(builder, layer, "self_attn.o_proj", FORM_MATRIX, 1, c->hidden_size, query);
}

static void add_experts(struct builder *builder, int64_t layer, struct layer_weights *of) {
    const struct config *c = builder->config;
    uint32_t hidden = c->hidden_size, shared = c->shared_width, width = c->expert_width;
    of->router = add(builder, layer, "mlp.gate", FORM_MATRIX, 1, c->experts, hidden);
    of->shared_expert_gate = add(builder, layer, "mlp.shared_expert_gate", FORM_MATRIX, 1, 1, hidden);
    of->shared_gate = add(builder, layer, "mlp.shared_expert.gate_proj", FORM_MATRIX, 1, shared, hidden);
    of->shared_up = add(builder, layer, "mlp.shared_expert.up_proj", FORM_MATRIX, 1, shared, hidden);
    of->shared_down = add(builder, layer, "mlp.shared_expert.down_proj", FORM_MATRIX, 1, hidden, shared);
    of->expert_gate =
        add(builder, layer, "mlp.switch_mlp.gate_proj", FORM_MATRICES, c->experts, width, hidden);
    of->expert_up = add(builder, layer, "mlp.switch_mlp.up_proj", FORM_MATRICES, c->experts, width, hidden);
    of->expert_down =
        add(builder, layer, "mlp.switch_mlp.down_proj", FORM_MATRICES, c->experts, hidden, width);
}

bool weight_table_new(struct weight_table *table, const struct config *config, struct calla_error *error) {
    memset(table, 0, sizeof *table);
    size_t most = 3 + (size_t)config->layers * LAYER_MAX_WEIGHTS;
    table->weights = calloc(most, sizeof *table->weights);
    table->layers = malloc(config->layers * sizeof *table->layers);
    if (table->weights == NULL || table->layers == NULL) {
        weight_table_free(table);
        return error_memory(error, "the weight table", most * sizeof *table->weights);
    }
    table->layer_count = config->layers;
    memset(table->layers, 0xff, config->layers * sizeof *table->layers); /* WEIGHT_NONE */

    struct builder builder = {table, config, error, false};
    uint32_t hidden = config->hidden_size;
    table->embed = add(&builder, -1, "model.embed_tokens", FORM_MATRIX, 1, config->vocabulary, hidden);
    for (uint32_t i = 0; i < config->layers && !builder.failed; i++) {
        struct layer_weights *of = &table->layers[i];
        of->input_norm = add(&builder, i, "input_layernorm", FORM_VECTOR, 1, 1, hidden);
        if (config->attention_layer[i])
            add_attention(&builder, i, of);
        else
            add_delta(&builder, i, of);
        of->post_norm = add(&builder, i, "post_attention_layernorm", FORM_VECTOR, 1, 1, hidden);
        add_experts(&builder, i, of);
    }
    table->final_norm = add(&builder, -1, "model.norm", FORM_VECTOR, 1, 1, hidden);
    table->head = config->tied_embeddings
                      ? table->embed
                      : add(&builder, -1, "lm_head", FORM_MATRIX, 1, config->vocabulary, hidden);
    if (builder.failed)
        weight_table_free(table);
    return !builder.failed;
}

void weight_table_free(struct weight_table *table) {
    for (uint32_t i = 0; table->weights != NULL && i < table->count; i++) {
        free(table->weights[i].module);
        for (uint32_t j = 0; j < table->weights[i].part_count; j++)
            free(table->weights[i].parts[j].name);
    }
    free(table->weights);
    free(table->layers);
    memset(table, 0, sizeof *table);
}

uint64_t weight_bytes(const struct weight *weight) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < weight->part_count; i++)
        bytes += weight->parts[i].bytes;
    return bytes;
}

uint64_t weight_table_bytes(const struct weight_table *table) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < table->count; i++)
        bytes += weight_bytes(&table->weights[i]);
    return bytes;
}

uint32_t weight_table_tensors(const struct weight_table *table) {
    uint32_t tensors = 0;
    for (uint32_t i = 0; i < table->count; i++)
        tensors += table->weights[i].part_count;
    return tensors;
}
