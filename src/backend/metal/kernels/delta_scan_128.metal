// The recurrence of the delta layers for keys of 128, over a whole chunk in one launch.
//
// The rows of S do not depend on each other. A threadgroup has 32 of them, of one value head; q, k, v and the gates
// come to it 16 rows of the chunk at a time.
#include "delta_math.h"

constant bool scan_128_gates [[function_constant(301)]]; // decay and beta are a and b: the gates are computed on the way

#define SCAN_KEYS 128
#define SCAN_ROWS 16   // of the chunk at a time
#define SCAN_VALUES 32 // rows of S a threadgroup

// Decay and beta of row t.
METAL_FUNC float2 scan_gates_of(device const float *decay, device const float *beta, device const float *A_log,
                                device const float *dt_bias, constant scan_parameters &p, uint t, uint head) {
    float2 gates = float2(decay[ulong(t) * p.decay_stride + head], beta[ulong(t) * p.beta_stride + head]);
    return scan_128_gates ? float2(delta_decay(gates.x, A_log[head], dt_bias[head]), delta_sigmoid(gates.y)) : gates;
}

// What a thread brings of the block of rows from `begin`: two parts of q and k, two elements of v, the gates of a row.
METAL_FUNC void scan_fetch(thread float4 *next_key, thread float4 *next_query, thread float *next_value,
                           thread float2 &next_gates, device const float *q, device const float *k,
                           device const float *v, device const float *decay, device const float *beta,
                           device const float *A_log, device const float *dt_bias, constant scan_parameters &p,
                           uint begin, uint head, uint first, uint thread_index) {
    uint key = head * p.key_heads / p.value_heads * SCAN_KEYS;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint at = thread_index + 256 * i, t = begin + at / 32, value = at % 32;
        bool has = t < p.rows;
        next_key[i] = has ? *(device const float4 *)(k + ulong(t) * p.k_stride + key + value * 4) : float4(0.0f);
        next_query[i] = has ? *(device const float4 *)(q + ulong(t) * p.q_stride + key + value * 4) : float4(0.0f);
        has = has && first + value < p.value_size;
        next_value[i] = has ? v[ulong(t) * p.v_stride + head * p.value_size + first + value] : 0.0f;
    }
    if (thread_index < SCAN_ROWS && begin + thread_index < p.rows)
        next_gates = scan_gates_of(decay, beta, A_log, dt_bias, p, begin + thread_index, head);
}

// Policy delta_scan=register. Eight lanes share a row of S, 16 elements each, for the whole chunk, so a simdgroup has
// four rows; a sum over a row takes three shuffles. Groups (values / 32, value heads) of 256 threads. While one
// block of q, k and v is worked on, the next is on its way.
kernel void delta_scan_register(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                                device const float *v [[buffer(2)]], device const float *decay [[buffer(3)]],
                                device const float *beta [[buffer(4)]], device const float *A_log [[buffer(5)]],
                                device const float *dt_bias [[buffer(6)]], device float *state [[buffer(7)]],
                                device float *y [[buffer(8)]], constant scan_parameters &p [[buffer(9)]],
                                uint3 group [[threadgroup_position_in_grid]],
                                uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]],
                                uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float4 key_tile[SCAN_ROWS * SCAN_KEYS / 4], query_tile[SCAN_ROWS * SCAN_KEYS / 4];
    threadgroup float value_tile[SCAN_ROWS][SCAN_VALUES], out_tile[SCAN_ROWS][SCAN_VALUES];
    threadgroup float2 gate_tile[SCAN_ROWS];
    uint head = group.y, first = group.x * SCAN_VALUES;
    uint row = simdgroup * 4 + lane / 8, part = lane % 8;
    uint values = min(uint(SCAN_VALUES), p.value_size - first);
    bool is_live = row < values;
    device float4 *memory =
        (device float4 *)(state + ulong(head * p.value_size + first + (is_live ? row : 0)) * p.state_stride) + part;
    float4 s[4];
