/* The emulator names faults: each kernel of faults/ has one, on the line that says "here". */
#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "metal_emulator/metal_emulator.h"

enum { SEEDS = 12 };

struct expectation {
    const char *kernel;
    enum metal_fault_kind kind;
    uint32_t groups, threads;
    /* Slots: what the view allows, its rows, and the bytes of the buffer beyond it. */
    struct {
        uint32_t access;
        uint64_t rows, row_bytes, stride, beyond;
    } slots[2];
};

#define READS(bytes)                                                                                         \
    { METAL_READ, 1, bytes, bytes, 0 }
#define WRITES(bytes)                                                                                        \
    { METAL_WRITE, 1, bytes, bytes, 0 }
#define UPDATES(bytes)                                                                                       \
    { METAL_READ | METAL_WRITE, 1, bytes, bytes, 0 }
#define NOTHING                                                                                              \
    { 0, 0, 0, 0, 0 }

static const struct expectation expectations[] = {
    {"race_of_simdgroups", METAL_RACE_OF_SIMDGROUPS, 1, 64, {WRITES(256), NOTHING}},
    {"barrier_of_other_memory", METAL_RACE_OF_SIMDGROUPS, 1, 64, {WRITES(256), NOTHING}},
    {"barrier_of_threadgroup_memory", METAL_RACE_OF_SIMDGROUPS, 1, 64, {UPDATES(256), NOTHING}},
    {"reused_tile", METAL_RACE_OF_SIMDGROUPS, 1, 64, {READS(1024), WRITES(256)}},
    {"race_of_lanes", METAL_RACE_OF_LANES, 1, 32, {WRITES(128), NOTHING}},
    {"two_writers", METAL_RACE_OF_LANES, 1, 32, {WRITES(64), NOTHING}},
    {"matrix_without_barrier", METAL_RACE_OF_LANES, 1, 32, {WRITES(128), NOTHING}},
    {"race_of_threadgroups", METAL_RACE_OF_THREADGROUPS, 2, 32, {WRITES(128), NOTHING}},
    {"unwritten", METAL_UNWRITTEN, 1, 64, {WRITES(256), NOTHING}},
    {"left_unwritten", METAL_LEFT_UNWRITTEN, 1, 32, {{METAL_WRITE | METAL_ALL, 1, 128, 128, 0}, NOTHING}},
    {"past_the_end", METAL_OUTSIDE_BUFFER, 1, 32, {READS(128), WRITES(128)}},
    {"past_the_end", METAL_OUTSIDE_OPERANDS, 1, 32, {{METAL_READ, 1, 128, 128, 4}, WRITES(128)}},
    {"before_the_start", METAL_OUTSIDE_BUFFER, 1, 32, {READS(128), WRITES(128)}},
    {"past_a_vector", METAL_OUTSIDE_BUFFER, 1, 32, {READS(508), WRITES(128)}},
    {"between_the_rows", METAL_OUTSIDE_OPERANDS, 1, 32, {{METAL_READ, 2, 64, 128, 0}, WRITES(128)}},
    {"writes_its_input", METAL_OUTSIDE_OPERANDS, 1, 32, {READS(128), WRITES(128)}},
    {"reads_its_output", METAL_OUTSIDE_OPERANDS, 1, 32, {WRITES(256), NOTHING}},
    {"counts_its_calls", METAL_OUTSIDE_OPERANDS, 1, 32, {WRITES(128), NOTHING}},
    {"copies_structures", METAL_OUTSIDE_BUFFER, 1, 32, {READS(256), WRITES(512)}},
    {"misaligned", METAL_MISALIGNED, 1, 16, {READS(512), WRITES(128)}},
    {"past_shared", METAL_OUTSIDE_BUFFER, 1, 32, {WRITES(128), NOTHING}},
    {"too_much_memory", METAL_TOO_MUCH_THREADGROUP_MEMORY, 1, 32, {WRITES(128), NOTHING}},
    {"endless", METAL_ENDLESS, 1, 32, {UPDATES(128), NOTHING}},
    {"half_a_sum", METAL_PARTIAL_SIMDGROUP, 1, 32, {WRITES(128), NOTHING}},
    {"two_sums", METAL_PARTIAL_SIMDGROUP, 1, 32, {WRITES(128), NOTHING}},
    {"returned_early", METAL_PARTIAL_BARRIER, 1, 64, {WRITES(256), NOTHING}},
    {"barrier_in_a_branch", METAL_PARTIAL_BARRIER, 1, 64, {WRITES(256), NOTHING}},
    {"uneven_loops", METAL_PARTIAL_BARRIER, 1, 64, {WRITES(256), NOTHING}},
    {"half_a_matrix", METAL_PARTIAL_SIMDGROUP, 1, 32, {WRITES(256), NOTHING}},
    {"shuffle_from_nowhere", METAL_BAD_LANE, 1, 32, {WRITES(128), NOTHING}},
    {"shuffle_by_lane", METAL_BAD_LANE, 1, 32, {WRITES(128), NOTHING}},
    {"too_few_simdgroups", METAL_BAD_TENSOR, 1, 64, {UPDATES(4096), NOTHING}},
    {"short_of_k", METAL_BAD_TENSOR, 1, 32, {READS(4096), WRITES(4096)}},
    {"product_without_barrier", METAL_RACE_OF_LANES, 1, 32, {WRITES(4096), NOTHING}},
    {"beyond_the_buffer", METAL_OUTSIDE_BUFFER, 1, 32, {READS(4096), WRITES(4096)}},
    {"slice_beyond", METAL_BAD_TENSOR, 1, 32, {READS(4096), WRITES(2048)}},
    {"slice_far", METAL_BAD_TENSOR, 1, 32, {READS(4096), WRITES(4096)}},
    {"product_in_a_branch", METAL_PARTIAL_SIMDGROUP, 1, 32, {WRITES(4096), NOTHING}},
};

