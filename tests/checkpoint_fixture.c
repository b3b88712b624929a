#include "unit.h"

#include "checkpoint_fixture.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/synth.h"
#include "scratch.h"

static const char *const CONTROL_TOKENS[] = {
    "<|endoftext|>",   "<|im_start|>",     "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>",    "</think>",
};

/* The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order.
 */
static json_t *byte_vocabulary(void) {
    json_t *vocabulary = json_object();
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned point = byte;
        if (!((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae))
            point = next++;
        char key[3] = {0};
        if (point < 0x80) {
            key[0] = (char)point;
        } else {
            key[0] = (char)(0xc0 | point >> 6);
            key[1] = (char)(0x80 | (point & 0x3f));
        }
        json_object_set_new(vocabulary, key, json_integer(byte));
    }
    return vocabulary;
}

static json_t *tokenizer_json(void) {
    json_t *added = json_array();
    for (size_t i = 0; i < sizeof CONTROL_TOKENS / sizeof *CONTROL_TOKENS; i++)
        json_array_append_new(added,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)(FIXTURE_BYTES + i),
                                        "content", CONTROL_TOKENS[i], "single_word", 0, "lstrip", 0, "rstrip",
                                        0, "normalized", 0, "special", i < 3));
    const char *pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                          "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    return json_pack(
        "{s:s, s:n, s:n, s:o, s:{s:s}, s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]}, "
        "s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "type", "NFC",
        "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern,
        "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0,
        "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0,
        "trim_offsets", 0, "use_regex", 0, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback", 0, "vocab",
        byte_vocabulary(), "merges");
}

static const char CONFIG[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"model_type\": \"qwen3_5_moe\","
    " \"eos_token_id\": [258, 256], \"tie_word_embeddings\": false,"
    " \"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\","
    "  \"language_model.model.layers.0.mlp.gate\": {\"group_size\": 64, \"bits\": 8}},"
    " \"text_config\": {\"model_type\": \"qwen3_5_moe_text\", \"vocab_size\": 320, \"hidden_size\": 128,"
    "  \"num_hidden_layers\": 4, \"full_attention_interval\": 4, \"num_attention_heads\": 4,"
    "  \"num_key_value_heads\": 2, \"head_dim\": 32, \"attention_bias\": false, \"attn_output_gate\": true,"
    "  \"partial_rotary_factor\": 0.25, \"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": "
    "\"default\"},"
    "  \"max_position_embeddings\": 512, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4,"
    "  \"linear_key_head_dim\": 32, \"linear_value_head_dim\": 32, \"linear_conv_kernel_dim\": 4,"
    "  \"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 64,"
    "  \"shared_expert_intermediate_size\": 64, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06}}";

bool checkpoint_fixture_make(struct checkpoint_fixture *fixture, uint64_t seed) {
    fixture->folder = scratch_new();
    fixture->model = scratch_path(fixture->folder, "model");
    char *source = scratch_path(fixture->folder, "source.json");
    scratch_write_text(fixture->folder, "source.json", CONFIG);
    struct synth_result result;
    struct synth_options options = {.config = source, .out = fixture->model, .seed = seed, .shards = 2};
    struct calla_error error = {0};
    bool ok = synth_write(&options, &result, &error);
    if (!ok)
        print_error("%s\n", error.message);
    json_t *tokenizer = tokenizer_json();
    char *text = tokenizer == NULL ? NULL : json_dumps(tokenizer, 0);
    if (ok && text != NULL)
        scratch_write_text(fixture->model, "tokenizer.json", text);
    json_decref(tokenizer);
    free(source);
    free(text);
    return ok && text != NULL;
}

void checkpoint_fixture_remove(struct checkpoint_fixture *fixture) {
    free(fixture->model);
    scratch_remove(fixture->folder);
}

/* One checkpoint for the whole file: *state is its struct checkpoint_fixture. */
int checkpoint_setup(void **state) {
    struct checkpoint_fixture *fixture = calloc(1, sizeof *fixture);
    *state = fixture;
    return fixture != NULL && checkpoint_fixture_make(fixture, 7) ? 0 : -1;
}

int checkpoint_teardown(void **state) {
    checkpoint_fixture_remove(*state);
    free(*state);
    return 0;
}

static struct calla_model *opened(const struct calla_model_options *options) {
    struct calla_error error = {0};
    struct calla_model *model = calla_model_open(options, &error);
    if (model == NULL)
        print_error("%s\n", error.message);
    assert_non_null(model);
    return model;
}

struct calla_model *cpu_model(const char *path, uint64_t cache_memory) {
    struct calla_model_options options = {
        .path = path, .backend = "cpu", .threads = 2, .cache_memory = cache_memory};
    return opened(&options);
}

struct calla_model *checkpoint_model(void **state, const char *backend, int threads, const char *policy) {
    const struct checkpoint_fixture *fixture = *state;
    struct calla_model_options options = {.path = fixture->model, .backend = backend, .threads = threads};
    if (policy != NULL)
        options.policies = &policy, options.policy_count = 1;
    return opened(&options);
}

struct calla_session *checkpoint_session(struct calla_model *model) {
    struct calla_error error = {0};
    struct calla_session *session = calla_session_open(model, NULL, &error);
    if (session == NULL)
        print_error("%s\n", error.message);
    assert_non_null(session);
    return session;
}

void some_tokens(int32_t *tokens, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(seed >> 24);
    }
}

const float *read_all(struct calla_session *session, const int32_t *tokens, size_t count, size_t *computed) {
    struct calla_error error = {0};
    if (!calla_session_read(session, tokens, count, computed, NULL, &error))
        fail_msg("%s", error.message);
    const float *logits = calla_session_logits(session, &error);
    if (logits == NULL)
        fail_msg("%s", error.message);
    return logits;
}
