/* The table, and the sums that table and JSON share. */
#include "plan/plan_print.h"

#include <stdio.h>
#include <string.h>

void plan_totals(const struct plan_report *report, struct plan_totals *totals) {
    const struct plan *plan = report->plan;
    memset(totals, 0, sizeof *totals);
    for (uint32_t i = 0; i < plan->op_count; i++) {
        struct cost cost = op_cost(&plan->ops[i], report->position);
        double seconds = cost_seconds(&cost, report->bandwidth, report->rate);
        struct kind_total *sums[] = {&totals->kinds[plan->ops[i].kind], &totals->all};
        for (int j = 0; j < 2; j++) {
            sums[j]->ops++;
            sums[j]->seconds += seconds;
            cost_add(&sums[j]->cost, &cost);
        }
    }
    for (uint32_t i = 0; i < plan->scratch_count; i++)
        totals->scratch_memory += buffer_shape_bytes(&plan->scratch[i]);
}

bool plan_like_article(const struct plan_report *report) {
    return report->plan->rows == 1 && report->layers == ARTICLE_LAYERS;
}

const char *plan_buffer_name(const struct plan_report *report, const struct operand *operand) {
    switch ((enum space)operand->space) {
    case SPACE_WEIGHT:
        return report->weight_names[operand->buffer];
    case SPACE_SCRATCH:
        return report->plan->scratch[operand->buffer].name;
    case SPACE_STATE:
        return report->layout->state[operand->buffer].name;
    case SPACE_KV:
        return report->layout->kv[operand->buffer].name;
    case SPACE_STEP:
        return report->layout->step[operand->buffer].name;
    case SPACE_COUNT:
        break;
    }
    return "unknown";
}

struct text {
    char characters[32];
};

/* Four significant digits and a decimal prefix: "1.670 GB". Zero is "-". */
static struct text with_unit(double value, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    struct text text;
    size_t power = 0;
    for (; value >= 999.95 && power + 1 < sizeof prefixes / sizeof *prefixes; power++)
        value /= 1000;
    int decimals = power == 0 ? 0 : value >= 99.995 ? 1 : value >= 9.9995 ? 2 : 3;
    if (value <= 0)
        snprintf(text.characters, sizeof text.characters, "-");
    else
        snprintf(text.characters, sizeof text.characters, "%.*f %s%s", decimals, value, prefixes[power],
                 unit);
    return text;
}

