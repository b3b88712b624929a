/* The Metal backend: its class, the GPU, its memory. */
#include "backend/metal/metal_backend.h"
#include "backend/metal/metal_describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/metal/metal_sources.h"

/* What is read to measure the bandwidth, far more than any cache holds, and by how many threads. */
#define MEASURED_BYTES ((uint64_t)1 << 30)
#define MEASUREMENTS 6
#define MEASURING_GROUPS 4096
#define MEASURING_THREADS 256

bool metal_usable(const struct metal_backend *backend, struct calla_error *error) {
    if (backend->lost.status == CALLA_OK)
        return true;
    return error_set(error, backend->lost.status, "%s", backend->lost.message);
}

struct metal_buffer *metal_allocate(struct metal_backend *backend, uint64_t size, const char *what,
                                    struct calla_error *error) {
    uint64_t limit = backend->facts->working_set, left = limit > backend->used ? limit - backend->used : 0;
    size = size > 0 ? size : METAL_ALIGNMENT;
    if (size > left) {
        error_set(error, CALLA_OUT_OF_MEMORY,
                  "The GPU has too little memory for %s: %" PRIu64 " MB are needed, %" PRIu64 " of %" PRIu64
                  " MB that it recommends to use are left.",
                  what, size / 1000000 + 1, left / 1000000, limit / 1000000);
        return NULL;
    }
    if (size > backend->facts->max_buffer) {
        error_set(error, CALLA_OUT_OF_MEMORY,
                  "The GPU has no buffers large enough for %s: %" PRIu64 " MB are needed, %" PRIu64
                  " MB are possible.",
                  what, size / 1000000 + 1, backend->facts->max_buffer / 1000000);
        return NULL;
    }
    struct metal_buffer *buffer = metal_buffer_new(backend->device, size, what, error);
    if (buffer == NULL || !metal_make_resident(backend->device, &buffer, 1, error)) {
        metal_buffer_free(buffer);
        return NULL;
    }
    backend->used += metal_buffer_size(buffer);
    return buffer;
}

void metal_release(struct metal_backend *backend, struct metal_buffer *buffer) {
    if (buffer == NULL)
        return;
    backend->used -= metal_buffer_size(buffer);
    metal_buffer_free(buffer);
}

/* ---- What can be asked before anything is opened */

static bool metal_available(struct calla_error *error) {
    struct metal_device *device = metal_device_open(error);
    metal_device_close(device);
    return device != NULL;
}

static void describe(const struct metal_facts *facts, struct device_facts *out) {
    *out = (struct device_facts){.memory = facts->working_set};
    snprintf(out->name, sizeof out->name, "%.48s (%.36s)", facts->name, facts->system);
}

static void metal_device_of(struct device_facts *facts) {
    struct metal_device *device = metal_device_open(NULL);
    *facts = (struct device_facts){.name = "no Apple GPU"};
    if (device != NULL)
        describe(metal_device_facts(device), facts);
    metal_device_close(device);
}

static uint64_t metal_free_memory(const struct backend *base) {
    const struct metal_backend *backend = (const struct metal_backend *)base;
    uint64_t limit = backend->facts->working_set;
    return limit > backend->used ? limit - backend->used : 0;
}

/* The fastest of several reads of a buffer. */
static bool measure(struct metal_backend *backend, struct metal_commands *commands, double *bandwidth,
                    struct calla_error *error) {
    uint64_t left = metal_free_memory(&backend->base) / 2;
    uint64_t size = left < MEASURED_BYTES ? left / 4096 * 4096 : MEASURED_BYTES;
    uint32_t count = (uint32_t)(size / 16);
    struct metal_pipeline *pipeline = metal_pipeline_new(backend->kernels, "read_memory", NULL, 0, error);
    struct metal_buffer *memory = metal_allocate(backend, size, "measuring the memory's speed", error);
    struct metal_buffer *sums =
        metal_allocate(backend, MEASURING_GROUPS * sizeof(float), "measuring the memory's speed", error);
    bool ok = pipeline != NULL && memory != NULL && sums != NULL;
    for (int i = 0; ok && i < MEASUREMENTS; i++) {
        ok = metal_commands_begin(commands, false, error);
        if (!ok)
            break;
        struct metal_view read = metal_bytes(memory, 0, size, METAL_READ);
        struct metal_view written =
            metal_bytes(sums, 0, MEASURING_GROUPS * sizeof(float), METAL_WRITE | METAL_ALL);
        metal_set_pipeline(commands, pipeline);
        metal_set_buffer(commands, 0, &read);
        metal_set_buffer(commands, 1, &written);
        metal_set_bytes(commands, 2, &count, sizeof count);
        metal_dispatch(commands, (struct metal_size){MEASURING_GROUPS, 1, 1},
                       (struct metal_size){MEASURING_THREADS, 1, 1});
        ok = metal_commands_commit(commands, error) && metal_commands_wait(commands, error);
        struct metal_times times = ok ? metal_commands_times(commands) : (struct metal_times){0};
        double seconds = times.gpu_end - times.gpu_start;
        double found = seconds > 0 ? (double)size / seconds : 0;
        *bandwidth = found > *bandwidth ? found : *bandwidth;
    }
    metal_pipeline_free(pipeline);
    metal_release(backend, memory);
    metal_release(backend, sums);
    return ok;
}

