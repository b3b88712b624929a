/* Reads memory as fast as it goes: 16 bytes a lane, many blocks, several loads under way in each thread. */
#include "backend/cuda/measure.h"

#include "backend/cuda/kernels/launch.cuh"

#define BLOCK 512
#define BLOCKS (132 * 32)
#define LOADS 4

__global__ static void read_memory(uint4 *memory, uint64_t count) {
    uint64_t step = static_cast<uint64_t>(gridDim.x) * BLOCK;
    uint32_t sum = 0;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x; i < count; i += step * LOADS) {
        uint4 values[LOADS];
        for (int j = 0; j < LOADS; j++)
            values[j] = i + j * step < count ? memory[i + j * step] : make_uint4(0, 0, 0, 0);
        for (int j = 0; j < LOADS; j++)
            sum |= values[j].x | values[j].y | values[j].z | values[j].w;
    }
    if (sum != 0)
        memory[0] = make_uint4(0, 0, 0, 0); /* never: the memory is zero; but the loads must happen */
}

extern "C" cudaError_t cuda_read_memory(void *memory, uint64_t size, cudaStream_t stream) {
    return cuda_launch(read_memory, CUDA_EXCLUSIVE, BLOCKS, BLOCK, 0, stream, static_cast<uint4 *>(memory),
                       size / sizeof(uint4));
}
