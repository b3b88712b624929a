/* Reading config.json: the integers come from one table of keys and limits, the rest key by key. The text
 * model's keys lie under "text_config" or, in text-only conversions, at the top level. */
#include "model/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/config_json.h"
#include "model/folder.h"

#define CONFIG_FILE_LIMIT ((size_t)16 << 20)

/* The limits, with those of check_shapes, are far above any real model and low enough that every product in
 * the weight table and the plans fits: rows and columns 32 bits, all weights together 2^59 bytes. */
static const struct {
    const char *key;
    size_t offset;
    uint32_t least, most;
} integers[] = {
    {"vocab_size", offsetof(struct config, vocabulary), 1, 1u << 24},
    {"hidden_size", offsetof(struct config, hidden_size), 1, 1u << 20},
    {"num_hidden_layers", offsetof(struct config, layers), 1, 4096},
    {"num_attention_heads", offsetof(struct config, heads), 1, 4096},
    {"num_key_value_heads", offsetof(struct config, kv_heads), 1, 4096},
    {"head_dim", offsetof(struct config, head_size), 2, 2048},
    {"linear_num_key_heads", offsetof(struct config, key_heads), 1, 4096},
    {"linear_num_value_heads", offsetof(struct config, value_heads), 1, 4096},
    {"linear_key_head_dim", offsetof(struct config, key_size), 1, 2048},
    {"linear_value_head_dim", offsetof(struct config, value_size), 1, 2048},
    {"linear_conv_kernel_dim", offsetof(struct config, taps), 2, 64},
    {"num_experts", offsetof(struct config, experts), 1, 1u << 16},
    {"num_experts_per_tok", offsetof(struct config, experts_per_token), 1, 1024},
    {"moe_intermediate_size", offsetof(struct config, expert_width), 1, 1u << 20},
    {"shared_expert_intermediate_size", offsetof(struct config, shared_width), 1, 1u << 20},
    {"max_position_embeddings", offsetof(struct config, context_limit), 1, 1u << 30},
};

bool config_skips(const char *name) {
    static const char *const prefixes[] = {
        "vision_tower.", "visual.",    "model.visual.",       "model.vision_tower.",
        "mtp.",          "model.mtp.", "language_model.mtp.", "language_model.model.mtp."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool check_model_type(const struct json_source *top, const struct json_source *text) {
    const char *type = NULL;
    if (!json_source_string(top, "model_type", &type))
        return false;
    if (type == NULL)
        return error_set(top->error, CALLA_BAD_INPUT,
                         "%s has no model_type, so it is not a model's config; \"qwen3_5_moe\" is expected.",
                         top->name);
    if (strcmp(type, "qwen3_5_moe") != 0 && strcmp(type, "qwen3_5_moe_text") != 0)
        return error_set(
            top->error, CALLA_UNSUPPORTED,
            "%s: model_type is \"%.64s\"; this program runs \"qwen3_5_moe\" only (Qwen3.6-35B-A3B "
            "and other shapes of that family).",
            top->name, type);
    /* A classifier or a draft head of the family has the model type, too. */
    json_t *architecture = json_array_get(json_source_get(top, "architectures"), 0);
    const char *name = json_string_value(architecture);
    if (architecture != NULL && (name == NULL || (strcmp(name, "Qwen3_5MoeForConditionalGeneration") != 0 &&
                                                  strcmp(name, "Qwen3_5MoeForCausalLM") != 0))) {
        char found[64];
        return error_set(top->error, CALLA_UNSUPPORTED,
                         "%s: architectures is [%s]; \"Qwen3_5MoeForConditionalGeneration\" or "
                         "\"Qwen3_5MoeForCausalLM\" is expected.",
                         top->name, json_describe(architecture, found, sizeof found));
    }
    const char *text_type = NULL;
    if (!json_source_string(text, "model_type", &text_type))
        return false;
    if (text_type != NULL && strncmp(text_type, "qwen3_5_moe", strlen("qwen3_5_moe")) != 0)
        return error_set(top->error, CALLA_UNSUPPORTED,
                         "%s: text_config.model_type is \"%.64s\"; \"qwen3_5_moe_text\" is expected.",
                         top->name, text_type);
    return true;
}

static bool read_integers(struct config *config, const struct json_source *text) {
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        uint32_t *value = (uint32_t *)(void *)((char *)config + integers[i].offset);
        if (!json_source_integer(text, integers[i].key, integers[i].least, integers[i].most, NULL, value))
            return false;
    }
    return true;
}

static bool read_layer_types(struct config *config, const struct json_source *text) {
    config->attention_layer = calloc(config->layers, sizeof *config->attention_layer);
    if (config->attention_layer == NULL)
        return error_memory(text->error, "layer types", config->layers);
    uint32_t interval, fallback = 4;
    if (!json_source_integer(text, "full_attention_interval", 1, 1u << 16, &fallback, &interval))
        return false;
    json_t *types = json_source_get(text, "layer_types");
    if (types == NULL) {
        for (uint32_t i = 0; i < config->layers; i++)
            config->attention_layer[i] = (i + 1) % interval == 0;
        return true;
    }
    if (!json_is_array(types) || json_array_size(types) != config->layers)
        return error_set(
            text->error, CALLA_BAD_INPUT,
            "%s: layer_types must be a list of %u names, one for each of num_hidden_layers; found "
            "%zu.",
            text->name, config->layers, json_array_size(types));
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || (strcmp(type, "full_attention") != 0 && strcmp(type, "linear_attention") != 0))
            return error_set(
                text->error, CALLA_UNSUPPORTED,
                "%s: layer_types[%u] is \"%.64s\"; \"full_attention\" or \"linear_attention\" is "
                "expected.",
                text->name, i, type == NULL ? "(no string)" : type);
        config->attention_layer[i] = type[0] == 'f';
    }
    return true;
}

