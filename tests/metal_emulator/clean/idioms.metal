// Ways of writing that occur in Metal kernels: they must compile, with and without address spaces, and mean the same.
#include <metal_stdlib>
using namespace metal;

constant bool has_extra [[function_constant(2)]];
constant float bonus [[function_constant(3)]];
constant float extra_default = is_function_constant_defined(bonus) ? bonus : 2.0f;
constant constexpr int tile_rows = 4;
constexpr constant uint masks[4] = {0x000fu, 0x00f0u, 0x0f00u, 0xf000u};
constant float4 weights = {1.0f, 2.0f, 3.0f, 4.0f};

typedef struct {
    uint rows;
    float scale;
    float4 shift;
} settings;

namespace tools {
template <typename T> METAL_FUNC float to_float(T x) {
    return static_cast<float>(x);
}
// Called by all threads of a simdgroup.
static float total(float x) {
    return simd_sum(x);
}
static void fill(threadgroup float *tile, uint lane, float value) {
    tile[lane] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
} // namespace tools

template <typename T, int N> struct block {
    T values[N];
    thread T &operator[](int i) {
        return values[i];
    }
};

kernel void idioms(device const ushort *codes [[buffer(0)]], device const uint2 *packed [[buffer(1)]],
                   device float *out [[buffer(2)]], constant settings &given [[buffer(3)]],
                   device const float *extra [[buffer(4), function_constant(has_extra)]],
                   uint3 position [[thread_position_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float tile[32][tile_rows + 1];
    threadgroup float4 wide[32], row[32];
    threadgroup uint flags;
    // Vectors: made of parts, converted, compared, selected.
    ushort code = codes[lane];
    float4 x = float4(code & masks[0], code & masks[1], code & masks[2], code & masks[3]);
    x *= float4(1.0f, 1.0f / 16, 1.0f / 256, 1.0f / 4096);
    bfloat4 b = bfloat4(x);
    half4 h = half4(x);
    uint4 u = uint4(x);
    float4 y = select(float4(b), float4(h), x > 7.0f) + float4(u.xy, u.zw) * 0.0f;
    y = fma(y, given.scale, given.shift);
    y = clamp(y, -100.0f, 100.0f);
    // Bits: two bfloats in a word.
    bfloat2 pair = as_type<bfloat2>(packed[lane].x);
    float low = as_type<float>(packed[lane].x << 16);
    float sum = float(pair.x) - low + float(pair.y) * 0.0f;
    // Threadgroup memory of several dimensions and kinds, a scalar too.
    for (int i = 0; i < tile_rows; i++)
        tile[lane][i] = y[i];
    wide[lane] = y;
    row[31 - lane] = wide[lane].wzyx;
    if (lane == 0)
        flags = 1u;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    block<float, tile_rows> mine;
#pragma unroll
    for (int i = 0; i < tile_rows; ++i)
        mine[i] = tile[31 - lane][i] - row[lane][tile_rows - 1 - i];
    sum += mine[0] + mine[1] + mine[2] + mine[3] + dot(y, weights);
    auto add = [&](float z) { sum += z; };
    add(extra_default);
    if (has_extra)
        add(extra[lane]);
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    tools::fill(&tile[0][0], lane, tools::to_float(lane));
    sum += tools::total(tile[0][0] + float(position.y + simdgroup) + (flags - 1.0f)) * 0.0f;
    // Numbers of 16 bits keep 16 bits.
    half small = half(sum) * 0.5h;
    small += 1;
    float top = max(sum, 0.0f) + max(1u, uint(lane)) * 0.0f + (fabs(fast::exp2(0.0f) - precise::exp(0.0f)) > 1e-6f ? 1.0f : 0.0f);
    simdgroup_float8x8 matrix = simdgroup_float8x8(0);
    matrix.thread_elements()[0] = top;
    simdgroup_multiply(matrix, matrix, make_filled_simdgroup_matrix<float, 8>(0.0f));
    out[lane] = top + matrix.thread_elements()[1] + (isnan(float(small)) ? 1.0f : 0.0f) +
                float(popcount(uint(lane)) - popcount(uint(lane))) + float(clz(1u) - 31) + numeric_limits<float>::lowest() * 0.0f;
}
