/* What a snapshot depends on besides its tokens: the weights, byte for byte, and all that decides on how the
 * same weights are run. */
#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "engine/snapshot_file.h"
#include "model/weights_digest.h"

static void add_text(struct sha256 *hash, const char *text) {
    sha256_add(hash, text, strlen(text) + 1);
}

static void add_number(struct sha256 *hash, uint64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    sha256_add(hash, bytes, sizeof bytes);
}

static void add_real(struct sha256 *hash, float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    add_number(hash, bits);
}

/* What config.json says of the computation itself: the same weights can be run in other ways. */
static void add_config(struct sha256 *hash, const struct config *config) {
    const uint32_t numbers[] = {config->vocabulary,   config->hidden_size,       config->layers,
                                config->heads,        config->kv_heads,          config->head_size,
                                config->rotary_size,  config->key_heads,         config->value_heads,
                                config->key_size,     config->value_size,        config->taps,
                                config->experts,      config->experts_per_token, config->expert_width,
                                config->shared_width, config->tied_embeddings};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_number(hash, numbers[i]);
    for (uint32_t i = 0; i < config->layers; i++)
        add_number(hash, config->attention_layer[i]);
    add_real(hash, config->rope_theta);
    add_real(hash, config->epsilon);
}

/* Replies are remembered by their ids, so these must stand for the same text. */
static void add_tokenizer(struct sha256 *hash, const struct tokenizer *tokenizer) {
    add_number(hash, tokenizer_count(tokenizer));
    for (uint32_t id = 0; id < tokenizer_count(tokenizer); id++) {
        size_t size = 0;
        const char *bytes = tokenizer_bytes(tokenizer, (int32_t)id, &size);
        add_number(hash, size);
        sha256_add(hash, bytes, bytes == NULL ? 0 : size);
    }
}

static void add_shapes(struct sha256 *hash, const struct buffer_shape *shapes, uint32_t count) {
    add_number(hash, count);
    for (uint32_t i = 0; i < count; i++) {
        add_number(hash, shapes[i].dtype);
        add_number(hash, shapes[i].rows);
        add_number(hash, shapes[i].columns);
    }
}

static bool add_layout(struct sha256 *hash, const struct calla_model *model, struct calla_error *error) {
    struct session_layout layout = {0};
    if (!forward_layout(&layout, &model->config, &model->policy, 1, error))
        return false;
    add_shapes(hash, layout.state, layout.state_count);
    add_shapes(hash, layout.kv, layout.kv_count);
    add_number(hash, model->config.vocabulary);
    session_layout_free(&layout);
    return true;
}

static void add_policy(struct sha256 *hash, const struct calla_model *model) {
    const char *name;
    char value[32];
    bool applies;
    for (size_t i = 0; policy_describe(&model->policy, model->class->name, i, &name, value, &applies); i++) {
        add_text(hash, name);
        add_text(hash, value);
    }
    add_text(hash, model->device.name);
    add_text(hash, model->class->kernels != NULL ? model->class->kernels(model->backend) : "");
}

bool model_key_of(struct calla_model *model, const unsigned char weights[WEIGHTS_DIGEST],
                  struct calla_error *error) {
    if (model->have_key)
        return true;
    struct sha256 hash;
    sha256_start(&hash);
    add_text(&hash, calla_version());
    add_text(&hash, model->class->name);
    add_policy(&hash, model);
    add_config(&hash, &model->config);
    add_tokenizer(&hash, model->tokenizer);
    if (!add_layout(&hash, model, error))
        return false;
    sha256_add(&hash, weights, WEIGHTS_DIGEST);
    sha256_finish(&hash, model->key);
    model->have_key = true;
    return true;
}

bool model_key(struct calla_model *model, struct calla_error *error) {
    unsigned char weights[WEIGHTS_DIGEST];
    return model->have_key || (weights_digest(&model->weights, NULL, NULL, weights, error) &&
                               model_key_of(model, weights, error));
}