/* Rotary embedding: rope_parameters (older files: rope_scaling), or the same keys beside it. */
static bool read_rope(struct config *config, const struct json_source *text) {
    const char *const blocks[] = {"rope_parameters", "rope_scaling"};
    double theta = 0, factor = 0;
    if (!json_source_number(text, "rope_theta", 1, 1e15, &theta) ||
        !json_source_number(text, "partial_rotary_factor", 1e-6, 1, &factor))
        return false;
    for (size_t i = 0; i < 2; i++) {
        struct json_source block;
        char path[64];
        if (!json_source_object(text, blocks[i], path, sizeof path, &block))
            return false;
        if (block.object == NULL)
            continue;
        static const char *const type_keys[] = {"rope_type", "type"};
        for (size_t j = 0; j < 2; j++) {
            const char *type = NULL;
            if (!json_source_string(&block, type_keys[j], &type))
                return false;
            if (type != NULL && strcmp(type, "default") != 0)
                return error_set(text->error, CALLA_UNSUPPORTED,
                                 "%s: %s.%s is \"%.64s\"; only \"default\" is supported.", text->name,
                                 blocks[i], type_keys[j], type);
        }
        double found = 0;
        if (!json_source_number(&block, "rope_theta", 1, 1e15, &found))
            return false;
        if (found != 0 && theta != 0 && found != theta)
            return error_set(text->error, CALLA_BAD_INPUT, "%s: rope_theta is %g, but %s.rope_theta is %g.",
                             text->name, theta, blocks[i], found);
        theta = found != 0 ? found : theta;
        found = 0;
        if (!json_source_number(&block, "partial_rotary_factor", 1e-6, 1, &found))
            return false;
        if (found != 0 && factor != 0 && found != factor)
            return error_set(text->error, CALLA_BAD_INPUT,
                             "%s: partial_rotary_factor is %g, but %s.partial_rotary_factor is %g.",
                             text->name, factor, blocks[i], found);
        factor = found != 0 ? found : factor;
    }
    if (theta == 0)
        return error_set(text->error, CALLA_BAD_INPUT,
                         "%s: rope_theta is missing, both in rope_parameters and beside it.", text->name);
    if (factor == 0)
        factor = 0.25; /* the family's default */
    config->rope_theta = (float)theta;
    config->rotary_size = (uint32_t)((double)config->head_size * factor);
    if (config->rotary_size < 2 || config->rotary_size % 2 != 0)
        return error_set(
            text->error, CALLA_UNSUPPORTED,
            "%s: head_dim %u times partial_rotary_factor %g gives %u rotated dimensions; an even "
            "number from 2 on is expected.",
            text->name, config->head_size, factor, config->rotary_size);
    return true;
}

/* Switches of the family that other values than these would need code for. All may be absent. */
static bool check_fixed(const struct json_source *text) {
    static const struct {
        const char *key;
        bool expected;
    } switches[] = {{"attention_bias", false}, {"attn_output_gate", true}, {"norm_topk_prob", true}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        bool value = switches[i].expected;
        if (!json_source_boolean(text, switches[i].key, &value))
            return false;
        if (value != switches[i].expected)
            return error_set(text->error, CALLA_UNSUPPORTED, "%s: %s is %s; only %s is supported.",
                             text->name, switches[i].key, value ? "true" : "false", value ? "false" : "true");
    }
    const char *activation = NULL;
    if (!json_source_string(text, "hidden_act", &activation))
        return false;
    if (activation != NULL && strcmp(activation, "silu") != 0)
        return error_set(text->error, CALLA_UNSUPPORTED,
                         "%s: hidden_act is \"%.64s\"; only \"silu\" is supported.", text->name, activation);
    uint32_t step, fallback = 1;
    if (!json_source_integer(text, "decoder_sparse_step", 1, UINT32_MAX, &fallback, &step))
        return false;
    if (step != 1)
        return error_set(text->error, CALLA_UNSUPPORTED,
                         "%s: decoder_sparse_step is %u; only 1 is supported (experts in every layer).",
                         text->name, step);
    json_t *dense = json_source_get(text, "mlp_only_layers");
    if (dense != NULL && (!json_is_array(dense) || json_array_size(dense) != 0))
        return error_set(text->error, CALLA_UNSUPPORTED,
                         "%s: mlp_only_layers is not empty; only experts in every layer are supported.",
                         text->name);
    return true;
}