#pragma unroll
    for (uint i = 0; i < 4; i++)
        s[i] = is_live ? memory[8 * i] : float4(0.0f);
    float4 next_key[2], next_query[2];
    float next_value[2];
    float2 next_gates = float2(1.0f, 0.0f);
    scan_fetch(next_key, next_query, next_value, next_gates, q, k, v, decay, beta, A_log, dt_bias, p, 0, head, first,
               thread_index);
    for (uint begin = 0; begin < p.rows; begin += SCAN_ROWS) {
        for (uint i = 0; i < 2; i++) {
            uint at = thread_index + 256 * i;
            key_tile[at] = next_key[i];
            query_tile[at] = next_query[i];
            value_tile[at / 32][at % 32] = next_value[i];
        }
        if (thread_index < SCAN_ROWS)
            gate_tile[thread_index] = next_gates;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (begin + SCAN_ROWS < p.rows)
            scan_fetch(next_key, next_query, next_value, next_gates, q, k, v, decay, beta, A_log, dt_bias, p,
                       begin + SCAN_ROWS, head, first, thread_index);
        uint rows = min(uint(SCAN_ROWS), p.rows - begin);
        for (uint t = 0; t < rows; t++) {
            float2 gates = gate_tile[t];
            float4 keys[4], sums = float4(0.0f);
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                keys[i] = key_tile[t * 32 + 8 * i + part];
                s[i] *= gates.x;
                sums = fma(s[i], keys[i], sums);
            }
            float known = (sums.x + sums.y) + (sums.z + sums.w);
            known += simd_shuffle_xor(known, 1);
            known += simd_shuffle_xor(known, 2);
            known += simd_shuffle_xor(known, 4);
            float change = gates.y * (value_tile[t][row] - known);
            sums = float4(0.0f);
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                s[i] = fma(float4(change), keys[i], s[i]);
                sums = fma(s[i], query_tile[t * 32 + 8 * i + part], sums);
            }
            float out = (sums.x + sums.y) + (sums.z + sums.w);
            out += simd_shuffle_xor(out, 1);
            out += simd_shuffle_xor(out, 2);
            out += simd_shuffle_xor(out, 4);
            if (part == 0)
                out_tile[t][row] = out;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 2; i++) {
            uint at = thread_index + 256 * i, t = at / 32, value = at % 32;
            if (t < rows && value < values)
                y[ulong(begin + t) * p.y_stride + head * p.value_size + first + value] = out_tile[t][value];
        }
    }
    if (is_live) {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            memory[8 * i] = s[i];
    }
}

