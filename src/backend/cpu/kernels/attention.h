/* Attention of rows of queries over the KV cache, block by block of positions. A template: see
 * attention_table.h.
 *
 * Rows are taken in tiles of TILE_ROWS, which share what is read of a key or a value (attention_tile.h).
 * Scores and weights lie with the rows of a tile side by side, so that a vector of them belongs to different
 * rows and needs no sums across lanes. Rows and elements are filled up with zeros to whole tiles. Elements of
 * queries, keys, values and sums are in the order of attention_tile.h; results are put in order at the end.
 */
#ifndef CALLA_BACKEND_CPU_KERNELS_ATTENTION_H
#define CALLA_BACKEND_CPU_KERNELS_ATTENTION_H

#include <float.h>
#include <math.h>

#include "backend/cpu/kernels/attention_tile.h"

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Keys whose widened copies stay in the first cache while all tiles meet them. */
#define KEYS_AT_ONCE 16

/* The rows of one KV head and what is computed for them, in a thread's workspace. `rows` and `depth` are the
 * numbers of rows and of elements, filled up to whole tiles. */
struct attention_state {
    const struct attention_rows *of;
    size_t head; /* of of->kv_heads */
    size_t rows, depth;
    float *keys;   /* [KEYS_AT_ONCE][depth]: widened. All heads use the same memory */
    float *values; /* [depth / TILE_LANES][ATTENTION_BLOCK][TILE_LANES]: a block's; the same */
    float *q;      /* [rows / TILE_ROWS][depth / LANES][TILE_ROWS][LANES], times size^-0.5 */
    float *out; /* [rows / TILE_ROWS][depth / TILE_LANES][TILE_ROWS][TILE_LANES]: weights times values, of a
                   span */
    float *weights; /* [rows / TILE_ROWS][ATTENTION_BLOCK][TILE_ROWS]: scores of a block, then weights */
    float *largest; /* [rows / TILE_ROWS][TILE_STEP]: score, of a span */
    float *sums;    /* [rows / TILE_ROWS][TILE_STEP]: weights, of a span, even and odd keys apart */
    float *total;   /* [rows][attention_partial_floats]: of all spans so far */
};

/* Bytes of the states' own, and floats of all heads and of each. */
static size_t states_bytes(size_t kv_heads) {
    return round_up(kv_heads * sizeof(struct attention_state), 64);
}

static size_t common_floats(size_t depth) {
    return (KEYS_AT_ONCE + ATTENTION_BLOCK) * depth;
}

static size_t head_floats(size_t rows, size_t size) {
    return rows * (2 * round_up(size, TILE_LANES) + ATTENTION_BLOCK + attention_partial_floats(size)) +
           2 * rows / TILE_ROWS * TILE_STEP;
}

static size_t attention_workspace_bytes(size_t rows, size_t size, size_t kv_heads) {
    return states_bytes(kv_heads) + (common_floats(round_up(size, TILE_LANES)) +
                                     kv_heads * head_floats(round_up(rows, TILE_ROWS), size)) *
                                        sizeof(float);
}

/* The row of q, gate and y that is a state's. */
static size_t row_of(const struct attention_state *state, size_t row) {
    const struct attention_rows *of = state->of;
    return of->row + state->head * of->group + row / of->group * of->heads + row % of->group;
}

