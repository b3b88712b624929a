/* What was measured as a picture: prefill and decode over the length of the context. */
#include <stdlib.h>
#include <time.h>

#include "cli/bench.h"
#include "cli/plot.h"

static void add_point(struct plot_series *series, const struct bench_figure *figure,
                      const struct samples *seconds) {
    struct samples rates = samples_inverse(figure->tokens, seconds);
    struct spread spread = samples_spread(&rates);
    if (spread.count > 0)
        series->points[series->count++] =
            (struct plot_point){figure->length, spread.median, spread.low_quartile, spread.high_quartile};
}

static void fill_panel(const struct bench *bench, struct plot_panel *panel, enum bench_phase phase) {
    struct plot_series calla = {.name = "calla", .style = PLOT_FIRST},
                       peer = {.name = "mlx-lm", .style = PLOT_SECOND},
                       limit = {.name = "the plan's limit", .style = PLOT_DASHED};
    for (size_t i = 0; i < bench->figure_count; i++) {
        const struct bench_figure *figure = &bench->figures[i];
        if (figure->phase != phase || figure->seconds.count == 0)
            continue;
        add_point(&calla, figure, &figure->seconds);
        add_point(&peer, figure, &figure->peer);
        double least = figure->cost.least_seconds;
        if (least > 0 && (phase == BENCH_DECODE || bench->rate > 0))
            limit.points[limit.count++] =
                (struct plot_point){.length = figure->length, .value = figure->tokens / least};
    }
    const struct plot_series *all[] = {&calla, &peer, &limit};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->count > 0)
            panel->series[panel->count++] = *all[i];
}

bool bench_plot(const struct bench *bench, struct buffer *out) {
    char date[32], subtitle[384];
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local) == NULL || strftime(date, sizeof date, "%Y-%m-%d", &local) == 0)
        date[0] = 0;
    snprintf(subtitle, sizeof subtitle, "%s, backend %s, %d threads, calla %s, %s", bench->device.name,
             bench->class->name, bench->info.threads, CALLA_VERSION, date);
    struct plot_panel *panels = calloc(BENCH_PHASES, sizeof *panels);
    if (panels == NULL)
        return false;
    panels[BENCH_PREFILL].title = "Prefill";
    panels[BENCH_DECODE].title = "Decode";
    size_t count = 0;
    for (int phase = 0; phase < BENCH_PHASES; phase++) {
        panels[phase].unit = "tokens/s";
        fill_panel(bench, &panels[phase], (enum bench_phase)phase);
    }
    /* A phase that was not asked for takes no room. */
    const struct plot_panel *first = panels;
    for (int phase = 0; phase < BENCH_PHASES; phase++)
        count += bench->lengths[phase].count > 0;
    if (bench->lengths[BENCH_PREFILL].count == 0)
        first = &panels[BENCH_DECODE];
    bool ok = plot_svg(bench->name, subtitle, first, count, out);
    free(panels);
    return ok;
}