struct gpu {
    struct metal_device *device;
    struct metal_library *library;
    struct metal_commands *commands;
};

static struct gpu gpu_open(uint64_t seed) {
    struct metal_emulator_options options = metal_emulator_options(true);
    options.seed = seed;
    options.access_limit = 100000;
    metal_emulator_use(&options);
    struct calla_error error = {0};
    struct gpu gpu = {.device = metal_device_open(&error)};
    assert_non_null(gpu.device);
    struct metal_sources sources = {.name = "faults", .language = METAL_LANGUAGE(4, 0)};
    gpu.library = metal_library_new(gpu.device, &sources, &error);
    if (gpu.library == NULL)
        fail_msg("%s", error.message);
    gpu.commands = metal_commands_new(gpu.device, "test", &error);
    assert_non_null(gpu.commands);
    assert_true(metal_commands_begin(gpu.commands, true, &error));
    return gpu;
}

static void gpu_close(struct gpu *gpu) {
    metal_commands_free(gpu->commands);
    metal_library_free(gpu->library);
    metal_device_close(gpu->device);
}

static struct metal_buffer *buffer_of(struct gpu *gpu, uint64_t size, const char *label) {
    struct calla_error error;
    struct metal_buffer *buffer = metal_buffer_new(gpu->device, size, label, &error);
    assert_non_null(buffer);
    return buffer;
}

/* " (FILE.metal:LINE" of the line with "here" in the kernel, "" if there is none. */
static void place_of(const char *kernel, char place[64]) {
    static const char *const files[] = {"races", "bounds", "divergence", "tensors"};
    place[0] = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128], line[256], name[80];
        snprintf(path, sizeof path, "tests/metal_emulator/faults/%s.metal", files[i]);
        snprintf(name, sizeof name, "kernel void %s(", kernel);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        bool inside = false;
        for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
            inside = (inside && line[0] != '}') || strstr(line, name) != NULL;
            if (inside && strstr(line, "// here") != NULL)
                snprintf(place, 64, "%s.metal:%d", files[i], number);
        }
        fclose(file);
    }
}

