/* A warp's product on the matrix units that every GPU from 8.0 on has. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_MMA_CUH
#define CALLA_BACKEND_CUDA_KERNELS_MMA_CUH

#include <stdint.h>

/* d[16, 8] += a[16, 16] b[16, 8], float16 with float32 sums; the lanes' parts as in mma.m16n8k16. */
__device__ __forceinline__ void multiply_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same in bfloat16. */
__device__ __forceinline__ void multiply_bf16(float (&d)[4], const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 x 8 16-bit values from shared memory; lane 8 i + r has the address of row r of m[i]. */
__device__ __forceinline__ void load_matrices(uint32_t *m, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t *m, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

/* A matrix of 8 x 8 bfloat16 that the lanes hold, transposed. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t m) {
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(m));
    return turned;
}

#endif
