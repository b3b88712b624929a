/* Laying out weights on the device as cuda.h describes, from the bytes of the checkpoint. */
#ifndef CALLA_BACKEND_CUDA_PACK_H
#define CALLA_BACKEND_CUDA_PACK_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whole rows of a weight in device memory as they are in the file: codes [rows, columns], for affine weights
 * scales and biases [rows, columns / 64]. All begin at multiples of 16 bytes. */
struct cuda_raw_rows {
    const void *values, *scales, *biases;
    uint32_t dtype, scale_dtype, bias_dtype; /* enum dtype */
    uint32_t rows, columns;
};

/* Packs rows of a weight of which `view` is the whole, from row `first` on, a multiple of CUDA_TILE_ROWS. */
cudaError_t cuda_pack(const struct cuda_raw_rows *raw, const struct cuda_view *view, uint64_t first,
                      cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
