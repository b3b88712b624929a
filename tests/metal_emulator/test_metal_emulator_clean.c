/* Kernels without a fault (clean/): right results, checked and fast, under every order of lanes and
 * threadgroups. */
#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "base/dtype.h"
#include "metal_emulator/metal_emulator.h"

enum { SEEDS = 24 };

struct gpu {
    struct metal_device *device;
    struct metal_library *library;
    struct metal_commands *commands;
    struct metal_pipeline *pipelines[8];
    struct metal_buffer *buffers[8];
    uint32_t pipeline_count, buffer_count;
};

/* Seed 0 is the fast mode. */
static struct gpu gpu_open(uint64_t seed) {
    struct metal_emulator_options options = metal_emulator_options(true);
    options.checked = seed > 0;
    options.seed = seed;
    options.threads = 2;
    options.padded_layout = seed % 2 == 0;
    options.sums = seed % 3 == 0   ? METAL_SUMS_M5
                   : seed % 3 == 1 ? METAL_SUMS_SEQUENTIAL
                                   : METAL_SUMS_REVERSED;
    metal_emulator_use(&options);
    struct calla_error error = {0};
    struct gpu gpu = {.device = metal_device_open(&error)};
    assert_non_null(gpu.device);
    struct metal_sources sources = {.name = "clean", .language = METAL_LANGUAGE(4, 0)};
    gpu.library = metal_library_new(gpu.device, &sources, &error);
    if (gpu.library == NULL)
        fail_msg("%s", error.message);
    gpu.commands = metal_commands_new(gpu.device, "test", &error);
    assert_true(metal_commands_begin(gpu.commands, true, &error));
    return gpu;
}

static void gpu_close(struct gpu *gpu) {
    for (uint32_t i = 0; i < gpu->buffer_count; i++)
        metal_buffer_free(gpu->buffers[i]);
    for (uint32_t i = 0; i < gpu->pipeline_count; i++)
        metal_pipeline_free(gpu->pipelines[i]);
    metal_commands_free(gpu->commands);
    metal_library_free(gpu->library);
    metal_device_close(gpu->device);
}

static void set_pipeline(struct gpu *gpu, const char *name, const struct metal_constant *constants,
                         uint32_t count) {
    struct calla_error error = {0};
    struct metal_pipeline *pipeline = metal_pipeline_new(gpu->library, name, constants, count, &error);
    if (pipeline == NULL)
        fail_msg("%s", error.message);
    gpu->pipelines[gpu->pipeline_count++] = pipeline;
    metal_set_pipeline(gpu->commands, pipeline);
}

/* A buffer of its own in the slot; returns its bytes. */
static void *set_buffer(struct gpu *gpu, uint32_t slot, uint64_t size, uint32_t access, const void *bytes) {
    struct calla_error error = {0};
    struct metal_buffer *buffer = metal_buffer_new(gpu->device, size, "numbers", &error);
    assert_non_null(buffer);
    gpu->buffers[gpu->buffer_count++] = buffer;
    if (bytes != NULL)
        memcpy(metal_buffer_contents(buffer), bytes, size);
    struct metal_view view = metal_bytes(buffer, 0, size, access);
    metal_set_buffer(gpu->commands, slot, &view);
    return metal_buffer_contents(buffer);
}

static void run(struct gpu *gpu) {
    struct calla_error error = {0};
    if (!metal_commands_commit(gpu->commands, &error) || !metal_commands_wait(gpu->commands, &error))
        fail_msg("%s", error.message);
    assert_int_equal(metal_emulator_faults(gpu->device, NULL), 0);
}

static void dispatch(struct gpu *gpu, uint32_t groups, uint32_t threads) {
    metal_dispatch(gpu->commands, (struct metal_size){groups, 1, 1}, (struct metal_size){threads, 1, 1});
    run(gpu);
}

