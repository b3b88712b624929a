// The recurrence of the delta layers over the rows of a chunk: for each value head
//   S = decay S; S += beta (v - S k) k^T; y = S q
// and the gated norm that follows it where the ops are fused.
#include "delta_math.h"

constant bool scan_gates [[function_constant(300)]]; // decay and beta are a and b: the gates are computed on the way

// Any size. A simdgroup has one row of S, which stays where it is; its elements are each one lane's.
kernel void delta_scan(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                       device const float *v [[buffer(2)]], device const float *decay [[buffer(3)]],
                       device const float *beta [[buffer(4)]],
                       device const float *A_log [[buffer(5)]],
                       device const float *dt_bias [[buffer(6)]],
                       device float *state [[buffer(7)]], device float *y [[buffer(8)]],
                       constant scan_parameters &p [[buffer(9)]], uint group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint unit = group * simdgroups + simdgroup;
    if (unit >= p.value_heads * p.value_size)
        return;
    uint head = unit / p.value_size, key = head * p.key_heads / p.value_heads * p.key_size;
    device float *s = state + ulong(unit) * p.state_stride;
    for (uint t = 0; t < p.rows; t++) {
        device const float *keys = k + ulong(t) * p.k_stride + key, *queries = q + ulong(t) * p.q_stride + key;
        float fade = decay[ulong(t) * p.decay_stride + head], rate = beta[ulong(t) * p.beta_stride + head];
        if (scan_gates) {
            fade = delta_decay(fade, A_log[head], dt_bias[head]);
            rate = delta_sigmoid(rate);
        }
        float known = 0.0f;
        for (uint i = lane; i < p.key_size; i += 32)
            known += (s[i] *= fade) * keys[i];
        float change = rate * (v[ulong(t) * p.v_stride + unit] - simd_sum(known));
        float out = 0.0f;
        for (uint i = lane; i < p.key_size; i += 32)
            out += (s[i] += change * keys[i]) * queries[i];
        out = simd_sum(out);
        if (lane == 0)
            y[ulong(t) * p.y_stride + unit] = out;
    }
}
