/* calla bench: how fast the model runs on this machine, and how near that is to what the machine can do.
 *
 * Everything that can be wrong with the request is found before the first measurement. Then come the rounds
 * (bench_rounds.c), or the comparison of policies (bench_ablate.c); after them the bandwidth is measured in a
 * process that holds no model any more, and the results are held against the plan: each with the bandwidth
 * beside it, where that could be read off, and otherwise with this one. Signals and errors leave a report of
 * what was measured until then. */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/system.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "cli/streams.h"

struct bench_flags {
    const char *lengths[BENCH_PHASES];
    double bandwidth, rate; /* GB/s, TFLOP/s */
};

/* The files that results go to, opened before anything is measured. */
struct bench_outputs {
    struct output_file json, plot;
};

static bool parse_lengths(struct bench *bench, const struct bench_flags *flags, struct calla_error *error) {
    static const char *const options[] = {"--prefill", "--decode"};
    static const char *const usual[] = {"256,512,1K", "256,1K"}, *const comparing[] = {"512", "256"};
    bool named = flags->lengths[BENCH_PREFILL] != NULL || flags->lengths[BENCH_DECODE] != NULL;
    bench->default_lengths = !named;
    for (int phase = 0; phase < BENCH_PHASES; phase++) {
        const char *text = flags->lengths[phase];
        if (!named)
            text = bench->ablate.count > 0 ? comparing[phase] : usual[phase];
        if (text != NULL && !lengths_parse(&bench->lengths[phase], options[phase], text, error))
            return false;
    }
    /* The table of a comparison has both phases in each row. */
    if (bench->against != NULL)
        for (int phase = 0; phase < BENCH_PHASES; phase++)
            if (bench->lengths[phase].count == 0 || !named)
                bench->lengths[phase] = bench->lengths[named ? 1 - phase : BENCH_PREFILL];
    struct lengths all = bench->lengths[BENCH_PREFILL];
    return lengths_merge(&all, &bench->lengths[BENCH_DECODE]) ||
           error_set(error, CALLA_BAD_INPUT, "--prefill and --decode together name more than %d lengths.",
                     BENCH_MOST_LENGTHS);
}

static bool to_file(const char *path) {
    return path != NULL && strcmp(path, "-") != 0;
}

static bool check_usage(struct bench *bench, const struct bench_flags *flags, struct calla_error *error) {
    if (!model_flags_check(&bench->model, error) || !parse_lengths(bench, flags, error))
        return false;
    if (bench->ablate.count > 0 && bench->against != NULL)
        return error_set(error, CALLA_BAD_INPUT,
                         "--ablate and --against are two comparisons; ask for them one after the other.");
    if (bench->ablate.count > 0 && bench->plot_path != NULL)
        return error_set(
            error, CALLA_BAD_INPUT,
            "--plot draws speeds over the context, which --ablate does not measure; leave out one "
            "of them.");
    if (bench->plot_path != NULL && !to_file(bench->plot_path))
        return error_set(error, CALLA_BAD_INPUT,
                         "--plot writes a file, not standard output; name one, such as speeds.svg.");
    if (bench->plot_path != NULL && bench->json_path != NULL &&
        strcmp(bench->plot_path, bench->json_path) == 0)
        return error_set(error, CALLA_BAD_INPUT, "--json and --plot name the same file, %.200s.",
                         bench->plot_path);
    bench->bandwidth = flags->bandwidth * 1e9;
    bench->bandwidth_given = flags->bandwidth > 0;
    bench->rate = flags->rate * 1e12;
    bench->real_context = bench->real_context || bench->against != NULL;
    bench->class = backend_find(bench->model.backend == NULL ? "auto" : bench->model.backend, error);
    if (bench->class == NULL)
        return false;
    backend_device(bench->class, &bench->device);
    policy_defaults(&bench->policy, bench->class->name);
    for (size_t i = 0; i < bench->model.policies.count; i++)
        if (!policy_set(&bench->policy, bench->class->name, bench->model.policies.values[i], error))
            return false;
    return bench_ablate_choose(bench, error);
}

static bool open_outputs(const struct bench *bench, struct bench_outputs *outputs,
                         struct calla_error *error) {
    return standard_output_check(error) &&
           (!to_file(bench->json_path) || output_file_open(&outputs->json, bench->json_path, false, error)) &&
           (bench->plot_path == NULL || output_file_open(&outputs->plot, bench->plot_path, false, error));
}

