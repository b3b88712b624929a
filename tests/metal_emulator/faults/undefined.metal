// What Metal leaves undefined shows in the results.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

kernel void undefined(device float *out [[buffer(0)]], constant uint &given [[buffer(1)]],
                      uint lane [[thread_index_in_simdgroup]]) {
    float never_set[4];
    if (given > 4)
        never_set[lane & 3] = 0.0f;
    out[lane] = never_set[lane & 3];
    float x = float(lane) / 8.0f;
    out[32 + lane] = fast::exp(x) == exp(x) ? 0.0f : fabs(fast::exp(x) - exp(x)) / exp(x);
    constexpr auto descriptor =
        matmul2d_descriptor(16, 32, 16, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroup> product;
    auto left = product.get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto right = product.get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto sum = product.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    for (int i = 0; i < left.get_capacity(); i++)
        left[i] = bfloat(1.0f);
    for (int i = 0; i < right.get_capacity(); i++)
        right[i] = bfloat(1.0f);
    product.run(left, right, sum);
    out[64 + lane] = sum[0];
}
