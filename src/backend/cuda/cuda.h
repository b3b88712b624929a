/* What the files of the CUDA backend share: how weights and buffers lie on the device, and what launches a
 * kernel. Read by C and by CUDA C++.
 *
 * Matrices of 4-bit codes are stored as the matrix units take them (a tile: 16 rows x 64 columns, the operand
 * A of mma.m16n8k16 and of wgmma m64k16), so that a warp loads a tile with one 16-byte load a lane and no
 * shuffle:
 *
 *   lane l = 4 g + t owns the 32-bit words w0 .. w3 at byte 16 l of the tile;
 *   w0: row g,     w2: row g + 8: columns 16 j + 2 t     (nibble j) and 16 j + 2 t + 1 (nibble j + 4)
 *   w1: row g,     w3: row g + 8: columns 16 j + 2 t + 8 (nibble j) and 16 j + 2 t + 9 (nibble j + 4),  j = 0
 * .. 3
 *
 * then follow the rows' scales and biases, row g's and row g + 8's side by side (g = 0 .. 7). Tiles lie row
 * of tiles after row of tiles. The rows of a matrix are filled up to 16 with zeros. */
#ifndef CALLA_BACKEND_CUDA_CUDA_H
#define CALLA_BACKEND_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "plan/op.h"
#include "plan/policy.h"

#define CUDA_TILE_ROWS 16
#define CUDA_TILE_COLUMNS 64
#define CUDA_TILE_CODES 512 /* bytes */

#ifdef __CUDACC__
#define CUDA_EVERYWHERE __host__ __device__
#else
#define CUDA_EVERYWHERE
#endif

/* How the scales and biases of an affine matrix are stored: in pairs of two bfloat16 or of two float32. */
CUDA_EVERYWHERE static inline uint32_t cuda_tile_bytes(enum dtype scale_dtype) {
    return CUDA_TILE_CODES + CUDA_TILE_ROWS * (scale_dtype == DTYPE_BF16 ? 4 : 8);
}

/* An operand on the device. AFFINE4: `data` is the first tile. AFFINE8: `data` is the codes [rows, columns]
 * and `scales` float32 pairs [rows, columns / 64]. Vectors of weights are float32. */
struct cuda_view {
    void *data;
    const void *scales;
    uint32_t dtype, scale_dtype; /* enum dtype */
    uint32_t rows, columns;
    uint64_t stride; /* elements from row to row */
};

/* Where a sampled token is put for the host, which waits for it without a call: the low half of `word`, in
 * the host's memory, is the token, the upper half tells how many there have been, as counted in `count`. */
struct cuda_mailbox {
    uint64_t *word; /* NULL: nobody waits */
    uint32_t *count;
};

/* An op that is ready to be launched. */
struct cuda_op {
    struct op op;
    struct cuda_view views[OP_MAX_OPERANDS];
    struct cuda_mailbox mailbox; /* OP_SAMPLE */
    void *pinned;                /* the op's own memory of the host, which its kernel asked for */
};

struct cuda_device {
    int ordinal, major, minor;
    int multiprocessors;
    int shared_bytes; /* of one block, at most */
    const struct policy *policy;
};

/* Queues an op's kernels. `workspace` is the op's own memory for the time of the op, as large as its
 * workspace function said. May be recorded: no allocation, no waiting. */
typedef cudaError_t cuda_launcher(const struct cuda_op *op, const struct cuda_device *device, void *workspace,
                                  cudaStream_t stream);
typedef uint64_t cuda_workspace(const struct cuda_op *op, const struct cuda_device *device);

/* One way of running ops of a kind. */
struct cuda_kernel {
    bool (*fits)(const struct cuda_op *op, const struct cuda_device *device); /* NULL: any op of the kind */
    cuda_workspace *workspace;                                                /* NULL: none */
    cuda_launcher *launch;
    cuda_workspace *pinned; /* bytes of the host's memory for as long as the program lives; NULL: none */
};

#ifdef __cplusplus
}
#endif

#endif
