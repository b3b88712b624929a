/* The part of Metal 4's tensor operations that kernels use: tensors over memory (tensor_inline), matmul2d,
 * and cooperative tensors, whose elements are spread over the lanes of the scope.
 *
 * How they are spread, and in which order products are summed, is the emulator's choice at run time: one way
 * is an M5's, as far as it has been measured, the other is different on purpose and leaves gaps. A kernel
 * that is right under both depends on neither. What Apple's headers refuse to compile is refused here too, as
 * far as it is known. */
#ifndef EMULATOR_TENSOR_H
#define EMULATOR_TENSOR_H

#include "atomics.h"
#include "tensor_descriptor.h"

struct uint4b_format {};
struct int4b_format {};

namespace metal {

using ::int4b_format;
using ::uint4b_format;

template <class Index, int... E> struct extents {
    static_assert(sizeof...(E) == 2, "the emulator's tensors have two dimensions");
    Index values[2];
    constexpr extents() : values{E...} {}
    constexpr extents(Index inner, Index outer) : values{inner, outer} {}
    constexpr Index extent(int i) const {
        return values[i];
    }
};
template <class Index, int Rank> using dextents = extents<Index, dynamic_extent, dynamic_extent>;

struct tensor_inline {};
struct tensor_handle {};

struct execution_thread {
    static constexpr int simdgroups = 0;
};
template <int N> struct execution_simdgroups { static constexpr int simdgroups = N; };
using execution_simdgroup = execution_simdgroups<1>;
template <class T> using remove_addrspace_t = T;

} // namespace metal

namespace emulator {

/* An element in memory: what pointer leads to it, how it is read as a float. */
template <class T> struct tensor_element {
    using pointer = T *;
    using value = T;
    static_assert(!metal::is_same_v<T, const T>, "elements of tensors are not const");
    static EMULATOR_RAW float load(const T *base, long at) {
        emulator_collective(base + at, sizeof(T), false);
        return (float)base[at];
    }
    static EMULATOR_RAW void store(T *base, long at, T number) {
        emulator_collective(base + at, sizeof(T), true);
        base[at] = number;
    }
    static constexpr long bits = 8 * sizeof(T);
};
template <bool Signed> struct nibble_element {
    using pointer = uchar *;
    using value = uchar;
    static EMULATOR_RAW float load(const uchar *base, long at) {
        emulator_collective(base + at / 2, 1, false);
        int code = base[at / 2] >> (at % 2 * 4) & 15;
        return (float)(Signed && code >= 8 ? code - 16 : code);
    }
    static constexpr long bits = 4;
};
template <> struct tensor_element<uint4b_format> : nibble_element<false> {};
template <> struct tensor_element<int4b_format> : nibble_element<true> {};

/* Where element i of a lane lies in a matrix of rows by columns; false: nowhere. */
inline bool place_of(uint lane, int lanes, int i, int rows, int columns, int &row, int &column) {
    if (emulator_layout() == EMULATOR_LAYOUT_M5) {
        /* Fragments of 16 by 16, eight elements a lane, dealt out to the simdgroups in turn. */
        int across = (columns + 15) / 16, fragments = (rows + 15) / 16 * across, simdgroups = lanes / 32;
        int fragment = i / 8 * simdgroups + (int)(lane / 32), in = (int)(lane % 32), e = i % 8;
        row = fragment / across * 16 + 4 * (in >> 4) + (in >> 1 & 3) + 8 * (e >> 2);
        column = fragment % across * 16 + 8 * (in >> 3 & 1) + 4 * (in & 1) + (e & 3);
        return fragment < fragments && row < rows && column < columns;
    }
    /* Down the columns, from the last lane to the first, every third place left empty. */
    long at = (long)(i - (i + 1) / 3) * lanes + (lanes - 1 - (int)lane);
    row = (int)(at % rows);
    column = (int)(at / rows);
    return i % 3 != 2 && at < (long)rows * columns;
}
constexpr int capacity_m5(int lanes, int rows, int columns) {
    int fragments = (rows + 15) / 16 * ((columns + 15) / 16), simdgroups = lanes / 32;
    return (fragments + simdgroups - 1) / simdgroups * 8;
}
constexpr int capacity_padded(int lanes, int rows, int columns) {
    return ((rows * columns + lanes - 1) / lanes + 1) / 2 * 3;
}

} // namespace emulator

