/* The backend's own encoder at work for nobody: operands are bound to no memory, and launches are counted. */
#include "backend/metal/metal_count.h"

#include <stdlib.h>

#include "backend/metal/metal_backend.h"

static const struct metal_facts any_gpu = {.name = "any Apple GPU",
                                           .family = 7,
                                           .language = METAL_LANGUAGE(3, 1),
                                           .working_set = UINT64_MAX,
                                           .max_buffer = UINT64_MAX,
                                           .max_threads = 1024,
                                           .threadgroup_bytes = METAL_MAX_THREADGROUP_BYTES,
                                           .page_size = 16384};

/* As metal_load.c makes it of the published files. */
static struct metal_operand unbound(const struct operand *operand) {
    struct metal_operand bound = {.offset = operand->offset,
                                  .dtype = operand->dtype,
                                  .scale_dtype = DTYPE_BF16,
                                  .rows = operand->rows,
                                  .columns = operand->columns,
                                  .stride = operand->stride,
                                  .access = operand->access};
    bool affine = operand->dtype == DTYPE_AFFINE4 || operand->dtype == DTYPE_AFFINE8;
    if (operand->space == SPACE_WEIGHT && !affine &&
        (operand->rows == 1 || operand->columns <= METAL_SMALL_COLUMNS))
        bound.dtype = DTYPE_F32;
    return bound;
}

static bool count_op(struct metal_op *bound, struct metal_encoder *encoder, struct calla_error *error) {
    const struct metal_kernel *kernel = metal_kernel_of(bound, encoder);
    if (kernel == NULL)
        return error_set(error, CALLA_UNSUPPORTED, "Metal: op %s of layer %d has no kernel that fits it.",
                         op_name(bound->op->kind), bound->op->layer);
    uint64_t size = kernel->workspace == NULL ? 0 : kernel->workspace(bound, encoder);
    bound->workspace = (struct metal_operand){.dtype = DTYPE_U8,
                                              .rows = size > 0,
                                              .columns = (uint32_t)size,
                                              .stride = (uint32_t)size,
                                              .access = ACCESS_READ | ACCESS_WRITE};
    metal_encoder_op(encoder, 0, 0);
    kernel->encode(bound, encoder);
    if (encoder->failed)
        *error = encoder->error;
    return !encoder->failed;
}

bool metal_count(struct metal_counts *counts, const struct plan *plan, const struct policy *policy,
                 uint32_t position, struct calla_error *error) {
    struct metal_backend backend = {.facts = &any_gpu, .policy = *policy};
    struct metal_encoder *encoder = calloc(1, sizeof *encoder);
    struct metal_op *ops = calloc(plan->op_count + (size_t)1, sizeof *ops);
    if (encoder == NULL || ops == NULL) {
        free(encoder);
        free(ops);
        return error_memory(error, "counting kernels", plan->op_count * sizeof *ops);
    }
    for (uint32_t i = 0; i < plan->op_count; i++) {
        ops[i].op = &plan->ops[i];
        ops[i].before = i > 0 ? &ops[i - 1] : NULL;
        ops[i].after = i + 1 < plan->op_count ? &ops[i + 1] : NULL;
        for (uint32_t j = 0; j < ops[i].op->operand_count; j++)
            ops[i].operands[j] = unbound(&ops[i].op->operands[j]);
    }
    encoder->backend = &backend;
    encoder->counts = counts;
    encoder->position = position;
    *counts = (struct metal_counts){0};
    metal_encoder_begin(encoder, NULL);
    bool ok = true;
    for (uint32_t i = 0; ok && i < plan->op_count; i++) {
        if (i > 0 && plan->ops[i].phase != plan->ops[i - 1].phase)
            metal_encoder_barrier(encoder);
        ok = count_op(&ops[i], encoder, error);
    }
    metal_encoder_barrier(encoder);
    free(encoder);
    free(ops);
    return ok;
}
