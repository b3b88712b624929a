#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "model/affine.h"
#include "model/safetensors.h"
#include "model/synth.h"
#include "model/weights.h"
#include "scratch.h"

/* A folder with the small model's random weights. */
static char *synth_with_threads(const char *config, uint64_t seed, uint32_t shards, int threads) {
    char *folder = scratch_new();
    scratch_write_text(folder, "shape.json", config);
    char *path = scratch_path(folder, "shape.json"), *out = scratch_path(folder, "model");
    struct synth_options options = {
        .config = path, .out = out, .seed = seed, .shards = shards, .threads = threads};
    struct synth_result result;
    struct calla_error error = {0};
    if (!synth_write(&options, &result, &error))
        fail_msg("%s", error.message);
    assert_int_equal(result.tensors, 182);
    assert_int_equal(result.bytes, 770064);
    free(path);
    free(out);
    return folder;
}

static char *synth_new(const char *config, uint64_t seed, uint32_t shards) {
    return synth_with_threads(config, seed, shards, 0);
}

static bool open_model(struct weights *weights, const char *folder, struct calla_error *error) {
    struct config config;
    char *path = scratch_path(folder, "model");
    bool ok = config_read(&config, path, error) && weights_open(weights, &config, path, error);
    config_free(&config);
    free(path);
    return ok;
}

static void expect_error(const char *folder, const char *message) {
    struct weights weights = {0};
    struct calla_error error = {0};
    if (open_model(&weights, folder, &error))
        fail_msg("opened, but \"%s\" was expected", message);
    if (strstr(error.message, message) == NULL)
        fail_msg("\"%s\" was expected, found \"%s\"", message, error.message);
    assert_null(weights.files);
    assert_null(weights.table.weights);
    weights_close(&weights);
}

static void seed_and_names_make_the_weights(void **state) {
    (void)state;
    char *folders[] = {synth_with_threads(scratch_config, 7, 1, 1),
                       synth_with_threads(scratch_config, 7, 5, 3), synth_new(scratch_config, 8, 1)};
    struct weights weights[3];
    struct calla_error error = {0};
    for (int i = 0; i < 3; i++) {
        assert_true(open_model(&weights[i], folders[i], &error));
        assert_int_equal(weights[i].bytes, 770064);
        assert_int_equal(weights[i].skipped, 0);
        assert_int_equal(weights[i].unused, 0);
        assert_true(weights_map(&weights[i], NULL, &error));
    }
    assert_int_equal(weights[0].file_count, 1);
    assert_int_equal(weights[1].file_count, 5);
    uint32_t differ = 0, apart = 0, odd = 0;
    for (uint32_t i = 0; i < weights[0].table.count; i++)
        for (uint32_t j = 0; j < weights[0].table.weights[i].part_count; j++) {
            const struct weight_part *part = &weights[0].table.weights[i].parts[j];
            uint8_t *copy = malloc(part->bytes);
            assert_true(weights_read_part(&weights[1], i, j, 0, copy, part->bytes, &error));
            assert_memory_equal(weights_part(&weights[0], i, j), copy, part->bytes);
            assert_memory_equal(weights_part(&weights[1], i, j), copy, part->bytes);
            differ += memcmp(weights_part(&weights[2], i, j), copy, part->bytes) != 0;
            apart += weights[1].table.weights[i].parts[j].file != weights[1].table.weights[i].parts[0].file;
            odd += part->offset % 2 == 1;
            assert_false(weights_read_part(&weights[0], i, j, 1, copy, part->bytes, &error));
            assert_false(weights_read_part(&weights[0], i, j, UINT64_MAX, copy, 2, &error));
            assert_true(weights_read_part(&weights[0], i, j, part->bytes, copy, 0, &error));
            free(copy);
        }
    assert_int_equal(differ, 182);
    assert_int_not_equal(apart, 0); /* a matrix's parts lie in different files */
    assert_int_equal(odd, 182);
    for (int i = 0; i < 3; i++) {
        weights_close(&weights[i]);
        scratch_remove(folders[i]);
    }
}