namespace metal {

template <class T, class Extents, class Tag = tensor_inline> struct tensor {
    using element_type = T;
    using element = emulator::tensor_element<T>;
    using value_type = typename element::value;
    static_assert(is_same_v<Tag, tensor_inline>, "kernels make their tensors themselves: tensor_inline");
    typename element::pointer emulator_base;
    Extents emulator_extents;
    long emulator_strides[2];
    long emulator_offset;

    tensor(typename element::pointer base, Extents size, array<int, 2> strides)
        : emulator_base(base), emulator_extents(size), emulator_strides{strides[0], strides[1]},
          emulator_offset(0) {}
    tensor(typename element::pointer base, Extents size)
        : tensor(base, size, array<int, 2>{1, size.extent(0)}) {}

    template <int I> int get_extent() const {
        return emulator_extents.extent(I);
    }
    int get_extent(int i) const {
        return emulator_extents.extent(i);
    }
    int get_stride(int i) const {
        return (int)emulator_strides[i];
    }
    /* From (x, y) on: x counts along the rows. */
    auto slice(int x, int y) const {
        return cut(dextents<int, 2>(emulator_extents.extent(0) - x, emulator_extents.extent(1) - y), x, y);
    }
    template <int E0, int E1> auto slice(int x, int y) const {
        if (x + E0 > emulator_extents.extent(0) || y + E1 > emulator_extents.extent(1))
            emulator_fault("a slice of fixed size reaches beyond its tensor", true);
        return cut(extents<int, E0, E1>(), x, y);
    }

  private:
    template <class E> tensor<T, E, Tag> cut(E size, int x, int y) const {
        tensor<T, E, Tag> out(emulator_base, size,
                              array<int, 2>{(int)emulator_strides[0], (int)emulator_strides[1]});
        out.emulator_offset = emulator_offset + x * emulator_strides[0] + y * emulator_strides[1];
        if (out.emulator_offset * element::bits / 8 >= 1l << 31)
            emulator_fault("a slice starts 2 GiB or more into its tensor, where offsets wrap", true);
        return out;
    }
};
template <class T, class E> tensor(T *, E, array<int, 2>) -> tensor<T, E, tensor_inline>;
template <class T, class E> tensor(T *, E) -> tensor<T, E, tensor_inline>;

} // namespace metal

