/* What is measured, held against the plan: the bytes and FLOPs of every chunk and step at its position, and
 * the least time that the machine needs for them. Also whether a length has room at all. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/model_path.h"
#include "model/forward.h"
#include "plan/plan_print.h"

bool bench_cost_open(struct bench *bench, struct calla_error *error) {
    bool bundled;
    bench->path = model_path(bench->model.model, &bundled, error);
    return bench->path != NULL && config_read(&bench->config, bench->path, error) &&
           (bench->have_weights = weights_open(&bench->weights, &bench->config, bench->path, error));
}

static bool has_phase(const struct bench *bench, enum bench_phase phase, uint32_t length) {
    return lengths_contain(&bench->lengths[phase], length);
}

/* The first decoded token is drawn from the prompt's logits; each further one is read at the next position.
 */
static uint64_t needed_context(const struct bench *bench, uint32_t length) {
    return length + (has_phase(bench, BENCH_DECODE, length) ? bench->tokens : 0);
}

uint32_t bench_context(const struct bench *bench, uint32_t length) {
    return bench->model.context > 0 ? (uint32_t)bench->model.context
                                    : (uint32_t)needed_context(bench, length);
}

/* Bytes of a session with room for `context` positions and of its largest plan's scratch memory. */
static bool session_memory(const struct bench *bench, uint32_t context, uint32_t rows, uint64_t *bytes,
                           struct calla_error *error) {
    struct session_layout layout = {0};
    struct plan plan = {0};
    struct forward_options options = {.rows = rows, .logits = LOGITS_LAST};
    bool ok =
        forward_layout(&layout, &bench->config, &bench->policy, context, error) &&
        forward_plan(&plan, &bench->config, &bench->weights.table, &bench->policy, context, &options, error);
    *bytes = 0;
    for (uint32_t i = 0; ok && i < layout.state_count; i++)
        *bytes += buffer_shape_bytes(&layout.state[i]);
    for (uint32_t i = 0; ok && i < layout.kv_count; i++)
        *bytes += buffer_shape_bytes(&layout.kv[i]);
    for (uint32_t i = 0; ok && i < STEP_BUFFER_COUNT; i++)
        *bytes += buffer_shape_bytes(&layout.step[i]);
    for (uint32_t i = 0; ok && i < plan.scratch_count; i++)
        *bytes += buffer_shape_bytes(&plan.scratch[i]);
    plan_free(&plan);
    session_layout_free(&layout);
    return ok;
}

static bool check_length(const struct bench *bench, enum bench_phase phase, uint32_t length,
                         struct calla_error *error) {
    static const char *const options[] = {"--prefill", "--decode"};
    uint64_t needed = needed_context(bench, length), limit = bench->config.context_limit;
    char more[64] = "";
    if (needed > length)
        snprintf(more, sizeof more, " and %llu decoded tokens", (unsigned long long)bench->tokens);
    if (needed > limit)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: %u tokens%s do not fit: this model was made for a context of %llu.",
                         options[phase], length, more, (unsigned long long)limit);
    uint32_t context = bench_context(bench, length);
    if (needed > context)
        return error_set(error, CALLA_BAD_INPUT, "%s: %u tokens%s do not fit into --context %u.",
                         options[phase], length, more, context);
    uint64_t bytes, memory = bench->device.memory, weights = bench->weights.bytes;
    uint32_t rows = length < bench->policy.chunk_rows ? length : bench->policy.chunk_rows;
    if (!session_memory(bench, context, rows, &bytes, error))
        return false;
    /* A model that is larger than the memory is read from its file again and again, and can be measured. */
    uint64_t left = weights < memory ? memory - weights : memory / 2;
    if (memory > 0 && bytes > left)
        return error_set(error, CALLA_OUT_OF_MEMORY,
                         "%s: %u tokens%s need a session of %.1f GB beside %.1f GB of weights; this machine "
                         "has %.1f GB.",
                         options[phase], length, more, (double)bytes / 1e9, (double)weights / 1e9,
                         (double)memory / 1e9);
    return true;
}

void bench_drop_lengths(struct bench *bench) {
    uint64_t limit = bench->model.context > 0 ? bench->model.context : bench->config.context_limit;
    for (int phase = 0; phase < BENCH_PHASES; phase++) {
        struct lengths *lengths = &bench->lengths[phase];
        while (lengths->count > 1 && needed_context(bench, lengths->values[lengths->count - 1]) > limit)
            lengths->count--;
    }
}

bool bench_check_lengths(const struct bench *bench, struct calla_error *error) {
    if (bench->model.context > bench->config.context_limit)
        return error_set(error, CALLA_BAD_INPUT,
                         "--context %llu is more than this model was made for: at most %u.",
                         (unsigned long long)bench->model.context, bench->config.context_limit);
    for (int phase = 0; phase < BENCH_PHASES; phase++)
        for (size_t i = 0; i < bench->lengths[phase].count; i++)
            if (!check_length(bench, (enum bench_phase)phase, bench->lengths[phase].values[i], error))
                return false;
    return true;
}

double bench_bandwidth(const struct bench *bench, const struct bench_figure *figure) {
    return figure->memory.count > 0 ? samples_spread(&figure->memory).median : bench->bandwidth;
}

/* Adds `times` runs of a plan of this shape, the first at `position`, each `rows` further on. */
static bool add_runs(const struct bench *bench, struct bench_figure *figure,
                     const struct forward_options *options, uint32_t position, uint32_t times,
                     struct calla_error *error) {
    struct plan plan = {0};
    if (times == 0)
        return true;
    bool ok = forward_plan(&plan, &bench->config, &bench->weights.table, &bench->policy,
                           bench_context(bench, figure->length), options, error);
    for (uint32_t i = 0; ok && i < times; i++) {
        struct plan_report report = {.plan = &plan,
                                     .position = position + i * options->rows,
                                     .bandwidth = bench_bandwidth(bench, figure),
                                     .rate = bench->rate};
        struct plan_totals totals;
        plan_totals(&report, &totals);
        figure->cost.bytes += (double)cost_bytes(&totals.all.cost);
        figure->cost.flops += (double)totals.all.cost.flops;
        figure->cost.least_seconds += totals.all.seconds;
    }
    plan_free(&plan);
    return ok;
}

bool bench_cost_figure(const struct bench *bench, struct bench_figure *figure, struct calla_error *error) {
    figure->cost = (struct bench_cost){0};
    if (figure->phase == BENCH_DECODE) {
        struct forward_options step = {.rows = 1, .logits = LOGITS_LAST, .sample = true};
        return add_runs(bench, figure, &step, figure->length, figure->tokens, error);
    }
    uint32_t chunk = bench->policy.chunk_rows, whole = (figure->length - 1) / chunk;
    struct forward_options first = {.rows = chunk, .logits = LOGITS_NONE};
    struct forward_options last = {.rows = figure->length - whole * chunk, .logits = LOGITS_LAST};
    return add_runs(bench, figure, &first, 0, whole, error) &&
           add_runs(bench, figure, &last, whole * chunk, 1, error);
}
