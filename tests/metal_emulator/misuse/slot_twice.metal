// expect: have the same slot, 1
#include <metal_stdlib>
kernel void misuse(device const float *in [[buffer(1)]], device float *out [[buffer(1)]]) {
    out[0] = in[0];
}
