// The choice of experts, by one simdgroup for one token.
#ifndef ROUTING_H
#define ROUTING_H

#include <metal_stdlib>
using namespace metal;

// A probability as a number that orders as it does: of equals the lower id wins, and so it does among NaNs
// (all probabilities of a row are, or none).
METAL_FUNC uint route_key(float p) {
    return isnan(p) ? 0x7fc00001u : as_type<uint>(p) + 1;
}

// Where the chosen probabilities begin in `memory`.
METAL_FUNC uint route_chosen(uint experts) {
    return (experts + 31) / 32 * 32;
}

// p = softmax(logits[experts]); the `chosen` largest in falling order go to `found` (ids) and to memory from
// route_chosen on; returns their sum. `memory`: E probabilities, each rounded up to a multiple of 32, then K;
// a lane touches only its own, every 32nd.
METAL_FUNC float choose_experts(device const float *logits, uint experts, uint chosen, uint lane,
                                threadgroup float *memory, threadgroup int *found) {
    float largest = -INFINITY, total = 0.0f, sum = 0.0f;
    for (uint e = lane; e < experts; e += 32)
        largest = logits[e] > largest ? logits[e] : largest;
    largest = simd_max(largest);
    for (uint e = lane; e < experts; e += 32) {
        memory[e] = precise::exp(logits[e] - largest);
        total += memory[e];
    }
    total = simd_sum(total);
    for (uint e = lane; e < experts; e += 32)
        memory[e] /= total;
    threadgroup float *best = memory + route_chosen(experts);
    for (uint k = 0; k < chosen; k++) {
        uint key = 0, id = 0xffffffffu;
        for (uint e = lane; e < experts; e += 32)
            if (memory[e] != -1.0f && route_key(memory[e]) > key) {
                key = route_key(memory[e]);
                id = e;
            }
        uint top = simd_max(key);
        id = simd_min(key == top ? id : 0xffffffffu);
        float p = 0.0f;
        if (lane == id % 32) {
            p = memory[id];
            memory[id] = -1.0f;
        }
        p = simd_broadcast(p, ushort(id % 32));
        sum += p;
        if (lane == k % 32) {
            found[k] = int(id);
            best[k] = p;
        }
    }
    return sum;
}

// What choose_experts found -> ids[K], scores[K+1]; logits[experts] is of the shared gate.
METAL_FUNC void write_choice(device const float *logits, uint experts, uint chosen, uint lane, float sum,
                             threadgroup const float *memory, threadgroup const int *found, device int *ids,
                             device float *scores) {
    threadgroup const float *best = memory + route_chosen(experts);
    for (uint k = lane; k < chosen; k += 32) {
        ids[k] = found[k];
        scores[k] = best[k] / sum;
    }
    if (lane == 0)
        scores[chosen] = 1.0f / (1.0f + precise::exp(-logits[experts]));
}

#endif
