/* Choosing the next token from its logits, by the rules of reference/sample.c.
 *
 * All threads pass over the logits once or twice: penalties, bias and the largest of each group of them;
 * then, if the weights of all count, their sum in each group. What is kept by top-k, top-p or min-p is a
 * beginning of the list in falling order. The n-th largest of the groups' largest is a bound that at least n
 * logits reach, usually few more: only groups that reach it are looked at, and only those logits are sorted.
 */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/reference/sample.h"

#define GROUP 256       /* logits */
#define UNIT_GROUPS 16  /* groups a unit */
#define FIRST_SEARCH 64 /* the n that top-p and min-p without top-k begin with */
#define NEXT_SEARCH 8   /* and how many times more they try next */

/* The op's shared memory. */
struct sampling {
    float *logits;                   /* [V] adjusted */
    struct logit_summary *summaries; /* of each group */
    float *sums, *sorted;            /* of each group */
    struct candidate *candidates;    /* [V] */
    size_t count, groups;
    const struct step_record *record;
};

static size_t group_count(const struct cpu_task *task) {
    return (task->op->views[1].columns + GROUP - 1) / GROUP;
}

static struct sampling sampling_of(const struct cpu_task *task) {
    struct sampling s = {.count = task->op->views[1].columns,
                         .groups = group_count(task),
                         .record = record_of(&task->op->views[0])};
    s.candidates = task->shared;
    s.summaries = (struct logit_summary *)(s.candidates + s.count);
    s.logits = (float *)(s.summaries + s.groups);
    s.sums = s.logits + s.count;
    s.sorted = s.sums + s.groups;
    return s;
}

static size_t sample_shared(const struct cpu_task *task) {
    return task->op->views[1].columns * (sizeof(struct candidate) + sizeof(float)) +
           group_count(task) * (sizeof(struct logit_summary) + 2 * sizeof(float));
}

static size_t sample_units(const struct cpu_task *task) {
    return (group_count(task) + UNIT_GROUPS - 1) / UNIT_GROUPS;
}

static size_t group_size(const struct sampling *s, size_t group) {
    return s->count - group * GROUP < GROUP ? s->count - group * GROUP : GROUP;
}

static size_t unit_end(const struct sampling *s, size_t end) {
    return end * UNIT_GROUPS < s->groups ? end * UNIT_GROUPS : s->groups;
}

/* The logits of a group after penalties and bias, into `out` unless it is NULL. */
static struct logit_summary adjust_group(const struct cpu_task *task, const struct sampling *s, size_t group,
                                         float *out) {
    size_t first = group * GROUP;
    return task->kernels->vector->adjust_logits(
        float_row(&task->op->views[1], 0) + first, float_row(&task->op->views[2], 0) + first,
        int_row(&task->op->views[3], 0) + first, s->record, out, group_size(s, group));
}

static void sample_prepare(const struct cpu_task *task, size_t begin, size_t end) {
    struct sampling s = sampling_of(task);
    bool greedy = !(s.record->temperature > 0);
    for (size_t group = begin * UNIT_GROUPS; group < unit_end(&s, end); group++) {
        s.summaries[group] = adjust_group(task, &s, group, greedy ? NULL : s.logits + group * GROUP);
    }
}

/* Of all groups. */
static struct logit_summary summary_of(const struct sampling *s) {
    struct logit_summary all = {.largest = -INFINITY};
    for (size_t group = 0; group < s->groups; group++) {
        const struct logit_summary *part = &s->summaries[group];
        all.largest = part->largest > all.largest ? part->largest : all.largest;
        all.count += part->count;
        all.broken |= part->broken;
    }
    return all;
}

/* Whether a draw is among all tokens, so that the sum of all weights is needed. */
static bool draws_from_all(const struct sampling *s, const struct logit_summary *all) {
    return s->record->temperature > 0 && !all->broken && all->count > 0 &&
           (s->record->top_k == 0 || s->record->top_k >= all->count);
}

static void sample_run(const struct cpu_task *task, size_t begin, size_t end) {
    struct sampling s = sampling_of(task);
    struct logit_summary all = summary_of(&s);
    if (!draws_from_all(&s, &all))
        return;
    for (size_t group = begin * UNIT_GROUPS; group < unit_end(&s, end); group++)
        s.sums[group] = task->kernels->vector->sum_weights(s.logits + group * GROUP, all.largest,
                                                           s.record->temperature, group_size(&s, group));
}