static void names_the_fault(const struct expectation *expected, uint64_t seed) {
    struct gpu gpu = gpu_open(seed);
    struct calla_error error = {0};
    struct metal_pipeline *pipeline = metal_pipeline_new(gpu.library, expected->kernel, NULL, 0, &error);
    if (pipeline == NULL)
        fail_msg("%s", error.message);
    struct metal_buffer *buffers[2] = {NULL};
    metal_set_pipeline(gpu.commands, pipeline);
    for (uint32_t i = 0; i < 2 && expected->slots[i].rows > 0; i++) {
        uint64_t rows = expected->slots[i].rows, stride = expected->slots[i].stride;
        buffers[i] =
            buffer_of(&gpu, (rows - 1) * stride + expected->slots[i].row_bytes + expected->slots[i].beyond,
                      i == 0 ? "first" : "second");
        struct metal_view view = {
            buffers[i], 0, rows, expected->slots[i].row_bytes, stride, expected->slots[i].access};
        metal_set_buffer(gpu.commands, i, &view);
    }
    metal_dispatch(gpu.commands, (struct metal_size){expected->groups, 1, 1},
                   (struct metal_size){expected->threads, 1, 1});
    assert_true(metal_commands_commit(gpu.commands, &error));
    if (metal_commands_wait(gpu.commands, &error))
        fail_msg("%s with seed %d: no fault found", expected->kernel, (int)seed);
    assert_int_equal(metal_commands_status(gpu.commands), METAL_FAILED);
    const struct metal_fault *faults;
    uint32_t count = metal_emulator_faults(gpu.device, &faults);
    assert_true(count > 0);
    char place[64];
    place_of(expected->kernel, place);
    if (faults[0].kind != expected->kind || strstr(faults[0].text, place) == NULL ||
        strstr(error.message, expected->kernel) == NULL)
        fail_msg("%s: expected kind %d at %s, found kind %d: %s", expected->kernel, expected->kind, place,
                 faults[0].kind, faults[0].text);
    if (seed == 0)
        print_message("%s\n", faults[0].text);
    for (uint32_t i = 0; i < 2; i++)
        metal_buffer_free(buffers[i]);
    metal_pipeline_free(pipeline);
    gpu_close(&gpu);
}

static void test_every_fault_is_named_under_every_order(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++)
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            names_the_fault(&expectations[i], seed);
}

/* ---- Faults of the host: found as commands are encoded */

static void expect_mistake(struct gpu *gpu, enum metal_fault_kind kind, const char *part) {
    struct calla_error error = {0};
    assert_false(metal_commands_commit(gpu->commands, &error));
    const struct metal_fault *faults;
    assert_true(metal_emulator_faults(gpu->device, &faults) > 0);
    if (faults[0].kind != kind || strstr(error.message, part) == NULL)
        fail_msg("expected kind %d with '%s', found kind %d: %s", kind, part, faults[0].kind, error.message);
    gpu_close(gpu);
}

static const struct metal_size one = {1, 1, 1}, simdgroup = {32, 1, 1};

static struct metal_pipeline *pipeline_of(struct gpu *gpu, const char *name) {
    struct calla_error error = {0};
    struct metal_pipeline *pipeline = metal_pipeline_new(gpu->library, name, NULL, 0, &error);
    if (pipeline == NULL)
        fail_msg("%s", error.message);
    metal_set_pipeline(gpu->commands, pipeline);
    return pipeline;
}

/* `allowed`: threads that the emulator takes; `part` of its words on `threads`. */
static void refuses_threads(const char *kernel, uint32_t allowed, uint32_t threads, const char *part) {
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, kernel);
    assert_int_equal(metal_pipeline_limits(pipeline)->max_threads, allowed);
    struct metal_buffer *buffer = buffer_of(&gpu, 4096, "out");
    struct metal_view view = metal_bytes(buffer, 0, 4096, METAL_WRITE);
    metal_set_buffer(gpu.commands, 0, &view);
    metal_dispatch(gpu.commands, one, (struct metal_size){threads, 1, 1});
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_TOO_MANY_THREADS, part);
}

static void test_other_threads_than_the_pipeline_allows(void **state) {
    (void)state;
    refuses_threads("few_threads", 64, 96, "96 x 1 x 1 threads");
    refuses_threads("few_threads", 64, 0, "0 x 1 x 1 threads");
    refuses_threads("add_one", 1024, 1056, "1056 x 1 x 1 threads");
    refuses_threads("as_many_threads", 1024, 32, "requires 64 x 1 x 1");
}

static void test_a_grid_of_nothing(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "few_threads");
    metal_dispatch(gpu.commands, (struct metal_size){4, 0, 1}, simdgroup);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_BAD_BINDING, "4 x 0 x 1 threadgroups");
}