static double metal_bandwidth(struct calla_error *error) {
    struct policy policy;
    policy_defaults(&policy, "metal");
    policy.tensor_operations = false; /* of no interest here */
    struct backend_options options = {.threads = 1, .policy = &policy};
    struct backend *base = metal_backend.open(&options, error);
    if (base == NULL)
        return 0;
    struct metal_backend *backend = (struct metal_backend *)base;
    struct metal_commands *commands =
        metal_commands_new(backend->device, "measuring the memory's speed", error);
    double bandwidth = 0;
    bool ok = commands != NULL && measure(backend, commands, &bandwidth, error);
    if (ok && bandwidth == 0)
        error_set(error, CALLA_DEVICE, "The GPU does not tell how long its commands ran.");
    metal_commands_free(commands);
    base->class->close(base);
    return ok ? bandwidth : 0;
}

/* ---- Opening and closing */

static void metal_close(struct backend *base) {
    struct metal_backend *backend = (struct metal_backend *)base;
    if (backend == NULL)
        return;
    for (int i = 0; i < 2; i++)
        metal_release(backend, backend->scratch[i].buffer);
    for (uint32_t i = 0; i < backend->weight_buffer_count; i++)
        metal_release(backend, backend->weight_buffers[i]);
    free(backend->weight_buffers);
    free(backend->weight_operands);
    metal_pipelines_free(&backend->pipelines);
    metal_library_free(backend->kernels);
    metal_library_free(backend->tensor_kernels);
    metal_device_close(backend->device);
    free(backend->encoder);
    free(backend);
}

/* Whether tensor operations are there, wanted and right; otherwise the error has the reason. */
static bool may_use_tensors(struct metal_backend *backend, struct calla_error *error) {
    if (!backend->policy.tensor_operations)
        return error_set(error, CALLA_UNSUPPORTED, "the policy tensor_operations is off");
    backend->tensor_kernels = metal_library_new(backend->device, &metal_tensor_kernels, error);
    return backend->tensor_kernels != NULL && metal_self_test(backend, error);
}

/* Without tensor operations a GPU that has the units does without. */
static bool load_kernels(struct metal_backend *backend, struct calla_error *error) {
    struct calla_error obstacle = {0};
    backend->kernels = metal_library_new(backend->device, &metal_kernels, error);
    if (backend->kernels == NULL)
        return false;
    backend->tensors = backend->facts->tensor_operations && may_use_tensors(backend, &obstacle);
    metal_describe_tensor_operations(backend->facts, backend->tensors ? NULL : obstacle.message,
                                     backend->tensor_operations, sizeof backend->tensor_operations);
    return !metal_device_lost(backend->device) ||
           error_set(error, CALLA_DEVICE,
                     "The GPU takes no more work after the self-test of its tensor operations (%s): try "
                     "again with --policy tensor_operations=off.",
                     obstacle.message);
}

static const char *metal_tensor_operations(const struct backend *base, bool *failed) {
    const struct metal_backend *backend = (const struct metal_backend *)base;
    *failed = backend->facts->tensor_operations && backend->policy.tensor_operations && !backend->tensors;
    return backend->tensor_operations;
}

static const char *metal_kernels_used(const struct backend *base) {
    return ((const struct metal_backend *)base)->tensors ? "tensor operations" : "simdgroup matrices";
}

static struct backend *metal_open(const struct backend_options *options, struct calla_error *error) {
    struct metal_backend *backend = calloc(1, sizeof *backend);
    struct metal_encoder *encoder = calloc(1, sizeof *encoder);
    if (backend == NULL || encoder == NULL) {
        error_memory(error, "a backend", sizeof *backend + sizeof *encoder);
        free(backend);
        free(encoder);
        return NULL;
    }
    backend->base.class = &metal_backend;
    backend->encoder = encoder;
    encoder->backend = backend;
    policy_defaults(&backend->policy, "metal");
    if (options->policy != NULL)
        backend->policy = *options->policy;
    backend->device = metal_device_open(error);
    if (backend->device != NULL) {
        backend->facts = metal_device_facts(backend->device);
        if (load_kernels(backend, error))
            return &backend->base;
    }
    metal_close(&backend->base);
    return NULL;
}

/* The host's threads have nothing to do but encode. */
static int metal_threads(const struct backend *base) {
    (void)base;
    return 1;
}

const struct backend_class metal_backend = {
    .name = "metal",
    .available = metal_available,
    .device = metal_device_of,
    .free_memory = metal_free_memory,
    .bandwidth = metal_bandwidth,
    .tensor_operations = metal_tensor_operations,
    .kernels = metal_kernels_used,
    .open = metal_open,
    .close = metal_close,
    .threads = metal_threads,
    .load = metal_load,
    .session_open = metal_session_open,
    .session_close = metal_session_close,
    .write = metal_write,
    .read = metal_read,
    .reset = metal_reset,
    .compile = metal_compile,
    .program_free = metal_program_free,
    .run = metal_run,
    .run_ahead = metal_run_ahead,
    .snapshot_take = metal_snapshot_take,
    .snapshot_restore = metal_snapshot_restore,
    .snapshot_read = metal_snapshot_read,
    .snapshot_free = metal_snapshot_free,
    .snapshot_cost = metal_snapshot_cost,
    .snapshot_bytes = metal_snapshot_bytes,
};
