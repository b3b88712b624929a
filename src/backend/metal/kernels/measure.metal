// The speed of the memory: reads `count` vectors and writes a number a threadgroup that depends on all of them.
#include <metal_stdlib>
using namespace metal;

kernel void read_memory(device const uint4 *memory [[buffer(0)]], device uint *sums [[buffer(1)]],
                        constant uint &count [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                        uint groups [[threadgroups_per_grid]], uint index [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]]) {
    uint4 sum = uint4(0u);
    for (uint i = group * threads + index; i < count; i += groups * threads)
        sum ^= memory[i];
    uint all = simd_xor(sum.x ^ sum.y ^ sum.z ^ sum.w);
    if (index == 0)
        sums[group] = all;
}