static void values_have_a_sane_scale(void **state) {
    (void)state;
    char *folder = synth_new(scratch_config, 1, 1);
    struct weights weights;
    struct calla_error error = {0};
    assert_true(open_model(&weights, folder, &error));
    assert_true(weights_map(&weights, NULL, &error));
    const struct weight_table *table = &weights.table;
    const uint32_t matrices[] = {table->embed, table->layers[0].router, table->layers[0].qkv};
    /* Deviations of the values, times the square root of the columns. */
    const double gains[] = {sqrt(128), 2, 1};
    for (size_t m = 0; m < 3; m++) {
        const struct weight *weight = &table->weights[matrices[m]];
        uint32_t bits = weight->dtype == DTYPE_AFFINE4 ? 4 : 8, groups = weight->columns / 64, negative = 0;
        const uint8_t *codes = weights_part(&weights, matrices[m], 0);
        const char *scales = weights_part(&weights, matrices[m], 1),
                   *biases = weights_part(&weights, matrices[m], 2);
        double sum = 0, squares = 0;
        for (uint32_t row = 0; row < weight->rows; row++) {
            float values[128];
            uint16_t scale[2], bias[2];
            memcpy(scale, scales + (size_t)row * groups * 2, sizeof scale);
            memcpy(bias, biases + (size_t)row * groups * 2, sizeof bias);
            negative += scale[0] >> 15;
            affine_dequantize_row(codes + (size_t)row * 128 * bits / 8, scale, bias, 128, bits, values);
            for (int i = 0; i < 128; i++) {
                sum += (double)values[i];
                squares += (double)values[i] * (double)values[i];
            }
        }
        double count = weight->rows * 128.0;
        assert_true(fabs(sum / count) < 0.02 * gains[m]);
        assert_true(fabs(sqrt(squares / count * 128) / gains[m] - 1) < 0.15);
        assert_true(negative > 0 && negative < weight->rows);
    }
    assert_int_equal(table->weights[table->layers[0].router].dtype, DTYPE_AFFINE8);
    weights_close(&weights);
    scratch_remove(folder);
}

/* Editing a checkpoint's headers */

struct shard {
    char *folder, *path;
    json_t *header;
    char *data;
    size_t data_size;
};

static struct shard shard_load(const char *folder, const char *name) {
    struct buffer text = {0};
    struct calla_error error = {0};
    struct shard shard = {.folder = scratch_path(folder, "model")};
    shard.path = scratch_path(shard.folder, name);
    assert_true(file_read(shard.path, 1 << 24, &text, &error));
    uint64_t length;
    memcpy(&length, text.data, 8);
    shard.header = json_loadb(text.data + 8, length, 0, NULL);
    shard.data_size = text.size - 8 - length;
    shard.data = malloc(shard.data_size);
    memcpy(shard.data, text.data + 8 + length, shard.data_size);
    buffer_free(&text);
    return shard;
}

static void shard_save(struct shard *shard) {
    char *json = json_dumps(shard->header, JSON_COMPACT);
    uint64_t length = strlen(json);
    FILE *file = fopen(shard->path, "wb");
    assert_int_equal(fwrite(&length, 1, 8, file), 8);
    assert_int_equal(fwrite(json, 1, length, file), length);
    assert_int_equal(fwrite(shard->data, 1, shard->data_size, file), shard->data_size);
    fclose(file);
    free(json);
}

static void shard_free(struct shard *shard) {
    json_decref(shard->header);
    free(shard->data);
    free(shard->path);
    free(shard->folder);
}

static void add_tensor(struct shard *shard, const char *name, const char *dtype, json_t *shape,
                       size_t bytes) {
    char *data = realloc(shard->data, shard->data_size + bytes);
    memset(data + shard->data_size, 0, bytes);
    json_object_set_new(shard->header, name,
                        json_pack("{s:s,s:o,s:[i,i]}", "dtype", dtype, "shape", shape, "data_offsets",
                                  (int)shard->data_size, (int)(shard->data_size + bytes)));
    shard->data = data;
    shard->data_size += bytes;
}

