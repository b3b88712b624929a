// expect: beyond the last slot, 30
#include <metal_stdlib>
kernel void misuse(device float *out [[buffer(31)]]) {
    out[0] = 0.0f;
}