static void test_a_slot_that_is_not_set(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "add_one");
    struct metal_buffer *buffer = buffer_of(&gpu, 128, "in");
    struct metal_view view = metal_bytes(buffer, 0, 128, METAL_READ);
    metal_set_buffer(gpu.commands, 0, &view);
    metal_dispatch(gpu.commands, one, simdgroup);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_BAD_BINDING, "slot 1 ('out') is not set");
}

static void test_slots_bytes_and_sizes_that_cannot_be(void **state) {
    (void)state;
    static const unsigned char bytes[METAL_MAX_BYTES + 4];
    struct gpu gpu = gpu_open(0);
    metal_set_bytes(gpu.commands, METAL_BUFFER_SLOTS, bytes, 4);
    expect_mistake(&gpu, METAL_BAD_BINDING, "slot 31");
    gpu = gpu_open(0);
    metal_set_bytes(gpu.commands, 0, bytes, sizeof bytes);
    expect_mistake(&gpu, METAL_BAD_BINDING, "4100 bytes");
    gpu = gpu_open(0);
    metal_set_threadgroup_memory(gpu.commands, 0, 40);
    expect_mistake(&gpu, METAL_BAD_BINDING, "multiples of 16");
    gpu = gpu_open(0);
    metal_dispatch(gpu.commands, one, simdgroup);
    expect_mistake(&gpu, METAL_BAD_BINDING, "without a pipeline");
    gpu = gpu_open(0);
    struct metal_buffer *buffer = buffer_of(&gpu, 128, "small");
    struct metal_view view = metal_bytes(buffer, 64, 128, METAL_READ);
    metal_set_buffer(gpu.commands, 0, &view);
    metal_buffer_free(buffer);
    expect_mistake(&gpu, METAL_BAD_BINDING, "ends at byte 192 of buffer 'small'");
}

static void test_a_structure_larger_than_what_is_set(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "takes_parameters");
    struct metal_buffer *buffer = buffer_of(&gpu, 128, "out");
    struct metal_view view = metal_bytes(buffer, 0, 128, METAL_WRITE);
    metal_set_buffer(gpu.commands, 1, &view);
    uint32_t numbers[2] = {0};
    metal_set_bytes(gpu.commands, 0, numbers, sizeof numbers);
    metal_dispatch(gpu.commands, one, simdgroup);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_BAD_BINDING, "has 8 bytes, but its type has 16");
}

static void test_a_pointer_that_its_type_does_not_allow(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "past_a_vector");
    struct metal_buffer *buffer = buffer_of(&gpu, 1024, "in");
    struct metal_view view = metal_bytes(buffer, 8, 512, METAL_READ),
                      out = metal_bytes(buffer, 768, 128, METAL_WRITE);
    metal_set_buffer(gpu.commands, 0, &view);
    metal_set_buffer(gpu.commands, 1, &out);
    metal_dispatch(gpu.commands, one, simdgroup);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_BAD_BINDING, "needs a multiple of 16");
}

static void test_too_much_dynamic_threadgroup_memory(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "takes_memory");
    struct metal_buffer *buffer = buffer_of(&gpu, 128, "out");
    struct metal_view view = metal_bytes(buffer, 0, 128, METAL_WRITE);
    metal_set_buffer(gpu.commands, 0, &view);
    metal_set_threadgroup_memory(gpu.commands, 0, METAL_MAX_THREADGROUP_BYTES + 16);
    metal_dispatch(gpu.commands, one, simdgroup);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    expect_mistake(&gpu, METAL_TOO_MUCH_THREADGROUP_MEMORY, "32784 bytes");
}

/* ---- Faults that need more than one dispatch or slot */

static void expect_fault(struct gpu *gpu, enum metal_fault_kind kind, const char *part) {
    struct calla_error error = {0};
    if (!metal_commands_commit(gpu->commands, &error))
        fail_msg("%s", error.message);
    if (metal_commands_wait(gpu->commands, &error))
        fail_msg("no fault found with seed %d, but expected one with '%s'",
                 (int)metal_emulator_counts(gpu->device).dispatches, part);
    const struct metal_fault *faults;
    metal_emulator_faults(gpu->device, &faults);
    if (faults[0].kind != kind || strstr(error.message, part) == NULL)
        fail_msg("expected kind %d with '%s', found kind %d: %s", kind, part, faults[0].kind, error.message);
}

