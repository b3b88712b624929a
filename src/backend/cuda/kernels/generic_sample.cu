/* Choosing the next token: the definition is that of backend/reference/sample.c.
 *
 * A first kernel applies penalties and finds the largest logit of every SPAN of tokens; in a second one a
 * single block chooses. Where a few of the largest are enough, and they nearly always are, it takes from the
 * spans all that are at least as large as the n'th largest of the spans' largest, which are n at least, and
 * sorts them. Otherwise no list in falling order is made: a place in it is found digit by digit of the
 * logits' bits, from counts and weights of the 256 values that a digit can have, of all tokens that agree in
 * the digits before. Weights are whole multiples of 2^-44 there, so that their sums do not depend on the
 * order in which threads add. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 256
#define SPAN 128 /* tokens that a warp looks at */
#define CHOOSERS 1024
#define MOST_SORTED 2048  /* a power of two */
#define FEW 1024          /* top_k up to which sorting is tried */
#define LIKELY_ENOUGH 256 /* how many of the largest are sorted for top_p and min_p */
#define DIGITS 256
#define ONE 17592186044416.0 /* 2^44 */

typedef unsigned long long uint64;

/* What a span of tokens says: its best one, whether a logit is NaN or infinity, how many can come. */
struct summary {
    float logit;
    int32_t id;
    uint32_t broken, count;
};

__device__ static summary merge(const summary &a, const summary &b) {
    bool first = a.id >= 0 && (b.id < 0 || a.logit > b.logit || (a.logit == b.logit && a.id < b.id));
    summary both = first ? a : b;
    both.broken = a.broken | b.broken;
    both.count = a.count + b.count;
    return both;
}

__device__ static summary warp_merge(summary mine) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        summary other = {
            __shfl_xor_sync(ALL_LANES, mine.logit, offset), __shfl_xor_sync(ALL_LANES, mine.id, offset),
            __shfl_xor_sync(ALL_LANES, mine.broken, offset), __shfl_xor_sync(ALL_LANES, mine.count, offset)};
        mine = merge(mine, other);
    }
    return mine;
}

/* Of a block of at most 32 warps; `shared` holds 32. */
__device__ static summary block_merge(summary mine, summary *shared) {
    mine = warp_merge(mine);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = mine;
    __syncthreads();
    summary none = {-CUDART_INF_F, -1, 0, 0};
    return warp_merge(threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : none);
}

/* The logit after penalties and bias; never a negative zero. */
__device__ static float adjusted(float logit, float bias, int32_t count, const step_record &record) {
    if (count != 0)
        logit = logit > 0 ? logit / record.repetition_penalty : logit * record.repetition_penalty;
    int32_t generated = count & ~STEP_COUNT_IN_PROMPT;
    if (generated > 0)
        logit =
            __fsub_rn(logit, __fadd_rn(record.presence_penalty,
                                       __fmul_rn(record.frequency_penalty, static_cast<float>(generated))));
    return __fadd_rn(__fadd_rn(logit, bias), 0.0f);
}

/* exp((logit - largest) / temperature), rounded as the reference has it */
__device__ static float share_of(float logit, float largest, float temperature) {
    return static_cast<float>(exp(static_cast<double>(__fdiv_rn(logit - largest, temperature))));
}