static bool check_divides(const struct json_source *text, const char *what, uint64_t value, const char *by,
                          uint64_t divisor) {
    if (value % divisor == 0)
        return true;
    return error_set(text->error, CALLA_UNSUPPORTED, "%s: %s is %llu; a multiple of %s (%llu) is expected.",
                     text->name, what, (unsigned long long)value, by, (unsigned long long)divisor);
}

static bool check_at_most(const struct json_source *text, const char *what, uint64_t value, uint64_t most) {
    if (value <= most)
        return true;
    return error_set(text->error, CALLA_UNSUPPORTED, "%s: %s is %llu; at most %llu is supported.", text->name,
                     what, (unsigned long long)value, (unsigned long long)most);
}

static bool check_shapes(const struct config *config, const struct json_source *text) {
    uint64_t query = (uint64_t)config->heads * config->head_size;
    uint64_t values = (uint64_t)config->value_heads * config->value_size;
    uint64_t keys = (uint64_t)config->key_heads * config->key_size;
    if (!check_divides(text, "num_attention_heads", config->heads, "num_key_value_heads", config->kv_heads) ||
        !check_divides(text, "linear_num_value_heads", config->value_heads, "linear_num_key_heads",
                       config->key_heads) ||
        !check_divides(text, "head_dim", config->head_size, "the two halves of a rotation", 2) ||
        !check_at_most(text, "num_experts_per_tok", config->experts_per_token, config->experts) ||
        !check_at_most(text, "num_attention_heads times head_dim", query, 1u << 22) ||
        !check_at_most(text, "the width of the convolution", 2 * keys + values, 1u << 22) ||
        !check_at_most(text, "num_experts times moe_intermediate_size",
                       (uint64_t)config->experts * config->expert_width, 1u << 30) ||
        !check_at_most(text, "num_experts times moe_intermediate_size times hidden_size",
                       (uint64_t)config->experts * config->expert_width * config->hidden_size,
                       (uint64_t)1 << 44) ||
        !check_at_most(text, "num_experts times hidden_size", (uint64_t)config->experts * config->hidden_size,
                       1u << 30))
        return false;
    if (config->bits == 0)
        return true; /* the weight table checks matrices that an override quantises */
    return check_divides(text, "hidden_size", config->hidden_size, "the group size", CONFIG_GROUP_SIZE) &&
           check_divides(text, "num_attention_heads times head_dim", query, "the group size",
                         CONFIG_GROUP_SIZE) &&
           check_divides(text, "linear_num_value_heads times linear_value_head_dim", values, "the group size",
                         CONFIG_GROUP_SIZE) &&
           check_divides(text, "moe_intermediate_size", config->expert_width, "the group size",
                         CONFIG_GROUP_SIZE) &&
           check_divides(text, "shared_expert_intermediate_size", config->shared_width, "the group size",
                         CONFIG_GROUP_SIZE);
}

static bool add_end_token(struct config *config, const struct json_source *source, json_t *value) {
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= (json_int_t)config->vocabulary) {
        char found[64];
        return error_set(source->error, CALLA_BAD_INPUT,
                         "%s: eos_token_id has %s; ids from 0 to %u (vocab_size - 1) are expected.",
                         source->name, json_describe(value, found, sizeof found), config->vocabulary - 1);
    }
    for (uint32_t i = 0; i < config->end_token_count; i++)
        if (config->end_tokens[i] == (int32_t)id)
            return true;
    if (config->end_token_count == CONFIG_MAX_END_TOKENS)
        return error_set(source->error, CALLA_UNSUPPORTED,
                         "%s: eos_token_id names more than %d different end tokens.", source->name,
                         CONFIG_MAX_END_TOKENS);
    config->end_tokens[config->end_token_count++] = (int32_t)id;
    return true;
}

