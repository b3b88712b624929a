// Which experts a token goes to, and which tokens an expert gets.
#include <metal_stdlib>
using namespace metal;
#include "product_parameters.h"
#include "routing.h"

// logits[T, E+1] (the last of the shared gate) -> ids[T,K], scores[T,K+1]: p = softmax over E, the K largest in falling
// order, the lower id first on a tie; scores = p / sum of the chosen; scores[K] = sigmoid. A simdgroup a row. `memory`
// and `found`: of choose_experts.
kernel void route(constant route_parameters &given [[buffer(0)]], device const float *logits [[buffer(1)]],
                  device int *ids [[buffer(2)]], device float *scores [[buffer(3)]],
                  threadgroup float *memory [[threadgroup(0)]], threadgroup int *found [[threadgroup(1)]],
                  uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    logits += ulong(row) * (given.experts + 1);
    float sum = choose_experts(logits, given.experts, given.chosen, lane, memory, found);
    write_choice(logits, given.experts, given.chosen, lane, sum, memory, found, ids + ulong(row) * given.ids_stride,
                 scores + ulong(row) * given.scores_stride);
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
