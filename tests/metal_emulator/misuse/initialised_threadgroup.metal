// expect: threadgroup variables have no initial value
#include <metal_stdlib>
kernel void misuse(device float *out [[buffer(0)]]) {
    threadgroup float sum = 0.0f;
    out[0] = sum;
}
