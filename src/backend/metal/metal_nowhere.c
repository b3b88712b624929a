/* metal_device.h as far as the encoder needs it, where there is no Metal: plans can be counted there
 * (metal_count.c), and nothing can run, so none of this is ever called. Weak, so that a real implementation
 * takes its place. */
#include "backend/metal/metal_device.h"

#define WEAK __attribute__((weak))

WEAK struct metal_pipeline *metal_pipeline_new(struct metal_library *library, const char *function,
                                               const struct metal_constant *constants,
                                               uint32_t constant_count, struct calla_error *error) {
    (void)library, (void)constants, (void)constant_count;
    error_set(error, CALLA_UNSUPPORTED, "The kernel '%s' cannot be prepared: there is no Metal here.",
              function);
    return NULL;
}

WEAK void metal_pipeline_free(struct metal_pipeline *pipeline) {
    (void)pipeline;
}

WEAK const struct metal_limits *metal_pipeline_limits(const struct metal_pipeline *pipeline) {
    static const struct metal_limits none = {0};
    (void)pipeline;
    return &none;
}

WEAK const char *metal_pipeline_name(const struct metal_pipeline *pipeline) {
    (void)pipeline;
    return "none";
}

WEAK void metal_set_pipeline(struct metal_commands *commands, const struct metal_pipeline *pipeline) {
    (void)commands, (void)pipeline;
}

WEAK void metal_set_buffer(struct metal_commands *commands, uint32_t slot, const struct metal_view *view) {
    (void)commands, (void)slot, (void)view;
}

WEAK void metal_set_bytes(struct metal_commands *commands, uint32_t slot, const void *bytes, size_t size) {
    (void)commands, (void)slot, (void)bytes, (void)size;
}

WEAK void metal_set_threadgroup_memory(struct metal_commands *commands, uint32_t index, uint32_t size) {
    (void)commands, (void)index, (void)size;
}

WEAK void metal_dispatch(struct metal_commands *commands, struct metal_size groups,
                         struct metal_size threads) {
    (void)commands, (void)groups, (void)threads;
}

WEAK void metal_dispatch_indirect(struct metal_commands *commands, struct metal_buffer *buffer,
                                  uint64_t offset, struct metal_size threads) {
    (void)commands, (void)buffer, (void)offset, (void)threads;
}

WEAK void metal_barrier(struct metal_commands *commands) {
    (void)commands;
}

WEAK void *metal_buffer_contents(const struct metal_buffer *buffer) {
    (void)buffer;
    return NULL;
}
