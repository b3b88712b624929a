// expect: variable length array
#include <metal_stdlib>
using namespace metal;
constant int width [[function_constant(0)]];
kernel void misuse(device float *out [[buffer(0)]]) {
    float own[width];
    own[0] = 1.0f;
    out[0] = own[0];
}
