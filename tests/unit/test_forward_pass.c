/* The whole forward pass, on the small checkpoint of tools/oracle/make_fixtures.py: against the logits that
 * Hugging Face transformers and mlx-lm computed from the same folder in float32, and against itself, bit for
 * bit, in every way that it can be run. */
#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "evaluate.h"

#define FOLDER "tests/data/forward"
enum { POSITIONS = 80, VOCABULARY = 320 };

/* The numbers of a .npy file of version 1, which has `count` of 4 bytes. */
static void read_npy(const char *path, void *out, size_t count) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s is missing", path);
    uint8_t head[10];
    assert_int_equal(fread(head, 1, 10, file), 10);
    assert_memory_equal(head, "\x93NUMPY\x01", 7);
    assert_int_equal(fseek(file, 10 + head[8] + 256 * head[9], SEEK_SET), 0);
    assert_int_equal(fread(out, 4, count, file), count);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

static int32_t *tokens(void) {
    static int32_t read[POSITIONS];
    read_npy(FOLDER "/tokens.npy", read, POSITIONS);
    return read;
}

static float *logits_of(const char *backend, int threads, const char *const *policies, uint32_t context) {
    struct evaluation evaluation = {.folder = FOLDER,
                                    .backend = backend,
                                    .threads = threads,
                                    .policies = policies,
                                    .tokens = tokens(),
                                    .count = POSITIONS,
                                    .context = context};
    uint32_t vocabulary;
    float *logits = evaluate(&evaluation, &vocabulary);
    assert_int_equal(vocabulary, VOCABULARY);
    return logits;
}

/* The largest |found - expected| / |expected| over the positions. */
static double worst_error(const float *found, const float *expected) {
    double worst = 0;
    for (int t = 0; t < POSITIONS; t++)
        worst = fmax(worst, relative_error(found + t * VOCABULARY, expected + t * VOCABULARY, VOCABULARY));
    return worst;
}

static void agrees_with_the_originals(void **state) {
    (void)state;
    static float transformers[POSITIONS * VOCABULARY], mlx_lm[POSITIONS * VOCABULARY];
    read_npy(FOLDER "/transformers.npy", transformers, POSITIONS * VOCABULARY);
    read_npy(FOLDER "/mlx_lm.npy", mlx_lm, POSITIONS * VOCABULARY);
    float *logits = logits_of("reference", 1, NULL, 0);
    double error = worst_error(logits, transformers), mlx_error = worst_error(logits, mlx_lm);
    if (!(error < 1e-4))
        fail_msg("relative L2 error %g against transformers", error);
    /* mlx-lm adds epsilon to the mean of the squares of q and k, transformers and calla to their sum. */
    if (!(mlx_error < 1e-3))
        fail_msg("relative L2 error %g against mlx-lm", mlx_error);
    free(logits);
}

/* Neither threads, chunks, fusions, phases nor the size of the cache change a bit. */
static void same_bits(const char *backend, const char *operands) {
    static const char *const ways[][10] = {
        {NULL},
        {"chunk_rows=1"},
        {"chunk_rows=2"},
        {"chunk_rows=7"},
        {"chunk_rows=79"},
        {"concurrent=off"},
        {"fuse_expert_gate_up=off", "fuse_expert_down=off", "fuse_qk_prep=off", "fuse_delta_norm=off",
         "fuse_delta_conv=off", "fuse_projections=off", "fuse_norm=off"},
        {"fuse_expert_gate_up=on", "fuse_expert_down=on", "fuse_qk_prep=on", "fuse_delta_norm=on",
         "fuse_delta_conv=on", "fuse_projections=on", "fuse_norm=on"},
        {"fuse_expert_gate_up=on", "fuse_expert_down=on", "fuse_qk_prep=on", "fuse_delta_norm=on",
         "fuse_delta_conv=on", "fuse_projections=on", "fuse_norm=on", "chunk_rows=1"},
        {"fuse_expert_gate_up=off", "fuse_expert_down=on", "fuse_qk_prep=off", "fuse_delta_norm=on",
         "fuse_delta_conv=off", "fuse_norm=on", "chunk_rows=1"},
        {"fuse_expert_gate_up=on", "fuse_expert_down=off", "fuse_qk_prep=on", "fuse_delta_norm=off",
         "fuse_delta_conv=on", "fuse_norm=off", "fuse_projections=off", "chunk_rows=1"},
        {"fuse_projections=off", "fuse_norm=on", "chunk_rows=3"},
    };
    for (int cache = 0; cache < 2; cache++) {
        const char *policies[13] = {cache ? "kv_dtype=bf16" : "kv_dtype=f32", operands};
        size_t given = operands == NULL ? 1 : 2;
        float *expected = logits_of(backend, 1, policies, 0);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
            for (int threads = 1; threads < (operands == NULL ? 2 : 4); threads++) {
                for (int i = 0; i < 10; i++)
                    policies[given + i] = ways[way][i];
                float *logits = logits_of(backend, threads, policies, threads == 2 ? 500 : 0);
                if (memcmp(logits, expected, POSITIONS * VOCABULARY * sizeof *logits) != 0)
                    fail_msg("%s %s, %s, way %zu with %d threads differs", backend,
                             operands == NULL ? "" : operands, policies[0], way, threads);
                free(logits);
            }
        free(expected);
    }
}

static void every_way_has_the_same_bits(void **state) {
    (void)state;
    same_bits("reference", NULL);
    same_bits("cpu", "matrix_operands=int8");
    same_bits("cpu", "matrix_operands=bf16");
}

/* The KV cache in bfloat16 is a rounding, and no more than that. */
static void a_bf16_cache_is_close(void **state) {
    (void)state;
    float *exact = logits_of("cpu", 2, (const char *[]){"kv_dtype=f32", NULL}, 0);
    float *rounded = logits_of("cpu", 2, (const char *[]){"kv_dtype=bf16", NULL}, 0);
    double error = worst_error(rounded, exact);
    assert_true(error > 0);
    assert_true(error < 0.02);
    free(exact);
    free(rounded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_originals),
        cmocka_unit_test(every_way_has_the_same_bits),
        cmocka_unit_test(a_bf16_cache_is_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