namespace emulator {

template <class T> inline constexpr bool is_tensor = false;
template <class T, class E, class Tag> inline constexpr bool is_tensor<metal::tensor<T, E, Tag>> = true;

/* A matrix of Rows by Columns (outer by inner extent) over the lanes of Scope. */
template <class T, class Scope, int Rows, int Columns> struct cooperative {
    using element_type = T;
    static constexpr int lanes = Scope::simdgroups * 32;
    static constexpr int room = capacity_m5(lanes, Rows, Columns) > capacity_padded(lanes, Rows, Columns)
                                    ? capacity_m5(lanes, Rows, Columns)
                                    : capacity_padded(lanes, Rows, Columns);
    T elements[room];

    /* Undefined in Metal: NaNs here, for who forgets to set them. */
    cooperative() {
        for (int i = 0; i < room; i++)
            __builtin_memset((void *)&elements[i], 0xff, sizeof(T));
    }
    static uint own_lane() {
        return emulator_lane() % lanes;
    }
    static int get_capacity() {
        return emulator_layout() == EMULATOR_LAYOUT_M5 ? capacity_m5(lanes, Rows, Columns)
                                                       : capacity_padded(lanes, Rows, Columns);
    }
    static bool place(int i, int &row, int &column) {
        return place_of(own_lane(), lanes, i, Rows, Columns, row, column);
    }
    static bool is_valid_element(int i) {
        int row, column;
        return place(i, row, column);
    }
    static metal::array<int, 2> get_multidimensional_index(int i) {
        int row, column;
        place(i, row, column);
        return {column, row};
    }
    T &operator[](int i) {
        return elements[i];
    }
    const T &operator[](int i) const {
        return elements[i];
    }
    T get(int i) const {
        return is_valid_element(i) ? elements[i] : T(0);
    }
    void set(int i, T value) {
        if (is_valid_element(i))
            elements[i] = value;
    }
    T *begin() {
        return elements;
    }
    T *end() {
        return elements + get_capacity();
    }
    template <class M> EMULATOR_INLINE void load(M &from) {
        static_assert(metal::is_same_v<typename M::value_type, T>, "elements of one type");
        emulator_meet("load of a cooperative tensor", Scope::simdgroups, 0);
        load_elements(from);
    }
    template <class M> EMULATOR_INLINE void store(M &to) const {
        static_assert(metal::is_same_v<typename M::value_type, T>, "elements of one type");
        emulator_meet("store of a cooperative tensor", Scope::simdgroups, 0);
        store_elements(to);
    }

  private:
    template <class M> EMULATOR_RAW void load_elements(const M &from) {
        int row, column;
        for (int i = 0; i < get_capacity(); i++)
            if (place(i, row, column) && row < from.get_extent(1) && column < from.get_extent(0)) {
                long at =
                    from.emulator_offset + row * from.emulator_strides[1] + column * from.emulator_strides[0];
                emulator_collective(from.emulator_base + at, sizeof(T), false);
                elements[i] = from.emulator_base[at];
            }
    }
    template <class M> EMULATOR_RAW void store_elements(const M &to) const {
        int row, column;
        for (int i = 0; i < get_capacity(); i++)
            if (place(i, row, column) && row < to.get_extent(1) && column < to.get_extent(0))
                M::element::store(to.emulator_base,
                                  to.emulator_offset + row * to.emulator_strides[1] +
                                      column * to.emulator_strides[0],
                                  elements[i]);
    }
};

/* The sum of a[k] b[k]: as an M5 does it, one after the other, or from the end. */
EMULATOR_RAW float sum_of_products(const float *a, const float *b, int count) {
    float sum = 0.0f;
    if (emulator_arithmetic() == EMULATOR_ARITHMETIC_M5) {
        for (int from = 0; from < count; from += 16) {
            const float *x = a + from, *y = b + from;
            float p[8], rest[2][16] = {};
            if (count - from < 16) {
                for (int i = 0; i < count - from; i++) {
                    rest[0][i] = x[i];
                    rest[1][i] = y[i];
                }
                x = rest[0];
                y = rest[1];
            }
            /* Two products are exact in double, and so is what the one rounding takes. */
            for (int i = 0; i < 8; i++)
                p[i] = (float)((double)x[2 * i] * y[2 * i] + (double)x[2 * i + 1] * y[2 * i + 1]);
            for (int j = 0; j < 4; j++)
                sum += p[j] + p[j + 4];
        }
    } else {
        bool forward = emulator_arithmetic() == EMULATOR_ARITHMETIC_SEQUENTIAL;
        for (int i = 0; i < count; i++) {
            int k = forward ? i : count - 1 - i;
            sum = __builtin_fmaf(a[k], b[k], sum);
        }
    }
    return sum;
}

/* With relaxed precision a float counts with 10 bits of fraction. */
template <class T> inline float operand(float value, bool relaxed) {
    if (relaxed && metal::is_same_v<T, float>)
        return float_of_bits(bits_of_float(value) & 0xffffe000u);
    return value;
}

/* Puts this lane's share of an operand into memory that all lanes of the scope see, vector after vector of
 * `depth` numbers. Transposed: the operand's rows are the numbers of one k. Outside the extents lie zeros. */
template <class M>
EMULATOR_RAW void gather_memory(const M &from, float *to, int vectors, int depth, bool rows_are_vectors,
                                uint lane, uint lanes, bool relaxed) {
    for (long i = lane; i < (long)vectors * depth; i += lanes) {
        int vector = (int)(i / depth), k = (int)(i % depth);
        int inner = rows_are_vectors ? k : vector, outer = rows_are_vectors ? vector : k;
        float value = 0.0f;
        if (inner < from.get_extent(0) && outer < from.get_extent(1))
            value =
                M::element::load(from.emulator_base, from.emulator_offset + inner * from.emulator_strides[0] +
                                                         outer * from.emulator_strides[1]);
        to[i] = operand<typename M::element_type>(value, relaxed);
    }
}
template <class C>
EMULATOR_RAW void gather_cooperative(const C &from, float *to, int depth, bool rows_are_vectors,
                                     bool relaxed) {
    int row, column;
    for (int i = 0; i < from.get_capacity(); i++)
        if (from.place(i, row, column)) {
            int vector = rows_are_vectors ? row : column, k = rows_are_vectors ? column : row;
            to[(long)vector * depth + k] =
                operand<typename C::element_type>((float)from.elements[i], relaxed);
        }
}

} // namespace emulator