static void attention_begin(struct attention_state *state, float *common, float *own) {
    const struct attention_rows *of = state->of;
    size_t rows = state->rows = round_up(of->tokens * of->group, TILE_ROWS);
    size_t depth = state->depth = round_up(of->size, TILE_LANES);
    state->keys = common;
    state->values = state->keys + KEYS_AT_ONCE * depth;
    state->q = own;
    state->out = state->q + rows * depth;
    state->weights = state->out + rows * depth;
    state->largest = state->weights + rows * ATTENTION_BLOCK;
    state->sums = state->largest + rows / TILE_ROWS * TILE_STEP;
    state->total = state->sums + rows / TILE_ROWS * TILE_STEP;

    vector scale = vector_of(1.0f / sqrtf((float)of->size));
    memset(state->q, 0, rows * depth * sizeof *state->q);
    for (size_t row = 0; row < of->tokens * of->group; row++) {
        const float *q = float_row(of->q, row_of(state, row));
        float *packed = state->q + row / TILE_ROWS * TILE_ROWS * depth + row % TILE_ROWS * LANES;
        for (size_t d = 0; d < of->size; d += TILE_LANES, packed += TILE_ROWS * TILE_LANES) {
            vector low = vector_load_first(q + d, of->size - d), high = vector_of(0);
            if (d + LANES < of->size)
                high = vector_load_first(q + d + LANES, of->size - d - LANES);
            vector_store(packed, SHUFFLE(low, high, EVENS) * scale);
            vector_store(packed + TILE_ROWS * LANES, SHUFFLE(low, high, ODDS) * scale);
        }
    }
}

/* The states of all KV heads of the rows. */
static struct attention_state *states_begin(const struct attention_rows *of, void *workspace) {
    struct attention_state *states = workspace;
    float *common = (float *)((char *)workspace + states_bytes(of->kv_heads));
    float *own = common + common_floats(round_up(of->size, TILE_LANES));
    for (size_t head = 0; head < of->kv_heads; head++) {
        states[head] = (struct attention_state){.of = of, .head = head};
        attention_begin(&states[head], common, own);
        own += head_floats(states[head].rows, of->size);
    }
    return states;
}

/* Positions from `first` on that a row sees, `count` at most. A row past the last counts as one of the last
 * token's. */
static size_t keys_seen(const struct attention_state *state, size_t row, size_t first, size_t count) {
    size_t token = row / state->of->group, last = state->of->tokens - 1;
    size_t end = state->of->position + (token < last ? token : last) + 1;
    return end > first ? smaller(end - first, count) : 0;
}