/* A warp a span; totals are relative to the span's largest and made if something needs them. */
__global__ static void adjust(const __grid_constant__ cuda_op op, summary *summaries, double *totals,
                              float *largest, float *logits) {
    begin();
    const step_record record = *record_of(op.views[0]);
    uint32_t span = (blockIdx.x * BLOCK + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    uint32_t vocabulary = op.views[1].columns;
    if (span * SPAN >= vocabulary)
        return;
    float mine[SPAN / WARP];
    summary all = {-CUDART_INF_F, -1, 0, 0};
    for (uint32_t i = 0; i < SPAN / WARP; i++) {
        uint32_t id = span * SPAN + i * WARP + lane;
        mine[i] = -CUDART_INF_F;
        if (id >= vocabulary)
            continue;
        mine[i] = adjusted(float_row(op.views[1], 0)[id], float_row(op.views[2], 0)[id],
                           int_row(op.views[3], 0)[id], record);
        logits[id] = mine[i];
        bool comes = mine[i] > -CUDART_INF_F;
        all = merge(all, {mine[i], comes ? static_cast<int32_t>(id) : -1,
                          isnan(mine[i]) || mine[i] == CUDART_INF_F, comes ? 1u : 0u});
    }
    all = warp_merge(all);
    if (lane == 0) {
        summaries[span] = all;
        largest[span] = all.logit;
    }
    if (!(record.temperature > 0) || record.top_k > 0)
        return;
    double total = 0;
    for (uint32_t i = 0; i < SPAN / WARP; i++)
        if (mine[i] > -CUDART_INF_F)
            total += share_of(mine[i], all.logit, record.temperature);
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        total += __shfl_xor_sync(ALL_LANES, total, offset);
    if (lane == 0)
        totals[span] = total;
}

__device__ static uint64 mix(uint64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Number `draw` of the stream of `seed`, in [0, 1) */
__device__ static double uniform(uint64 seed, uint32_t draw) {
    uint64 increment = 0x9e3779b97f4a7c15u;
    uint64 bits = mix(mix(seed + increment) + (static_cast<uint64>(draw) + 1) * increment);
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

/* What is drawn from: the tokens whose key is at most `last`, a key being the smaller the larger the logit,
 * and whose weight is at least min_p (the largest's weight is 1). */
struct chooser {
    const float *logits;
    uint32_t vocabulary, last;
    float largest, temperature, min_p;
    uint64 *weights;  /* shared, [DIGITS] */
    uint32_t *counts; /* shared, [DIGITS] */

    __device__ uint32_t key(float logit) const {
        uint32_t bits = __float_as_uint(logit);
        return bits >> 31 ? bits : ~bits & 0x7fffffffu;
    }
    __device__ float logit(uint32_t key) const {
        return __uint_as_float(key >> 31 ? key : ~key & 0x7fffffffu);
    }
    __device__ float share(float logit) const {
        return share_of(logit, largest, temperature);
    }
    __device__ uint64 weight(float logit) const {
        return __double2ull_rn(share(logit) * ONE);
    }
    __device__ bool admits(float logit) const {
        return logit > -CUDART_INF_F && key(logit) <= last && (logit == largest || !(share(logit) < min_p));
    }
};

/* Tokens of one logit: what comes before them, how many they are, what one weighs. */
struct group {
    uint32_t key, count, count_before;
    uint64 weight, weight_before;
};

/* The sum of the weights of all that are admitted. */
__device__ static uint64 total_weight(const chooser &c) {
    if (threadIdx.x == 0)
        c.weights[0] = 0;
    __syncthreads();
    uint64 sum = 0;
    for (uint32_t i = threadIdx.x; i < c.vocabulary; i += CHOOSERS)
        if (c.admits(c.logits[i]))
            sum += c.weight(c.logits[i]);
    atomicAdd(c.weights, sum);
    __syncthreads();
    sum = c.weights[0];
    __syncthreads();
    return sum;
}

/* The first digit with which the count or weight reaches `need`, by one warp: a lane looks at DIGITS / WARP
 * digits. */
__device__ static void choose_digit(const chooser &c, bool by_weight, uint64 need, group *found) {
    const uint32_t each = DIGITS / WARP;
    uint32_t lane = threadIdx.x, first = lane * each, count = 0;
    uint64 weight = 0;
    for (uint32_t i = first; i < first + each; i++) {
        count += c.counts[i];
        weight += c.weights[i];
    }
    uint32_t count_before = count;
    uint64 weight_before = weight;
    for (int offset = 1; offset < WARP; offset *= 2) {
        uint32_t other = __shfl_up_sync(ALL_LANES, count_before, offset);
        uint64 other_weight = __shfl_up_sync(ALL_LANES, weight_before, offset);
        if (lane >= static_cast<uint32_t>(offset)) {
            count_before += other;
            weight_before += other_weight;
        }
    }
    count_before += found->count_before - count;
    weight_before += found->weight_before - weight;
    __syncwarp();
    uint64 before = by_weight ? weight_before : count_before, mine = by_weight ? weight : count;
    if (count == 0 || before >= need || before + mine < need)
        return; /* another lane's */
    uint32_t digit = first;
    for (; digit < first + each - 1; digit++) {
        if (c.counts[digit] > 0 && (by_weight ? weight_before + c.weights[digit]
                                              : static_cast<uint64>(count_before) + c.counts[digit]) >= need)
            break;
        count_before += c.counts[digit];
        weight_before += c.weights[digit];
    }
    *found = {found->key << 8 | digit, c.counts[digit], count_before, 0, weight_before};
}

/* The first group in falling order of logits with which the count, or the weight, of it and those before
 * reaches `need` (which all together reach). */
__device__ static group find(const chooser &c, bool by_weight, uint64 need) {
    __shared__ group found;
    if (threadIdx.x == 0)
        found = {0, 0, 0, 0, 0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < DIGITS; i += CHOOSERS) {
            c.weights[i] = 0;
            c.counts[i] = 0;
        }
        __syncthreads();
        uint64 upper = found.key;
        for (uint32_t i = threadIdx.x; i < c.vocabulary; i += CHOOSERS) {
            float logit = c.logits[i];
            uint64 key = c.key(logit);
            if (key >> (shift + 8) != upper || !c.admits(logit))
                continue;
            atomicAdd(&c.counts[key >> shift & (DIGITS - 1)], 1u);
            if (by_weight)
                atomicAdd(&c.weights[key >> shift & (DIGITS - 1)], c.weight(logit));
        }
        __syncthreads();
        if (threadIdx.x < WARP)
            choose_digit(c, by_weight, need, &found);
        __syncthreads();
    }
    group result = found;
    result.weight = c.weight(c.logit(result.key));
    __syncthreads();
    return result;
}

/* Of threads' numbers the sum of those of the threads before; `shared` holds CHOOSERS. */
template <typename Number> __device__ static Number sum_before(Number mine, Number *shared) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        Number sum = 0;
        for (uint32_t i = 0; i < CHOOSERS; i++) {
            Number next = sum + shared[i];
            shared[i] = sum;
            sum = next;
        }
    }
    __syncthreads();
    return shared[threadIdx.x];
}