namespace mpp {
namespace tensor_ops {

template <matmul2d_descriptor D, class Scope> struct matmul2d {
    static_assert(Scope::simdgroups > 0, "the emulator has no matrix products of one thread");
    static_assert(D.m % 8 == 0 && D.n % 8 == 0 && (D.m >= 16 || D.n >= 16),
                  "a tile of 8 by 8 does not compile");

    template <class L, class R, class E> static auto get_destination_cooperative_tensor() {
        return emulator::cooperative<E, Scope, D.m, D.n>();
    }
    template <class L, class R, class E> static auto get_left_input_cooperative_tensor() {
        check_cooperative();
        return emulator::cooperative < L, Scope, D.transpose_left ? D.k : D.m,
               D.transpose_left ? D.m : D.k > ();
    }
    template <class L, class R, class E> static auto get_right_input_cooperative_tensor() {
        check_cooperative();
        return emulator::cooperative < R, Scope, D.transpose_right ? D.n : D.k,
               D.transpose_right ? D.k : D.n > ();
    }

    template <class L, class R, class C> EMULATOR_INLINE void run(L &left, R &right, C &destination) const {
        static_assert(emulator::is_tensor<L> || emulator::is_tensor<R> || D.m == 32 || D.n == 32 || D.k == 32,
                      "with two cooperative inputs one of M, N and K is 32");
        int depth = depth_of(left, right);
        float *memory = (float *)emulator_meet("matmul2d", Scope::simdgroups,
                                               (emulator_u32)((D.m + D.n) * depth * sizeof(float)));
        gather<D.m, !D.transpose_left>(left, memory, depth);
        gather<D.n, D.transpose_right>(right, memory + D.m * depth, depth);
        memory = (float *)emulator_meet("matmul2d", Scope::simdgroups, 0);
        multiply(memory, depth, destination);
    }

  private:
    static constexpr int lanes = Scope::simdgroups * 32;
    static constexpr bool accumulates = D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;

    static constexpr void check_cooperative() {
        static_assert(Scope::simdgroups == 1, "cooperative inputs are for execution_simdgroup");
        static_assert(D.k > 0, "cooperative inputs need a K that is known");
    }
    template <class L, class R> static int depth_of(const L &left, const R &right) {
        int least = 1 << 30;
        if constexpr (emulator::is_tensor<L>)
            least = left.get_extent(D.transpose_left ? 1 : 0);
        if constexpr (emulator::is_tensor<R>) {
            int extent = right.get_extent(D.transpose_right ? 0 : 1);
            least = extent < least ? extent : least;
        }
        if (D.k > 0 && least < D.k)
            emulator_fault(
                "matmul2d with a fixed K that is more than the tensors have left: it reads beyond them",
                true);
        return D.k > 0 ? D.k : least;
    }
    template <int Vectors, bool RowsAreVectors, class M>
    static void gather(const M &from, float *to, int depth) {
        if constexpr (emulator::is_tensor<M>)
            emulator::gather_memory(from, to, Vectors, depth, RowsAreVectors, emulator_lane() % lanes, lanes,
                                    D.relaxed_precision);
        else
            emulator::gather_cooperative(from, to, depth, RowsAreVectors, D.relaxed_precision);
    }
    template <class C> static EMULATOR_RAW void multiply(const float *memory, int depth, C &destination) {
        using tile = emulator::cooperative<float, Scope, D.m, D.n>;
        int row, column;
        for (int i = 0; i < tile::get_capacity(); i++) {
            if (!tile::place(i, row, column))
                continue;
            int from = emulator_arithmetic() == EMULATOR_ARITHMETIC_WRONG ? row % 8 : row;
            float sum = emulator::sum_of_products(memory + (long)from * depth,
                                                  memory + (long)(D.m + column) * depth, depth);
            if constexpr (emulator::is_tensor<C>) {
                if (row >= destination.get_extent(1) || column >= destination.get_extent(0))
                    continue;
                using value = typename C::value_type;
                long at = destination.emulator_offset + row * destination.emulator_strides[1] +
                          column * destination.emulator_strides[0];
                if (accumulates)
                    sum += C::element::load(destination.emulator_base, at);
                C::element::store(destination.emulator_base, at, (value)sum);
            } else {
                using value = typename C::element_type;
                destination.elements[i] = (value)(accumulates ? sum + (float)destination.elements[i] : sum);
            }
        }
    }
};

} // namespace tensor_ops
} // namespace mpp

#endif
