// expect: no matching function for call to 'atomic_load_explicit'
#include <metal_stdlib>
using namespace metal;
kernel void misuse(constant atomic_uint *count [[buffer(0)]], device uint *out [[buffer(1)]]) {
    out[0] = atomic_load_explicit(count, memory_order_relaxed);
}