/* The id at which, going through all ids, the sum of weight(logit) reaches `need`. */
template <typename Weight>
__device__ static int32_t walk(const chooser &c, uint64 need, Weight weight, uint64 *shared) {
    __shared__ int32_t id;
    uint32_t each = (c.vocabulary + CHOOSERS - 1) / CHOOSERS, first = threadIdx.x * each;
    uint32_t last = first + each < c.vocabulary ? first + each : c.vocabulary;
    uint64 mine = 0;
    for (uint32_t i = first; i < last; i++)
        mine += weight(c.logits[i]);
    if (threadIdx.x == 0)
        id = -1;
    uint64 sum = sum_before(mine, shared);
    if (sum < need && sum + mine >= need)
        for (uint32_t i = first; i < last && sum < need; i++)
            if ((sum += weight(c.logits[i])) >= need)
                id = static_cast<int32_t>(i);
    __syncthreads();
    return id;
}

__device__ static uint64 whole(double number, uint64 most) {
    return number < static_cast<double>(most) ? static_cast<uint64>(number) : most;
}

/* The token to draw of `count` that can come, of which the largest has the logit `largest`. */
__device__ static int32_t draw(chooser &c, uint32_t count, const step_record &record, uint64 *shared) {
    double u = uniform(record.seed, record.draws);
    bool few = record.top_k > 0 && record.top_k < count;
    uint32_t limit = few ? record.top_k : count;
    if (!few && record.top_p >= 1 && !(record.min_p > 0)) {
        uint64 total = total_weight(c);
        uint64 need = whole(u * static_cast<double>(total), total - 1) + 1;
        return walk(
            c, need, [&](float logit) { return c.admits(logit) ? c.weight(logit) : 0; }, shared);
    }
    uint64 total;
    if (few) {
        group last = find(c, false, limit);
        c.last = last.key;
        total = total_weight(c) - (last.count_before + last.count - limit) * last.weight;
    } else {
        total = total_weight(c);
    }
    c.min_p = record.min_p;
    uint64 admitted = record.min_p > 0 ? total_weight(c) : total;
    uint64 need =
        static_cast<uint64>(ceil(fmin(1.0, static_cast<double>(record.top_p)) * static_cast<double>(total)));
    need = need > admitted ? admitted : need < 1 ? 1 : need;
    group border = find(c, true, need);
    uint64 kept = border.weight == 0 ? 1 : (need - border.weight_before + border.weight - 1) / border.weight;
    uint64 most = limit - border.count_before < border.count ? limit - border.count_before : border.count;
    kept = kept < 1 ? 1 : kept > most ? most : kept;
    uint64 sum = border.weight_before + kept * border.weight;
    need = whole(u * static_cast<double>(sum), sum - 1) + 1;
    group hit = find(c, true, need);
    uint64 place = (need - hit.weight_before + hit.weight - 1) / hit.weight;
    float logit = c.logit(hit.key);
    return walk(
        c, place, [&](float other) { return other == logit ? 1u : 0u; }, shared);
}