static void test_dispatches_of_one_phase(void **state) {
    (void)state;
    for (int barrier = 0; barrier < 2; barrier++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct gpu gpu = gpu_open(seed);
            struct metal_pipeline *pipeline = pipeline_of(&gpu, "add_one");
            struct metal_buffer *buffer = buffer_of(&gpu, 4096, "numbers");
            for (uint32_t i = 0; i < 4; i++) {
                struct metal_view in = metal_bytes(buffer, i * 128, 128, METAL_READ),
                                  out = metal_bytes(buffer, i * 128 + 128, 128, METAL_WRITE);
                metal_set_buffer(gpu.commands, 0, &in);
                metal_set_buffer(gpu.commands, 1, &out);
                metal_dispatch(gpu.commands, one, simdgroup);
                if (barrier)
                    metal_barrier(gpu.commands);
            }
            if (barrier) {
                struct calla_error error = {0};
                assert_true(metal_commands_commit(gpu.commands, &error));
                assert_true(metal_commands_wait(gpu.commands, &error));
                float *numbers = metal_buffer_contents(buffer);
                assert_true(numbers[4 * 32 + 7] == 4.0f);
                assert_int_equal(metal_emulator_counts(gpu.device).dispatches, 4);
            } else {
                expect_fault(&gpu, METAL_RACE_OF_DISPATCHES, "of the same phase");
            }
            metal_buffer_free(buffer);
            metal_pipeline_free(pipeline);
            gpu_close(&gpu);
        }
}

/* Two commands in flight, the second of which reads what the first writes, are none of the host's business
 * until they have run. */
static void test_the_host_changes_what_committed_commands_see(void **state) {
    (void)state;
    for (int changes = 0; changes < 3; changes++) {
        struct gpu gpu = gpu_open(1);
        struct calla_error error = {0};
        struct metal_commands *later = metal_commands_new(gpu.device, "later", &error);
        assert_non_null(later);
        struct metal_pipeline *pipeline = pipeline_of(&gpu, "left_unwritten");
        struct metal_buffer *buffer = buffer_of(&gpu, 256, "numbers");
        struct metal_view view = metal_bytes(buffer, 0, 128, METAL_WRITE);
        struct metal_commands *both[2] = {gpu.commands, later};
        assert_true(metal_commands_begin(later, true, &error));
        for (int i = 0; i < 2; i++) {
            metal_set_pipeline(both[i], pipeline);
            metal_set_buffer(both[i], 0, &view);
            metal_dispatch(both[i], one, simdgroup);
            assert_true(metal_commands_commit(both[i], &error));
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(metal_commands_status(both[i]), METAL_RUNNING);
        if (changes == 2)
            assert_true(metal_commands_wait(both[0], &error));
        /* What no view covers, the host may have. */
        ((float *)metal_buffer_contents(buffer))[changes > 0 ? 31 : 40] = 5;
        const struct metal_fault *faults;
        assert_true(metal_commands_wait(both[0], &error) == (changes != 1));
        assert_true(metal_commands_wait(both[1], &error) == (changes != 2));
        assert_int_equal(metal_emulator_faults(gpu.device, &faults), changes > 0);
        if (changes > 0) {
            assert_int_equal(faults[0].kind, METAL_RACE_WITH_HOST);
            assert_non_null(strstr(faults[0].text, "the processor changed what slot 0 (buffer 'numbers')"));
        }
        metal_buffer_free(buffer);
        metal_pipeline_free(pipeline);
        metal_commands_free(later);
        gpu_close(&gpu);
    }
}

static void test_rows_side_by_side_are_no_conflict(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(1);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "left_unwritten");
    struct metal_buffer *buffer = buffer_of(&gpu, 4096, "numbers");
    /* Columns 0 .. 23 and 32 .. 63 of rows of 64 floats. */
    struct metal_view first = {buffer, 0, 4, 96, 256, METAL_WRITE},
                      second = {buffer, 128, 4, 128, 256, METAL_WRITE};
    metal_set_buffer(gpu.commands, 0, &first);
    metal_dispatch(gpu.commands, one, simdgroup);
    metal_set_buffer(gpu.commands, 0, &second);
    metal_dispatch(gpu.commands, one, simdgroup);
    struct calla_error error = {0};
    assert_true(metal_commands_commit(gpu.commands, &error));
    if (!metal_commands_wait(gpu.commands, &error))
        fail_msg("%s", error.message);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    gpu_close(&gpu);
}

