// Choosing the next token: the definition is that of backend/reference/sample.c.
//
// A first kernel applies penalties and finds the largest logit of every span of tokens; in a second one a single
// threadgroup chooses. Where a few of the largest are enough, and they nearly always are, it takes from the spans all
// that are at least as large as the n'th largest of the spans' largest, which are n at least, and sorts them. Otherwise
// no list in falling order is made: a place in it is found digit by digit of the logits' bits, from counts and weights
// of the 256 values that a digit can have, of all tokens that agree in the digits before.
//
// There are no doubles here. Weights are whole multiples of 2^-44, so that their sums are exact, whatever the order.
#include <metal_stdlib>
using namespace metal;

#include "sample_parameters.h"

#define SAMPLE_DIGITS 256
#define SAMPLE_SORTED 1024 // candidates that can be sorted, a power of two
#define SAMPLE_FEW 512     // top_k up to which sorting is tried
#define SAMPLE_LIKELY 256  // how many of the largest are sorted for top_p and min_p
#define SAMPLE_ONE 17592186044416.0f // 2^44

// ---- Numbers of 64 bits across lanes

static ulong sample_shuffle_up(ulong x, ushort by) {
    return ulong(simd_shuffle_up(uint(x >> 32), by)) << 32 | simd_shuffle_up(uint(x), by);
}

static ulong sample_simd_sum(ulong x) {
    for (ushort by = 16; by > 0; by /= 2)
        x += ulong(simd_shuffle_xor(uint(x >> 32), by)) << 32 | simd_shuffle_xor(uint(x), by);
    return x;
}

// Of the lanes up to this one.
static ulong sample_simd_sum_up_to(ulong x, uint lane) {
    for (ushort by = 1; by < 32; by *= 2) {
        ulong other = sample_shuffle_up(x, by);
        x += lane >= by ? other : 0;
    }
    return x;
}