/* Sorts numbers[size], a power of two: bitonic. */
__device__ static void sort(uint64 *numbers, uint32_t size) {
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < size / 2; i += CHOOSERS) {
                uint32_t low = i / step * step * 2 + i % step, high = low + step;
                uint64 a = numbers[low], b = numbers[high];
                bool rising = (low & run) == 0;
                if ((a > b) == rising) {
                    numbers[low] = b;
                    numbers[high] = a;
                }
            }
        }
    __syncthreads();
}

struct sorting {
    uint64 candidates[MOST_SORTED]; /* key, id */
    uint32_t spans[MOST_SORTED];
    float shares[MOST_SORTED];
    uint32_t span_count, count;
    int32_t id;
};

/* Gathers in falling order all tokens whose key is at most `last`; false if they are too many. */
__device__ static bool gather(const chooser &c, const summary *summaries, uint32_t span_count, uint32_t last,
                              sorting *s) {
    if (threadIdx.x == 0)
        s->span_count = s->count = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < span_count; i += CHOOSERS)
        if (summaries[i].id >= 0 && c.key(summaries[i].logit) <= last) {
            uint32_t place = atomicAdd(&s->span_count, 1u);
            if (place < MOST_SORTED)
                s->spans[place] = i;
        }
    __syncthreads();
    if (s->span_count > MOST_SORTED)
        return false;
    for (uint32_t i = threadIdx.x; i < s->span_count * SPAN; i += CHOOSERS) {
        uint32_t id = s->spans[i / SPAN] * SPAN + i % SPAN;
        float logit = id < c.vocabulary ? c.logits[id] : -CUDART_INF_F;
        if (logit > -CUDART_INF_F && c.key(logit) <= last) {
            uint32_t place = atomicAdd(&s->count, 1u);
            if (place < MOST_SORTED)
                s->candidates[place] = static_cast<uint64>(c.key(logit)) << 32 | id;
        }
    }
    __syncthreads();
    if (s->count > MOST_SORTED)
        return false;
    uint32_t size = WARP;
    while (size < s->count)
        size *= 2;
    for (uint32_t i = s->count + threadIdx.x; i < size; i += CHOOSERS)
        s->candidates[i] = UINT64_MAX;
    sort(s->candidates, size);
    return true;
}

/* sample_draw_largest of the reference; by one thread. */
__device__ static int32_t draw_largest(const sorting *s, uint32_t limit, double total,
                                       const step_record &record) {
    if (total < 0) {
        total = 0;
        for (uint32_t i = 0; i < limit; i++)
            total += s->shares[i];
    }
    uint32_t kept = 0;
    double sum = 0;
    for (; kept < limit; kept++) {
        if (kept == s->count)
            return -1;
        float share = s->shares[kept];
        if (kept > 0 && (sum >= record.top_p * total || share < record.min_p))
            break;
        sum += share;
    }
    double target = uniform(record.seed, record.draws) * sum;
    uint32_t chosen = 0;
    sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (s->shares[i] > 0)
            chosen = i;
        sum += s->shares[i];
        if (sum > target)
            break;
    }
    return static_cast<int32_t>(static_cast<uint32_t>(s->candidates[chosen]));
}

