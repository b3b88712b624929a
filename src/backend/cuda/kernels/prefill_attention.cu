/* OP_ATTENTION for many rows: prefill_attention.cuh on Hopper, prefill_attention_warps.cuh elsewhere. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_attention.cuh"
#include "backend/cuda/kernels/prefill_attention_warps.cuh"

extern "C" bool cuda_prefill_attention_fits(const struct cuda_op *op, const struct cuda_device *device) {
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *q = &op->views[1], *gate = &op->views[2], *keys = &op->views[3],
                           *values = &op->views[4];
    const struct cuda_view *y = &op->views[5];
    return c->head_size == ATTENTION_SIZE && ATTENTION_ROWS % (c->heads / c->kv_heads) == 0 &&
           q->rows > 8 * c->heads && keys->dtype == DTYPE_BF16 && keys->stride == values->stride &&
           prefill_aligned(q) && prefill_aligned(gate) && prefill_aligned(keys) && prefill_aligned(values) &&
           prefill_aligned(y) && device->shared_bytes >= ROWS_SHARED;
}

extern "C" cudaError_t cuda_prefill_attention(const struct cuda_op *op, const struct cuda_device *device,
                                              void *, cudaStream_t stream) {
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *views = op->views;
    struct attention_arguments arguments = {};
    arguments.position = &((const struct step_record *)views[0].data)->position;
    arguments.q = (const float *)views[1].data;
    arguments.gate = (const float *)views[2].data;
    arguments.keys = (const __nv_bfloat16 *)views[3].data;
    arguments.values = (const __nv_bfloat16 *)views[4].data;
    arguments.y = views[5].data;
    arguments.q_stride = views[1].stride;
    arguments.gate_stride = views[2].stride;
    arguments.cache_stride = views[3].stride;
    arguments.y_stride = views[5].stride;
    arguments.rows = views[1].rows / c->heads;
    arguments.heads = c->heads;
    arguments.kv_heads = c->kv_heads;
    arguments.limit = views[3].rows;
    enum cuda_start start = cuda_overlap(device);
    bool bf16 = views[5].dtype == DTYPE_BF16;
    if (prefill_on_hopper(device))
        return bf16 ? attention_launch<__nv_bfloat16>(arguments, start, stream)
                    : attention_launch<float>(arguments, start, stream);
    return bf16 ? attention_warps_launch<__nv_bfloat16>(arguments, start, stream)
                : attention_warps_launch<float>(arguments, start, stream);
}
