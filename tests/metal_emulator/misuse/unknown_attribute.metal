// expect: unknown attribute 'thread_position_in_simdgroup'
#include <metal_stdlib>
kernel void misuse(device float *out [[buffer(0)]], uint lane [[thread_position_in_simdgroup]]) {
    out[lane] = 0.0f;
}
