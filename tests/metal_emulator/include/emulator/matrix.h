/* 8x8 matrices of a simdgroup. Each lane holds two neighbouring elements of a row, in the places that
 * thread_elements() has on Apple GPUs. */
#ifndef EMULATOR_MATRIX_H
#define EMULATOR_MATRIX_H

#include "simd.h"

namespace metal {

template <class T, int Rows, int Columns> struct simdgroup_matrix {
    static_assert(Rows == 8 && Columns == 8, "simdgroup matrices are 8 by 8");
    vec<T, 2> elements;
    simdgroup_matrix() = default;
    /* A diagonal matrix. */
    EMULATOR_INLINE explicit simdgroup_matrix(T diagonal);
    vec<T, 2> &thread_elements() {
        return elements;
    }
    const vec<T, 2> &thread_elements() const {
        return elements;
    }
};

} // namespace metal

namespace emulator {

inline uint matrix_row() {
    uint lane = emulator_lane() & 31;
    return (lane / 4 & 4) + lane / 2 % 4;
}
inline uint matrix_column() {
    uint lane = emulator_lane() & 31;
    return 2 * (lane / 4 & 2) + lane % 2 * 2;
}

template <class T>
EMULATOR_RAW void matrix_load(metal::simdgroup_matrix<T, 8, 8> &out, const T *from, ulong stride,
                              bool transpose) {
    uint row = matrix_row(), column = matrix_column();
    for (uint i = 0; i < 2; i++) {
        const T *at = transpose ? from + (column + i) * stride + row : from + row * stride + column + i;
        emulator_collective(at, sizeof(T), false);
        out.elements.e[i] = *at;
    }
}
template <class T>
EMULATOR_RAW void matrix_store(const metal::simdgroup_matrix<T, 8, 8> &in, T *to, ulong stride,
                               bool transpose) {
    uint row = matrix_row(), column = matrix_column();
    for (uint i = 0; i < 2; i++) {
        T *at = transpose ? to + (column + i) * stride + row : to + row * stride + column + i;
        emulator_collective(at, sizeof(T), true);
        *at = in.elements.e[i];
    }
}

} // namespace emulator

namespace metal {

template <class T, int R, int C> EMULATOR_INLINE simdgroup_matrix<T, R, C>::simdgroup_matrix(T diagonal) {
    uint row = emulator::matrix_row(), column = emulator::matrix_column();
    for (uint i = 0; i < 2; i++)
        elements.e[i] = row == column + i ? diagonal : (T)0.0f;
}

template <class T, int R, int C>
EMULATOR_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, R, C> out;
    out.elements = vec<T, 2>(value, value);
    return out;
}

/* Element (row, column) lies at row * stride + column, or, transposed, at column * stride + row. `origin` is
 * (column, row). */
template <class T>
EMULATOR_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8> &d, const T *from, ulong stride = 8,
                                    vec<ulong, 2> origin = vec<ulong, 2>(0ul, 0ul), bool transpose = false) {
    emulator_together("simdgroup_load");
    emulator::matrix_load(d, from + origin.y * stride + origin.x, stride, transpose);
}
template <class T, class O>
EMULATOR_INLINE enable_if_t<is_integral_v<O>> simdgroup_load(simdgroup_matrix<T, 8, 8> &d, const T *from,
                                                             ulong stride, O origin, bool transpose = false) {
    emulator_together("simdgroup_load");
    emulator::matrix_load(d, from + (ulong)origin * (stride + 1), stride, transpose);
}
template <class T>
EMULATOR_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8> &a, T *to, ulong stride = 8,
                                     vec<ulong, 2> origin = vec<ulong, 2>(0ul, 0ul), bool transpose = false) {
    emulator_together("simdgroup_store");
    emulator::matrix_store(a, to + origin.y * stride + origin.x, stride, transpose);
}
template <class T, class O>
EMULATOR_INLINE enable_if_t<is_integral_v<O>>
simdgroup_store(const simdgroup_matrix<T, 8, 8> &a, T *to, ulong stride, O origin, bool transpose = false) {
    emulator_together("simdgroup_store");
    emulator::matrix_store(a, to + (ulong)origin * (stride + 1), stride, transpose);
}

/* d = a b + c */
template <class D, class A, class B, class C>
EMULATOR_INLINE void
simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                              const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<C, 8, 8> &c) {
    float left[2] = {(float)a.elements.e[0], (float)a.elements.e[1]};
    float right[2] = {(float)b.elements.e[0], (float)b.elements.e[1]};
    float sum[2] = {(float)c.elements.e[0], (float)c.elements.e[1]}, out[2];
    emulator_multiply(left, right, sum, out);
    d.elements.e[0] = (D)out[0];
    d.elements.e[1] = (D)out[1];
}
template <class D, class A, class B>
EMULATOR_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                                        const simdgroup_matrix<B, 8, 8> &b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0.0f));
}

} // namespace metal

/* Metal's make_filled_simdgroup_matrix<float, 8>(x) too. */
namespace metal {
template <class T, int N> EMULATOR_INLINE simdgroup_matrix<T, N, N> make_filled_simdgroup_matrix(T value) {
    return make_filled_simdgroup_matrix<T, N, N>(value);
}
} // namespace metal

using simdgroup_float8x8 = metal::simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = metal::simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = metal::simdgroup_matrix<bfloat, 8, 8>;

#endif