// Policy delta_scan=block: the rows of a block at once, with matrix products. With D_t the product of the decays up
// to t and L_ti that of those after i up to t,
//   u_t = beta_t (v_t - D_t S k_t - sum_{i<t} L_ti (k_t.k_i) u_i)
//   y_t = D_t S q_t + sum_{i<=t} L_ti (q_t.k_i) u_i
//   S   = D_last S + sum_i L_last,i u_i k_i^T
// Groups (values / 32, value heads) of 128 threads; a simdgroup has eight rows of S in registers, as matrices. What a
// NaN in v spoils is its own row of S: sums over i leave out what does not belong to them.
#define SCAN_STRIDE (SCAN_KEYS + 4) // of a row of q or k in threadgroup memory
kernel void delta_scan_block(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                             device const float *v [[buffer(2)]], device const float *decay [[buffer(3)]],
                             device const float *beta [[buffer(4)]], device const float *A_log [[buffer(5)]],
                             device const float *dt_bias [[buffer(6)]], device float *state [[buffer(7)]],
                             device float *y [[buffer(8)]], constant scan_parameters &p [[buffer(9)]],
                             uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float key_tile[SCAN_ROWS * SCAN_STRIDE], query_tile[SCAN_ROWS * SCAN_STRIDE];
    threadgroup float overlaps[2][SCAN_ROWS][SCAN_ROWS]; // k_t.k_i and q_t.k_i, [t][i]
    threadgroup float spans[SCAN_ROWS][SCAN_ROWS];       // L_ti, [t][i], i <= t
    threadgroup float since[SCAN_ROWS];                  // D_t
    threadgroup float2 gate_tile[SCAN_ROWS];
    // Of each simdgroup, [row of S][t]: S k and then u; S q and then y; u as S wants it.
    threadgroup float known[4][8][SCAN_ROWS], outs[4][8][SCAN_ROWS], changes[4][8][SCAN_ROWS];
    uint head = group.y, key = head * p.key_heads / p.value_heads * SCAN_KEYS;
    uint first = group.x * SCAN_VALUES + simdgroup * 8, column = head * p.value_size + first;
    uint values = first < p.value_size ? min(8u, p.value_size - first) : 0;
    simdgroup_float8x8 s[SCAN_KEYS / 8];
    // Rows of S that do not exist are zero; so that all simdgroups meet at the barriers, they are worked on as well.
#pragma unroll
    for (uint i = 0; i < SCAN_KEYS / 8; i++) {
        for (uint j = lane; j < 64; j += 32)
            known[simdgroup][j / 8][j % 8] =
                j / 8 < values ? state[ulong(column + j / 8) * p.state_stride + 8 * i + j % 8] : 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(s[i], &known[simdgroup][0][0], SCAN_ROWS);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint begin = 0; begin < p.rows; begin += SCAN_ROWS) {
        uint rows = min(uint(SCAN_ROWS), p.rows - begin);
        for (uint i = thread_index; i < SCAN_ROWS * SCAN_KEYS / 4; i += 128) {
            uint t = i / 32, at = i % 32 * 4;
            bool has = t < rows;
            *(threadgroup float4 *)(key_tile + t * SCAN_STRIDE + at) =
                has ? *(device const float4 *)(k + ulong(begin + t) * p.k_stride + key + at) : float4(0.0f);
            *(threadgroup float4 *)(query_tile + t * SCAN_STRIDE + at) =
                has ? *(device const float4 *)(q + ulong(begin + t) * p.q_stride + key + at) : float4(0.0f);
        }
        if (thread_index < SCAN_ROWS)
            gate_tile[thread_index] = thread_index < rows ? scan_gates_of(decay, beta, A_log, dt_bias, p,
                                                                          begin + thread_index, head)
                                                          : float2(1.0f, 0.0f);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // The overlaps: simdgroups 0 and 1 have the rows t of k, 2 and 3 those of q.
        for (uint half_index = 0; half_index < 2; half_index++) {
            simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.0f);
            threadgroup const float *left = (simdgroup < 2 ? key_tile : query_tile) + simdgroup % 2 * 8 * SCAN_STRIDE;
            for (uint i = 0; i < SCAN_KEYS; i += 8) {
                simdgroup_float8x8 a, b;
                simdgroup_load(a, left + i, SCAN_STRIDE);
                simdgroup_load(b, key_tile + half_index * 8 * SCAN_STRIDE + i, SCAN_STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(sum, a, b, sum);
            }
            simdgroup_store(sum, &overlaps[simdgroup / 2][simdgroup % 2 * 8][half_index * 8], SCAN_ROWS);
        }
        if (thread_index < SCAN_ROWS) {
            float span = 1.0f;
            for (uint t = thread_index; t < SCAN_ROWS; t++) {
                span *= t > thread_index ? gate_tile[t].x : 1.0f;
                spans[t][thread_index] = span;
            }
        } else if (thread_index == 32) {
            float span = 1.0f;
            for (uint t = 0; t < SCAN_ROWS; t++)
                since[t] = span *= gate_tile[t].x;
        }
        // S k_t and S q_t.
        for (uint half_index = 0; half_index < 2; half_index++) {
            simdgroup_float8x8 by_key = make_filled_simdgroup_matrix<float, 8>(0.0f), by_query = make_filled_simdgroup_matrix<float, 8>(0.0f);
#pragma unroll
            for (uint i = 0; i < SCAN_KEYS / 8; i++) {
                simdgroup_float8x8 a;
                simdgroup_load(a, key_tile + half_index * 8 * SCAN_STRIDE + 8 * i, SCAN_STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(by_key, s[i], a, by_key);
                simdgroup_load(a, query_tile + half_index * 8 * SCAN_STRIDE + 8 * i, SCAN_STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(by_query, s[i], a, by_query);
            }
            simdgroup_store(by_key, &known[simdgroup][0][half_index * 8], SCAN_ROWS);
            simdgroup_store(by_query, &outs[simdgroup][0][half_index * 8], SCAN_ROWS);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // u_t, one after the other. Four lanes share a row of S; each has the t of its remainder by 4.
        uint row = lane / 4, part = lane % 4;
        bool is_live = row < values;
        float rest[SCAN_ROWS / 4]; // v_t - D_t S k_t - the terms of all u so far
        for (uint i = 0; i < SCAN_ROWS / 4; i++) {
            uint t = 4 * i + part;
            float value = is_live && t < rows ? v[ulong(begin + t) * p.v_stride + column + row] : 0.0f;
            rest[i] = value - since[t] * known[simdgroup][row][t];
        }
        float own[SCAN_ROWS / 4];
#pragma unroll
        for (uint t = 0; t < SCAN_ROWS; t++) {
            float u = simd_shuffle(gate_tile[t].y * rest[t / 4], ushort(row * 4 + t % 4));
            if (part == t % 4)
                own[t / 4] = u;
            for (uint i = t / 4; i < SCAN_ROWS / 4; i++) {
                uint later = 4 * i + part;
                if (later > t)
                    rest[i] -= spans[later][t] * overlaps[0][later][t] * u;
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < SCAN_ROWS / 4; i++) {
            uint t = 4 * i + part;
            known[simdgroup][row][t] = own[i];
            changes[simdgroup][row][t] = spans[SCAN_ROWS - 1][t] * own[i];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < SCAN_ROWS / 4; i++) {
            uint t = 4 * i + part;
            float out = since[t] * outs[simdgroup][row][t];
            for (uint j = 0; j <= t; j++)
                out += spans[t][j] * overlaps[1][t][j] * known[simdgroup][row][j];
            if (is_live && t < rows)
                y[ulong(begin + t) * p.y_stride + column + row] = out;
        }
#pragma unroll
        for (uint i = 0; i < SCAN_KEYS / 8; i++) {
            s[i].thread_elements()[0] *= since[SCAN_ROWS - 1];
            s[i].thread_elements()[1] *= since[SCAN_ROWS - 1];
            for (uint half_index = 0; half_index < 2; half_index++) {
                simdgroup_float8x8 a, b;
                simdgroup_load(a, &changes[simdgroup][0][half_index * 8], SCAN_ROWS);
                simdgroup_load(b, key_tile + half_index * 8 * SCAN_STRIDE + 8 * i, SCAN_STRIDE);
                simdgroup_multiply_accumulate(s[i], a, b, s[i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (uint i = 0; i < SCAN_KEYS / 8; i++) {
        simdgroup_store(s[i], &known[simdgroup][0][0], SCAN_ROWS);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = lane; j < 64; j += 32)
            if (j / 8 < values)
                state[ulong(column + j / 8) * p.state_stride + 8 * i + j % 8] = known[simdgroup][j / 8][j % 8];
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
