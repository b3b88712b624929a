#include "checkpoint_fixture.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "model/synth.h"

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

static bool write_text(const char *folder, const char *name, const char *text) {
    char *path = path_join(folder, name);
    FILE *file = path == NULL ? NULL : fopen(path, "wb");
    free(path);
    if (file == NULL)
        return false;
    bool ok = fputs(text, file) >= 0;
    return fclose(file) == 0 && ok;
}

bool checkpoint_fixture_make(struct checkpoint_fixture *fixture, uint64_t seed) {
    snprintf(fixture->folder, sizeof fixture->folder, "/tmp/calla-test-XXXXXX");
    if (mkdtemp(fixture->folder) == NULL)
        return false;
    char source[80], model[80];
    snprintf(source, sizeof source, "%s/source.json", fixture->folder);
    snprintf(model, sizeof model, "%s/model", fixture->folder);
    json_t *tokenizer = tokenizer_json();
    char *text = tokenizer == NULL ? NULL : json_dumps(tokenizer, 0);
    struct synth_result result;
    struct synth_options options = {.config = source, .out = model, .seed = seed, .shards = 2};
    struct calla_error error = {0};
    bool ok = text != NULL && write_text(fixture->folder, "source.json", CONFIG) &&
              synth_write(&options, &result, &error) && write_text(model, "tokenizer.json", text);
    if (!ok)
        fprintf(stderr, "fixture: %s\n", error.message);
    json_decref(tokenizer);
    free(text);
    return ok;
}

static void remove_tree(const char *path) {
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *child = path_join(path, entry->d_name);
        if (child != NULL && file_kind(child) == FILE_FOLDER)
            remove_tree(child);
        else if (child != NULL)
            unlink(child);
        free(child);
    }
    if (folder != NULL)
        closedir(folder);
    rmdir(path);
}

void checkpoint_fixture_remove(struct checkpoint_fixture *fixture) {
    remove_tree(fixture->folder);
}
