// Products with the experts' matrices, a chosen expert of a token (a pair) at a time: for one to a few rows, where
// hardly two of them choose the same expert.
#include "routing.h"
#include "weights.h"

// y[pair, out] = W_e[out, in] x. Grid y: the pairs.
kernel void expert_linear(constant expert_parameters &given [[buffer(0)]], device const float *x [[buffer(1)]],
                          device const int *ids [[buffer(2)]], device const uchar *values [[buffer(3)]],
                          device const uchar *scales [[buffer(4)]], device const uchar *biases [[buffer(5)]],
                          device float *y [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint pair = group.y, token = pair / given.chosen, columns = given.columns;
    uint first = (group.x * simdgroups + simdgroup) * VECTOR_ROWS;
    ulong matrix_row = ulong(ids[ulong(token) * given.ids_stride + pair % given.chosen]) * given.out;
    weight_matrix matrix = {values, scales, biases};
    x += ulong(given.x_of_pairs ? pair : token) * given.x_stride;
    float inputs[1][16], sums[1], squares[1] = {0.0f}, totals[VECTOR_ROWS][1];
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        totals[j][0] = 0.0f;
    for (uint column = lane * 16; column < columns; column += 512) {
        load_inputs<1>(x, 0, 1, x, column, columns, inputs, sums, squares);
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++)
            add_products<1>(kind_a, matrix, matrix_row + min(first + j, given.out - 1), column, columns, inputs, sums,
                            totals[j]);
    }
    float4 all = simd_sum(float4(totals[0][0], totals[1][0], totals[2][0], totals[3][0]));
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        if (lane == 0 && first + j < given.out)
            y[ulong(pair) * given.y_stride + first + j] = all[j];
}

// silu(gate x) up x for VECTOR_ROWS rows of both matrices, from matrix_row + first on; y: where the first belongs.
template <int Unused>
METAL_FUNC void gate_up_rows(uint gate_kind, uint up_kind, weight_matrix gate, weight_matrix up, ulong matrix_row,
                             uint first, uint out, device const float *x, device const float *norm, uint columns,
                             float epsilon, uint lane, device float *y) {
    float inputs[1][16], sums[1], squares[1] = {0.0f}, gates[VECTOR_ROWS][1], ups[VECTOR_ROWS][1];
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        gates[j][0] = ups[j][0] = 0.0f;
    for (uint column = lane * 16; column < columns; column += 512) {
        load_inputs<1>(x, 0, 1, norm, column, columns, inputs, sums, squares);
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++) {
            ulong row = matrix_row + min(first + j, out - 1);
            add_products<1>(gate_kind, gate, row, column, columns, inputs, sums, gates[j]);
            add_products<1>(up_kind, up, row, column, columns, inputs, sums, ups[j]);
        }
    }
    float scale = 1.0f;
    if (normalise)
        scale = norm_scale(simd_sum(squares[0]), columns, epsilon);
    float4 gate_sums = simd_sum(float4(gates[0][0], gates[1][0], gates[2][0], gates[3][0]));
    float4 up_sums = simd_sum(float4(ups[0][0], ups[1][0], ups[2][0], ups[3][0]));
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        if (lane == 0 && first + j < out)
            y[first + j] = silu(scale * gate_sums[j]) * (scale * up_sums[j]);
}

