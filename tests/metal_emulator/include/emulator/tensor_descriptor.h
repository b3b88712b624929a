/* What a tensor operation multiplies: the same for kernels that run and for those that are only looked at. */
#ifndef EMULATOR_TENSOR_DESCRIPTOR_H
#define EMULATOR_TENSOR_DESCRIPTOR_H

namespace metal {
inline constexpr int dynamic_extent = -1;
}

namespace mpp {
namespace tensor_ops {

using metal::dynamic_extent;
inline constexpr int dynamic_length_v = metal::dynamic_extent;

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(int m_, int n_, int k_ = metal::dynamic_extent, bool left = false,
                                  bool right = false, bool relaxed = false, mode mode_ = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed),
          matmul_mode(mode_) {}
};

} // namespace tensor_ops
} // namespace mpp

#endif