static void test_simdgroup_functions(void **state) {
    (void)state;
    float in[32];
    for (int i = 0; i < 32; i++)
        in[i] = (float)((i * 7) % 11);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "simd_operations", NULL, 0);
        set_buffer(&gpu, 0, sizeof in, METAL_READ, in);
        const float *out = set_buffer(&gpu, 1, 512 * 4, METAL_WRITE | METAL_ALL, NULL);
        dispatch(&gpu, 1, 32);
        float sum = 0, votes = 0;
        for (int i = 0; i < 32; i++) {
            sum += in[i];
            votes += in[i] > 3.0f && i < 16 ? (float)(1 << i) : 0;
        }
        float before = 0;
        for (int i = 0; i < 32; i++) {
            const float quad = in[i & ~3] + in[(i & ~3) + 1] + in[(i & ~3) + 2] + in[(i & ~3) + 3];
            const float expected[] = {sum,
                                      10,
                                      0,
                                      in[i ^ 1],
                                      i < 28 ? in[i + 4] : in[i],
                                      i >= 4 ? in[i - 4] : in[i],
                                      in[i ^ 16],
                                      in[7],
                                      before,
                                      before + in[i],
                                      votes,
                                      quad,
                                      in[0],
                                      1,
                                      i < 31 ? in[i + 1] : -1,
                                      1};
            before += in[i];
            for (int j = 0; j < 16; j++)
                if (out[32 * j + i] != expected[j])
                    fail_msg("seed %d, row %d, lane %d: %g instead of %g", (int)seed, j, i, out[32 * j + i],
                             expected[j]);
        }
        gpu_close(&gpu);
    }
}

static void test_sums_of_rows_with_function_constants(void **state) {
    (void)state;
    enum { ROWS = 5, COLUMNS = 640 };
    static float in[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        in[i] = (float)(i % 13 - 6);
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int biased = 0; biased < 2; biased++) {
            struct gpu gpu = gpu_open(seed);
            const struct metal_constant constants[] = {
                {.index = 0, .type = METAL_BOOL, .value.boolean = biased},
                {.index = 1, .type = METAL_UINT, .value.unsigned_integer = 50}};
            set_pipeline(&gpu, "row_sum", constants, 2);
            set_buffer(&gpu, 0, sizeof in, METAL_READ, in);
            const float *out = set_buffer(&gpu, 1, ROWS * 4, METAL_WRITE | METAL_ALL, NULL);
            const uint32_t columns = COLUMNS;
            metal_set_bytes(gpu.commands, 2, &columns, sizeof columns);
            dispatch(&gpu, ROWS, 96);
            for (int row = 0; row < ROWS; row++) {
                float sum = biased ? 100.0f + (float)(row % 4 + 1) : 0.0f;
                for (int i = 0; i < COLUMNS; i++)
                    sum += in[row * COLUMNS + i];
                assert_true(out[row] == sum);
            }
            gpu_close(&gpu);
        }
}

static void test_atomics(void **state) {
    (void)state;
    uint32_t in[512], expected[16] = {0};
    for (uint32_t i = 0; i < 512; i++) {
        in[i] = i * i % 23;
        expected[in[i] & 15]++;
    }
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "histogram", NULL, 0);
        set_buffer(&gpu, 0, sizeof in, METAL_READ, in);
        const uint32_t *counts = set_buffer(&gpu, 1, sizeof expected, METAL_READ | METAL_WRITE, NULL);
        dispatch(&gpu, 4, 128);
        assert_memory_equal(counts, expected, sizeof expected);
        gpu_close(&gpu);
    }
}

static void test_tiles_in_dynamic_threadgroup_memory(void **state) {
    (void)state;
    float in[256];
    for (int i = 0; i < 256; i++)
        in[i] = (float)(i % 17);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "tiles", NULL, 0);
        set_buffer(&gpu, 0, sizeof in, METAL_READ, in);
        const float *out = set_buffer(&gpu, 1, 256, METAL_WRITE | METAL_ALL, NULL);
        metal_set_threadgroup_memory(gpu.commands, 0, 256);
        dispatch(&gpu, 1, 64);
        for (int i = 0; i < 64; i++)
            assert_true(out[i] == in[63 - i] + in[127 - i] + in[191 - i] + in[255 - i]);
        gpu_close(&gpu);
    }
}