/* The first of the largest; only of its group are the adjusted logits kept. */
static int32_t pick_largest(const struct cpu_task *task, const struct sampling *s, float largest) {
    size_t group = 0;
    while (s->summaries[group].largest < largest)
        group++;
    size_t id = group * GROUP;
    adjust_group(task, s, group, s->logits + id);
    while (s->logits[id] < largest)
        id++;
    return (int32_t)id;
}

/* The token in which `target` falls when the weights of all are laid end to end. */
static int32_t pick_from_all(const struct sampling *s, float largest, double target) {
    size_t group = 0, last = 0;
    double sum = 0;
    for (; group < s->groups; group++) {
        if (s->sums[group] > 0)
            last = group;
        if (sum + s->sums[group] > target)
            break;
        sum += s->sums[group];
    }
    int32_t id = -1;
    if (group == s->groups) {
        /* Rounding left the target past the end: the last token that has a weight. */
        group = last;
        sum = -INFINITY;
    }
    for (size_t i = group * GROUP; i < group * GROUP + group_size(s, group); i++) {
        double weight = expf((s->logits[i] - largest) / s->record->temperature);
        if (weight > 0)
            id = (int32_t)i;
        sum += weight;
        if (sum > target)
            break;
    }
    return id;
}

/* The n-th largest of values[count], 1 <= n <= count, which it reorders. */
static float nth_largest(float *values, size_t count, size_t n) {
    size_t low = 0, high = count - 1, wanted = n - 1;
    while (low < high) {
        float pivot = values[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;;) {
            while (values[i] > pivot)
                i++;
            while (values[j] < pivot)
                j--;
            if (i >= j)
                break;
            float swapped = values[i];
            values[i++] = values[j];
            values[j--] = swapped;
        }
        if (wanted <= j)
            high = j;
        else
            low = j + 1;
    }
    return values[wanted];
}

/* The logits that are no less than the n-th largest of the groups' largest; all where there are fewer. */
static size_t gather_largest(const struct sampling *s, size_t n) {
    float bound = -INFINITY;
    if (n <= s->groups) {
        for (size_t group = 0; group < s->groups; group++)
            s->sorted[group] = s->summaries[group].largest;
        bound = nth_largest(s->sorted, s->groups, n);
    }
    size_t count = 0;
    for (size_t group = 0; group < s->groups; group++) {
        if (s->summaries[group].largest < bound)
            continue;
        for (size_t i = group * GROUP; i < group * GROUP + group_size(s, group); i++)
            if (s->logits[i] >= bound && s->logits[i] > -INFINITY)
                s->candidates[count++] = (struct candidate){s->logits[i], (int32_t)i};
    }
    return count;
}

static int32_t choose(const struct cpu_task *task, const struct sampling *s) {
    const struct step_record *record = s->record;
    struct logit_summary all = summary_of(s);
    if (all.broken || all.count == 0)
        return -1;
    if (!(record->temperature > 0))
        return pick_largest(task, s, all.largest);
    if (!draws_from_all(s, &all))
        return sample_draw_largest(s->candidates, gather_largest(s, record->top_k), record->top_k, -1,
                                   record);
    double total = 0;
    for (size_t group = 0; group < s->groups; group++)
        total += s->sums[group];
    if (record->top_p >= 1 && record->min_p <= 0)
        return pick_from_all(s, all.largest, sample_uniform(record->seed, record->draws) * total);
    for (size_t n = FIRST_SEARCH;; n *= NEXT_SEARCH) {
        size_t count = gather_largest(s, n);
        int32_t id = sample_draw_largest(s->candidates, count, all.count, total, record);
        if (id >= 0 || count == all.count)
            return id;
    }
}

/* record, logits[1,V], bias[V], counts[V] -> record, counts, tokens[1] */
static void sample_finish(const struct cpu_task *task) {
    struct sampling s = sampling_of(task);
    struct step_record *record = record_of(&task->op->views[0]);
    int32_t *counts = int_row(&task->op->views[3], 0), id = choose(task, &s);
    if (id >= 0 && (counts[id] & ~STEP_COUNT_IN_PROMPT) < STEP_COUNT_IN_PROMPT - 1)
        counts[id]++;
    int_row(&task->op->views[4], 0)[0] = id;
    record->position += record->rows;
    record->rows = 1;
    record->draws++;
}

const struct cpu_op cpu_sample = {.units = sample_units,
                                  .run = sample_run,
                                  .prepare_units = sample_units,
                                  .prepare = sample_prepare,
                                  .finish = sample_finish,
                                  .shared_bytes = sample_shared};
