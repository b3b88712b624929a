/* Hopper's own instructions, thinly wrapped: barriers that count bytes, bulk copies, and the operands of the
 * matrix units of a warpgroup. Everything that names an instruction of sm_90a is here or in wgmma.cuh. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_HOPPER_CUH
#define CALLA_BACKEND_CUDA_KERNELS_HOPPER_CUH

#include <stdint.h>

#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define CALLA_HOPPER 1
#endif

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ uint4 shared_load_16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint2 shared_load_8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* For the calling thread alone. One lane might arrive for its warp after __syncwarp, but racecheck
 * (compute-sanitizer) does not see that, and it is no faster. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and makes the phase wait for `bytes` of bulk copies as well. */
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define BARRIER_TEST "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
#define BARRIER_TEST "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n" BARRIER_TEST "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#undef BARRIER_TEST
}

/* What ordinary stores (cp.async among them) wrote to shared memory becomes visible to the matrix units. */
__device__ __forceinline__ void fence_for_matrix_units() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Bytes in multiples of 16 from device memory to shared memory; they count for the barrier. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_async_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Arrives at a barrier when the thread's copies so far are there. */
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <int REGISTERS> __device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Operand of the matrix units in shared memory: rows of 64 bf16 (128 bytes) whose 16-byte pieces are swizzled
 * (piece c of row r lies at c ^ (r & 7)); 8 rows take 1024 bytes and start at a multiple of them. The depth
 * of the product runs along the row. */
__device__ __forceinline__ uint64_t matrix_of_rows(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* The same memory with the depth running from row to row (the transposed operand); blocks of 64 columns lie
 * `block_bytes` apart. */
__device__ __forceinline__ uint64_t matrix_of_columns(uint32_t address, uint32_t block_bytes) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(block_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#endif
