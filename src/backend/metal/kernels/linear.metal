// Products of a few rows with matrices: y[T,out] = x[T,in] W[out,in]^T, for up to five matrices of one kind at once.
#include "weights.h"

constant bool has_second [[function_constant(107)]];
constant bool has_third [[function_constant(108)]];
constant bool has_fourth [[function_constant(109)]];
constant bool has_fifth [[function_constant(110)]];

// R rows of x (grid y counts such blocks) with VECTOR_ROWS rows of a matrix a simdgroup. kind_a is the kind of all
// matrices. With normalise: of rms_norm(x) * norm, whose division by the root mean square is done last.
template <int R>
kernel void linear_rows(constant linear_parameters &given [[buffer(0)]], device const float *x [[buffer(1)]],
                        device const float *norm [[buffer(2)]], device const uchar *values_1 [[buffer(3)]],
                        device const uchar *scales_1 [[buffer(4)]], device const uchar *biases_1 [[buffer(5)]],
                        device float *y_1 [[buffer(6)]],
                        device const uchar *values_2 [[buffer(7), function_constant(has_second)]],
                        device const uchar *scales_2 [[buffer(8), function_constant(has_second)]],
                        device const uchar *biases_2 [[buffer(9), function_constant(has_second)]],
                        device float *y_2 [[buffer(10), function_constant(has_second)]],
                        device const uchar *values_3 [[buffer(11), function_constant(has_third)]],
                        device const uchar *scales_3 [[buffer(12), function_constant(has_third)]],
                        device const uchar *biases_3 [[buffer(13), function_constant(has_third)]],
                        device float *y_3 [[buffer(14), function_constant(has_third)]],
                        device const uchar *values_4 [[buffer(15), function_constant(has_fourth)]],
                        device const uchar *scales_4 [[buffer(16), function_constant(has_fourth)]],
                        device const uchar *biases_4 [[buffer(17), function_constant(has_fourth)]],
                        device float *y_4 [[buffer(18), function_constant(has_fourth)]],
                        device const uchar *values_5 [[buffer(19), function_constant(has_fifth)]],
                        device const uchar *scales_5 [[buffer(20), function_constant(has_fifth)]],
                        device const uchar *biases_5 [[buffer(21), function_constant(has_fifth)]],
                        device float *y_5 [[buffer(22), function_constant(has_fifth)]],
                        uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
    weight_matrix matrix = {values_1, scales_1, biases_1};
    device float *y = y_1;
    uint number = 0;
    if (has_second && group.x >= given.matrices[1].first_group) {
        matrix = weight_matrix{values_2, scales_2, biases_2};
        y = y_2;
        number = 1;
    }
    if (has_third && group.x >= given.matrices[2].first_group) {
        matrix = weight_matrix{values_3, scales_3, biases_3};
        y = y_3;
        number = 2;
    }
    if (has_fourth && group.x >= given.matrices[3].first_group) {
        matrix = weight_matrix{values_4, scales_4, biases_4};
        y = y_4;
        number = 3;
    }
    if (has_fifth && group.x >= given.matrices[4].first_group) {
        matrix = weight_matrix{values_5, scales_5, biases_5};
        y = y_5;
        number = 4;
    }
    uint out = given.matrices[number].rows, columns = given.columns;
    uint first = ((group.x - given.matrices[number].first_group) * simdgroups + simdgroup) * VECTOR_ROWS;
    uint first_x = group.y * R, rows = given.rows - first_x;
    x += ulong(first_x) * given.x_stride;
    float values[R][16], sums[R], squares[R], totals[VECTOR_ROWS][R];
#pragma unroll
    for (uint r = 0; r < R; r++) {
        squares[r] = 0.0f;
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++)
            totals[j][r] = 0.0f;
    }
    for (uint column = lane * 16; column < columns; column += 512) {
        load_inputs<R>(x, given.x_stride, rows, norm, column, columns, values, sums, squares);
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++)
            add_products<R>(kind_a, matrix, min(first + j, out - 1), column, columns, values, sums, totals[j]);
    }
#pragma unroll
    for (uint r = 0; r < R; r++) {
        float scale = 1.0f;
        if (normalise)
            scale = norm_scale(simd_sum(squares[r]), columns, given.epsilon);
        // VECTOR_ROWS of them at once.
        float4 all = scale * simd_sum(float4(totals[0][r], totals[1][r], totals[2][r], totals[3][r]));
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++)
            if (lane == 0 && r < rows && first + j < out) {
                device float *place = y + ulong(first_x + r) * given.matrices[number].y_stride + first + j;
                *place = accumulate ? *place + all[j] : all[j];
            }
    }
}
template [[host_name("linear_1")]] [[kernel]] decltype(linear_rows<1>) linear_rows<1>;
template [[host_name("linear_2")]] [[kernel]] decltype(linear_rows<2>) linear_rows<2>;
template [[host_name("linear_4")]] [[kernel]] decltype(linear_rows<4>) linear_rows<4>;
