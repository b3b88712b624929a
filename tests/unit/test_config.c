#include "unit.h"

#include <stdio.h>

#include "base/json.h"
#include "model/config.h"
#include "model/weights.h"
#include "scratch.h"

#define FULL "tests/data/config-qwen36-35b-a3b-4bit.json"

static void read_full(struct config *config) {
    struct buffer text = {0};
    struct calla_error error = {0};
    assert_true(file_read(FULL, 1 << 20, &text, &error));
    if (!config_parse(config, text.data, text.size, FULL, &error))
        fail_msg("%s", error.message);
    buffer_free(&text);
}

static void the_published_config(void **state) {
    (void)state;
    struct config c;
    read_full(&c);
    assert_int_equal(c.vocabulary, 248320);
    assert_int_equal(c.hidden_size, 2048);
    assert_int_equal(c.layers, 40);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(c.attention_layer[i], i % 4 == 3);
    assert_int_equal(c.heads, 16);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_size, 256);
    assert_int_equal(c.rotary_size, 64);
    assert_float_equal(c.rope_theta, 1e7f, 0);
    assert_float_equal(c.epsilon, 1e-6f, 0);
    assert_int_equal(c.key_heads, 16);
    assert_int_equal(c.value_heads, 32);
    assert_int_equal(c.key_size, 128);
    assert_int_equal(c.value_size, 128);
    assert_int_equal(c.taps, 4);
    assert_int_equal(c.experts, 256);
    assert_int_equal(c.experts_per_token, 8);
    assert_int_equal(c.expert_width, 512);
    assert_int_equal(c.shared_width, 512);
    assert_int_equal(c.context_limit, 262144);
    assert_false(c.tied_embeddings);
    assert_int_equal(c.bits, 4);
    assert_int_equal(c.override_count, 80);
    assert_int_equal(config_bits(&c, "language_model.model.layers.0.mlp.gate"), 8);
    assert_int_equal(config_bits(&c, "model.layers.39.mlp.shared_expert_gate"), 8);
    assert_int_equal(config_bits(&c, "language_model.model.layers.0.mlp.gate_proj"), 4);
    assert_int_equal(c.end_token_count, 2);
    assert_int_equal(c.end_tokens[0], 248046);
    assert_int_equal(c.end_tokens[1], 248044);
    assert_false(c.sample);
    config_free(&c);
}

static void the_published_table(void **state) {
    (void)state;
    struct config config;
    struct calla_error error = {0};
    struct weight_table table;
    read_full(&config);
    assert_true(weight_table_new(&table, &config, &error));
    assert_int_equal(weight_table_tensors(&table), 1757);
    assert_int_equal(weight_table_bytes(&table), 19508787456);
    assert_int_equal(table.layer_count, 40);
    const struct weight *qkv = &table.weights[table.layers[0].qkv];
    assert_string_equal(qkv->parts[1].name, "language_model.model.layers.0.linear_attn.in_proj_qkv.scales");
    assert_int_equal(qkv->dtype, DTYPE_AFFINE4);
    assert_int_equal(qkv->rows, 8192);
    assert_int_equal(qkv->parts[0].shape[1], 256);
    assert_int_equal(weight_bytes(qkv), 9437184);
    assert_int_equal(table.layers[0].q, WEIGHT_NONE);
    assert_int_equal(table.layers[3].qkv, WEIGHT_NONE);
    const struct weight *down = &table.weights[table.layers[3].expert_down];
    assert_int_equal(weight_bytes(down), 150994944);
    assert_int_equal(down->parts[2].rank, 3);
    assert_int_equal(table.weights[table.layers[39].router].dtype, DTYPE_AFFINE8);
    weight_table_free(&table);
    config_free(&config);
}

/* The small config with one key changed: `value` is JSON, or NULL to leave the key out. `block` names the
 * object in text_config or at the top that holds the key, "" being the top itself. */
