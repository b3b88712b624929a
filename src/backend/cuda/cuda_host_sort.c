/* Sorting the chosen experts on the host, for the policy device_routing=off: the device waits until the ids
 * have come to the host, have been sorted there and are back. What this costs is what routing on the device
 * is worth. */
#include "backend/cuda/host_sort.h"
#include "backend/pair_order.h"

/* What the host's function finds, in pinned memory: this, then ids, starts and order. */
struct sort {
    uint32_t experts, pairs;
};

static int32_t *ids_of(struct sort *sort) {
    return (int32_t *)(sort + 1);
}

static int32_t *starts_of(struct sort *sort) {
    return ids_of(sort) + sort->pairs;
}

static int32_t *order_of(struct sort *sort) {
    return starts_of(sort) + sort->experts + 1;
}

static void sort_pairs(void *argument) {
    struct sort *sort = argument;
    pair_order(ids_of(sort), 1, sort->pairs, sort->pairs, sort->experts, starts_of(sort), order_of(sort));
}

bool cuda_host_sort_fits(const struct cuda_op *op, const struct cuda_device *device) {
    (void)op;
    return !device->policy->device_routing;
}

static uint64_t pairs_of(const struct cuda_op *op) {
    return (uint64_t)op->views[0].rows * op->views[0].columns;
}

uint64_t cuda_host_sort_pinned(const struct cuda_op *op, const struct cuda_device *device) {
    (void)device;
    return sizeof(struct sort) + (2 * pairs_of(op) + op->op.constants.experts + 1) * sizeof(int32_t);
}

cudaError_t cuda_host_sort(const struct cuda_op *op, const struct cuda_device *device, void *workspace,
                           cudaStream_t stream) {
    (void)device;
    (void)workspace;
    const struct cuda_view *ids = &op->views[0], *starts = &op->views[1], *order = &op->views[2];
    struct sort *sort = op->pinned;
    *sort = (struct sort){.experts = op->op.constants.experts, .pairs = (uint32_t)pairs_of(op)};
    size_t width = ids->columns * sizeof(int32_t);
    cudaError_t status = cudaMemcpy2DAsync(ids_of(sort), width, ids->data, ids->stride * sizeof(int32_t),
                                           width, ids->rows, cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess)
        status = cudaLaunchHostFunc(stream, sort_pairs, sort);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(starts->data, starts_of(sort), starts->columns * sizeof(int32_t),
                                 cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(order->data, order_of(sort), sort->pairs * sizeof(int32_t),
                                 cudaMemcpyHostToDevice, stream);
    return status;
}