// routed[pair, I] = silu(gate_e x) up_e x and shared[T, S] likewise. Grid y: the pairs, then the rows of shared.
kernel void expert_gate_up(constant expert_parameters &given [[buffer(0)]], device const float *x [[buffer(1)]],
                           device const float *norm [[buffer(2)]], device const int *ids [[buffer(3)]],
                           device const uchar *gate_values [[buffer(4)]], device const uchar *gate_scales [[buffer(5)]],
                           device const uchar *gate_biases [[buffer(6)]], device const uchar *up_values [[buffer(7)]],
                           device const uchar *up_scales [[buffer(8)]], device const uchar *up_biases [[buffer(9)]],
                           device const uchar *shared_gate_values [[buffer(10)]],
                           device const uchar *shared_gate_scales [[buffer(11)]],
                           device const uchar *shared_gate_biases [[buffer(12)]],
                           device const uchar *shared_up_values [[buffer(13)]],
                           device const uchar *shared_up_scales [[buffer(14)]],
                           device const uchar *shared_up_biases [[buffer(15)]], device float *routed [[buffer(16)]],
                           device float *shared [[buffer(17)]], uint2 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint pairs = given.rows * given.chosen, first = (group.x * simdgroups + simdgroup) * VECTOR_ROWS;
    if (group.y < pairs) {
        uint token = group.y / given.chosen, slot = group.y % given.chosen;
        if (first >= given.out)
            return;
        ulong row = ulong(ids[ulong(token) * given.ids_stride + slot]) * given.out;
        gate_up_rows<0>(kind_a, kind_b, weight_matrix{gate_values, gate_scales, gate_biases},
                        weight_matrix{up_values, up_scales, up_biases}, row, first, given.out,
                        x + ulong(token) * given.x_stride, norm, given.columns, given.epsilon, lane,
                        routed + ulong(group.y) * given.y_stride);
    } else {
        uint token = group.y - pairs;
        if (first >= given.shared_out)
            return;
        gate_up_rows<0>(kind_c, kind_d, weight_matrix{shared_gate_values, shared_gate_scales, shared_gate_biases},
                        weight_matrix{shared_up_values, shared_up_scales, shared_up_biases}, 0, first,
                        given.shared_out, x + ulong(token) * given.x_stride, norm, given.columns, given.epsilon, lane,
                        shared + ulong(token) * given.shared_y_stride);
    }
}