// The upper half of a product.
static ulong sample_mulhi(ulong a, ulong b) {
    ulong a_low = uint(a), a_high = a >> 32, b_low = uint(b), b_high = b >> 32;
    ulong middle = a_high * b_low + (a_low * b_low >> 32);
    ulong other = a_low * b_high + uint(middle);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

static ulong sample_mix(ulong x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    x = (x ^ x >> 27) * 0x94d049bb133111ebul;
    return x ^ x >> 31;
}

// floor(u * sum), u being number `draw` of the stream of `seed`: the 53 upper bits of 64 make it.
static ulong sample_target(ulong seed, uint draw, ulong sum) {
    ulong increment = 0x9e3779b97f4a7c15ul;
    ulong bits = sample_mix(sample_mix(seed + increment) + (ulong(draw) + 1) * increment);
    return sample_mulhi(bits >> 11 << 11, sum);
}

// ceil(min(1, share) * total), at least 1.
static ulong sample_part(float share, ulong total) {
    if (!(share > 0.0f))
        return 1;
    if (share >= 1.0f)
        return max(total, 1ul);
    uint bits = as_type<uint>(share), exponent = bits >> 23;
    ulong mantissa = (bits & 0x7fffffu) | 0x800000u;
    // In multiples of 2^-64: share = mantissa * 2^(exponent - 150).
    ulong fraction = exponent >= 86 ? mantissa << (exponent - 86) : exponent > 62 ? mantissa >> (86 - exponent) : 0;
    return max(sample_mulhi(fraction, total) + (fraction * total != 0 ? 1 : 0), 1ul);
}

// exp(x) for x <= 0, the same on every device: Cephes' polynomial. Less than 2^-125 is 0.
static float sample_exp(float x) {
    if (!(x > -86.0f))
        return 0.0f;
    float power = rint(x * 1.44269504f);
    float rest = fma(power, 2.12194440e-4f, fma(power, -0.693359375f, x));
    float sum = 1.9875691500e-4f;
    sum = fma(sum, rest, 1.3981999507e-3f);
    sum = fma(sum, rest, 8.3334519073e-3f);
    sum = fma(sum, rest, 4.1665795894e-2f);
    sum = fma(sum, rest, 1.6666665459e-1f);
    sum = fma(sum, rest, 5.0000001201e-1f);
    sum = fma(sum, rest * rest, rest) + 1.0f;
    return sum * as_type<float>(uint(int(power) + 127) << 23);
}

static ulong sample_whole(float share) {
    return ulong(rint(share * SAMPLE_ONE));
}

// The smaller the larger the logit.
static uint sample_key(float logit) {
    uint bits = as_type<uint>(logit);
    return (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
}

static float sample_logit(uint key) {
    return as_type<float>((key & 0x80000000u) != 0 ? key : ~key & 0x7fffffffu);
}

// ---- The first kernel

// record, logits[V], bias[V], counts[V] -> adjusted[V], and of each span its largest logit, the id of that (-1: none can
// come), and how many can come, with the upper bit set if a logit is NaN or infinity. A simdgroup a span.
kernel void sample_adjust(device const sample_record &record [[buffer(0)]], device const float *logits [[buffer(1)]],
                          device const float *bias [[buffer(2)]], device const int *counts [[buffer(3)]],
                          device float *adjusted [[buffer(4)]], device float *largest [[buffer(5)]],
                          device int *ids [[buffer(6)]], device uint *states [[buffer(7)]],
                          constant sample_parameters &p [[buffer(8)]], uint group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint span = group * simdgroups + simdgroup;
    if (span >= p.spans)
        return;
    float best = -INFINITY;
    uint best_id = 0x7fffffffu, can_come = 0, broken = 0;
    for (uint i = 0; i < SAMPLE_SPAN / 32; i++) {
        uint id = span * SAMPLE_SPAN + i * 32 + lane;
        if (id >= p.vocabulary)
            break;
        float logit = logits[id];
        int count = counts[id];
        if (count != 0)
            logit = logit > 0.0f ? logit / record.repetition_penalty : logit * record.repetition_penalty;
        int generated = count & ~SAMPLE_COUNT_IN_PROMPT;
        if (generated > 0)
            logit -= record.presence_penalty + record.frequency_penalty * float(generated);
        logit = logit + bias[id] + 0.0f; // no negative zero
        adjusted[id] = logit;
        broken |= isnan(logit) || logit == INFINITY ? 0x80000000u : 0u;
        can_come += logit > -INFINITY ? 1 : 0;
        if (logit > best) {
            best = logit;
            best_id = id;
        }
    }
    float top = simd_max(best);
    uint first = simd_min(best == top && best > -INFINITY ? best_id : 0x7fffffffu);
    uint all = simd_sum(can_come) | simd_or(broken);
    if (lane == 0) {
        largest[span] = top;
        ids[span] = first == 0x7fffffffu ? -1 : int(first);
        states[span] = all;
    }
}

// ---- The second

// Tokens of one logit: what comes before them, how many they are, what one weighs.
struct sample_group {
    uint key, count, count_before;
    ulong weight, weight_before;
};

// What is drawn from: the tokens whose key is at most `last` and whose share is at least min_p; the largest's is 1.
struct sample_chooser {
    device const float *logits;
    uint vocabulary, last;
    float largest, temperature, min_p;
    uint index, threads, lane, simdgroup, simdgroups;
    threadgroup atomic_uint *low;    // [SAMPLE_DIGITS]: weights of digits, the lower halves
    threadgroup atomic_uint *high;   // the upper ones
    threadgroup atomic_uint *counts; // [SAMPLE_DIGITS]
    threadgroup ulong *sums;         // [32]
    threadgroup sample_group *found;
    threadgroup int *id;
};

static float sample_share(thread const sample_chooser &c, float logit) {
    return logit == c.largest ? 1.0f : sample_exp((logit - c.largest) / c.temperature);
}

static bool sample_admits(thread const sample_chooser &c, float logit) {
    return logit > -INFINITY && sample_key(logit) <= c.last &&
           (logit == c.largest || !(sample_share(c, logit) < c.min_p));
}

// What an admitted token weighs, or, `equals` being a logit, whether it has that.
static ulong sample_weight(thread const sample_chooser &c, float logit, bool by_weight, float equals) {
    if (!by_weight)
        return logit == equals ? 1 : 0;
    return sample_admits(c, logit) ? sample_whole(sample_share(c, logit)) : 0;
}

// Of all threads. The array is free again afterwards.
static ulong sample_sum(ulong mine, thread const sample_chooser &c) {
    mine = sample_simd_sum(mine);
    if (c.lane == 0)
        c.sums[c.simdgroup] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong sum = 0;
    for (uint i = 0; i < c.simdgroups; i++)
        sum += c.sums[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

static ulong sample_total(thread const sample_chooser &c) {
    ulong sum = 0;
    for (uint i = c.index; i < c.vocabulary; i += c.threads)
        sum += sample_weight(c, c.logits[i], true, 0.0f);
    return sample_sum(sum, c);
}

// The digit with which the count or weight reaches `need`, by one simdgroup: a lane looks at 8 digits.
static void sample_choose_digit(thread const sample_chooser &c, bool by_weight, ulong need) {
    uint first = c.lane * (SAMPLE_DIGITS / 32), count = 0;
    ulong weight = 0, weights[SAMPLE_DIGITS / 32];
    uint counts[SAMPLE_DIGITS / 32];
    for (uint i = 0; i < SAMPLE_DIGITS / 32; i++) {
        counts[i] = atomic_load_explicit(&c.counts[first + i], memory_order_relaxed);
        weights[i] = ulong(atomic_load_explicit(&c.high[first + i], memory_order_relaxed)) << 32 |
                     atomic_load_explicit(&c.low[first + i], memory_order_relaxed);
        count += counts[i];
        weight += weights[i];
    }
    uint key = c.found->key;
    uint count_before = c.found->count_before + simd_prefix_exclusive_sum(count);
    ulong weight_before = c.found->weight_before + sample_simd_sum_up_to(weight, c.lane) - weight;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    ulong before = by_weight ? weight_before : ulong(count_before), mine = by_weight ? weight : ulong(count);
    if (count == 0 || before >= need || before + mine < need)
        return; // another lane's
    uint digit = 0;
    for (; digit < SAMPLE_DIGITS / 32 - 1; digit++) {
        if (counts[digit] > 0 &&
            (by_weight ? weight_before + weights[digit] : ulong(count_before) + counts[digit]) >= need)
            break;
        count_before += counts[digit];
        weight_before += weights[digit];
    }
    c.found->key = key << 8 | (first + digit);
    c.found->count = counts[digit];
    c.found->count_before = count_before;
    c.found->weight_before = weight_before;
}

// The first group in falling order of logits with which the count, or the weight, of it and those before reaches `need`
// (which all together reach).
static sample_group sample_find(thread const sample_chooser &c, bool by_weight, ulong need) {
    if (c.index == 0) {
        c.found->key = 0;
        c.found->count = 0;
        c.found->count_before = 0;
        c.found->weight_before = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint i = c.index; i < SAMPLE_DIGITS; i += c.threads) {
            atomic_store_explicit(&c.low[i], 0u, memory_order_relaxed);
            atomic_store_explicit(&c.high[i], 0u, memory_order_relaxed);
            atomic_store_explicit(&c.counts[i], 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ulong upper = c.found->key;
        for (uint i = c.index; i < c.vocabulary; i += c.threads) {
            float logit = c.logits[i];
            uint key = sample_key(logit);
            if (ulong(key) >> (shift + 8) != upper || !sample_admits(c, logit))
                continue;
            uint digit = key >> shift & (SAMPLE_DIGITS - 1);
            atomic_fetch_add_explicit(&c.counts[digit], 1u, memory_order_relaxed);
            if (!by_weight)
                continue;
            // The lower half wraps for exactly one of those who add to it.
            ulong weight = sample_whole(sample_share(c, logit));
            uint old = atomic_fetch_add_explicit(&c.low[digit], uint(weight), memory_order_relaxed);
            uint carry = old + uint(weight) < old ? 1u : 0u;
            atomic_fetch_add_explicit(&c.high[digit], uint(weight >> 32) + carry, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (c.simdgroup == 0)
            sample_choose_digit(c, by_weight, need);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sample_group result = {c.found->key, c.found->count, c.found->count_before, 0, c.found->weight_before};
    result.weight = sample_whole(sample_share(c, sample_logit(result.key)));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return result;
}

// The id at which, going through all ids, the sum of the weights reaches `need`. Simdgroups take blocks of ids; the one
// whose block it is goes through it again.
static int sample_walk(thread const sample_chooser &c, ulong need, bool by_weight, float equals) {
    uint block = (c.vocabulary + c.threads - 1) / c.threads * 32;
    uint first = c.simdgroup * block, end = min(first + block, c.vocabulary);
    ulong mine = 0;
    for (uint i = first + c.lane; i < end; i += 32)
        mine += sample_weight(c, c.logits[i], by_weight, equals);
    mine = sample_simd_sum(mine);
    if (c.lane == 0)
        c.sums[c.simdgroup] = mine;
    if (c.index == 0)
        *c.id = -1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong before = 0;
    for (uint i = 0; i < c.simdgroup; i++)
        before += c.sums[i];
    bool here = before < need && before + mine >= need;
    for (uint start = first; here && start < end; start += 32) {
        uint i = start + c.lane;
        ulong weight = i < end ? sample_weight(c, c.logits[i], by_weight, equals) : 0;
        ulong sum = before + sample_simd_sum_up_to(weight, c.lane);
        uint hit = simd_min(sum >= need ? c.lane : 32u);
        if (hit == c.lane)
            *c.id = int(i);
        here = hit == 32;
        before += sample_simd_sum(weight);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int id = *c.id;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return id;
}

// The token to draw of `count` that can come; all logits are looked at several times.
static int sample_draw_from_all(thread sample_chooser &c, uint count, device const sample_record &record) {
    bool few = record.top_k > 0 && record.top_k < count;
    uint limit = few ? record.top_k : count;
    if (!few && record.top_p >= 1.0f && !(record.min_p > 0.0f)) {
        ulong need = sample_target(record.seed, record.draws, sample_total(c)) + 1;
        return sample_walk(c, need, true, 0.0f);
    }
    ulong total;
    if (few) {
        sample_group last = sample_find(c, false, limit);
        c.last = last.key;
        total = sample_total(c) - (last.count_before + last.count - limit) * last.weight;
    } else {
        total = sample_total(c);
    }
    c.min_p = record.min_p;
    ulong admitted = record.min_p > 0.0f ? sample_total(c) : total;
    ulong need = min(sample_part(record.top_p, total), admitted);
    sample_group border = sample_find(c, true, need);
    ulong kept = border.weight == 0 ? 1 : (need - border.weight_before + border.weight - 1) / border.weight;
    ulong most = min(limit - border.count_before, border.count);
    kept = clamp(kept, 1ul, most);
    ulong sum = border.weight_before + kept * border.weight;
    need = sample_target(record.seed, record.draws, sum) + 1;
    sample_group hit = sample_find(c, true, need);
    ulong place = (need - hit.weight_before + hit.weight - 1) / hit.weight;
    return sample_walk(c, place, false, sample_logit(hit.key));
}

// Sorts numbers[size], a power of two, by all threads: bitonic.
static void sample_sort(threadgroup ulong *numbers, uint size, uint index, uint threads) {
    for (uint run = 2; run <= size; run *= 2)
        for (uint step = run / 2; step > 0; step /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = index; i < size / 2; i += threads) {
                uint low = i / step * step * 2 + i % step, high = low + step;
                ulong a = numbers[low], b = numbers[high];
                bool rising = (low & run) == 0;
                if ((a > b) == rising) {
                    numbers[low] = b;
                    numbers[high] = a;
                }
            }
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Gathers in falling order all tokens whose key is at most `last`: their number, SAMPLE_SORTED + 1 if they are too many.
// A candidate is its key and its id.
static uint sample_gather(thread const sample_chooser &c, device const float *largest, uint spans, uint last,
                          threadgroup ulong *candidates, threadgroup uint *chosen, threadgroup atomic_uint *cursor) {
    if (c.index == 0)
        atomic_store_explicit(cursor, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = c.index; i < spans; i += c.threads)
        if (largest[i] > -INFINITY && sample_key(largest[i]) <= last) {
            uint place = atomic_fetch_add_explicit(cursor, 1u, memory_order_relaxed);
            if (place < SAMPLE_SORTED)
                chosen[place] = i;
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint span_count = atomic_load_explicit(cursor, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (span_count > SAMPLE_SORTED)
        return SAMPLE_SORTED + 1;
    if (c.index == 0)
        atomic_store_explicit(cursor, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = c.index; i < span_count * SAMPLE_SPAN; i += c.threads) {
        uint id = chosen[i / SAMPLE_SPAN] * SAMPLE_SPAN + i % SAMPLE_SPAN;
        float logit = id < c.vocabulary ? c.logits[id] : -INFINITY;
        if (logit > -INFINITY && sample_key(logit) <= last) {
            uint place = atomic_fetch_add_explicit(cursor, 1u, memory_order_relaxed);
            if (place < SAMPLE_SORTED)
                candidates[place] = ulong(sample_key(logit)) << 32 | id;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint count = atomic_load_explicit(cursor, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (count > SAMPLE_SORTED)
        return SAMPLE_SORTED + 1;
    uint size = 32;
    while (size < count)
        size *= 2;
    for (uint i = count + c.index; i < size; i += c.threads)
        candidates[i] = ~0ul;
    sample_sort(candidates, size, c.index, c.threads);
    return count;
}

// Of the `count` largest, sorted, with their shares; -1 if they are not enough to tell. By one thread.
static int sample_draw_sorted(threadgroup const ulong *candidates, threadgroup const float *shares, uint count,
                              uint limit, ulong total, bool total_is_known, device const sample_record &record) {
    if (!total_is_known)
        for (uint i = 0; i < limit; i++)
            total += sample_whole(shares[i]);
    ulong enough = sample_part(record.top_p, total), sum = 0;
    uint kept = 0;
    for (; kept < limit; kept++) {
        if (kept == count)
            return -1;
        if (kept > 0 && (sum >= enough || shares[kept] < record.min_p))
            break;
        sum += sample_whole(shares[kept]);
    }
    ulong target = sample_target(record.seed, record.draws, sum);
    sum = 0;
    for (uint i = 0; i < kept; i++) {
        sum += sample_whole(shares[i]);
        if (sum > target)
            return int(uint(candidates[i]));
    }
    return -1;
}

// record, adjusted[V], and what sample_adjust says of the spans -> tokens[1], counts[token] + 1, the record moved on; the
// token also goes to `posted`. One threadgroup.
kernel void sample_choose(device sample_record &record [[buffer(0)]], device const float *adjusted [[buffer(1)]],
                          device const float *largest [[buffer(2)]], device const int *ids [[buffer(3)]],
                          device const uint *states [[buffer(4)]], device int *counts [[buffer(5)]],
                          device int *tokens [[buffer(6)]], device int *posted [[buffer(7)]],
                          constant sample_parameters &p [[buffer(8)]], uint index [[thread_index_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup atomic_uint low[SAMPLE_DIGITS];
    threadgroup atomic_uint high[SAMPLE_DIGITS];
    threadgroup atomic_uint digit_counts[SAMPLE_DIGITS];
    threadgroup atomic_uint cursor;
    threadgroup ulong sums[32];
    threadgroup ulong candidates[SAMPLE_SORTED];
    threadgroup uint chosen_spans[SAMPLE_SORTED];
    threadgroup float shares[SAMPLE_SORTED];
    threadgroup sample_group found;
    threadgroup int drawn;
    threadgroup float tops[32];
    threadgroup uint firsts[32];
    threadgroup uint brokens[32];

    float top = -INFINITY;
    uint first = 0x7fffffffu, count = 0, broken = 0, usable = 0;
    for (uint i = index; i < p.spans; i += threads) {
        count += states[i] & 0x7fffffffu;
        broken |= states[i] & 0x80000000u;
        usable += ids[i] >= 0 ? 1 : 0;
        if (ids[i] >= 0 && largest[i] > top) {
            top = largest[i];
            first = uint(ids[i]);
        }
    }
    float best = simd_max(top);
    uint best_id = simd_min(top == best ? first : 0x7fffffffu);
    broken = simd_or(broken);
    if (lane == 0) {
        tops[simdgroup] = best;
        firsts[simdgroup] = best_id;
        brokens[simdgroup] = broken;
    }
    sample_chooser c = {adjusted,  p.vocabulary, 0xffffffffu,  0.0f,   record.temperature, 0.0f, index, threads, lane,
                        simdgroup, simdgroups,   low,          high,   digit_counts,       sums, &found, &drawn};
    ulong both = sample_sum(ulong(usable) << 32 | count, c);
    usable = uint(both >> 32);
    count = uint(both);
    best = -INFINITY;
    best_id = 0x7fffffffu;
    for (uint i = 0; i < simdgroups; i++) {
        broken |= brokens[i];
        if (tops[i] > best || (tops[i] == best && firsts[i] < best_id)) {
            best = tops[i];
            best_id = firsts[i];
        }
    }
    c.largest = best;

    int id = best_id == 0x7fffffffu ? -1 : int(best_id);
    if (broken != 0)
        id = -1;
    else if (id >= 0 && record.temperature > 0.0f) {
        bool few = record.top_k > 0 && record.top_k < count;
        uint limit = few ? record.top_k : count;
        bool cut = few || record.top_p < 1.0f || record.min_p > 0.0f;
        id = -1;
        if (cut && (record.top_k == 0 || limit <= SAMPLE_FEW)) {
            ulong total = record.top_k == 0 ? sample_total(c) : 0;
            uint wanted = record.top_k == 0 ? min(usable, uint(SAMPLE_LIKELY)) : limit, last = 0xffffffffu;
            if (wanted <= usable) {
                sample_chooser of_spans = c;
                of_spans.logits = largest;
                of_spans.vocabulary = p.spans;
                last = sample_find(of_spans, false, wanted).key;
            }
            uint gathered = sample_gather(c, largest, p.spans, last, candidates, chosen_spans, &cursor);
            if (gathered <= SAMPLE_SORTED && (record.top_k == 0 || gathered >= limit)) {
                for (uint i = index; i < gathered; i += threads)
                    shares[i] = sample_share(c, sample_logit(uint(candidates[i] >> 32)));
                threadgroup_barrier(mem_flags::mem_threadgroup);
                if (index == 0)
                    drawn = sample_draw_sorted(candidates, shares, gathered, limit, total, record.top_k == 0, record);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                id = drawn;
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
        if (id < 0)
            id = sample_draw_from_all(c, count, record);
    }
    // All have read the record.
    threadgroup_barrier(mem_flags::mem_device);
    if (index != 0)
        return;
    if (id >= 0 && (counts[id] & ~SAMPLE_COUNT_IN_PROMPT) < SAMPLE_COUNT_IN_PROMPT - 1)
        counts[id] += 1;
    tokens[0] = id;
    posted[0] = id;
    record.position += record.rows;
    record.rows = 1;
    record.draws += 1;
}