/* Draws from the largest ones alone; -1 if that is not enough to tell. */
__device__ static int32_t draw_sorted(chooser c, uint32_t count, const step_record &record,
                                      const summary *summaries, const double *totals, const float *largest,
                                      uint32_t span_count, double *sums, sorting *s) {
    bool few = record.top_k > 0 && record.top_k < count;
    uint32_t limit = few ? record.top_k : count, last = UINT32_MAX;
    if ((record.top_k > 0 && limit > FEW) || (!few && record.top_p >= 1 && !(record.min_p > 0)))
        return -1;
    double total = -1;
    if (record.top_k == 0) {
        double mine = 0;
        for (uint32_t i = threadIdx.x; i < span_count; i += CHOOSERS)
            if (summaries[i].id >= 0)
                mine +=
                    totals[i] * exp((static_cast<double>(summaries[i].logit) - c.largest) / c.temperature);
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            mine += __shfl_xor_sync(ALL_LANES, mine, offset);
        if (threadIdx.x % WARP == 0)
            sums[threadIdx.x / WARP] = mine;
        __syncthreads();
        total = 0;
        for (uint32_t i = 0; i < CHOOSERS / WARP; i++)
            total += sums[i];
    }
    chooser of_spans = c;
    of_spans.logits = largest;
    of_spans.vocabulary = span_count;
    bool usable = threadIdx.x < span_count && largest[threadIdx.x] > -CUDART_INF_F;
    uint32_t spans = __syncthreads_count(usable), wanted = limit;
    if (record.top_k == 0)
        wanted = spans < LIKELY_ENOUGH ? spans : LIKELY_ENOUGH;
    if (wanted > 0 && wanted <= spans)
        last = find(of_spans, false, wanted).key;
    if (!gather(c, summaries, span_count, last, s) || (record.top_k > 0 && s->count < limit))
        return -1;
    for (uint32_t i = threadIdx.x; i < s->count; i += CHOOSERS)
        s->shares[i] = c.share(c.logit(s->candidates[i] >> 32));
    __syncthreads();
    if (threadIdx.x == 0)
        s->id = draw_largest(s, limit, total, record);
    __syncthreads();
    return s->id;
}

/* One block. */
__global__ static void choose(const __grid_constant__ cuda_op op, const summary *summaries,
                              const double *totals, const float *largest, const float *logits) {
    __shared__ summary shared_summaries[WARP];
    __shared__ uint64 weights[DIGITS], sums[CHOOSERS];
    __shared__ uint32_t counts[DIGITS];
    __shared__ sorting sorted;
    begin();
    step_record *place = record_of(op.views[0]);
    const step_record record = *place;
    uint32_t vocabulary = op.views[1].columns, spans = cuda_blocks(vocabulary, SPAN);
    summary all = {-CUDART_INF_F, -1, 0, 0};
    for (uint32_t i = threadIdx.x; i < spans; i += CHOOSERS)
        all = merge(all, summaries[i]);
    all = block_merge(all, shared_summaries);
    int32_t id = all.broken ? -1 : all.id;
    if (id >= 0 && record.temperature > 0) {
        chooser c = {logits, vocabulary, UINT32_MAX, all.logit, record.temperature, 0, weights, counts};
        id = draw_sorted(c, all.count, record, summaries, totals, largest, spans,
                         reinterpret_cast<double *>(sums), &sorted);
        if (id < 0)
            id = draw(c, all.count, record, sums);
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    int32_t *generated = int_row(op.views[3], 0);
    if (id >= 0 && (generated[id] & ~STEP_COUNT_IN_PROMPT) < STEP_COUNT_IN_PROMPT - 1)
        generated[id]++;
    int_row(op.views[4], 0)[0] = id;
    place->position = record.position + record.rows;
    place->rows = 1;
    place->draws = record.draws + 1;
    cuda_post_token(op.mailbox, id);
}

/* Summaries, totals and largest logits of the spans, then all logits */
extern "C" uint64_t cuda_generic_sample_workspace(const cuda_op *op, const cuda_device *) {
    uint64_t vocabulary = op->views[1].columns, spans = cuda_blocks(vocabulary, SPAN);
    return spans * (sizeof(summary) + sizeof(double) + sizeof(float)) + vocabulary * sizeof(float);
}

extern "C" cudaError_t cuda_generic_sample(const cuda_op *op, const cuda_device *device, void *workspace,
                                           cudaStream_t stream) {
    uint32_t vocabulary = op->views[1].columns, spans = cuda_blocks(vocabulary, SPAN);
    summary *summaries = static_cast<summary *>(workspace);
    double *totals = reinterpret_cast<double *>(summaries + spans);
    float *largest = reinterpret_cast<float *>(totals + spans), *logits = largest + spans;
    cudaError_t status =
        cuda_launch(adjust, cuda_overlap(device), cuda_blocks(vocabulary, BLOCK / WARP * SPAN), BLOCK, 0,
                    stream, *op, summaries, totals, largest, logits);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(choose, cuda_overlap(device), 1, CHOOSERS, 0, stream, *op, summaries, totals, largest,
                       logits);
}