static size_t element_bytes(const struct view *cache) {
    return cache->dtype == DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* Elements of the cache row of a position, in the columns of the state's KV head. */
static const unsigned char *cached(const struct attention_state *state, const struct view *cache,
                                   size_t position) {
    return cache->bytes + (position * cache->stride + state->of->column + state->head * state->of->size) *
                              element_bytes(cache);
}

/* Whether keys and values are widened as they are read: a copy would be used but once. */
static bool read_in_place(const struct attention_state *state, const struct view *cache) {
    return state->rows == TILE_ROWS && cache->dtype == DTYPE_BF16 && state->of->size == state->depth;
}

/* The columns of all KV heads: `state` is the first's. */
static struct prefetch prefetch_of(const struct attention_state *state, const struct view *cache,
                                   size_t first, size_t count) {
    return (struct prefetch){.row = cached(state, cache, first),
                             .row_bytes = state->of->kv_heads * state->of->size * element_bytes(cache),
                             .stride = cache->stride * element_bytes(cache),
                             .rows_left = count};
}

/* A row of a block's cache as float32: each TILE_LANES elements, the even ones first, `stride` floats apart.
 */
static inline void widen(const struct attention_state *state, const unsigned char *row, enum dtype dtype,
                         float *out, size_t stride) {
    size_t whole = state->of->size / TILE_LANES * TILE_LANES;
    if (dtype == DTYPE_BF16) {
        for (size_t d = 0; d < whole; d += TILE_LANES, out += stride) {
            int_vector pairs = bits_load(row + d * sizeof(uint16_t));
            vector_store(out, evens_of(pairs));
            vector_store(out + LANES, odds_of(pairs));
        }
    } else {
        for (size_t d = 0; d < whole; d += TILE_LANES, out += stride) {
            int_vector low = bits_load(row + d * sizeof(float));
            int_vector high = bits_load(row + (d + LANES) * sizeof(float));
            vector_store(out, vector_from_bits(SHUFFLE(low, high, EVENS)));
            vector_store(out + LANES, vector_from_bits(SHUFFLE(low, high, ODDS)));
        }
    }
    for (size_t d = whole; d < state->depth; d++)
        out[d % 2 * LANES + (d - whole) / 2] = d < state->of->size ? float_load(row, dtype, d) : 0;
}

/* The scores of a block of positions. */
static void block_scores(struct attention_state *state, size_t first, size_t count, struct prefetch *next) {
    const struct view *cache = state->of->keys;
    size_t depth = state->depth, stride = cache->stride * element_bytes(cache);
    if (read_in_place(state, cache)) {
        score_tile_bf16(state->q, cached(state, cache, first), stride, count, depth, state->weights, next);
        return;
    }
    for (size_t k = 0; k < count; k += KEYS_AT_ONCE) {
        size_t keys = smaller(count - k, KEYS_AT_ONCE);
        for (size_t i = 0; i < keys; i++)
            widen(state, cached(state, cache, first + k + i), cache->dtype, state->keys + i * depth,
                  TILE_LANES);
        for (size_t row = 0; row < state->rows; row += TILE_ROWS)
            if (keys_seen(state, row + TILE_ROWS - 1, first, count) > k)
                score_tile(state->q + row * depth, (const unsigned char *)state->keys, depth * sizeof(float),
                           keys, depth, state->weights + row * ATTENTION_BLOCK + k * TILE_ROWS, next);
    }
}

#define OUT_STEP (TILE_ROWS * TILE_LANES)

/* The first TILE_LANES elements of a row of `out`; the next are OUT_STEP floats further. */
static float *out_of(const struct attention_state *state, size_t row) {
    return state->out + row / TILE_ROWS * TILE_ROWS * state->depth + row % TILE_ROWS * TILE_LANES;
}

/* The scores of a tile's rows become weights exp(score - largest), those of positions that a row does not see
 * zero; the rows' sums so far are scaled to the new largest scores. These start from a finite number, so that
 * scores of -infinity weigh nothing, and pass NaN over: they are in the weights. */
static void tile_weights(struct attention_state *state, size_t tile, size_t first, size_t count) {
    size_t keys = keys_seen(state, tile + TILE_ROWS - 1, first, count), end = round_up(keys, 2);
    float *weights = state->weights + tile * ATTENTION_BLOCK, scales[TILE_STEP];
    if (keys_seen(state, tile, first, count) < end)
        for (size_t row = 0; row < TILE_ROWS; row++)
            for (size_t k = keys_seen(state, tile + row, first, count); k < end; k++)
                weights[k * TILE_ROWS + row] = -INFINITY;
    for (size_t lane = 0; lane < TILE_STEP; lane += LANES) {
        float *largest = state->largest + tile / TILE_ROWS * TILE_STEP + lane;
        float *sums = state->sums + tile / TILE_ROWS * TILE_STEP + lane;
        vector before = vector_load(largest), now = before;
        for (size_t i = lane; i < end * TILE_ROWS; i += TILE_STEP)
            now = vector_max(vector_load(weights + i), now);
        if (LANES > TILE_ROWS)
            now = vector_max(SHUFFLE(now, now, HALVES_SWAPPED), now);
        vector scale = vector_exp(before - now), sum = vector_load(sums) * scale;
        for (size_t i = lane; i < end * TILE_ROWS; i += TILE_STEP) {
            vector weight = vector_exp(vector_load(weights + i) - now);
            vector_store(weights + i, weight);
            sum = sum + weight;
        }
        vector_store(largest, now);
        vector_store(sums, sum);
        vector_store(scales + lane, scale);
    }
    for (size_t row = 0; row < TILE_ROWS; row++) {
        float *out = out_of(state, tile + row);
        for (size_t d = 0; scales[row] != 1 && d < state->depth; d += TILE_LANES, out += OUT_STEP) {
            vector_store(out, vector_load(out) * scales[row]);
            vector_store(out + LANES, vector_load(out + LANES) * scales[row]);
        }
    }
}

/* The values of a block, weighted. Positions that a row does not see are left out, for they may be no
 * numbers.
 */
static void block_mix(struct attention_state *state, size_t first, size_t count, struct prefetch *next) {
    const struct view *cache = state->of->values;
    size_t depth = state->depth, stride = cache->stride * element_bytes(cache);
    if (read_in_place(state, cache) && keys_seen(state, 0, first, count) == count) {
        const unsigned char *values = cached(state, cache, first);
        for (size_t d = 0; d < depth; d += TILE_LANES)
            mix_tile_bf16(state->weights, values + d * sizeof(uint16_t), stride, count,
                          state->out + d * TILE_ROWS, next);
        return;
    }
    for (size_t k = 0; k < count; k++)
        widen(state, cached(state, cache, first + k), cache->dtype, state->values + k * TILE_LANES,
              TILE_LANES * ATTENTION_BLOCK);
    for (size_t d = 0; d < depth; d += TILE_LANES) {
        const float *values = state->values + d * ATTENTION_BLOCK;
        for (size_t tile = 0; tile < state->rows; tile += TILE_ROWS) {
            const float *weights = state->weights + tile * ATTENTION_BLOCK;
            float *out = state->out + tile * depth + d * TILE_ROWS;
            size_t seen = keys_seen(state, tile, first, count);
            if (seen == keys_seen(state, tile + TILE_ROWS - 1, first, count)) {
                mix_tile(weights, values, seen, out, next);
                continue;
            }
            for (size_t row = 0; row < TILE_ROWS; row++)
                mix_row(weights + row, values, keys_seen(state, tile + row, first, count),
                        out + row * TILE_LANES, next);
        }
    }
}

/* The positions from `begin` to before `end`, of one span, in all heads. The cache is read row by row through
 * all of them, as it lies; the block after the one at hand is fetched meanwhile. */
static void span_pass(struct attention_state *states, size_t begin, size_t end) {
    const struct attention_rows *of = states->of;
    size_t rows = states->rows, lanes = rows / TILE_ROWS * TILE_STEP;
    for (size_t head = 0; head < of->kv_heads; head++) {
        memset(states[head].out, 0, rows * states->depth * sizeof(float));
        memset(states[head].sums, 0, lanes * sizeof(float));
        for (size_t lane = 0; lane < lanes; lane++)
            states[head].largest[lane] = -FLT_MAX;
    }
    for (size_t first = begin; first < end; first += ATTENTION_BLOCK) {
        size_t count = smaller(end - first, ATTENTION_BLOCK), after = first + count;
        size_t next_count = smaller(of->position + of->tokens - after, ATTENTION_BLOCK);
        struct prefetch next = prefetch_of(states, of->keys, after, next_count);
        for (size_t head = 0; head < of->kv_heads; head++) {
            block_scores(&states[head], first, count, &next);
            for (size_t tile = 0; tile < rows; tile += TILE_ROWS)
                if (keys_seen(&states[head], tile + TILE_ROWS - 1, first, count) > 0)
                    tile_weights(&states[head], tile, first, count);
        }
        next = prefetch_of(states, of->values, after, next_count);
        for (size_t head = 0; head < of->kv_heads; head++)
            block_mix(&states[head], first, count, &next);
    }
}

static float largest_of(const struct attention_state *state, size_t row) {
    return state->largest[row / TILE_ROWS * TILE_STEP + row % TILE_ROWS];
}

static float sum_of(const struct attention_state *state, size_t row) {
    const float *sums = state->sums + row / TILE_ROWS * TILE_STEP + row % TILE_ROWS;
    return TILE_STEP > TILE_ROWS ? sums[0] + sums[TILE_ROWS] : sums[0];
}

static void partial_clear(float *total, size_t size) {
    memset(total, 0, attention_partial_floats(size) * sizeof *total);
    total[PARTIAL_LARGEST] = -FLT_MAX;
}

/* Adds a span's result to those before it: both are scaled to the larger of their largest scores. `values`
 * are TILE_LANES elements and the next `stride` floats further. */
static void partial_add(float *total, float largest, float sum, const float *values, size_t stride,
                        size_t size) {
    float before = total[PARTIAL_LARGEST], now = largest > before ? largest : before;
    vector keep = vector_exp(vector_of(before - now)), add = vector_exp(vector_of(largest - now));
    total[PARTIAL_LARGEST] = now;
    total[PARTIAL_TOTAL] = total[PARTIAL_TOTAL] * keep[0] + sum * add[0];
    float *to = total + PARTIAL_VALUES;
    for (size_t d = 0; d < size; d += TILE_LANES, values += stride, to += TILE_LANES)
        for (size_t half = 0; half < TILE_LANES; half += LANES)
            vector_store(to + half,
                         vector_fma(vector_load(values + half), add, vector_load(to + half) * keep));
}

/* y[size] = values / total * sigmoid(gate), in order again */
static void partial_end(const float *total, const float *gate, size_t size, float *y) {
    vector divisor = vector_of(total[PARTIAL_TOTAL]);
    for (size_t i = 0; i < size; i += TILE_LANES) {
        vector evens = vector_load(total + PARTIAL_VALUES + i) / divisor;
        vector odds = vector_load(total + PARTIAL_VALUES + i + LANES) / divisor;
        vector halves[] = {SHUFFLE(evens, odds, LOW_MERGED), SHUFFLE(evens, odds, HIGH_MERGED)};
        for (size_t half = 0, at = i; half < 2 && at < size; half++, at += LANES) {
            vector open = vector_sigmoid(vector_load_first(gate + at, size - at));
            vector_store_first(y + at, halves[half] * open, size - at);
        }
    }
}

static void partial_add_rows(struct attention_state *state, size_t begin) {
    size_t stride = attention_partial_floats(state->of->size);
    for (size_t row = 0; row < state->of->tokens * state->of->group; row++)
        if (keys_seen(state, row, begin, 1) > 0)
            partial_add(state->total + row * stride, largest_of(state, row), sum_of(state, row),
                        out_of(state, row), OUT_STEP, state->of->size);
}

static void attend(const struct attention_rows *rows, void *workspace) {
    struct attention_state *states = states_begin(rows, workspace);
    size_t stride = attention_partial_floats(rows->size), count = rows->tokens * rows->group;
    size_t end = rows->position + rows->tokens;
    for (size_t head = 0; head < rows->kv_heads; head++)
        for (size_t row = 0; row < count; row++)
            partial_clear(states[head].total + row * stride, rows->size);
    for (size_t begin = 0; begin < end; begin += ATTENTION_SPAN) {
        span_pass(states, begin, smaller(begin + ATTENTION_SPAN, end));
        for (size_t head = 0; head < rows->kv_heads; head++)
            partial_add_rows(&states[head], begin);
    }
    for (size_t head = 0; head < rows->kv_heads; head++)
        for (size_t row = 0; row < count; row++) {
            size_t at = row_of(&states[head], row);
            partial_end(states[head].total + row * stride, float_row(rows->gate, at), rows->size,
                        float_row(rows->y, at));
        }
}

static void attend_span(const struct attention_rows *rows, size_t begin, size_t end, float *partial,
                        void *workspace) {
    struct attention_state *states = states_begin(rows, workspace);
    span_pass(states, begin, end);
    for (size_t head = 0; head < rows->kv_heads; head++)
        for (size_t row = 0; row < rows->group; row++, partial += attention_partial_floats(rows->size)) {
            partial[PARTIAL_LARGEST] = largest_of(&states[head], row);
            partial[PARTIAL_TOTAL] = sum_of(&states[head], row);
            const float *out = out_of(&states[head], row);
            for (size_t d = 0; d < states->depth; d += TILE_LANES, out += OUT_STEP)
                memcpy(partial + PARTIAL_VALUES + d, out, TILE_LANES * sizeof *out);
        }
}

static void combine(const float *partial, size_t stride, size_t spans, size_t size, const float *gate,
                    float *y, void *workspace) {
    float *total = workspace;
    partial_clear(total, size);
    for (size_t span = 0; span < spans; span++) {
        const float *from = partial + span * stride;
        partial_add(total, from[PARTIAL_LARGEST], from[PARTIAL_TOTAL], from + PARTIAL_VALUES, TILE_LANES,
                    size);
    }
    partial_end(total, gate, size, y);
}

#endif