static struct text in_seconds(double seconds) {
    struct text text;
    if (seconds >= 1)
        snprintf(text.characters, sizeof text.characters, "%.3f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(text.characters, sizeof text.characters, "%.3f ms", seconds * 1e3);
    else
        snprintf(text.characters, sizeof text.characters, "%.3f us", seconds * 1e6);
    return text;
}

static double percent(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : 100 * (double)part / (double)whole;
}

static bool has_machine(const struct plan_report *report) {
    return report->bandwidth > 0 || report->rate > 0;
}

static void print_row(const struct plan_report *report, const char *name, const struct kind_total *row,
                      const struct kind_total *all, struct buffer *out) {
    uint64_t bytes = cost_bytes(&row->cost);
    buffer_printf(
        out, "%-16s %5u %10s %10s %10s %10s %6.1f %12s %6.1f", name, row->ops,
        with_unit((double)row->cost.weight_bytes, "B").characters,
        with_unit((double)row->cost.state_bytes, "B").characters,
        with_unit((double)row->cost.kv_bytes, "B").characters,
        with_unit((double)row->cost.scratch_bytes, "B").characters, percent(bytes, cost_bytes(&all->cost)),
        with_unit((double)row->cost.flops, "FLOP").characters, percent(row->cost.flops, all->cost.flops));
    if (has_machine(report))
        buffer_printf(out, " %11s", in_seconds(row->seconds).characters);
    buffer_append_string(out, "\n");
}

static void print_policy(const struct plan_report *report, struct buffer *out) {
    const char *name;
    char value[32];
    bool applies;
    size_t width = 0;
    for (size_t i = 0; policy_describe(report->policy, report->backend, i, &name, value, &applies); i++) {
        size_t length = strlen(name) + strlen(value) + 2;
        if (width == 0 || width + length > 94) {
            buffer_append_string(out, width == 0 ? "policy         " : "\n               ");
            width = 0;
        }
        buffer_printf(out, " %s=%s", name, value);
        width += length;
    }
    buffer_append_string(out, "\n");
}

static void print_machine(const struct plan_report *report, double seconds, struct buffer *out) {
    struct text bandwidth = with_unit(report->bandwidth, "B/s"), rate = with_unit(report->rate, "FLOP/s");
    bool both = report->bandwidth > 0 && report->rate > 0;
    buffer_printf(out, "least time      %s: %.1f tokens/s at %s%s%s%s\n", in_seconds(seconds).characters,
                  report->plan->rows / seconds, report->bandwidth > 0 ? bandwidth.characters : "",
                  both ? " and " : "", report->rate > 0 ? rate.characters : "",
                  both ? " (for each op the slower of moving and computing)" : "");
}

static void print_apple(const struct plan_report *report, struct buffer *out) {
    const struct policy *policy = report->policy;
    buffer_printf(out,
                  "\nPredicted for Apple's chips from published figures, with %s; nothing was measured:\n\n"
                  "%-12s %5s %12s %14s %11s %11s %10s\n",
                  policy->concurrent ? "4.2 us for every phase" : "3.7 us for every kernel", "chip", "cores",
                  "bandwidth", "rate", "least time", "predicted", "tokens/s");
    for (size_t i = 0; i < APPLE_CHIP_COUNT; i++) {
        const struct apple_chip *chip = &apple_chips[i];
        struct apple_prediction time = apple_predict(chip, report->plan, report->position, report->kernels,
                                                     report->kernel_phases, policy);
        buffer_printf(out, "%-12s %5u %12s %14s %11s %11s %10.1f\n", chip->name, chip->gpu_cores,
                      with_unit(chip->bandwidth, "B/s").characters,
                      with_unit(apple_rate(chip, policy), "FLOP/s").characters,
                      in_seconds(time.least).characters, in_seconds(time.predicted).characters,
                      report->plan->rows / time.predicted);
    }
}

/* A figure, beside the article's if that is for a plan like this one. */
static void print_figure(const char *name, uint32_t figure, bool compare, int article, struct buffer *out) {
    buffer_printf(out, "%-15s %u", name, figure);
    if (compare)
        buffer_printf(out, " (the article: %d)", article);
    buffer_append_string(out, "\n");
}

static void print_operand(const struct plan_report *report, const struct operand *view, struct buffer *out) {
    static const char *const access[] = {"-", "r ", " w", "rw"};
    buffer_printf(out, "%19s %s %-7s %s %s [%u, %u]", "", access[view->access & 3],
                  space_name((enum space)view->space), plan_buffer_name(report, view),
                  dtype_name((enum dtype)view->dtype), view->rows, view->columns);
    if (view->space == SPACE_STATE || view->space == SPACE_KV)
        buffer_printf(out, " buffer %u", view->buffer);
    if (view->stride != view->columns)
        buffer_printf(out, " stride %u", view->stride);
    if (view->offset != 0)
        buffer_printf(out, " offset %llu B", (unsigned long long)view->offset);
    buffer_append_string(out, "\n");
}

static void print_ops(const struct plan_report *report, struct buffer *out) {
    buffer_append_string(out, "\nphase layer op\n");
    for (uint32_t i = 0; i < report->plan->op_count; i++) {
        const struct op *op = &report->plan->ops[i];
        struct cost cost = op_cost(op, report->position);
        char layer[16] = "-";
        if (op->layer >= 0)
            snprintf(layer, sizeof layer, "%d", op->layer);
        buffer_printf(out, "%5u %5s %-16s %s, %s\n", op->phase, layer, op_name(op->kind),
                      with_unit((double)cost_bytes(&cost), "B").characters,
                      with_unit((double)cost.flops, "FLOP").characters);
        for (uint32_t j = 0; j < op->operand_count; j++)
            print_operand(report, &op->operands[j], out);
    }
}

bool plan_print_table(const struct plan_report *report, bool ops, struct buffer *out,
                      struct calla_error *error) {
    const struct plan *plan = report->plan;
    struct plan_totals totals;
    plan_totals(report, &totals);
    uint64_t bytes = cost_bytes(&totals.all.cost);

    buffer_printf(out, "%s: %s of %u row%s at position %u on the backend %s\n\n", report->model,
                  report->phase, plan->rows, plan->rows == 1 ? "" : "s", report->position, report->backend);
    buffer_printf(out, "%-16s %5s %10s %10s %10s %10s %6s %12s %6s%s\n", "op", "ops", "weights", "state",
                  "kv", "scratch", "%", "FLOP", "%", has_machine(report) ? "  least time" : "");
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (totals.kinds[kind].ops > 0)
            print_row(report, op_name((enum op_kind)kind), &totals.kinds[kind], &totals.all, out);
    print_row(report, "total", &totals.all, &totals.all, out);

    bool compare = plan_like_article(report);
    bool kernels = report->kernels > 0;
    buffer_append_string(out, "\n");
    print_figure("ops", plan->op_count, compare && !kernels, ARTICLE_DECODE_KERNELS, out);
    print_figure("phases", plan->phase_count, compare && !kernels, ARTICLE_DECODE_PHASES, out);
    if (kernels) {
        print_figure("kernels", report->kernels, compare, ARTICLE_DECODE_KERNELS, out);
        print_figure("kernel phases", report->kernel_phases, compare, ARTICLE_DECODE_PHASES, out);
    }
    buffer_printf(out, "bytes a token   %s, of which weights %s\n",
                  with_unit((double)bytes / plan->rows, "B").characters,
                  with_unit((double)totals.all.cost.weight_bytes / plan->rows, "B").characters);
    buffer_printf(out, "FLOP a token    %s\n",
                  with_unit((double)totals.all.cost.flops / plan->rows, "FLOP").characters);
    buffer_printf(out, "scratch memory  %s\n", with_unit((double)totals.scratch_memory, "B").characters);
    if (has_machine(report))
        print_machine(report, totals.all.seconds, out);
    print_policy(report, out);
    if (kernels)
        print_apple(report, out);
    if (ops)
        print_ops(report, out);
    return !out->failed || error_memory(error, "the printed plan", out->size);
}
