/* What racecheck (compute-sanitizer) sees of a ring in shared memory that is kept in order by mbarriers, as
 * in the kernels for many rows: one warp stores into the places of a ring, two warps read them.
 *
 *   nvcc -std=c++17 -arch=sm_90a -Isrc -Iinclude -o racecheck_ring tests/cuda/racecheck_ring.cu
 *   compute-sanitizer --tool racecheck racecheck_ring 0   each lane arrives: no hazards
 *   compute-sanitizer --tool racecheck racecheck_ring 1   one lane for the warp, after __syncwarp: errors
 *   compute-sanitizer --tool racecheck racecheck_ring 2   as 0, but the ring is not waited for: errors
 *
 * 1 is as correct as 0: __syncwarp orders the lanes, and what it orders the arrival passes on. */
#include <stdlib.h>

#include "bench.cuh"

#include "backend/cuda/kernels/hopper.cuh"

#define PLACES 3
#define READERS 2 /* warps */
#define TURNS 8
#define PLACE_BYTES 512

template <bool EVERY_LANE> static __device__ void arrive(uint32_t barrier) {
    if (!EVERY_LANE)
        __syncwarp();
    if (EVERY_LANE || threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

template <bool EVERY_LANE, bool WAITS> static __global__ void ring(const uint4 *in, uint32_t *out) {
    __shared__ __align__(128) uint8_t places[PLACES][PLACE_BYTES];
    __shared__ uint64_t barriers[2 * PLACES];
    uint32_t full = shared_address(barriers), empty = full + 8 * PLACES, memory = shared_address(places);
    uint32_t lane = threadIdx.x % 32, sum = 0;
    if (threadIdx.x == 0)
        for (int i = 0; i < PLACES; i++) {
            barrier_init(full + 8 * i, EVERY_LANE ? 32 : 1);
            barrier_init(empty + 8 * i, READERS * (EVERY_LANE ? 32 : 1));
        }
    __syncthreads();
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t place = turn % PLACES, parity = turn / PLACES % 2, at = memory + place * PLACE_BYTES;
        if (threadIdx.x / 32 == READERS) {
            if (WAITS)
                barrier_wait(empty + 8 * place, parity ^ 1);
            uint4 v = in[32 * turn + lane];
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + 16 * lane), "r"(v.x), "r"(v.y),
                         "r"(v.z), "r"(v.w)
                         : "memory");
            arrive<EVERY_LANE>(full + 8 * place);
        } else {
            barrier_wait(full + 8 * place, parity);
            uint4 v = shared_load_16(at + 16 * (31 - lane)); /* another lane's */
            sum += v.x + v.y + v.z + v.w;
            arrive<EVERY_LANE>(empty + 8 * place);
        }
    }
    out[threadIdx.x] = sum;
}

int main(int count, char **arguments) {
    int which = count > 1 ? atoi(arguments[1]) : 0;
    std::vector<uint4> rows(32 * TURNS);
    uint32_t expected = 0;
    for (uint32_t i = 0; i < rows.size(); i++) {
        rows[i] = make_uint4(i, 2 * i, 3 * i, 4 * i);
        expected += READERS * 10 * i;
    }
    uint4 *in = to_device(rows);
    uint32_t *out = device_array<uint32_t>(32 * (READERS + 1)), found = 0;
    if (which == 0)
        ring<true, true><<<1, 32 * (READERS + 1)>>>(in, out);
    else if (which == 1)
        ring<false, true><<<1, 32 * (READERS + 1)>>>(in, out);
    else
        ring<true, false><<<1, 32 * (READERS + 1)>>>(in, out);
    check(cudaDeviceSynchronize());
    for (uint32_t sum : to_host(out, 32 * READERS))
        found += sum;
    printf("%s\n", found == expected ? "the sums are right" : "THE SUMS ARE WRONG");
    return found != expected && which != 2;
}
