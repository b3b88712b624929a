/* calla plan: what a chunk or a step of a model consists of and costs, from its config.json alone. */
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_count.h"
#include "cli/commands.h"
#include "cli/model_path.h"
#include "cli/options.h"
#include "model/forward.h"
#include "plan/plan_print.h"

#define CONFIG_LIMIT ((size_t)16 << 20)

struct plan_flags {
    const char *model, *phase, *backend;
    uint64_t rows, context;
    bool rows_given;
    double bandwidth, rate; /* GB/s, TFLOP/s */
    struct option_values policies;
    bool json, ops;
};

/* `path` is a model's folder or a config.json by itself. */
static bool read_config(struct config *config, const char *path, struct calla_error *error) {
    if (file_kind(path) != FILE_REGULAR)
        return config_read(config, path, error);
    struct buffer text = {0};
    bool ok = file_read(path, CONFIG_LIMIT, &text, error) &&
              config_parse(config, text.data, text.size, path, error);
    buffer_free(&text);
    return ok;
}

static bool choose_policy(struct policy *policy, const struct plan_flags *flags, struct calla_error *error) {
    if (!policy_check_backend(flags->backend, error))
        return false;
    policy_defaults(policy, flags->backend);
    for (size_t i = 0; i < flags->policies.count; i++)
        if (!policy_set(policy, flags->backend, flags->policies.values[i], error))
            return false;
    return true;
}

/* What the options say about rows, without the model. */
static bool check_rows(const struct plan_flags *flags, const struct policy *policy,
                       struct calla_error *error) {
    if (flags->rows_given && flags->rows != 1 && strcmp(flags->phase, "decode") == 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "--rows %llu does not go with --phase decode: a step has one row.",
                         (unsigned long long)flags->rows);
    if (flags->rows_given && flags->rows > policy->chunk_rows)
        return error_set(
            error, CALLA_BAD_INPUT,
            "--rows %llu is more than a chunk holds, %u rows; --policy chunk_rows=N changes that.",
            (unsigned long long)flags->rows, policy->chunk_rows);
    return true;
}

/* Rows of the plan: one for a decode step; for prefill --rows, or a whole chunk as far as the model's
 * positions go. */
static bool choose_rows(uint32_t *rows, const struct plan_flags *flags, const struct config *config,
                        const struct policy *policy, struct calla_error *error) {
    uint64_t limit = config->context_limit, room = flags->context < limit ? limit - flags->context : 0;
    uint64_t wanted = strcmp(flags->phase, "decode") == 0 ? 1
                      : policy->chunk_rows < room         ? policy->chunk_rows
                                                          : room;
    if (flags->rows_given)
        wanted = flags->rows;
    if (room == 0 || wanted > room)
        return error_set(
            error, CALLA_BAD_INPUT,
            "--context %llu leaves room for %llu more tokens: the model is made for %u positions.",
            (unsigned long long)flags->context, (unsigned long long)room, config->context_limit);
    *rows = (uint32_t)wanted;
    return true;
}

static bool print_plan(const struct plan_flags *flags, const struct plan_report *report,
                       struct calla_error *error) {
    struct buffer text = {0};
    bool ok = flags->json ? plan_print_json(report, &text, error)
                          : plan_print_table(report, flags->ops, &text, error);
    if (ok)
        fwrite(text.data, 1, text.size, stdout);
    buffer_free(&text);
    return ok;
}

/* The modules' names by index, borrowed from the table; the array is the caller's. */
static const char **weight_names(const struct weight_table *table, struct calla_error *error) {
    const char **names = calloc(table->count, sizeof *names);
    if (names == NULL)
        error_memory(error, "the weights' names", table->count * sizeof *names);
    for (uint32_t i = 0; names != NULL && i < table->count; i++)
        names[i] = table->weights[i].module;
    return names;
}

