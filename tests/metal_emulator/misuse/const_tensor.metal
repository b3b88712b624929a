// expect: elements of tensors are not const
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;
kernel void misuse(device const bfloat *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    auto t = tensor(in, dextents<int, 2>{16, 16}, array<int, 2>{1, 16});
    out[0] = float(t.get_extent(0));
}
