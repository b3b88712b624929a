// expect: no matching function for call to 'simdgroup_load'
#include <metal_stdlib>
using namespace metal;
kernel void misuse(device float *out [[buffer(0)]]) {
    float own[64];
    simdgroup_float8x8 a;
    simdgroup_load(a, own, 8);
    simdgroup_store(a, out, 8);
}
