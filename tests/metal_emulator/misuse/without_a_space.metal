// expect: no matching function for call to 'sum_of_four'
#include <metal_stdlib>
using namespace metal;
static float sum_of_four(const float *x) {
    return x[0] + x[1] + x[2] + x[3];
}
kernel void misuse(device const float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    out[0] = sum_of_four(in);
}