#define MODEL "language_model.model."

/* The unchanged shard, then the same with `change` made, must open and fail, respectively. */
static void expect_change_error(void (*change)(struct shard *), const char *message) {
    char *folder = synth_new(scratch_config, 1, 1);
    struct shard shard = shard_load(folder, "model.safetensors");
    scratch_delete(shard.folder, "model.safetensors.index.json");
    shard_save(&shard);
    struct weights weights;
    struct calla_error error = {0};
    if (!open_model(&weights, folder, &error))
        fail_msg("%s", error.message);
    weights_close(&weights);
    change(&shard);
    shard_save(&shard);
    expect_error(folder, message);
    shard_free(&shard);
    scratch_remove(folder);
}

static void remove_scales(struct shard *shard) {
    json_object_del(shard->header, MODEL "layers.0.mlp.gate.scales");
}

static void widen_norm(struct shard *shard) {
    json_object_del(shard->header, MODEL "norm.weight");
    add_tensor(shard, MODEL "norm.weight", "F32", json_pack("[i]", 256), 1024);
}

static void turn_norm(struct shard *shard) {
    json_object_del(shard->header, MODEL "norm.weight");
    add_tensor(shard, MODEL "norm.weight", "F32", json_pack("[i,i]", 1, 128), 512);
}

static void integer_norm(struct shard *shard) {
    json_object_del(shard->header, MODEL "norm.weight");
    add_tensor(shard, MODEL "norm.weight", "I32", json_pack("[i]", 128), 512);
}

static void float_codes(struct shard *shard) {
    json_object_del(shard->header, "language_model.lm_head.weight");
    add_tensor(shard, "language_model.lm_head.weight", "BF16", json_pack("[i,i]", 512, 128), 512 * 128 * 2);
}

static void eight_bit_codes(struct shard *shard) {
    json_object_del(shard->header, "language_model.lm_head.weight");
    add_tensor(shard, "language_model.lm_head.weight", "U32", json_pack("[i,i]", 512, 32), 512 * 32 * 4);
}

static void mixed_scales(struct shard *shard) {
    json_object_del(shard->header, "language_model.lm_head.scales");
    add_tensor(shard, "language_model.lm_head.scales", "F16", json_pack("[i,i]", 512, 2), 512 * 2 * 2);
}

static void stranger(struct shard *shard) {
    add_tensor(shard, MODEL "layers.0.self_attn.q_proj.bias", "BF16", json_pack("[i]", 4), 8);
}

static void fifth_layer(struct shard *shard) {
    add_tensor(shard, MODEL "layers.4.input_layernorm.weight", "BF16", json_pack("[i]", 128), 256);
}

static void original_experts(struct shard *shard) {
    add_tensor(shard, "model.language_model.layers.0.mlp.experts.gate_up_proj", "BF16",
               json_pack("[i,i,i]", 2, 2, 1), 8);
}

static void original_convolution(struct shard *shard) {
    json_object_del(shard->header, MODEL "layers.0.linear_attn.conv1d.weight");
    add_tensor(shard, MODEL "layers.0.linear_attn.conv1d.weight", "BF16", json_pack("[i,i,i]", 256, 1, 4),
               2048);
}

static void shorten(struct shard *shard) {
    shard->data_size -= 100;
}

static void empty_header(struct shard *shard) {
    json_object_clear(shard->header);
}