static bool anything_measured(const struct bench *bench) {
    for (size_t i = 0; bench->figures != NULL && i < bench->figure_count; i++)
        if (bench->figures[i].seconds.count > 0)
            return true;
    for (size_t i = 0; i < bench->ablation_count; i++)
        for (size_t j = 0; bench->ablations[i].figures != NULL && j < bench->figure_count; j++)
            if (bench->ablations[i].figures[j].peer.count > 0)
                return true;
    return false;
}

static bool print_results(const struct bench *bench, struct bench_outputs *outputs,
                          struct calla_error *error) {
    json_t *report = bench->json_path == NULL ? NULL : bench_report(bench);
    bool ok = bench->json_path == NULL || report != NULL ||
              error_set(error, CALLA_NUMERIC, "The report cannot be written as JSON.");
    if (ok && bench->json_path != NULL && !to_file(bench->json_path)) {
        ok = print_json(report, error);
    } else {
        bench_print_table(bench);
        if (ok && report != NULL) {
            json_dumpf(report, outputs->json.file, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
            fputc('\n', outputs->json.file);
            ok = output_file_finish(&outputs->json, error);
        }
    }
    json_decref(report);
    if (ok && bench->plot_path != NULL) {
        struct buffer picture = {0};
        ok = bench_plot(bench, &picture) || error_memory(error, "the plot", picture.size);
        if (ok)
            fwrite(picture.data, 1, picture.size, outputs->plot.file);
        buffer_free(&picture);
        ok = ok && output_file_finish(&outputs->plot, error);
    }
    return ok;
}

/* What the machine can do, and from it what the plan allows. */
static bool find_limits(struct bench *bench, struct calla_error *error) {
    if (!bench->bandwidth_given && bench->figures != NULL)
        bench->bandwidth = bench->class->bandwidth != NULL ? bench->class->bandwidth(NULL)
                                                           : bandwidth_measure(bench->info.threads, NULL);
    for (size_t i = 0; bench->figures != NULL && i < bench->figure_count; i++)
        if (!bench_cost_figure(bench, &bench->figures[i], error))
            return false;
    return true;
}

/* The meter's buffer was resident all the time from its opening on. */
static uint64_t peak_without_meter(const struct bench *bench) {
    uint64_t peak = system_peak_resident();
    if (bench->meter == NULL)
        return peak;
    uint64_t meter = bandwidth_meter_bytes(bench->meter), later = peak > meter ? peak - meter : 0;
    return later > bench->peak_before_meter ? later : bench->peak_before_meter;
}

static bool run_bench(struct bench *bench, struct bench_outputs *outputs, struct calla_error *error) {
    if (!bench_cost_open(bench, error))
        return false;
    if (bench->default_lengths)
        bench_drop_lengths(bench);
    if (!bench_check_lengths(bench, error) || !open_outputs(bench, outputs, error) ||
        (bench->against != NULL && !bench_peer_open(bench, error)))
        return false;
    bench->complete = bench->ablation_count > 0 ? bench_ablate(bench, error) : bench_measure(bench, error);
    bench->peak_resident = peak_without_meter(bench);
    bandwidth_meter_close(bench->meter);
    bench->meter = NULL;
    bench_peer_close(bench);
    bool worth_printing = bench->complete || anything_measured(bench);
    if (!bench->complete && error->status == CALLA_CANCELLED)
        error_set(error, CALLA_CANCELLED, "The measurements were stopped%s.",
                  worth_printing ? "; the report has what was measured until then" : "");
    /* An error of the measuring outlives one of the printing. */
    struct calla_error later = {0};
    bool printed = !worth_printing || (find_limits(bench, &later) && print_results(bench, outputs, &later));
    if (bench->complete && !printed)
        *error = later;
    return bench->complete && printed;
}

static void free_bench(struct bench *bench) {
    bench_peer_close(bench);
    for (size_t i = 0; i < bench->ablation_count; i++)
        free(bench->ablations[i].figures);
    free(bench->ablations);
    free(bench->figures);
    free(bench->prompt);
    free(bench->name);
    free(bench->path);
    if (bench->have_weights)
        weights_close(&bench->weights);
    config_free(&bench->config);
}

int command_bench(int argc, char **argv) {
    struct bench bench = {.repeat = 5, .warm_up = 1, .tokens = 32, .seed = 1};
    struct bench_flags flags = {0};
    struct option model_rows[MODEL_OPTIONS];
    model_options(model_rows, &bench.model);
    const struct option measuring[] = {
        {.name = "prefill",
         .value = "L,L,...",
         .help = "lengths of prompts to read, such as 256,1K,128K\n(256,512,1K)",
         .text = &flags.lengths[BENCH_PREFILL]},
        {.name = "decode",
         .value = "L,L,...",
         .help = "lengths of context to decode at (256,1K)",
         .text = &flags.lengths[BENCH_DECODE]},
        {.name = "tokens",
         .value = "N",
         .help = "tokens to decode (32)",
         .count = &bench.tokens,
         .least = 1,
         .most = 100000},
        {.name = "repeat",
         .value = "N",
         .help = "measurements of each figure (5)",
         .count = &bench.repeat,
         .least = 1,
         .most = BENCH_MOST_REPEATS},
        {.name = "warm-up",
         .value = "N",
         .help = "rounds before them that do not count (1)",
         .count = &bench.warm_up,
         .most = BENCH_MOST_REPEATS},
        {.name = "real-context",
         .help = "read a prompt before decoding at any length,\ninstead of filling the context with random "
                 "values",
         .flag = &bench.real_context},
        {.name = "seed", .value = "N", .help = "of the prompt's random tokens (1)", .count = &bench.seed},
    };
    const struct option comparing[] = {
        {.name = "ablate",
         .value = "NAME|all",
         .help = "compare the other values of a policy with the one\nthat is set, in turn; may be repeated",
         .values = &bench.ablate},
        {.name = "against",
         .choices = "mlx-lm",
         .help = "measure MLX-LM on the same model and prompt, in turn\n($CALLA_PYTHON, or python3, must "
                 "have it)",
         .text = &bench.against},
    };
    const struct option machine[] = {
        {.name = "bandwidth",
         .value = "GB/S",
         .help = "what the memory can move, in 10^9 bytes a second\n(measured)",
         .number = &flags.bandwidth,
         .low = 1e-6,
         .high = 1e9},
        {.name = "flops",
         .value = "TFLOP/S",
         .help =
             "what the machine can compute, in 10^12 a second;\nwithout it prefill has no limit to be held "
             "against",
         .number = &flags.rate,
         .low = 1e-6,
         .high = 1e9},
    };
    const struct option output[] = {
        {.name = "json",
         .value = "FILE|-",
         .help = "write all of it as JSON; - is standard output,\nin place of the table",
         .text = &bench.json_path},
        {.name = "plot",
         .value = "FILE.svg",
         .help = "draw the speeds over the length of the context",
         .text = &bench.plot_path},
    };
    const struct option_group groups[] = {
        {"Measuring", measuring, sizeof measuring / sizeof *measuring},
        {"Comparing", comparing, sizeof comparing / sizeof *comparing},
        {"Machine", machine, sizeof machine / sizeof *machine},
        {"Output", output, sizeof output / sizeof *output},
        {"Model", model_rows, MODEL_OPTIONS},
    };
    const struct command_usage usage = {
        .name = "bench",
        .synopsis = "[-m DIR] [--prefill L,L,...] [--decode L,L,...] [OPTIONS]",
        .about =
            "Measures how fast prompts of several lengths are read and how fast tokens are decoded at "
            "several\n"
            "lengths of context: medians and quartiles, the bytes and FLOPs a second that they come to, and\n"
            "the share of what the plan allows on this machine.",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
        .argument_hint = "name the model's folder with -m"};
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    struct bench_outputs outputs = {0};
    exit_code = EXIT_WRONG_USAGE;
    bool ok = check_usage(&bench, &flags, &error);
    if (ok) {
        exit_code = EXIT_WORK_FAILED;
        interrupt_arm();
        ok = run_bench(&bench, &outputs, &error);
    }
    output_file_close(&outputs.json);
    output_file_close(&outputs.plot);
    free_bench(&bench);
    return command_end(&usage, ok, exit_code, &error);
}