static void test_atomic_and_plain_accesses_of_two_threadgroups(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        struct metal_pipeline *pipeline = pipeline_of(&gpu, "count_and_look");
        struct metal_buffer *buffer = buffer_of(&gpu, 256, "counts");
        struct metal_view all = metal_bytes(buffer, 0, 256, METAL_READ | METAL_WRITE);
        metal_set_buffer(gpu.commands, 0, &all);
        metal_set_buffer(gpu.commands, 1, &all);
        metal_dispatch(gpu.commands, (struct metal_size){2, 1, 1}, simdgroup);
        expect_fault(&gpu, METAL_RACE_OF_THREADGROUPS, "another threadgroup");
        metal_buffer_free(buffer);
        metal_pipeline_free(pipeline);
        gpu_close(&gpu);
    }
}

static void test_past_bytes_that_were_set(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(0);
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "past_the_bytes");
    struct metal_buffer *buffer = buffer_of(&gpu, 128, "out");
    struct metal_view out = metal_bytes(buffer, 0, 128, METAL_WRITE);
    uint32_t numbers[4] = {1, 2, 3, 4};
    metal_set_bytes(gpu.commands, 0, numbers, sizeof numbers);
    metal_set_buffer(gpu.commands, 1, &out);
    metal_dispatch(gpu.commands, one, simdgroup);
    expect_fault(&gpu, METAL_OUTSIDE_BUFFER, "reads 4 bytes");
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    gpu_close(&gpu);
}

static void test_a_kernel_made_to_fail(void **state) {
    (void)state;
    struct metal_emulator_options options = metal_emulator_options(false);
    options.fail_kernel = "add_one";
    options.facts.language = METAL_LANGUAGE(4, 0);
    metal_emulator_use(&options);
    struct calla_error error = {0};
    struct gpu gpu = {.device = metal_device_open(&error)};
    struct metal_sources sources = {.name = "faults", .language = METAL_LANGUAGE(4, 0)};
    gpu.library = metal_library_new(gpu.device, &sources, &error);
    gpu.commands = metal_commands_new(gpu.device, "test", &error);
    assert_true(metal_commands_begin(gpu.commands, false, &error));
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "add_one");
    struct metal_buffer *buffer = buffer_of(&gpu, 256, "numbers");
    struct metal_view in = metal_bytes(buffer, 0, 128, METAL_READ),
                      out = metal_bytes(buffer, 128, 128, METAL_WRITE);
    metal_set_buffer(gpu.commands, 0, &in);
    metal_set_buffer(gpu.commands, 1, &out);
    metal_dispatch(gpu.commands, one, simdgroup);
    expect_fault(&gpu, METAL_ENDLESS, "Kernel 'add_one'");
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    gpu_close(&gpu);
}

/* Unchecked, what would leave lanes waiting for ever is still found, on every worker. */
static void test_lanes_that_do_not_meet_when_unchecked(void **state) {
    (void)state;
    static const char *const kernels[] = {"half_a_sum", "two_sums", "returned_early", "too_much_memory"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct metal_emulator_options options = metal_emulator_options(true);
        options.checked = false;
        options.threads = 2;
        metal_emulator_use(&options);
        struct calla_error error = {0};
        struct gpu gpu = {.device = metal_device_open(&error)};
        struct metal_sources sources = {.name = "faults", .language = METAL_LANGUAGE(4, 0)};
        gpu.library = metal_library_new(gpu.device, &sources, &error);
        gpu.commands = metal_commands_new(gpu.device, "test", &error);
        assert_true(metal_commands_begin(gpu.commands, false, &error));
        struct metal_pipeline *pipeline = pipeline_of(&gpu, kernels[i]);
        struct metal_buffer *buffer = buffer_of(&gpu, 256, "numbers");
        struct metal_view out = metal_bytes(buffer, 0, 256, METAL_WRITE);
        metal_set_buffer(gpu.commands, 0, &out);
        metal_dispatch(gpu.commands, (struct metal_size){64, 1, 1}, (struct metal_size){64, 1, 1});
        assert_true(metal_commands_commit(gpu.commands, &error));
        if (metal_commands_wait(gpu.commands, &error) || strstr(error.message, kernels[i]) == NULL)
            fail_msg("%s: %s", kernels[i], error.message);
        metal_buffer_free(buffer);
        metal_pipeline_free(pipeline);
        gpu_close(&gpu);
    }
}

