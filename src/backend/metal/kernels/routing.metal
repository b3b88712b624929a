// Which experts a token goes to, and which tokens an expert gets.
#include <metal_stdlib>
using namespace metal;
#include "product_parameters.h"

// A probability as a number that orders as it does: of equals the lower id wins, and so it does among NaNs (all
// probabilities of a row are, or none).
static uint route_key(float p) {
    return isnan(p) ? 0x7fc00001u : as_type<uint>(p) + 1;
}

// logits[T, E+1] (the last of the shared gate) -> ids[T,K], scores[T,K+1]: p = softmax over E, the K largest in falling
// order, the lower id first on a tie; scores = p / sum of the chosen; scores[K] = sigmoid. A simdgroup a row. `memory`:
// E probabilities, then the K chosen; a lane touches only its own, every 32nd.
kernel void route(constant route_parameters &given [[buffer(0)]], device const float *logits [[buffer(1)]],
                  device int *ids [[buffer(2)]], device float *scores [[buffer(3)]],
                  threadgroup float *memory [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    uint experts = given.experts, chosen = given.chosen;
    logits += ulong(row) * (experts + 1);
    ids += ulong(row) * given.ids_stride;
    scores += ulong(row) * given.scores_stride;
    float largest = -INFINITY, total = 0.0f;
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
    threadgroup float *best = memory + (experts + 31) / 32 * 32;
    float sum = 0.0f;
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
            ids[k] = int(id);
            best[k] = p;
        }
    }
    for (uint k = lane; k < chosen; k += 32)
        scores[k] = best[k] / sum;
    if (lane == 0)
        scores[chosen] = 1.0f / (1.0f + precise::exp(-logits[experts]));
}

// ids[T,K] -> starts[E+1], order[T*K]: the pairs sorted by expert, rising within one. Threadgroup e, one simdgroup, counts
// the pairs of lower experts, which tells it where its own begin, and places these; the last one only counts. Nobody waits
// for anybody, and no order is left to chance.
kernel void expert_sort(constant expert_sort_parameters &given [[buffer(0)]], device const int *ids [[buffer(1)]],
                        device int *starts [[buffer(2)]], device int *order [[buffer(3)]],
                        uint expert [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint pairs = given.pairs, chosen = given.chosen, gap = given.ids_stride - chosen, below = 0;
    for (uint pair = lane; pair < pairs; pair += 32)
        below += uint(ids[pair + ulong(pair / chosen) * gap]) < expert ? 1 : 0;
    uint start = simd_sum(below);
    if (lane == 0)
        starts[expert] = int(start);
    if (expert == given.experts)
        return;
    for (uint base = 0; base < pairs; base += 32) {
        uint pair = base + lane;
        bool mine = pair < pairs && ids[min(pair, pairs - 1) + ulong(min(pair, pairs - 1) / chosen) * gap] == int(expert);
        uint votes = uint(ulong(simd_ballot(mine)));
        if (mine)
            order[start + popcount(votes & ((1u << lane) - 1))] = int(pair);
        start += popcount(votes);
    }
}
