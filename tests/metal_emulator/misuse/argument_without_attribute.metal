// expect: no attribute that says what it is
#include <metal_stdlib>
kernel void misuse(device float *out [[buffer(0)]], uint lane) {
    out[lane] = 0.0f;
}