static void test_what_is_undefined_shows(void **state) {
    (void)state;
    struct gpu gpu = gpu_open(1);
    struct calla_error error = {0};
    struct metal_pipeline *pipeline = pipeline_of(&gpu, "undefined");
    struct metal_buffer *buffer = buffer_of(&gpu, 384, "out");
    struct metal_view view = metal_bytes(buffer, 0, 384, METAL_WRITE | METAL_ALL);
    metal_set_buffer(gpu.commands, 0, &view);
    uint32_t given = 1;
    metal_set_bytes(gpu.commands, 1, &given, sizeof given);
    metal_dispatch(gpu.commands, one, simdgroup);
    assert_true(metal_commands_commit(gpu.commands, &error));
    if (!metal_commands_wait(gpu.commands, &error))
        fail_msg("%s", error.message);
    const float *out = metal_buffer_contents(buffer);
    int off = 0;
    for (int i = 0; i < 32; i++) {
        assert_true(isnan(out[i]));
        assert_true(out[32 + i] < 4e-7f);
        off += out[32 + i] > 0.0f;
        assert_true(isnan(out[64 + i]));
    }
    assert_true(off > 8);
    metal_buffer_free(buffer);
    metal_pipeline_free(pipeline);
    gpu_close(&gpu);
}

/* With an odd seed commands run when somebody waits for them, with an even one when they are committed. */
static void test_a_host_that_does_not_wait_sees_old_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct gpu gpu = gpu_open(seed);
        struct calla_error error = {0};
        struct metal_pipeline *pipeline = pipeline_of(&gpu, "add_one");
        struct metal_buffer *buffer = buffer_of(&gpu, 256, "numbers");
        struct metal_view in = metal_bytes(buffer, 0, 128, METAL_READ),
                          out = metal_bytes(buffer, 128, 128, METAL_WRITE);
        metal_set_buffer(gpu.commands, 0, &in);
        metal_set_buffer(gpu.commands, 1, &out);
        metal_dispatch(gpu.commands, one, simdgroup);
        float *numbers = metal_buffer_contents(buffer);
        assert_true(metal_commands_commit(gpu.commands, &error));
        assert_int_equal(metal_commands_status(gpu.commands), seed % 2 ? METAL_RUNNING : METAL_COMPLETED);
        assert_true(numbers[32] == (seed % 2 ? 0.0f : 1.0f));
        assert_false(seed % 2 != 0 && metal_commands_begin(gpu.commands, true, &error));
        numbers[0] = 5.0f; /* too late, or not */
        assert_int_equal(metal_commands_wait(gpu.commands, &error), seed % 2 == 0);
        assert_int_equal(metal_commands_wait(gpu.commands, &error), seed % 2 == 0);
        assert_int_equal(metal_emulator_faults(gpu.device, NULL), seed % 2);
        metal_buffer_free(buffer);
        metal_pipeline_free(pipeline);
        gpu_close(&gpu);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_fault_is_named_under_every_order),
        cmocka_unit_test(test_other_threads_than_the_pipeline_allows),
        cmocka_unit_test(test_a_grid_of_nothing),
        cmocka_unit_test(test_a_slot_that_is_not_set),
        cmocka_unit_test(test_slots_bytes_and_sizes_that_cannot_be),
        cmocka_unit_test(test_a_structure_larger_than_what_is_set),
        cmocka_unit_test(test_a_pointer_that_its_type_does_not_allow),
        cmocka_unit_test(test_too_much_dynamic_threadgroup_memory),
        cmocka_unit_test(test_dispatches_of_one_phase),
        cmocka_unit_test(test_the_host_changes_what_committed_commands_see),
        cmocka_unit_test(test_rows_side_by_side_are_no_conflict),
        cmocka_unit_test(test_atomic_and_plain_accesses_of_two_threadgroups),
        cmocka_unit_test(test_past_bytes_that_were_set),
        cmocka_unit_test(test_a_kernel_made_to_fail),
        cmocka_unit_test(test_lanes_that_do_not_meet_when_unchecked),
        cmocka_unit_test(test_what_is_undefined_shows),
        cmocka_unit_test(test_a_host_that_does_not_wait_sees_old_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