/* a, b as T of `size` bytes each; small whole numbers, exact in all of them. */
static void multiply(const char *kernel, enum dtype dtype) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        float a[8 * 16], b[16 * 8];
        for (int i = 0; i < 128; i++) {
            a[i] = (float)(i % 7 - 3);
            b[i] = (float)(i % 5 - 2);
        }
        unsigned char left[512], right[512];
        size_t size = dtype == DTYPE_F32 ? 4 : 2;
        for (int i = 0; i < 128; i++) {
            uint16_t x = float_to_bf16(a[i]), y = float_to_bf16(b[i]);
            if (dtype == DTYPE_F16) { /* whole numbers up to 3 */
                static const uint16_t halves[] = {0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200};
                x = halves[(int)a[i] + 3];
                y = halves[(int)b[i] + 3];
            }
            memcpy(left + size * (size_t)i, dtype == DTYPE_F32 ? (void *)&a[i] : &x, size);
            memcpy(right + size * (size_t)i, dtype == DTYPE_F32 ? (void *)&b[i] : &y, size);
        }
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, kernel, NULL, 0);
        set_buffer(&gpu, 0, 128 * size, METAL_READ, left);
        set_buffer(&gpu, 1, 128 * size, METAL_READ, right);
        const float *c = set_buffer(&gpu, 2, 256, METAL_WRITE | METAL_ALL, NULL);
        dispatch(&gpu, 1, 32);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++) {
                float sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += a[16 * i + k] * b[8 * k + j];
                if (c[8 * i + j] != sum)
                    fail_msg("%s, seed %d: c[%d][%d] is %g instead of %g", kernel, (int)seed, i, j,
                             c[8 * i + j], sum);
            }
        gpu_close(&gpu);
    }
}

static void test_matrices_of_a_simdgroup(void **state) {
    (void)state;
    multiply("matrices_float", DTYPE_F32);
    multiply("matrices_bfloat", DTYPE_BF16);
    multiply("matrices_half", DTYPE_F16);
}

static void test_vectors_of_bfloat_and_a_grid_of_two_dimensions(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint16_t in[96], out[96];
        for (int i = 0; i < 96; i++)
            in[i] = float_to_bf16((float)i);
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "scale_rows", NULL, 0);
        struct calla_error error = {0};
        /* Three rows of 16, 32 apart. */
        for (uint32_t slot = 0; slot < 2; slot++) {
            memcpy(set_buffer(&gpu, slot, sizeof in, METAL_READ, in), in, sizeof in);
            struct metal_view view = {gpu.buffers[slot], 0, 3, 32, 64, slot == 0 ? METAL_READ : METAL_WRITE};
            metal_set_buffer(gpu.commands, slot, &view);
        }
        metal_dispatch(gpu.commands, (struct metal_size){1, 3, 1}, (struct metal_size){4, 1, 1});
        run(&gpu);
        memcpy(out, metal_buffer_contents(gpu.buffers[1]), sizeof out);
        for (int row = 0; row < 3; row++)
            for (int i = 0; i < 32; i++) {
                static const float factors[] = {2.0f, 2.0f, 0.5f, 0.25f};
                int from = i % 4 == 0 ? i + 1 : i % 4 == 1 ? i - 1 : i;
                float expected =
                    i >= 16 ? (float)(row * 32 + i)
                            : bf16_to_float(float_to_bf16((float)(row * 32 + from) * factors[i % 4]));
                assert_true(bf16_to_float(out[row * 32 + i]) == expected);
            }
        (void)error;
        gpu_close(&gpu);
    }
}