static void wrong_tensors_are_named(void **state) {
    (void)state;
    expect_change_error(remove_scales,
                        "none of its 1 weight files has the tensor " MODEL "layers.0.mlp.gate.scales");
    expect_change_error(widen_norm, MODEL "norm.weight has shape [256]; config.json makes it [128]");
    expect_change_error(turn_norm, MODEL "norm.weight has shape [1, 128]; config.json makes it [128]");
    expect_change_error(integer_norm, MODEL "norm.weight has dtype I32; BF16, F16 or F32 is expected");
    expect_change_error(float_codes,
                        "lm_head.weight is BF16, not quantised; config.json asks for affine 4-bit");
    expect_change_error(eight_bit_codes,
                        "lm_head.weight has shape [512, 32]; config.json makes it [512, 16] (packed codes)");
    expect_change_error(mixed_scales, "lm_head.scales is F16, but language_model.lm_head.biases is BF16");
    expect_change_error(stranger, "q_proj.bias (BF16) has no place in the model");
    expect_change_error(fifth_layer, "layers.4.input_layernorm.weight (BF16) has no place");
    expect_change_error(original_experts, "is the original checkpoint in Hugging Face's layout");
    expect_change_error(original_convolution, "is the original checkpoint in Hugging Face's layout");
    expect_change_error(shorten, "model.safetensors is truncated: tensor");
    expect_change_error(empty_header, "model.safetensors has no tensors");
}

static void what_is_not_needed_is_counted(void **state) {
    (void)state;
    char *folder = synth_new(scratch_config, 1, 1);
    struct shard shard = shard_load(folder, "model.safetensors");
    add_tensor(&shard, "vision_tower.patch_embed.proj.weight", "BF16",
               json_pack("[i,i,i,i,i]", 1, 1, 1, 1, 3), 6);
    add_tensor(&shard, "mtp.fc.weight", "F64", json_pack("[i]", 1), 8);
    add_tensor(&shard, "language_model.mtp.norm.weight", "BF16", json_pack("[i]", 1), 2);
    json_object_del(shard.header, MODEL "norm.weight");
    json_object_del(shard.header, MODEL "layers.0.linear_attn.A_log");
    add_tensor(&shard, MODEL "norm.weight", "F32", json_pack("[i]", 128), 512);
    add_tensor(&shard, MODEL "layers.0.linear_attn.A_log", "F16", json_pack("[i]", 4), 8);
    shard_save(&shard);
    struct weights weights;
    struct calla_error error = {0};
    if (!open_model(&weights, folder, &error))
        fail_msg("%s", error.message);
    assert_int_equal(weights.skipped, 3);
    assert_int_equal(weights.unused, 256 + 8);
    assert_int_equal(weights.bytes, 770064 + 256);
    assert_int_equal(weights.table.weights[weights.table.final_norm].dtype, DTYPE_F32);
    assert_int_equal(weights.table.weights[weights.table.layers[0].A_log].dtype, DTYPE_F16);
    assert_int_equal(weights.table.weights[weights.table.layers[1].A_log].dtype, DTYPE_BF16);
    weights_close(&weights);
    shard_free(&shard);
    scratch_remove(folder);
}

static void names_may_lack_the_prefix(void **state) {
    (void)state;
    char *folder = synth_new(scratch_config, 1, 1);
    struct shard shard = shard_load(folder, "model.safetensors");
    scratch_delete(shard.folder, "model.safetensors.index.json");
    json_t *renamed = json_object();
    const char *name;
    json_t *value;
    json_object_foreach(shard.header, name, value)
        json_object_set(renamed, strncmp(name, "language_model.", 15) == 0 ? name + 15 : name, value);
    json_decref(shard.header);
    shard.header = renamed;
    shard_save(&shard);
    struct weights weights;
    struct calla_error error = {0};
    if (!open_model(&weights, folder, &error))
        fail_msg("%s", error.message);
    assert_string_equal(weights.table.weights[weights.table.final_norm].parts[0].name, "model.norm.weight");
    weights_close(&weights);
    shard_free(&shard);
    scratch_remove(folder);
}

