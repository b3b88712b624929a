/* config.json and generation_config.json of the qwen3_5_moe family, read and validated.
 *
 * A config that was read can be trusted: every product of sizes that the rest of the program forms from it
 * fits its type, so nobody else checks for overflow. */
#ifndef CALLA_MODEL_CONFIG_H
#define CALLA_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/error.h"

#define CONFIG_MAX_END_TOKENS 8
#define CONFIG_GROUP_SIZE 64

struct quantization_override {
    char *module;  /* without the leading "language_model.": "model.layers.0.mlp.gate" */
    uint32_t bits; /* 4, 8, or 0: not quantised */
};

struct config {
    uint32_t vocabulary, hidden_size, layers;
    bool *attention_layer; /* [layers]: full attention, or a gated delta layer */
    uint32_t heads, kv_heads, head_size, rotary_size;
    float rope_theta, epsilon;
    uint32_t key_heads, value_heads, key_size, value_size, taps;
    uint32_t experts, experts_per_token, expert_width, shared_width;
    uint32_t context_limit;
    bool tied_embeddings;
    uint32_t bits;                           /* of matrices without an override; 0: nothing is quantised */
    struct quantization_override *overrides; /* sorted by module */
    size_t override_count;
    int32_t end_tokens[CONFIG_MAX_END_TOKENS]; /* the union of both files' eos_token_id */
    uint32_t end_token_count;
    /* generation_config.json; sample false means greedy, as without the file */
    bool sample;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;
};

/* Reads folder/config.json and, where there is one, folder/generation_config.json. Every error names the
 * file, the key, what was found and what is expected. config_free undoes it; a zeroed config is freed
 * harmlessly, and a failed read leaves one. */
bool config_read(struct config *config, const char *folder, struct calla_error *error);

/* The two files' text; `name` names the source in errors. config_parse fills a fresh config, with the
 * sampling defaults of a missing generation_config.json; config_parse_generation adds that file to it. Either
 * frees the config when it fails. */
bool config_parse(struct config *config, const char *json, size_t size, const char *name,
                  struct calla_error *error);
bool config_parse_generation(struct config *config, const char *json, size_t size, const char *name,
                             struct calla_error *error);
void config_free(struct config *config);

/* Bits of the matrix `module` ("language_model.model.layers.0.mlp.gate", with or without "language_model."):
 * 4, 8 or 0. */
uint32_t config_bits(const struct config *config, const char *module);

/* Whether a tensor or module belongs to the vision tower or the multi-token prediction head, which this
 * program leaves alone. */
bool config_skips(const char *name);

#endif