static bool read_end_tokens(struct config *config, const struct json_source *source) {
    json_t *value = json_source_get(source, "eos_token_id");
    if (value == NULL)
        return true;
    if (!json_is_array(value))
        return add_end_token(config, source, value);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_end_token(config, source, json_array_get(value, i)))
            return false;
    return true;
}

static bool read_config(struct config *config, const struct json_source *top) {
    struct json_source text;
    char path[1024];
    if (!json_source_object(top, "text_config", path, sizeof path, &text))
        return false;
    if (text.object == NULL)
        text = *top;
    double epsilon = 0;
    if (!check_model_type(top, &text) || !read_integers(config, &text) || !read_layer_types(config, &text) ||
        !read_rope(config, &text) || !check_fixed(&text) ||
        !json_source_number(&text, "rms_norm_eps", 1e-20, 1, &epsilon))
        return false;
    if (epsilon == 0)
        return error_set(top->error, CALLA_BAD_INPUT, "%s: rms_norm_eps is missing.", text.name);
    config->epsilon = (float)epsilon;
    /* The text model's own word counts; a wrapper's default of false says nothing about it. */
    return json_source_boolean(top, "tie_word_embeddings", &config->tied_embeddings) &&
           json_source_boolean(&text, "tie_word_embeddings", &config->tied_embeddings) &&
           config_read_quantization(config, top) && check_shapes(config, &text) &&
           read_end_tokens(config, top) && read_end_tokens(config, &text);
}

static bool read_generation(struct config *config, const struct json_source *source) {
    double temperature = 1, top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
    uint32_t off = 0;
    if (!json_source_boolean(source, "do_sample", &config->sample) ||
        !json_source_number(source, "temperature", 0, 100, &temperature) ||
        !json_source_number(source, "top_p", 0, 1, &top_p) ||
        !json_source_number(source, "min_p", 0, 1, &min_p) ||
        !json_source_number(source, "repetition_penalty", 0.01, 100, &repetition) ||
        !json_source_number(source, "presence_penalty", -100, 100, &presence) ||
        !json_source_number(source, "frequency_penalty", -100, 100, &frequency) ||
        !json_source_integer(source, "top_k", 0, INT32_MAX, &off, &config->top_k) ||
        !read_end_tokens(config, source))
        return false;
    config->temperature = (float)temperature;
    config->top_p = (float)top_p;
    config->min_p = (float)min_p;
    config->repetition_penalty = (float)repetition;
    config->presence_penalty = (float)presence;
    config->frequency_penalty = (float)frequency;
    return true;
}

static bool parse(struct config *config, const char *json, size_t size, const char *name,
                  bool (*read)(struct config *, const struct json_source *), struct calla_error *error) {
    json_t *value = json_parse(json, size, name, error);
    if (value == NULL)
        return false;
    struct json_source source = {value, name, error};
    bool ok = json_is_object(value) ? read(config, &source)
                                    : error_set(error, CALLA_BAD_INPUT, "%s is not a JSON object.", name);
    json_decref(value);
    return ok;
}

bool config_parse(struct config *config, const char *json, size_t size, const char *name,
                  struct calla_error *error) {
    memset(config, 0, sizeof *config);
    config->temperature = config->top_p = config->repetition_penalty = 1;
    if (parse(config, json, size, name, read_config, error))
        return true;
    config_free(config);
    return false;
}

bool config_parse_generation(struct config *config, const char *json, size_t size, const char *name,
                             struct calla_error *error) {
    if (parse(config, json, size, name, read_generation, error))
        return true;
    config_free(config);
    return false;
}

static bool read_file(struct config *config, const char *folder, const char *file, bool required,
                      bool (*parse_text)(struct config *, const char *, size_t, const char *,
                                         struct calla_error *),
                      struct calla_error *error) {
    struct buffer text = {0};
    char *path = path_join(folder, file);
    bool ok;
    if (path == NULL)
        ok = error_memory(error, "a file name", strlen(folder) + strlen(file) + 2);
    else if (!required && file_kind(path) == FILE_MISSING)
        ok = true;
    else
        ok = file_read(path, CONFIG_FILE_LIMIT, &text, error) &&
             parse_text(config, text.data, text.size, path, error);
    buffer_free(&text);
    free(path);
    if (!ok)
        config_free(config);
    return ok;
}

bool config_read(struct config *config, const char *folder, struct calla_error *error) {
    memset(config, 0, sizeof *config);
    return folder_check(folder, error) &&
           read_file(config, folder, "config.json", true, config_parse, error) &&
           read_file(config, folder, "generation_config.json", false, config_parse_generation, error);
}

void config_free(struct config *config) {
    free(config->attention_layer);
    for (size_t i = 0; i < config->override_count; i++)
        free(config->overrides[i].module);
    free(config->overrides);
    memset(config, 0, sizeof *config);
}
