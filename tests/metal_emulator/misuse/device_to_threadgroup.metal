// expect: changes address space
#include <metal_stdlib>
using namespace metal;
kernel void misuse(device float *out [[buffer(0)]]) {
    threadgroup float shared[32];
    threadgroup float *tile = shared;
    tile = out;
}
