/* What a policy is worth: its other values against the one that is set, with everything else equal.
 *
 * The two take turns, A B A B ..., so that whatever else the machine does falls on both; each pair gives one
 * ratio. A turn opens a session of its own for every length and warms it up. Two models are kept open where
 * the memory has room for both, otherwise every turn opens its own. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/interrupt.h"

static bool add_ablation(struct bench *bench, const char *name, const char *value, const char *alternative,
                         const char *reason, struct calla_error *error) {
    size_t size = (bench->ablation_count + 1) * sizeof *bench->ablations;
    struct bench_ablation *more = realloc(bench->ablations, size);
    if (more == NULL)
        return error_memory(error, "the policies to compare", size);
    bench->ablations = more;
    struct bench_ablation *ablation = &more[bench->ablation_count++];
    *ablation = (struct bench_ablation){.name = name};
    snprintf(ablation->value, sizeof ablation->value, "%s", value);
    snprintf(ablation->alternative, sizeof ablation->alternative, "%s", alternative);
    snprintf(ablation->reason, sizeof ablation->reason, "%s", reason);
    return true;
}

/* All alternatives of policy `index`. */
static bool add_alternatives(struct bench *bench, size_t index, struct calla_error *error) {
    const char *backend = bench->class->name, *name;
    char value[32], alternative[32], assignment[128], reason[256];
    bool applies;
    policy_describe(&bench->policy, backend, index, &name, value, &applies);
    snprintf(reason, sizeof reason, "It means nothing on the backend %s.", backend);
    if (!applies)
        return add_ablation(bench, name, "n/a", "", reason, error);
    size_t nth = 0;
    for (; policy_alternative(&bench->policy, backend, index, nth, alternative); nth++) {
        struct policy policy = bench->policy;
        struct calla_error refusal = {0};
        snprintf(assignment, sizeof assignment, "%s=%s", name, alternative);
        bool allowed = policy_set(&policy, backend, assignment, &refusal);
        if (!add_ablation(bench, name, value, alternative, allowed ? "" : refusal.message, error))
            return false;
    }
    return nth > 0 || add_ablation(bench, name, value, "", "It has no other value.", error);
}

static const char *policy_name_at(const void *user, size_t index) {
    const struct bench *bench = user;
    const char *name;
    char value[32];
    bool applies;
    return policy_describe(&bench->policy, bench->class->name, index, &name, value, &applies) ? name : NULL;
}

static bool is_chosen(const struct bench *bench, const char *name) {
    for (size_t i = 0; i < bench->ablation_count; i++)
        if (strcmp(bench->ablations[i].name, name) == 0)
            return true;
    return false;
}

static bool choose(struct bench *bench, const char *wanted, struct calla_error *error) {
    bool all = strcmp(wanted, "all") == 0, found = false;
    const char *name;
    for (size_t i = 0; (name = policy_name_at(bench, i)) != NULL; i++) {
        if (!all && strcmp(name, wanted) != 0)
            continue;
        found = true;
        if (!is_chosen(bench, name) && !add_alternatives(bench, i, error))
            return false;
    }
    if (found)
        return true;
    const char *nearest = nearest_name(wanted, policy_name_at, bench);
    return error_set(error, CALLA_BAD_INPUT, "--ablate: there is no policy \"%.64s\"%s%s%s.", wanted,
                     nearest != NULL ? "; did you mean "
                                     : "; \"calla info\" lists them, and \"all\" is every",
                     nearest != NULL ? nearest : " one", nearest != NULL ? "?" : "");
}

bool bench_ablate_choose(struct bench *bench, struct calla_error *error) {
    for (size_t i = 0; i < bench->ablate.count; i++)
        if (!choose(bench, bench->ablate.values[i], error))
            return false;
    return bench->model.policies.count < OPTION_MOST_VALUES ||
           error_set(error, CALLA_BAD_INPUT, "--policy is given too often for --ablate to add one more.");
}

/* One turn: every length in a session of its own, warmed up, measured once. */
static bool take_turn(struct bench *bench, struct bench_contestant *contestant, bool other_side, bool keep,
                      const struct lengths *lengths, struct bench_figure *figures,
                      struct calla_error *error) {
    bool ok = bench_contestant_open(bench, contestant, error);
    for (size_t i = 0; ok && i < lengths->count; i++) {
        uint32_t length = lengths->values[i];
        struct calla_session_options options = {.context = bench_context(bench, length)};
        struct calla_session *session = calla_session_open(contestant->model, &options, error);
        ok = session != NULL;
        for (uint64_t round = 0; ok && round <= bench->warm_up; round++)
            ok = bench_round(bench, contestant->model, session, length, figures, round < bench->warm_up,
                             other_side, error);
        calla_session_close(session);
    }
    if (!keep || !ok)
        bench_contestant_close(contestant);
    return ok;
}

/* Measures one alternative. That it cannot run is a result; false is for what ends the comparison. */
static bool compare(struct bench *bench, struct bench_contestant *base, struct bench_ablation *ablation,
                    bool keep, const struct lengths *lengths, struct calla_error *error) {
    struct bench_contestant other = {.flags = bench->model};
    char assignment[128], what[160];
    snprintf(assignment, sizeof assignment, "%s=%s", ablation->name, ablation->alternative);
    snprintf(what, sizeof what, "comparing %s", assignment);
    other.flags.policies.values[other.flags.policies.count++] = assignment;
    other.flags.quiet = true;
    bool ok = true;
    for (uint64_t i = 0; ok && ablation->reason[0] == 0 && i < bench->repeat; i++) {
        progress_line_draw(&bench->line, what, i, bench->repeat);
        ok = take_turn(bench, base, false, keep, lengths, ablation->figures, error);
        struct calla_error refusal = {0};
        if (ok && !take_turn(bench, &other, true, keep, lengths, ablation->figures, &refusal)) {
            *error = refusal;
            ok = refusal.status != CALLA_CANCELLED;
            snprintf(ablation->reason, sizeof ablation->reason, "%s", ok ? refusal.message : "");
        }
    }
    bench_contestant_close(&other);
    return ok;
}

bool bench_ablate(struct bench *bench, struct calla_error *error) {
    struct lengths lengths = bench->lengths[BENCH_PREFILL];
    struct bench_contestant base = {.flags = bench->model};
    if (!lengths_merge(&lengths, &bench->lengths[BENCH_DECODE]))
        return error_set(error, CALLA_BAD_INPUT, "--prefill and --decode together name more than %d lengths.",
                         BENCH_MOST_LENGTHS);
    bool keep = bench->weights.bytes <= bench->device.memory * 3 / 8;
    bool ok = bench_contestant_open(bench, &base, error);
    base.flags.quiet = true; /* what there is to say has been said */
    progress_line_start(&bench->line, bench->model.quiet);
    for (size_t i = 0; ok && i < bench->ablation_count; i++) {
        struct bench_ablation *ablation = &bench->ablations[i];
        if (ablation->reason[0] != 0)
            continue;
        ablation->figures = bench_figures_new(bench, &bench->figure_count, error);
        ok = ablation->figures != NULL && compare(bench, &base, ablation, keep, &lengths, error);
    }
    progress_line_end(&bench->line);
    bench_contestant_close(&base);
    return ok;
}