// The same for one token whose experts nobody has chosen yet: logits[E+1] of the router and the shared gate. A threadgroup of
// a pair finds its expert, which takes less time than a launch of its own; the first of the shared expert writes the choice
// down, ids[K] and scores[K+1], for those to come. Grid y: the slots, then the shared expert.
kernel void expert_route_gate_up(
    constant expert_parameters &given [[buffer(0)]], device const float *x [[buffer(1)]],
    device const float *norm [[buffer(2)]], device const float *logits [[buffer(3)]],
    device const uchar *gate_values [[buffer(4)]], device const uchar *gate_scales [[buffer(5)]],
    device const uchar *gate_biases [[buffer(6)]], device const uchar *up_values [[buffer(7)]],
    device const uchar *up_scales [[buffer(8)]], device const uchar *up_biases [[buffer(9)]],
    device const uchar *shared_gate_values [[buffer(10)]], device const uchar *shared_gate_scales [[buffer(11)]],
    device const uchar *shared_gate_biases [[buffer(12)]], device const uchar *shared_up_values [[buffer(13)]],
    device const uchar *shared_up_scales [[buffer(14)]], device const uchar *shared_up_biases [[buffer(15)]],
    device float *routed [[buffer(16)]], device float *shared [[buffer(17)]], device int *ids [[buffer(18)]],
    device float *scores [[buffer(19)]], threadgroup float *memory [[threadgroup(0)]],
    threadgroup int *found [[threadgroup(1)]], uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint slot = group.y, chosen = given.chosen, first = (group.x * simdgroups + simdgroup) * VECTOR_ROWS;
    bool writes = slot == chosen && group.x == 0;
    if (simdgroup == 0 && (slot < chosen || writes)) {
        float sum = choose_experts(logits, given.experts, writes ? chosen : slot + 1, lane, memory, found);
        if (writes)
            write_choice(logits, given.experts, chosen, lane, sum, memory, found, ids, scores);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (slot < chosen) {
        if (first < given.out)
            gate_up_rows<0>(kind_a, kind_b, weight_matrix{gate_values, gate_scales, gate_biases},
                            weight_matrix{up_values, up_scales, up_biases}, ulong(found[slot]) * given.out, first,
                            given.out, x, norm, given.columns, given.epsilon, lane,
                            routed + ulong(slot) * given.y_stride);
    } else if (first < given.shared_out) {
        gate_up_rows<0>(kind_c, kind_d, weight_matrix{shared_gate_values, shared_gate_scales, shared_gate_biases},
                        weight_matrix{shared_up_values, shared_up_scales, shared_up_biases}, 0, first,
                        given.shared_out, x, norm, given.columns, given.epsilon, lane, shared);
    }
}

// parts[j] = score * (W[matrix_row + first + j] x) for VECTOR_ROWS rows
template <int Unused>
METAL_FUNC void down_rows(uint kind, weight_matrix matrix, ulong matrix_row, uint first, uint out,
                          device const float *x, uint columns, float score, uint lane, threadgroup float *parts) {
    float inputs[1][16], sums[1], squares[1] = {0.0f}, totals[VECTOR_ROWS][1];
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        totals[j][0] = 0.0f;
    for (uint column = lane * 16; column < columns; column += 512) {
        load_inputs<1>(x, 0, 1, x, column, columns, inputs, sums, squares);
#pragma unroll
        for (uint j = 0; j < VECTOR_ROWS; j++)
            add_products<1>(kind, matrix, matrix_row + min(first + j, out - 1), column, columns, inputs, sums,
                            totals[j]);
    }
    float4 all = simd_sum(float4(totals[0][0], totals[1][0], totals[2][0], totals[3][0]));
#pragma unroll
    for (uint j = 0; j < VECTOR_ROWS; j++)
        if (lane == 0)
            parts[j] = score * all[j];
}

// y[t] += sum_k scores[k] down_e routed[k] + scores[K] shared_down shared. A simdgroup a slot k, and the threadgroup
// adds up VECTOR_ROWS rows of y in the order of the slots. `parts`: [K + 1, VECTOR_ROWS]. Grid y: tokens.
kernel void expert_down(constant expert_down_parameters &given [[buffer(0)]], device const float *routed [[buffer(1)]],
                        device const float *shared [[buffer(2)]], device const int *ids [[buffer(3)]],
                        device const float *scores [[buffer(4)]], device const uchar *values [[buffer(5)]],
                        device const uchar *scales [[buffer(6)]], device const uchar *biases [[buffer(7)]],
                        device const uchar *shared_values [[buffer(8)]],
                        device const uchar *shared_scales [[buffer(9)]],
                        device const uchar *shared_biases [[buffer(10)]], device float *y [[buffer(11)]],
                        threadgroup float *parts [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
    uint token = group.y, first = group.x * VECTOR_ROWS, chosen = given.chosen;
    scores += ulong(token) * given.scores_stride;
    for (uint slot = simdgroup; slot <= chosen; slot += simdgroups) {
        if (slot < chosen) {
            ulong row = ulong(ids[ulong(token) * given.ids_stride + slot]) * given.hidden;
            down_rows<0>(kind_a, weight_matrix{values, scales, biases}, row, first, given.hidden,
                         routed + (ulong(token) * chosen + slot) * given.routed_stride, given.width, scores[slot],
                         lane, parts + slot * VECTOR_ROWS);
        } else {
            down_rows<0>(kind_b, weight_matrix{shared_values, shared_scales, shared_biases}, 0, first, given.hidden,
                         shared + ulong(token) * given.shared_stride, given.shared_width, scores[slot], lane,
                         parts + slot * VECTOR_ROWS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < VECTOR_ROWS && first + thread_index < given.hidden) {
        float sum = 0.0f;
        for (uint slot = 0; slot <= chosen; slot++)
            sum += parts[slot * VECTOR_ROWS + thread_index];
        y[ulong(token) * given.y_stride + first + thread_index] += sum;
    }
}