static void shards_are_checked(void **state) {
    (void)state;
    char *folder = synth_new(scratch_config, 1, 3);
    char *model = scratch_path(folder, "model"), *path = scratch_path(model, "model.safetensors.index.json");
    struct buffer text = {0};
    struct calla_error error = {0};
    struct weights weights;
    assert_true(file_read(path, 1 << 20, &text, &error));

    /* An index that lies */
    json_t *index = json_loadb(text.data, text.size, 0, NULL);
    json_t *map = json_object_get(index, "weight_map");
    static const char *const names[][2] = {
        {"../model-00001-of-00003.safetensors",
         "the name of a .safetensors file in the same folder is expected"},
        {"/etc/passwd", "the name of a .safetensors file"},
        {".hidden.safetensors", "the name of a .safetensors file"},
        {"config.json", "the name of a .safetensors file"},
        {"model-00009-of-00003.safetensors", "lacks model-00009-of-00003.safetensors, file"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_object_set_new(map, MODEL "norm.weight", json_string(names[i][0]));
        assert_int_equal(json_dump_file(index, path, 0), 0);
        expect_error(folder, names[i][1]);
    }
    json_object_set_new(map, MODEL "norm.weight", json_string("model-00001-of-00003.safetensors"));
    assert_int_equal(json_dump_file(index, path, 0), 0);
    expect_error(folder,
                 "places tensor " MODEL "norm.weight in model-00001-of-00003.safetensors, which does not");
    json_object_set_new(map, MODEL "norm.weight", json_integer(1));
    assert_int_equal(json_dump_file(index, path, 0), 0);
    expect_error(folder, "(no string)");
    json_object_clear(map);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    expect_error(folder, "weight_map must be an object");
    json_decref(index);
    scratch_write_text(model, "model.safetensors.index.json", "{");
    expect_error(folder, "is not valid JSON");

    /* A missing file, with and without the index */
    scratch_write(model, "model.safetensors.index.json", text.data, text.size);
    assert_true(open_model(&weights, folder, &error));
    weights_close(&weights);
    struct shard shard = shard_load(folder, "model-00002-of-00003.safetensors");
    scratch_delete(model, "model-00002-of-00003.safetensors");
    expect_error(folder, "lacks model-00002-of-00003.safetensors, file 2 of 3");
    scratch_delete(model, "model.safetensors.index.json");
    expect_error(folder, "lacks model-00002-of-00003.safetensors, part 2 of 3");
    shard_save(&shard);
    if (!open_model(&weights, folder, &error))
        fail_msg("%s", error.message);
    weights_close(&weights);

    /* The same tensor twice */
    struct shard other = shard_load(folder, "model-00003-of-00003.safetensors");
    void *first = json_object_iter_next(shard.header, json_object_iter_at(shard.header, "__metadata__"));
    assert_non_null(first);
    add_tensor(&other, json_object_iter_key(first), "U8", json_pack("[i]", 1), 1);
    shard_save(&other);
    expect_error(folder, "is in two files: ");
    shard_free(&other);
    shard_free(&shard);

    scratch_delete(model, "model-00001-of-00003.safetensors");
    scratch_delete(model, "model-00002-of-00003.safetensors");
    scratch_delete(model, "model-00003-of-00003.safetensors");
    expect_error(folder, "has a config.json but no weights");
    scratch_write_text(model, "pytorch_model.bin", "x");
    expect_error(folder, "holds its weights in pytorch_model.bin");
    buffer_free(&text);
    free(path);
    free(model);
    scratch_remove(folder);
}

static bool count_report(void *user, const char *what, uint64_t done, uint64_t total) {
    uint64_t *calls = user;
    assert_true(done <= total);
    assert_non_null(what);
    return ++*calls < 3;
}

static void maps_report_and_check(void **state) {
    (void)state;
    char *folder = synth_new(scratch_config, 1, 3);
    struct weights weights;
    struct calla_error error = {0};
    uint64_t calls = 0;
    struct calla_progress progress = {count_report, &calls};
    assert_true(open_model(&weights, folder, &error));
    assert_false(weights_map(&weights, &progress, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    assert_null(weights.maps);
    assert_int_equal(calls, 3);
    assert_int_equal(truncate(weights.files[1].path, (off_t)weights.files[1].size - 1), 0);
    assert_false(weights_map(&weights, NULL, &error));
    assert_non_null(strstr(error.message, "has changed its size"));
    weights_close(&weights);
    expect_error(folder, "is truncated");
    scratch_remove(folder);
}

static void unquantised_matrices_serve(void **state) {
    (void)state;
    json_t *config = json_loads(scratch_config, 0, NULL);
    json_object_set_new(json_object_get(config, "quantization"), "language_model.lm_head", json_false());
    char *text = json_dumps(config, 0), *folder = scratch_new();
    scratch_write_text(folder, "config.json", text);
    scratch_write_text(folder, "generation_config.json", "{\"temperature\": 0.5}");
    char *path = scratch_path(folder, "config.json"), *out = scratch_path(folder, "model");
    struct synth_options options = {.config = path, .out = out};
    struct synth_result result;
    struct calla_error error = {0};
    struct weights weights;
    struct config read;
    assert_true(synth_write(&options, &result, &error));
    assert_int_equal(result.tensors, 180);
    assert_true(open_model(&weights, folder, &error));
    const struct weight *head = &weights.table.weights[weights.table.head];
    assert_int_equal(head->dtype, DTYPE_BF16);
    assert_int_equal(weight_bytes(head), 512 * 128 * 2);
    weights_close(&weights);
    assert_true(config_read(&read, out, &error));
    assert_float_equal(read.temperature, 0.5, 0);
    config_free(&read);
    free(text);
    free(path);
    free(out);
    json_decref(config);
    scratch_remove(folder);
}

static bool cancel_late(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what;
    return done < total / 2;
}

static void synth_leaves_nothing_behind(void **state) {
    (void)state;
    char *folder = scratch_new();
    scratch_write_text(folder, "config.json", scratch_config);
    char *path = scratch_path(folder, "config.json"), *out = scratch_path(folder, "model");
    struct synth_options options = {.config = path, .out = out, .shards = 4, .progress = {cancel_late, NULL}};
    struct synth_result result;
    struct calla_error error = {0};
    assert_false(synth_write(&options, &result, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    assert_int_equal(file_kind(out), FILE_MISSING);
    assert_int_equal(mkdir(out, 0777), 0);
    assert_false(synth_write(&options, &result, &error));
    assert_int_equal(rmdir(out), 0); /* the caller's own folder stays, empty */

    options.progress.report = NULL;
    options.shards = 183;
    assert_false(synth_write(&options, &result, &error));
    assert_non_null(strstr(error.message, "at most 182 are possible"));
    options.shards = 182;
    assert_true(synth_write(&options, &result, &error));
    assert_int_equal(result.files, 182);
    assert_false(synth_write(&options, &result, &error));
    assert_non_null(strstr(error.message, "is not empty"));
    struct weights weights;
    assert_true(open_model(&weights, folder, &error));
    weights_close(&weights);

    options.out = folder;
    options.tokenizer = out;
    assert_false(synth_write(&options, &result, &error));
    assert_non_null(strstr(error.message, "is not empty"));
    char *second = scratch_path(folder, "second");
    options.out = second;
    assert_false(synth_write(&options, &result, &error));
    assert_non_null(strstr(error.message, "has no tokenizer"));
    assert_int_equal(file_kind(second), FILE_MISSING);
    scratch_write_text(out, "tokenizer.json", "{}");
    assert_true(synth_write(&options, &result, &error));
    char *copied = scratch_path(second, "tokenizer.json");
    assert_int_equal(file_kind(copied), FILE_REGULAR);
    options.config = "no-such.json";
    assert_false(synth_write(&options, &result, &error));
    assert_non_null(strstr(error.message, "no-such.json cannot be opened"));
    free(copied);
    free(second);
    free(path);
    free(out);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_and_names_make_the_weights), cmocka_unit_test(values_have_a_sane_scale),
        cmocka_unit_test(wrong_tensors_are_named),         cmocka_unit_test(what_is_not_needed_is_counted),
        cmocka_unit_test(names_may_lack_the_prefix),       cmocka_unit_test(shards_are_checked),
        cmocka_unit_test(maps_report_and_check),           cmocka_unit_test(unquantised_matrices_serve),
        cmocka_unit_test(synth_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
