// expect: 'group' has 2 components, but others of its kind have 1
#include <metal_stdlib>
kernel void misuse(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]],
                   uint2 group [[threadgroup_position_in_grid]]) {
    out[i] = float(group.y);
}