static void test_indirect_dispatch_after_its_counts_are_written(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        struct calla_error error = {0};
        set_pipeline(&gpu, "increment_uint", NULL, 0);
        const uint32_t counts[3] = {1, 0, 0};
        set_buffer(&gpu, 0, sizeof counts, METAL_READ, counts);
        set_buffer(&gpu, 1, sizeof counts, METAL_WRITE, NULL);
        struct metal_buffer *grid = gpu.buffers[1];
        metal_dispatch(gpu.commands, (struct metal_size){1, 1, 1}, (struct metal_size){3, 1, 1});
        metal_barrier(gpu.commands);
        set_pipeline(&gpu, "increment_float", NULL, 0);
        set_buffer(&gpu, 0, 128, METAL_READ, NULL);
        const float *out = set_buffer(&gpu, 1, 128, METAL_WRITE | METAL_ALL, NULL);
        metal_dispatch_indirect(gpu.commands, grid, 0, (struct metal_size){16, 1, 1});
        run(&gpu);
        assert_true(out[31] == 1.0f);
        /* The same commands object again, with nothing to do. */
        assert_true(metal_commands_begin(gpu.commands, false, &error));
        memset(metal_buffer_contents(grid), 0, 12);
        set_pipeline(&gpu, "increment_float", NULL, 0);
        set_buffer(&gpu, 0, 128, METAL_READ, NULL);
        out = set_buffer(&gpu, 1, 128, METAL_WRITE, NULL);
        metal_dispatch_indirect(gpu.commands, grid, 0, (struct metal_size){16, 1, 1});
        run(&gpu);
        assert_true(out[31] == 0.0f);
        gpu_close(&gpu);
    }
}

/* c = a w^T of whole numbers, which are exact in every order of sums, in rows by columns; w and a bfloat. */
struct product {
    uint16_t a[40 * 128], w[80 * 128];
    unsigned char codes[64 * 64];
    float c[40 * 80];
};

static void fill_product(struct product *product, int rows, int columns, int depth, bool codes) {
    memset(product, 0, sizeof *product);
    for (int i = 0; i < rows * depth; i++)
        product->a[i] = float_to_bf16((float)(i % 7 - 3));
    for (int i = 0; i < columns * depth; i++) {
        int value = codes ? i * 5 % 16 : i % 5 - 2;
        product->w[i] = float_to_bf16((float)value);
        if (codes)
            product->codes[i / 2] |= (unsigned char)(value << i % 2 * 4);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            for (int k = 0; k < depth; k++) {
                float scale = codes ? (float)(1 + (j + k / 64) % 3) : 1.0f;
                product->c[i * columns + j] += bf16_to_float(product->a[i * depth + k]) *
                                               bf16_to_float(product->w[j * depth + k]) * scale;
            }
}

static void compare(const char *what, uint64_t seed, const float *found, const float *expected, int count) {
    for (int i = 0; i < count; i++)
        if (found[i] != expected[i])
            fail_msg("%s, seed %d: number %d is %g instead of %g", what, (int)seed, i, found[i], expected[i]);
}

static void test_tensors_in_memory_with_edges(void **state) {
    (void)state;
    static struct product product;
    const int32_t size[3] = {40, 80, 48}; /* tiles of 32 x 64: parts of three are outside */
    fill_product(&product, size[0], size[1], size[2], false);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "tensor_tiles", NULL, 0);
        set_buffer(&gpu, 0, (uint64_t)(size[0] * size[2]) * 2, METAL_READ, product.a);
        set_buffer(&gpu, 1, (uint64_t)(size[1] * size[2]) * 2, METAL_READ, product.w);
        const float *c = set_buffer(&gpu, 2, sizeof product.c, METAL_WRITE | METAL_ALL, NULL);
        metal_set_bytes(gpu.commands, 3, size, sizeof size);
        metal_dispatch(gpu.commands, (struct metal_size){2, 2, 1}, (struct metal_size){128, 1, 1});
        run(&gpu);
        compare("tensor_tiles", seed, c, product.c, size[0] * size[1]);
        gpu_close(&gpu);
    }
}

static void test_tensors_of_4_bit_codes(void **state) {
    (void)state;
    static struct product product;
    const int32_t size[3] = {16, 64, 128};
    fill_product(&product, size[0], size[1], size[2], true);
    float scales[2 * 64];
    for (int i = 0; i < 128; i++)
        scales[i] = (float)(1 + (i % 64 + i / 64) % 3);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "tensor_codes", NULL, 0);
        set_buffer(&gpu, 0, 16 * 128 * 2, METAL_READ, product.a);
        set_buffer(&gpu, 1, 64 * 64, METAL_READ, product.codes);
        set_buffer(&gpu, 2, sizeof scales, METAL_READ, scales);
        const float *c = set_buffer(&gpu, 3, 16 * 64 * 4, METAL_WRITE | METAL_ALL, NULL);
        metal_set_bytes(gpu.commands, 4, size, sizeof size);
        dispatch(&gpu, 1, 64);
        compare("tensor_codes", seed, c, product.c, 16 * 64);
        gpu_close(&gpu);
    }
}

