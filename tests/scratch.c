#include "scratch.h"

#include "unit.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

const char scratch_config[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"model_type\": \"qwen3_5_moe\","
    " \"eos_token_id\": [5, 6], \"tie_word_embeddings\": false,"
    " \"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\","
    "  \"language_model.model.layers.0.mlp.gate\": {\"group_size\": 64, \"bits\": 8},"
    "  \"language_model.model.layers.1.mlp.gate\": {\"group_size\": 64, \"bits\": 8},"
    "  \"language_model.model.layers.1.mlp.shared_expert_gate\": {\"group_size\": 64, \"bits\": 8}},"
    " \"text_config\": {\"model_type\": \"qwen3_5_moe_text\", \"vocab_size\": 512, \"hidden_size\": 128,"
    "  \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64,"
    "  \"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
    "\"full_attention\"],"
    "  \"full_attention_interval\": 4, \"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 32,"
    "  \"linear_value_head_dim\": 32, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4,"
    "  \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64,"
    "  \"shared_expert_intermediate_size\": 64, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6,"
    "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000,"
    "   \"partial_rotary_factor\": 0.25, \"mrope_section\": [3, 3, 2], \"mrope_interleaved\": true},"
    "  \"hidden_act\": \"silu\", \"attention_bias\": false, \"attn_output_gate\": true,"
    "  \"eos_token_id\": 5, \"pad_token_id\": null, \"tie_word_embeddings\": false},"
    " \"vision_config\": {\"depth\": 27}}";

char *scratch_path(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    assert_non_null(path);
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

char *scratch_new(void) {
    const char *base = getenv("TMPDIR");
    char *folder = scratch_path(base != NULL && base[0] != 0 ? base : "/tmp", "calla-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static void remove_all(const char *path) {
    DIR *stream = opendir(path);
    if (stream == NULL) {
        unlink(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *inner = scratch_path(path, entry->d_name);
        remove_all(inner);
        free(inner);
    }
    closedir(stream);
    rmdir(path);
}

void scratch_remove(char *folder) {
    remove_all(folder);
    free(folder);
}

void scratch_write(const char *folder, const char *name, const void *bytes, size_t size) {
    char *path = scratch_path(folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(path);
}

void scratch_write_text(const char *folder, const char *name, const char *text) {
    scratch_write(folder, name, text, strlen(text));
}

void scratch_delete(const char *folder, const char *name) {
    char *path = scratch_path(folder, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}
