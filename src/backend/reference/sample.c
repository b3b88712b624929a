/* Choosing the next token from its logits.
 *
 * The order is that of transformers and vLLM: repetition penalty, presence and frequency penalty, bias,
 * temperature, top-k, top-p, min-p. Each of the last three keeps a beginning of the list of tokens in falling
 * order of their logits (the lower id first on a tie), so one heap that gives up its largest until the
 * first of them says enough does for all. */
#include "backend/reference/sample.h"

#include "backend/reference/reference.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

double sample_uniform(uint64_t seed, uint32_t draw) {
    uint64_t increment = 0x9e3779b97f4a7c15u;
    uint64_t bits = mix(mix(seed + increment) + ((uint64_t)draw + 1) * increment);
    return (double)(bits >> 11) * 0x1p-53;
}

static bool comes_before(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct candidate *heap, size_t count, size_t parent) {
    struct candidate moving = heap[parent];
    for (size_t child; (child = 2 * parent + 1) < count; parent = child) {
        if (child + 1 < count && comes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!comes_before(&heap[child], &moving))
            break;
        heap[parent] = heap[child];
    }
    heap[parent] = moving;
}

/* Moves the first of heap[0 .. *count) to its end and makes the heap one smaller. */
static struct candidate *pop(struct candidate *heap, size_t *count) {
    struct candidate first = heap[0];
    heap[0] = heap[--*count];
    sift_down(heap, *count, 0);
    heap[*count] = first;
    return &heap[*count];
}

static double weight_of(const struct candidate *candidate, float largest, float temperature) {
    return expf((candidate->logit - largest) / temperature);
}

/* The candidate in which `target` falls when their weights are laid end to end, from the first to the last in
 * steps of `step`. */
static int32_t pick(const struct candidate *first, size_t count, ptrdiff_t step, double target, float largest,
                    float temperature) {
    int32_t id = first->id;
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        const struct candidate *candidate = first + (ptrdiff_t)i * step;
        double weight = weight_of(candidate, largest, temperature);
        if (weight > 0)
            id = candidate->id;
        sum += weight;
        if (sum > target)
            break;
    }
    return id;
}

int32_t sample_draw_largest(struct candidate *candidates, size_t count, size_t limit, double total,
                            const struct step_record *record) {
    float temperature = record->temperature, largest = -INFINITY;
    for (size_t i = 0; i < count; i++)
        largest = candidates[i].logit > largest ? candidates[i].logit : largest;
    size_t heap = count;
    for (size_t i = count / 2; i-- > 0;)
        sift_down(candidates, count, i);
    if (total < 0) {
        total = 0;
        for (size_t i = 0; i < limit; i++)
            total += weight_of(pop(candidates, &heap), largest, temperature);
    }
    /* The kept ones lie at the end, the largest last. */
    size_t kept = 0;
    double sum = 0;
    for (; kept < limit; kept++) {
        if (kept == count)
            return -1;
        if (count - heap == kept)
            pop(candidates, &heap);
        double weight = weight_of(&candidates[count - 1 - kept], largest, temperature);
        if (kept > 0 && (sum >= record->top_p * total || weight < record->min_p))
            break;
        sum += weight;
    }
    double target = sample_uniform(record->seed, record->draws) * sum;
    return pick(&candidates[count - 1], kept, -1, target, largest, temperature);
}

int32_t sample_draw(struct candidate *candidates, size_t count, const struct step_record *record) {
    if (count == 0)
        return -1;
    if (record->top_k > 0 && record->top_k < count)
        return sample_draw_largest(candidates, count, record->top_k, -1, record);
    float largest = -INFINITY;
    for (size_t i = 0; i < count; i++)
        largest = candidates[i].logit > largest ? candidates[i].logit : largest;
    double total = 0;
    for (size_t i = 0; i < count; i++)
        total += weight_of(&candidates[i], largest, record->temperature);
    if (record->top_p < 1 || record->min_p > 0)
        return sample_draw_largest(candidates, count, count, total, record);
    double target = sample_uniform(record->seed, record->draws) * total;
    return pick(candidates, count, 1, target, largest, record->temperature);
}

/* The logit after penalties and bias. */
static float adjusted(float logit, float bias, int32_t count, const struct step_record *record) {
    if (count != 0)
        logit = logit > 0 ? logit / record->repetition_penalty : logit * record->repetition_penalty;
    int32_t generated = count & ~STEP_COUNT_IN_PROMPT;
    if (generated > 0)
        logit -= record->presence_penalty + record->frequency_penalty * (float)generated;
    return logit + bias;
}

/* record, logits[1,V], bias[V], counts[V] -> record, counts, tokens[1]: one id.
 * - l = logit; where counts is not 0 (prompt or reply): l / repetition_penalty if l > 0, else l *
 *   repetition_penalty; where it was generated n > 0 times: l -= presence_penalty + n frequency_penalty;
 *   l += bias.
 * - If an l is NaN or +infinity the id is -1, also if all are -infinity; an id of l = -infinity never comes.
 * - temperature 0: the largest l, the lowest id on a tie. Otherwise an id with probability proportional to
 *   exp(l / temperature) among those kept: the top_k largest (0: all); of these the fewest whose probability
 *   reaches top_p; of these the ones with at least min_p times the largest's.
 * - Then counts[id] += 1, position += rows, rows = 1, draws += 1.
 * Unit: all of it. */
void reference_sample(const struct bound_op *op, size_t begin, size_t end, void *workspace) {
    if (begin == end)
        return;
    struct step_record *record = record_of(&op->views[0]);
    const float *logits = float_row(&op->views[1], 0), *bias = float_row(&op->views[2], 0);
    int32_t *counts = int_row(&op->views[3], 0);
    struct candidate *candidates = workspace, best = {-INFINITY, -1};
    size_t count = 0;
    bool broken = false;
    for (size_t id = 0; id < op->views[1].columns; id++) {
        struct candidate candidate = {adjusted(logits[id], bias[id], counts[id], record), (int32_t)id};
        broken |= isnan(candidate.logit) || candidate.logit == INFINITY;
        if (candidate.logit > best.logit)
            best = candidate;
        if (candidate.logit > -INFINITY)
            candidates[count++] = candidate;
    }
    int32_t id = best.id;
    if (broken)
        id = -1;
    else if (record->temperature > 0)
        id = sample_draw(candidates, count, record);
    if (id >= 0 && (counts[id] & ~STEP_COUNT_IN_PROMPT) < STEP_COUNT_IN_PROMPT - 1)
        counts[id]++;
    int_row(&op->views[4], 0)[0] = id;
    record->position += record->rows;
    record->rows = 1;
    record->draws++;
}