static void test_cooperative_inputs(void **state) {
    (void)state;
    static struct product product;
    const int32_t size[3] = {16, 32, 48};
    fill_product(&product, size[0], size[1], size[2], false);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        set_pipeline(&gpu, "tensor_registers", NULL, 0);
        set_buffer(&gpu, 0, 16 * 48 * 2, METAL_READ, product.a);
        set_buffer(&gpu, 1, 32 * 48 * 2, METAL_READ, product.w);
        const float *c = set_buffer(&gpu, 2, 16 * 32 * 4, METAL_WRITE | METAL_ALL, NULL);
        metal_set_bytes(gpu.commands, 3, size, sizeof size);
        dispatch(&gpu, 1, 32);
        compare("tensor_registers", seed, c, product.c, 16 * 32);
        gpu_close(&gpu);
    }
}

static void test_idioms(void **state) {
    (void)state;
    struct {
        uint32_t rows;
        float scale, unused[2], shift[4];
    } given = {1, 2.0f, {0, 0}, {0.5f, 0, 0, 0}};
    uint16_t codes[32];
    uint32_t packed[64];
    float extra[32], y[32][4];
    for (uint32_t i = 0; i < 32; i++) {
        codes[i] = (uint16_t)(i * 2654435761u >> 13);
        packed[2 * i] = 0x3f803f80u + i;
        packed[2 * i + 1] = 0;
        extra[i] = 10.0f * (float)i;
        for (int j = 0; j < 4; j++)
            y[i][j] = (float)(codes[i] >> 4 * j & 15) * given.scale + given.shift[j];
    }
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int with_extra = 0; with_extra < 2; with_extra++) {
            struct gpu gpu = gpu_open(seed);
            const struct metal_constant constants[] = {
                {.index = 2, .type = METAL_BOOL, .value.boolean = with_extra == 1},
                {.index = 3, .type = METAL_FLOAT, .value.real = 1.0f}};
            set_pipeline(&gpu, "idioms", constants, with_extra ? 1 : 2); /* the bonus is given or not */
            set_buffer(&gpu, 0, sizeof codes, METAL_READ, codes);
            set_buffer(&gpu, 1, sizeof packed, METAL_READ, packed);
            const float *out = set_buffer(&gpu, 2, 128, METAL_WRITE | METAL_ALL, NULL);
            metal_set_bytes(gpu.commands, 3, &given, sizeof given);
            if (with_extra)
                set_buffer(&gpu, 4, sizeof extra, METAL_READ, extra);
            dispatch(&gpu, 1, 32);
            for (int i = 0; i < 32; i++) {
                /* tile[31 - i][j] is y[31 - i][j]; row[i][3 - j] is y[31 - i][j]: they cancel. */
                float expected = y[i][0] + 2 * y[i][1] + 3 * y[i][2] + 4 * y[i][3] +
                                 (with_extra ? 2.0f : 1.0f) + (with_extra ? extra[i] : 0.0f);
                if (out[i] != expected)
                    fail_msg("seed %d, lane %d: %g instead of %g", (int)seed, i, out[i], expected);
            }
            gpu_close(&gpu);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simdgroup_functions),
        cmocka_unit_test(test_sums_of_rows_with_function_constants),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_tiles_in_dynamic_threadgroup_memory),
        cmocka_unit_test(test_matrices_of_a_simdgroup),
        cmocka_unit_test(test_vectors_of_bfloat_and_a_grid_of_two_dimensions),
        cmocka_unit_test(test_indirect_dispatch_after_its_counts_are_written),
        cmocka_unit_test(test_tensors_in_memory_with_edges),
        cmocka_unit_test(test_tensors_of_4_bit_codes),
        cmocka_unit_test(test_cooperative_inputs),
        cmocka_unit_test(test_idioms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
