// expect: cooperative inputs are for execution_simdgroup
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
kernel void misuse(device float *out [[buffer(0)]]) {
    constexpr auto descriptor = matmul2d_descriptor(16, 32, 16);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto left = product.get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    out[0] = float(left.get_capacity());
}
