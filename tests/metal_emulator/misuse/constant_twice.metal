// expect: have the same number, 3
#include <metal_stdlib>
constant bool first [[function_constant(3)]];
constant bool second [[function_constant(3)]];
kernel void misuse(device float *out [[buffer(0)]]) {
    out[0] = first || second ? 1.0f : 0.0f;
}
