/* tensor.h for the compile that only looks (syntax.h): tensors over device or threadgroup memory. */
#ifndef EMULATOR_TENSOR_SYNTAX_H
#define EMULATOR_TENSOR_SYNTAX_H

#include "syntax.h"
#include "tensor_descriptor.h"

struct uint4b_format {};
struct int4b_format {};

namespace emulator {
template <class T> struct tensor_pointer {
    static_assert(!metal::is_same_v<T, const T>, "elements of tensors are not const");
    using type = T *;
};
template <> struct tensor_pointer<device uint4b_format> { using type = device uchar *; };
template <> struct tensor_pointer<device int4b_format> { using type = device uchar *; };
template <> struct tensor_pointer<threadgroup uint4b_format> { using type = threadgroup uchar *; };
template <> struct tensor_pointer<threadgroup int4b_format> { using type = threadgroup uchar *; };
} // namespace emulator

namespace metal {

using ::int4b_format;
using ::uint4b_format;

template <class Index, int... E> struct extents {
    constexpr extents();
    constexpr extents(Index inner, Index outer);
    constexpr Index extent(int i) const;
};
template <class Index, int Rank> using dextents = extents<Index, dynamic_extent, dynamic_extent>;
struct tensor_inline {};
struct tensor_handle {};
struct execution_thread {};
template <int N> struct execution_simdgroups {};
using execution_simdgroup = execution_simdgroups<1>;
template <class T> using remove_addrspace_t = T;

template <class T, class Extents, class Tag = tensor_inline> struct tensor {
    using element_type = T;
    tensor(typename emulator::tensor_pointer<T>::type base, Extents size, array<int, 2> strides);
    tensor(typename emulator::tensor_pointer<T>::type base, Extents size);
    template <int I> int get_extent() const;
    int get_extent(int i) const;
    int get_stride(int i) const;
    tensor<T, dextents<int, 2>, Tag> slice(int x, int y) const;
    template <int E0, int E1> tensor<T, extents<int, E0, E1>, Tag> slice(int x, int y) const;
};
template <class T, class E> tensor(T *, E, array<int, 2>) -> tensor<T, E, tensor_inline>;
template <class T, class E> tensor(T *, E) -> tensor<T, E, tensor_inline>;

} // namespace metal

namespace emulator {
template <class T> struct cooperative {
    using element_type = T;
    static int get_capacity();
    static bool is_valid_element(int i);
    static metal::array<int, 2> get_multidimensional_index(int i);
    T &operator[](int i);
    const T &operator[](int i) const;
    T get(int i) const;
    void set(int i, T value);
    T *begin();
    T *end();
    template <class M> void load(M &from);
    template <class M> void store(M &to) const;
};
} // namespace emulator

namespace mpp {
namespace tensor_ops {

template <matmul2d_descriptor D, class Scope> struct matmul2d {
    template <class L, class R, class E> static emulator::cooperative<E> get_destination_cooperative_tensor();
    template <class L, class R, class E> static emulator::cooperative<L> get_left_input_cooperative_tensor();
    template <class L, class R, class E> static emulator::cooperative<R> get_right_input_cooperative_tensor();
    template <class L, class R, class C> void run(L &left, R &right, C &destination) const;
};

} // namespace tensor_ops
} // namespace mpp

#endif
