/* The results for people: what was measured on what, then one table. */
#include <string.h>

#include "base/system.h"
#include "cli/bench.h"

static void print_policy(const struct bench *bench) {
    const char *name, *separator = "policy    ";
    char value[32];
    bool applies;
    size_t width = 0;
    for (size_t i = 0; policy_describe(&bench->policy, bench->class->name, i, &name, value, &applies); i++) {
        size_t size = strlen(name) + strlen(value) + 2;
        if (width > 0 && width + size > 98) {
            separator = "\n          ";
            width = 0;
        }
        printf("%s%s=%s", separator, name, value);
        separator = " ";
        width += size;
    }
    putchar('\n');
}

static void print_heading(const struct bench *bench) {
    char processor[128], system[128];
    system_processor(processor, sizeof processor);
    system_name(system, sizeof system);
    int cores = system_cores();
    printf("machine   %s, %d core%s, %.1f GB of memory, %s\n", processor, cores, cores == 1 ? "" : "s",
           (double)system_memory() / 1e9, system);
    if (bench->class->device != NULL)
        printf("device    %s, %.1f GB of memory\n", bench->device.name, (double)bench->device.memory / 1e9);
    printf("calla     %s, backend %s, %d thread%s\n", CALLA_VERSION, bench->class->name, bench->info.threads,
           bench->info.threads == 1 ? "" : "s");
    if (bench->peer_info.version[0] != 0)
        printf("mlx-lm    %s, mlx %s, %s\n", bench->peer_info.version, bench->peer_info.library,
               bench->peer_info.device);
    printf("model     ");
    terminal_write(stdout, bench->name, strlen(bench->name));
    printf(", %.3f GB of weights\n", (double)bench->info.weight_bytes / 1e9);
    print_policy(bench);
    printf("ready     after %.2f s; at most %.3f GB resident\n", bench->ready_seconds,
           (double)bench->peak_resident / 1e9);
    if (bench->bandwidth > 0)
        printf("memory    %.1f GB/s (%s)\n", bench->bandwidth / 1e9,
               bench->bandwidth_given ? "given" : "measured");
    if (bench->rate > 0)
        printf("compute   %.3g TFLOP/s (given)\n", bench->rate / 1e12);
    printf("method    medians [quartiles] of %llu after %llu to warm up; %llu decoded tokens\n",
           (unsigned long long)bench->repeat, (unsigned long long)bench->warm_up,
           (unsigned long long)bench->tokens);
}

static const char *phase_name(enum bench_phase phase) {
    return phase == BENCH_PREFILL ? "prefill" : "decode";
}

/* Four significant digits, so that slow machines and fast ones are both readable. */
static void print_number(double value, int width) {
    int decimals = value >= 999.95 ? 0 : value >= 99.995 ? 1 : value >= 9.9995 ? 2 : 3;
    printf("%*.*f", width, decimals, value);
}

static void print_spread(const struct spread *spread) {
    print_number(spread->median, 10);
    printf(" [");
    print_number(spread->low_quartile, 7);
    printf(" -");
    print_number(spread->high_quartile, 8);
    putchar(']');
}

static bool cost_allows(const struct bench *bench, const struct bench_figure *figure) {
    return figure->cost.least_seconds > 0 && (figure->phase == BENCH_DECODE || bench->rate > 0);
}

static void print_figures(const struct bench *bench) {
    bool above = false, filled = false;
    printf("\n%-8s %8s %10s %-20s %8s %9s %8s %10s %7s\n", "", "length", "tokens/s", " [quartiles]", "GB/s",
           "TFLOP/s", "memory", "limit", "share");
    for (size_t i = 0; i < bench->figure_count; i++) {
        const struct bench_figure *figure = &bench->figures[i];
        char length[16];
        if (figure->seconds.count == 0)
            continue;
        struct samples rates = samples_inverse(figure->tokens, &figure->seconds);
        struct spread spread = samples_spread(&rates);
        double seconds = figure->tokens / spread.median;
        length_print(figure->length, length);
        printf("%-8s %7s%s ", phase_name(figure->phase), length, figure->filled ? "*" : " ");
        print_spread(&spread);
        printf(" %8.2f %9.4f", figure->cost.bytes / seconds / 1e9, figure->cost.flops / seconds / 1e12);
        if (cost_allows(bench, figure)) {
            double share = figure->cost.least_seconds / seconds;
            printf(" %8.2f ", bench_bandwidth(bench, figure) / 1e9);
            print_number(figure->tokens / figure->cost.least_seconds, 10);
            printf(" %5.1f %%", 100 * share);
            above = above || share > 1;
        }
        putchar('\n');
        filled = filled || figure->filled;
    }
    if (filled)
        puts("* at a context filled with random values instead of read");
    if (above)
        puts(
            "Shares above 100 %: what the plan counts as moved from memory stays in the processor's caches.");
}