static char *changed(const char *block, const char *key, const char *value) {
    json_t *top = json_loads(scratch_config, 0, NULL);
    json_t *text = json_object_get(top, "text_config");
    json_t *object = block[0] == 0 ? top : json_object_get(top, block);
    if (object == NULL)
        object = json_object_get(text, block);
    assert_non_null(object);
    if (value == NULL)
        json_object_del(object, key);
    else
        json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL));
    char *dump = json_dumps(top, 0);
    json_decref(top);
    assert_non_null(dump);
    return dump;
}

static bool parse_changed(struct config *config, const char *block, const char *key, const char *value,
                          struct calla_error *error) {
    char *text = changed(block, key, value);
    bool ok = config_parse(config, text, strlen(text), "config.json", error);
    free(text);
    return ok;
}

static void refuses_by_name(void **state) {
    (void)state;
    static const struct {
        const char *block, *key, *value, *message;
    } cases[] = {
        {"", "model_type", NULL, "config.json has no model_type"},
        {"", "model_type", "\"llama\"", "model_type is \"llama\"; this program runs \"qwen3_5_moe\" only"},
        {"", "model_type", "3", "model_type is 3; a string is expected"},
        {"", "architectures", "[\"Qwen3_5MoeForSequenceClassification\"]",
         "architectures is [\"Qwen3_5MoeForSeq"},
        {"text_config", "model_type", "\"qwen3_next\"", "text_config.model_type is \"qwen3_next\""},
        {"", "text_config", "[]", "text_config is []; an object is expected"},
        {"text_config", "hidden_size", NULL, "config.json: text_config: hidden_size is missing; an integer"},
        {"text_config", "hidden_size", "null", "hidden_size is missing"},
        {"text_config", "hidden_size", "\"128\"", "hidden_size is \"128\"; an integer from 1"},
        {"text_config", "hidden_size", "128.0", "hidden_size is 128.0; an integer"},
        {"text_config", "hidden_size", "-128", "hidden_size is -128"},
        {"text_config", "hidden_size", "4294967424", "hidden_size is 4294967424"},
        {"text_config", "hidden_size", "96", "hidden_size is 96; a multiple of the group size (64)"},
        {"text_config", "moe_intermediate_size", "100", "moe_intermediate_size is 100; a multiple"},
        {"text_config", "shared_expert_intermediate_size", "65", "shared_expert_intermediate_size is 65"},
        {"text_config", "num_hidden_layers", "0", "num_hidden_layers is 0"},
        {"text_config", "num_hidden_layers", "1000000000", "num_hidden_layers is 1000000000"},
        {"text_config", "num_key_value_heads", "3", "num_attention_heads is 4; a multiple of num_key_value"},
        {"text_config", "linear_num_key_heads", "3", "linear_num_value_heads is 4; a multiple of"},
        {"text_config", "head_dim", "63", "head_dim"},
        {"text_config", "linear_conv_kernel_dim", "1", "linear_conv_kernel_dim is 1"},
        {"text_config", "num_experts_per_tok", "9", "num_experts_per_tok is 9; at most 8"},
        {"text_config", "num_experts", "65536", NULL},
        {"text_config", "moe_intermediate_size", "1000000000", "moe_intermediate_size is 1000000000"},
        {"text_config", "num_attention_heads", "8192",
         "num_attention_heads is 8192; an integer from 1 to 4096"},
        {"text_config", "rms_norm_eps", NULL, "rms_norm_eps is missing"},
        {"text_config", "rms_norm_eps", "0", "rms_norm_eps is 0"},
        {"text_config", "hidden_act", "\"gelu\"", "hidden_act is \"gelu\"; only \"silu\""},
        {"text_config", "attention_bias", "true", "attention_bias is true; only false"},
        {"text_config", "attention_bias", "0", "attention_bias is 0; true or false is expected"},
        {"text_config", "attn_output_gate", "false", "attn_output_gate is false; only true"},
        {"text_config", "norm_topk_prob", "false", "norm_topk_prob is false"},
        {"text_config", "decoder_sparse_step", "2", "decoder_sparse_step is 2"},
        {"text_config", "mlp_only_layers", "[0]", "mlp_only_layers is not empty"},
        {"text_config", "layer_types", "[\"linear_attention\"]", "layer_types must be a list of 4 names"},
        {"text_config", "layer_types", "[1,2,3,4]", "layer_types[0]"},
        {"text_config", "layer_types",
         "[\"linear_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]",
         "layer_types[1] is \"sliding_attention\""},
        {"text_config", "full_attention_interval", "0", "full_attention_interval is 0"},
        {"rope_parameters", "rope_type", "\"yarn\"",
         "rope_parameters.rope_type is \"yarn\"; only \"default\""},
        {"rope_parameters", "type", "\"linear\"", "rope_parameters.type is \"linear\""},
        {"text_config", "rope_scaling", "{\"type\": \"yarn\", \"factor\": 4.0}",
         "rope_scaling.type is \"yarn\""},
        {"rope_parameters", "rope_theta", NULL, "rope_theta is missing"},
        {"rope_parameters", "rope_theta", "0", "rope_theta is 0"},
        {"text_config", "rope_theta", "10000",
         "rope_theta is 10000, but rope_parameters.rope_theta is 1e+07"},
        {"rope_parameters", "partial_rotary_factor", "1.5", "partial_rotary_factor is 1.5"},
        {"rope_parameters", "partial_rotary_factor", "0.02", "gives 1 rotated dimensions"},
        {"text_config", "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5, but"},
        {"quantization", "bits", "3", "quantization: bits is 3; only 4 and 8"},
        {"quantization", "bits", NULL, "quantization: bits is missing"},
        {"quantization", "group_size", "32", "quantization: group_size is 32; only 64"},
        {"quantization", "mode", "\"mxfp4\"", "quantization: mode is \"mxfp4\"; only \"affine\""},
        {"quantization", "quant_method", "\"fp8\"", "quant_method is \"fp8\""},
        {"quantization", "lm_head", "{\"bits\": 6}", "quantization: lm_head: bits is 6"},
        {"quantization", "lm_head", "{\"bits\": 8, \"group_size\": 128}", "lm_head: group_size is 128"},
        {"quantization", "lm_head", "5", "\"lm_head\" is 5"},
        {"quantization", "model.layers.0.mlp.gate", "false", "is named twice"},
        {"", "quantization", "4", "quantization is 4; an object"},
        {"", "eos_token_id", "[5, 512]", "eos_token_id has 512; ids from 0 to 511"},
        {"", "eos_token_id", "\"<eos>\"", "eos_token_id has \"<eos>\""},
        {"", "eos_token_id", "-1", "eos_token_id has -1"},
        {"", "eos_token_id", "[0,1,2,3,4,5,6,7,8]", "more than 8"},
        {"", "tie_word_embeddings", "1", "tie_word_embeddings is 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct calla_error error = {0};
        bool ok = parse_changed(&config, cases[i].block, cases[i].key, cases[i].value, &error);
        if (cases[i].message == NULL) {
            if (!ok)
                fail_msg("%s: %s", cases[i].key, error.message);
        } else if (ok || strstr(error.message, cases[i].message) == NULL) {
            fail_msg("%s = %s: \"%s\" was expected, found \"%s\"", cases[i].key,
                     cases[i].value == NULL ? "(absent)" : cases[i].value, cases[i].message, error.message);
        }
        assert_true(ok || config.attention_layer == NULL);
        assert_true(ok || strncmp(error.message, "config.json", 11) == 0);
        config_free(&config);
    }
}

static void absent_keys_are_not_demanded(void **state) {
    (void)state;
    static const char *const keys[] = {"layer_types",    "full_attention_interval", "hidden_act",
                                       "attention_bias", "attn_output_gate",        "eos_token_id",
                                       "pad_token_id",   "tie_word_embeddings",     "model_type"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct config config;
        struct calla_error error = {0};
        if (!parse_changed(&config, "text_config", keys[i], NULL, &error))
            fail_msg("%s: %s", keys[i], error.message);
        assert_int_equal(config.end_token_count, 2);
        for (uint32_t j = 0; j < 4; j++)
            assert_int_equal(config.attention_layer[j], j == 3);
        config_free(&config);
    }
}

static void text_config_may_be_the_whole(void **state) {
    (void)state;
    json_t *top = json_loads(scratch_config, 0, NULL);
    json_t *text = json_object_get(top, "text_config");
    json_object_del(json_object_get(text, "rope_parameters"), "rope_theta");
    json_object_set_new(text, "rope_theta", json_integer(10000));
    json_object_del(text, "layer_types");
    json_object_set_new(text, "full_attention_interval", json_integer(2));
    json_object_set_new(text, "tie_word_embeddings", json_true());
    json_object_set_new(text, "quantization",
                        json_pack("{s:i,s:i,s:b,s:{s:i}}", "bits", 8, "group_size", 64,
                                  "model.layers.0.linear_attn.in_proj_a", 0, "model.embed_tokens", "bits",
                                  4));
    char *dump = json_dumps(text, 0);
    struct config config;
    struct calla_error error = {0};
    if (!config_parse(&config, dump, strlen(dump), "config.json", &error))
        fail_msg("%s", error.message);
    assert_float_equal(config.rope_theta, 10000, 0);
    assert_true(config.tied_embeddings);
    assert_true(config.attention_layer[1]);
    assert_false(config.attention_layer[2]);
    assert_int_equal(config_bits(&config, "language_model.model.layers.0.linear_attn.in_proj_a"), 0);
    assert_int_equal(config_bits(&config, "language_model.model.layers.0.linear_attn.in_proj_b"), 8);
    assert_int_equal(config_bits(&config, "language_model.model.embed_tokens"), 4);
    struct weight_table table;
    assert_true(weight_table_new(&table, &config, &error));
    assert_int_equal(table.head, table.embed);
    assert_int_equal(table.weights[table.layers[0].a].dtype, DTYPE_BF16);
    assert_int_equal(table.weights[table.layers[0].b].dtype, DTYPE_AFFINE8);
    weight_table_free(&table);
    config_free(&config);
    free(dump);
    json_decref(top);
}

static void unquantised_shapes_need_no_groups(void **state) {
    (void)state;
    json_t *top = json_loads(scratch_config, 0, NULL);
    json_object_del(top, "quantization");
    json_object_set_new(json_object_get(top, "text_config"), "hidden_size", json_integer(100));
    char *dump = json_dumps(top, 0);
    struct config config;
    struct weight_table table;
    struct calla_error error = {0};
    assert_true(config_parse(&config, dump, strlen(dump), "config.json", &error));
    assert_true(weight_table_new(&table, &config, &error));
    assert_int_equal(table.weights[table.embed].part_count, 1);
    assert_int_equal(weight_bytes(&table.weights[table.embed]), 512 * 100 * 2);
    weight_table_free(&table);

    /* ... but one that an override quantises does. */
    config.overrides = calloc(1, sizeof *config.overrides);
    config.overrides[0] = (struct quantization_override){strdup("lm_head"), 4};
    config.override_count = 1;
    assert_false(weight_table_new(&table, &config, &error));
    assert_non_null(strstr(error.message, "language_model.lm_head has 100 columns"));
    assert_null(table.weights);
    config_free(&config);
    free(dump);
    json_decref(top);
}

static void the_folder_is_read(void **state) {
    (void)state;
    char *folder = scratch_new();
    struct config config;
    struct calla_error error = {0};
    scratch_write_text(folder, "config.json", scratch_config);
    assert_true(config_read(&config, folder, &error));
    assert_false(config.sample);
    assert_float_equal(config.temperature, 1, 0);
    assert_float_equal(config.top_p, 1, 0);
    assert_int_equal(config.top_k, 0);
    config_free(&config);

    scratch_write_text(
        folder, "generation_config.json",
        "{\"bos_token_id\": 1, \"do_sample\": true, \"eos_token_id\": [7, 5], \"pad_token_id\": 1,"
        " \"temperature\": 0.75, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0.125,"
        " \"repetition_penalty\": 1.5, \"presence_penalty\": 0.5, \"frequency_penalty\": null}");
    assert_true(config_read(&config, folder, &error));
    assert_int_equal(config.end_token_count, 3);
    assert_int_equal(config.end_tokens[2], 7);
    assert_true(config.sample);
    assert_float_equal(config.temperature, 0.75, 0);
    assert_int_equal(config.top_k, 20);
    assert_float_equal(config.top_p, 0.95f, 0);
    assert_float_equal(config.min_p, 0.125, 0);
    assert_float_equal(config.repetition_penalty, 1.5, 0);
    assert_float_equal(config.presence_penalty, 0.5, 0);
    assert_float_equal(config.frequency_penalty, 0, 0);
    config_free(&config);

    static const char *const wrong[][2] = {{"{\"temperature\": -1}", "temperature is -1"},
                                           {"{\"top_p\": 2}", "top_p is 2"},
                                           {"{\"top_k\": 2.5}", "top_k is 2.5"},
                                           {"{\"do_sample\": 1}", "do_sample is 1"},
                                           {"{\"eos_token_id\": 512}", "eos_token_id has 512"},
                                           {"[]", "is not a JSON object"},
                                           {"{\"a\":1,\"a\":2}", "duplicate"},
                                           {"", "not valid JSON"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scratch_write_text(folder, "generation_config.json", wrong[i][0]);
        assert_false(config_read(&config, folder, &error));
        if (strstr(error.message, wrong[i][1]) == NULL ||
            strstr(error.message, "generation_config.json") == NULL)
            fail_msg("%s: %s", wrong[i][0], error.message);
        assert_null(config.attention_layer);
    }
    scratch_remove(folder);
}

static void expect_read_error(const char *path, const char *message) {
    struct config config;
    struct calla_error error = {0};
    assert_false(config_read(&config, path, &error));
    if (strstr(error.message, message) == NULL || strstr(error.message, path) == NULL)
        fail_msg("\"%s\" was expected, found \"%s\"", message, error.message);
}

static void what_is_no_model_is_named(void **state) {
    (void)state;
    char *folder = scratch_new();
    expect_read_error("./no-such-folder", "does not exist");
    expect_read_error("mlx-community/Qwen3.6-35B-A3B-4bit", "does not exist");
    expect_read_error("/dev/null", "neither a file nor a folder");
    expect_read_error(folder, "is an empty folder");
    scratch_write_text(folder, "README.md", "x");
    expect_read_error(folder, "has no config.json");
    char *file = scratch_path(folder, "README.md");
    expect_read_error(file, "is a file; a folder with config.json");
    free(file);
    scratch_write_text(folder, "model-Q4_K_M.gguf", "GGUF");
    expect_read_error(folder, "holds a GGUF model (model-Q4_K_M.gguf)");
    file = scratch_path(folder, "model-Q4_K_M.gguf");
    expect_read_error(file, "is a GGUF file");
    free(file);
    scratch_write_text(folder, "model.safetensors", "x");
    file = scratch_path(folder, "model.safetensors");
    expect_read_error(file, "is one file of a model; name the folder");
    free(file);
    scratch_write_text(folder, "config.json", "{}");
    expect_read_error(folder, "has no model_type");
    scratch_write_text(folder, "config.json", "");
    expect_read_error(folder, "is not valid JSON");
    scratch_write_text(folder, "config.json", "\xff\xfe");
    expect_read_error(folder, "is not valid JSON");
    scratch_write_text(folder, "config.json", "[1]");
    expect_read_error(folder, "is not a JSON object");
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_config),
        cmocka_unit_test(the_published_table),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(absent_keys_are_not_demanded),
        cmocka_unit_test(text_config_may_be_the_whole),
        cmocka_unit_test(unquantised_shapes_need_no_groups),
        cmocka_unit_test(the_folder_is_read),
        cmocka_unit_test(what_is_no_model_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
