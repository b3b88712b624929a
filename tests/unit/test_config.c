#include "unit.h"

#include "base/file.h"
#include "model/config.h"
#include "model/weights.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_config),
        cmocka_unit_test(the_published_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