static const struct bench_figure *figure_at(const struct bench *bench, enum bench_phase phase,
                                            uint32_t length) {
    for (size_t i = 0; i < bench->figure_count; i++)
        if (bench->figures[i].phase == phase && bench->figures[i].length == length)
            return &bench->figures[i];
    return NULL;
}

static void print_pair(const struct bench_figure *figure) {
    if (figure == NULL || figure->peer.count == 0) {
        printf(" %10s %10s %7s %15s", "-", "-", "-", "");
        return;
    }
    struct samples ours = samples_inverse(figure->tokens, &figure->seconds),
                   theirs = samples_inverse(figure->tokens, &figure->peer),
                   ratios = samples_ratio(&ours, &theirs);
    struct spread ratio = samples_spread(&ratios);
    putchar(' ');
    print_number(samples_spread(&ours).median, 10);
    putchar(' ');
    print_number(samples_spread(&theirs).median, 10);
    printf(" %7.2f [%5.2f - %5.2f]", ratio.median, ratio.low_quartile, ratio.high_quartile);
}

/* The table of the article: both programs beside each other, and how many times as fast Calla is. */
static void print_comparison(const struct bench *bench) {
    struct lengths lengths = bench->lengths[BENCH_PREFILL];
    lengths_merge(&lengths, &bench->lengths[BENCH_DECODE]);
    printf("\ntokens/s, and how many times as fast calla is: the median and quartiles of the pairs\n");
    printf("%8s %10s %10s %7s %15s %10s %10s %7s\n", "", "calla", "mlx-lm", "", "", "calla", "mlx-lm", "");
    printf("%8s %10s %10s %7s %15s %10s %10s %7s\n", "length", "prefill", "prefill", "ratio", "", "decode",
           "decode", "ratio");
    for (size_t i = 0; i < lengths.count; i++) {
        char length[16];
        length_print(lengths.values[i], length);
        printf("%8s", length);
        for (int phase = 0; phase < BENCH_PHASES; phase++)
            print_pair(figure_at(bench, (enum bench_phase)phase, lengths.values[i]));
        putchar('\n');
    }
    printf("mlx-lm: ready after %.2f s; at most %.3f GB resident\n", bench->peer_info.load_seconds,
           (double)bench->peer_info.peak_resident / 1e9);
}

static void print_ablations(const struct bench *bench) {
    printf("\n%-22s %-9s %-9s %-8s %6s %10s %10s %7s\n", "policy", "value", "other", "", "length", "value's",
           "other's", "ratio");
    for (size_t i = 0; i < bench->ablation_count; i++) {
        const struct bench_ablation *ablation = &bench->ablations[i];
        if (ablation->reason[0] != 0)
            printf("%-22s %-9s %-9s n/a: %s\n", ablation->name, ablation->value, ablation->alternative,
                   ablation->reason);
        for (size_t j = 0; ablation->figures != NULL && ablation->reason[0] == 0 && j < bench->figure_count;
             j++) {
            const struct bench_figure *figure = &ablation->figures[j];
            char length[16];
            if (figure->peer.count == 0)
                continue;
            length_print(figure->length, length);
            printf("%-22s %-9s %-9s %-8s %6s", ablation->name, ablation->value, ablation->alternative,
                   phase_name(figure->phase), length);
            print_pair(figure);
            putchar('\n');
        }
    }
    puts("tokens/s; a ratio above 1 means that the value that is set is the faster one");
}

void bench_print_table(const struct bench *bench) {
    print_heading(bench);
    if (bench->ablation_count > 0) {
        print_ablations(bench);
        return;
    }
    print_figures(bench);
    if (bench->against != NULL)
        print_comparison(bench);
}
