/* Choosing the next token: the definition is that of backend/reference/sample.c.
 *
 * Lists in falling order are never made. A place in the list is found digit by digit of the logits' bits,
 * from counts and weights of the 256 values that a digit can have, of all tokens that agree in the digits
 * before. Weights are whole multiples of 2^-44, so that their sums do not depend on the order in which
 * threads add. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 256
#define MAX_BLOCKS 256
#define CHOOSERS 1024
#define DIGITS 256
#define ONE 17592186044416.0 /* 2^44 */

typedef unsigned long long uint64;

/* What a block of tokens says: its best one, whether a logit is NaN or infinity, how many can come. */
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

__global__ static void adjust(const __grid_constant__ cuda_op op, float *logits, summary *summaries) {
    begin();
    __shared__ summary shared[WARP];
    const step_record record = *record_of(op.views[0]);
    summary mine = {-CUDART_INF_F, -1, 0, 0};
    for (uint32_t id = blockIdx.x * BLOCK + threadIdx.x; id < op.views[1].columns; id += gridDim.x * BLOCK) {
        float logit = adjusted(float_row(op.views[1], 0)[id], float_row(op.views[2], 0)[id],
                               int_row(op.views[3], 0)[id], record);
        logits[id] = logit;
        bool comes = logit > -CUDART_INF_F;
        mine = merge(mine, {logit, comes ? static_cast<int32_t>(id) : -1,
                            isnan(logit) || logit == CUDART_INF_F, comes ? 1u : 0u});
    }
    mine = block_merge(mine, shared);
    if (threadIdx.x == 0)
        summaries[blockIdx.x] = mine;
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
        return static_cast<float>(exp(static_cast<double>(__fdiv_rn(logit - largest, temperature))));
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
        if (threadIdx.x == 0) {
            uint32_t digit = 0;
            for (; digit < DIGITS - 1; digit++) {
                uint64 reached = by_weight ? found.weight_before + c.weights[digit]
                                           : static_cast<uint64>(found.count_before) + c.counts[digit];
                if (c.counts[digit] > 0 && reached >= need)
                    break;
                found.count_before += c.counts[digit];
                found.weight_before += c.weights[digit];
            }
            found.key = found.key << 8 | digit;
            found.count = c.counts[digit];
        }
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

/* One block. */
__global__ static void choose(const __grid_constant__ cuda_op op, const float *logits,
                              const summary *summaries, uint32_t summary_count) {
    begin();
    __shared__ summary shared_summaries[WARP];
    __shared__ uint64 weights[DIGITS], sums[CHOOSERS];
    __shared__ uint32_t counts[DIGITS];
    step_record *place = record_of(op.views[0]);
    const step_record record = *place;
    summary none = {-CUDART_INF_F, -1, 0, 0};
    summary all = block_merge(threadIdx.x < summary_count ? summaries[threadIdx.x] : none, shared_summaries);
    int32_t id = all.broken ? -1 : all.id;
    if (id >= 0 && record.temperature > 0) {
        chooser c = {logits, op.views[1].columns, UINT32_MAX, all.logit, record.temperature, 0, weights,
                     counts};
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

static uint32_t blocks_of(const cuda_op *op) {
    unsigned blocks = cuda_blocks(op->views[1].columns, BLOCK);
    return blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
}

/* summaries, logits after penalties */
extern "C" uint64_t cuda_generic_sample_workspace(const cuda_op *op, const cuda_device *) {
    return blocks_of(op) * sizeof(summary) + op->views[1].columns * sizeof(float);
}

extern "C" cudaError_t cuda_generic_sample(const cuda_op *op, const cuda_device *device, void *workspace,
                                           cudaStream_t stream) {
    summary *summaries = static_cast<summary *>(workspace);
    float *logits = reinterpret_cast<float *>(summaries + blocks_of(op));
    cudaError_t status =
        cuda_launch(adjust, cuda_overlap(device), blocks_of(op), BLOCK, 0, stream, *op, logits, summaries);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(choose, cuda_overlap(device), 1, CHOOSERS, 0, stream, *op, logits, summaries,
                       blocks_of(op));
}