static bool plan_model(const struct plan_flags *flags, const char *path, const struct policy *policy,
                       struct calla_error *error) {
    struct config config = {0};
    struct weight_table table = {0};
    struct session_layout layout = {0};
    struct plan plan = {0};
    const char **names = NULL;
    uint32_t position = (uint32_t)flags->context;
    struct forward_options options = {.logits = LOGITS_LAST, .sample = true};
    bool ok = read_config(&config, path, error) && weight_table_new(&table, &config, error) &&
              (names = weight_names(&table, error)) != NULL &&
              choose_rows(&options.rows, flags, &config, policy, error) &&
              forward_layout(&layout, &config, policy, position + options.rows, error) &&
              forward_plan(&plan, &config, &table, policy, position + options.rows, &options, error);
    struct plan_report report = {.plan = &plan,
                                 .layout = &layout,
                                 .weight_names = names,
                                 .model = path,
                                 .phase = flags->phase,
                                 .backend = flags->backend,
                                 .policy = policy,
                                 .layers = config.layers,
                                 .position = position,
                                 .bandwidth = flags->bandwidth * 1e9,
                                 .rate = flags->rate * 1e12};
    if (ok && strcmp(flags->backend, "metal") == 0) {
        struct metal_counts counts;
        ok = metal_count(&counts, &plan, policy, position, error);
        report.kernels = counts.kernels;
        report.kernel_phases = counts.phases;
    }
    ok = ok && print_plan(flags, &report, error);
    free(names);
    plan_free(&plan);
    session_layout_free(&layout);
    weight_table_free(&table);
    config_free(&config);
    return ok;
}

int command_plan(int argc, char **argv) {
    struct plan_flags flags = {.phase = "decode", .backend = "auto"};
    const struct option model[] = {
        {.name = "model",
         .letter = 'm',
         .value = "DIR",
         .help = "the model's folder, or a config.json by itself;\nwithout it $CALLA_MODEL, else the bundled "
                 "model",
         .text = &flags.model},
        {.name = "phase",
         .value = "PHASE",
         .choices = "prefill|decode",
         .help = "a chunk of prompt, or one step (decode)",
         .text = &flags.phase},
        {.name = "rows",
         .value = "N",
         .help = "rows of the chunk (the policy's chunk_rows)",
         .count = &flags.rows,
         .least = 1,
         .most = UINT32_MAX,
         .given = &flags.rows_given},
        {.name = "context",
         .value = "N",
         .help = "tokens in the context before the first row (0)",
         .count = &flags.context,
         .most = INT32_MAX},
        {.name = "backend",
         .value = "NAME",
         .choices = "auto|reference|cpu|cuda|metal",
         .help = "whose policy is taken (auto: cpu)",
         .text = &flags.backend},
        {.name = "policy",
         .value = "NAME=VALUE",
         .help = "one choice of how to compute; may be repeated",
         .values = &flags.policies},
    };
    const struct option machine[] = {
        {.name = "bandwidth",
         .value = "GB/S",
         .help = "what the memory can move, in 10^9 bytes a second",
         .number = &flags.bandwidth,
         .low = 1e-6,
         .high = 1e9},
        {.name = "flops",
         .value = "TFLOP/S",
         .help = "what the machine can compute, in 10^12 a second",
         .number = &flags.rate,
         .low = 1e-6,
         .high = 1e9},
    };
    const struct option output[] = {
        {.name = "ops", .help = "every op with its phase and operands too", .flag = &flags.ops},
        {.name = "json", .help = "all of it as one JSON object", .flag = &flags.json},
    };
    const struct option_group groups[] = {
        {"Plan", model, sizeof model / sizeof *model},
        {"Machine", machine, sizeof machine / sizeof *machine},
        {"Output", output, sizeof output / sizeof *output},
    };
    const struct command_usage usage = {
        .name = "plan",
        .synopsis = "[-m DIR] [--phase prefill|decode] [OPTIONS]",
        .about =
            "Prints the ops and phases of a prompt chunk or a decode step, the bytes that they move and\n"
            "the FLOPs that they take, and with --bandwidth or --flops the least time that a machine\n"
            "needs for them; for the backend metal also its kernels, and the time predicted for Apple's\n"
            "chips. Reads only the model's config.json.",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups};
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    if (strcmp(flags.backend, "auto") == 0)
        flags.backend = "cpu";
    struct calla_error error = {0};
    struct policy policy;
    if (!choose_policy(&policy, &flags, &error) || !check_rows(&flags, &policy, &error))
        return command_end(&usage, false, EXIT_WRONG_USAGE, &error);
    bool bundled;
    char *path = model_path(flags.model, &bundled, &error);
    bool ok = path != NULL && plan_model(&flags, path, &policy, &error);
    free(path);
    return command_end(&usage, ok, EXIT_WORK_FAILED, &error);
}
