#include "cli/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench_numbers.h"
#include "cli/streams.h"

/* In the picture's own units. */
#define PANEL_WIDTH 560.0
#define PANEL_HEIGHT 420.0
#define HEAD 84.0 /* title and subtitle */
#define LEFT 70.0
#define RIGHT 28.0
#define TOP 54.0 /* of a panel: its title and legend */
#define BOTTOM 52.0

/* Where the values of a panel lie. */
struct frame {
    double left, right, top, bottom;
    double first, last; /* binary logarithms of the lengths at the edges */
    double most, step;  /* value at the top, value between two lines */
};

static const char style_sheet[] =
    "<style>\n"
    "svg { background: #ffffff; font-family: system-ui, -apple-system, \"Segoe UI\", Helvetica, Arial, "
    "sans-serif; }\n"
    "text { fill: #1f2328; font-size: 13px; }\n"
    ".title { font-size: 20px; font-weight: 600; }\n"
    ".panel { font-size: 15px; font-weight: 600; }\n"
    ".soft { fill: #656d76; }\n"
    ".label { font-size: 11px; stroke: #ffffff; stroke-width: 3; paint-order: stroke; }\n"
    ".grid { stroke: #d8dee4; stroke-width: 1; }\n"
    ".line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".bar { stroke-width: 1.5; }\n"
    ".first { stroke: #0969da; } .first-dot { fill: #0969da; }\n"
    ".second { stroke: #d1570f; } .second-dot { fill: #d1570f; }\n"
    ".dashed { stroke: #6e7781; stroke-width: 1.8; stroke-dasharray: 7 5; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "svg { background: #0d1117; } text { fill: #e6edf3; } .soft { fill: #9198a1; } .grid { stroke: #30363d; "
    "}\n"
    ".first { stroke: #58a6ff; } .first-dot { fill: #58a6ff; }\n"
    ".second { stroke: #ff9657; } .second-dot { fill: #ff9657; } .dashed { stroke: #9198a1; }\n"
    "}\n"
    "</style>\n";

static void add_text(struct buffer *out, const char *text) {
    struct buffer valid = {0};
    size_t replaced;
    if (!append_utf8(&valid, text, strlen(text), &replaced))
        out->failed = true;
    for (size_t i = 0; i < valid.size; i++) {
        char byte = valid.data[i];
        if (byte == '&')
            buffer_append_string(out, "&amp;");
        else if (byte == '<')
            buffer_append_string(out, "&lt;");
        else if (byte == '>')
            buffer_append_string(out, "&gt;");
        else if (byte == '"')
            buffer_append_string(out, "&quot;");
        else
            buffer_append_byte(out, (unsigned char)byte < 0x20 ? ' ' : byte);
    }
    buffer_free(&valid);
}

static void put_text(struct buffer *out, double x, double y, const char *attributes, const char *text) {
    buffer_printf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    add_text(out, text);
    buffer_append_string(out, "</text>\n");
}

static bool drawable(const struct plot_point *point) {
    return point->length > 0 && isfinite(point->value) && point->value > 0;
}

/* 1, 2 or 5 times a power of ten, so that about five steps make `most`. */
static double step_for(double most) {
    double rough = most / 5, power = pow(10, floor(log10(rough)));
    double factor = rough / power;
    return power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
}

/* False when there is nothing to draw. */
static bool fit(struct frame *frame, const struct plot_panel *panel) {
    double most = 0, first = INFINITY, last = 0;
    for (size_t i = 0; i < panel->count; i++)
        for (size_t j = 0; j < panel->series[i].count; j++) {
            const struct plot_point *point = &panel->series[i].points[j];
            if (!drawable(point))
                continue;
            most = fmax(most, isfinite(point->high) ? fmax(point->value, point->high) : point->value);
            first = fmin(first, log2(point->length));
            last = fmax(last, log2(point->length));
        }
    if (most <= 0)
        return false;
    frame->step = step_for(most);
    frame->most = ceil(most * 1.04 / frame->step) * frame->step;
    double margin = first == last ? 1 : 0.04 * (last - first);
    frame->first = first - margin;
    frame->last = last + margin;
    return true;
}

static double x_of(const struct frame *frame, double length) {
    double share = (log2(length) - frame->first) / (frame->last - frame->first);
    return frame->left + share * (frame->right - frame->left);
}

static double y_of(const struct frame *frame, double value) {
    return frame->bottom - value / frame->most * (frame->bottom - frame->top);
}

static void draw_grid(struct buffer *out, const struct frame *frame, const struct plot_panel *panel) {
    char text[32];
    int decimals = frame->step >= 1 ? 0 : (int)ceil(-log10(frame->step) - 1e-9);
    for (int i = 0; i * frame->step <= frame->most * (1 + 1e-9); i++) {
        double y = y_of(frame, i * frame->step);
        buffer_printf(out, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                      frame->left, y, frame->right, y);
        snprintf(text, sizeof text, "%.*f", decimals, i * frame->step);
        put_text(out, frame->left - 8, y + 4, "class=\"soft\" text-anchor=\"end\"", text);
    }
    /* Lengths of all series, from the left, as far as their names have room. */
    double free_from = -INFINITY;
    for (uint32_t length = 0;;) {
        uint32_t next = UINT32_MAX;
        for (size_t i = 0; i < panel->count; i++)
            for (size_t j = 0; j < panel->series[i].count; j++) {
                const struct plot_point *point = &panel->series[i].points[j];
                if (drawable(point) && point->length > length && point->length < next)
                    next = point->length;
            }
        if (next == UINT32_MAX)
            break;
        length = next;
        double x = x_of(frame, length);
        if (x < free_from)
            continue;
        free_from = x + 42;
        length_print(length, text);
        put_text(out, x, frame->bottom + 20, "class=\"soft\" text-anchor=\"middle\"", text);
    }
    put_text(out, (frame->left + frame->right) / 2, frame->bottom + 42,
             "class=\"soft\" text-anchor=\"middle\"", "tokens of context");
}

static const char *const line_classes[] = {"first", "second", "dashed"};

static void draw_series(struct buffer *out, const struct frame *frame, const struct plot_series *series) {
    const char *class = line_classes[series->style];
    size_t drawn = 0;
    buffer_printf(out, "<polyline class=\"line %s\" points=\"", class);
    for (size_t i = 0; i < series->count; i++)
        if (drawable(&series->points[i])) {
            const struct plot_point *point = &series->points[i];
            double x = x_of(frame, point->length), y = y_of(frame, point->value);
            buffer_printf(out, "%s%.1f,%.1f", drawn++ > 0 ? " " : "", x, y);
        }
    buffer_append_string(out, "\"/>\n");
    if (series->style == PLOT_DASHED && drawn == 1 && drawable(&series->points[0])) {
        /* One point alone would be invisible. */
        double y = y_of(frame, series->points[0].value);
        buffer_printf(out, "<line class=\"line dashed\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                      frame->left, y, frame->right, y);
    }
    for (size_t i = 0; i < series->count && series->style != PLOT_DASHED; i++) {
        const struct plot_point *point = &series->points[i];
        if (!drawable(point))
            continue;
        double x = x_of(frame, point->length), y = y_of(frame, point->value);
        if (isfinite(point->low) && isfinite(point->high) && point->low < point->high)
            buffer_printf(out, "<line class=\"bar %s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                          class, x, y_of(frame, point->low), x, y_of(frame, point->high));
        buffer_printf(out, "<circle class=\"%s-dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", class, x, y);
        char text[32];
        snprintf(text, sizeof text,
                 point->value >= 99.95   ? "%.0f"
                 : point->value >= 9.995 ? "%.1f"
                                         : "%.2f",
                 point->value);
        bool above = series->style == PLOT_FIRST || y + 24 > frame->bottom;
        put_text(out, x, above ? y - 10 : y + 18, "class=\"label\" text-anchor=\"middle\"", text);
    }
}

static void draw_legend(struct buffer *out, const struct frame *frame, const struct plot_panel *panel) {
    double x = frame->left, y = frame->top - 14;
    for (size_t i = 0; i < panel->count; i++) {
        const struct plot_series *series = &panel->series[i];
        buffer_printf(out, "<line class=\"line %s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                      line_classes[series->style], x, y - 4, x + 24, y - 4);
        put_text(out, x + 31, y, "class=\"soft\"", series->name);
        x += 52 + 7.2 * (double)strlen(series->name);
    }
}

static void draw_panel(struct buffer *out, const struct plot_panel *panel, double left) {
    struct frame frame = {.left = left + LEFT,
                          .right = left + PANEL_WIDTH - RIGHT,
                          .top = HEAD + TOP,
                          .bottom = HEAD + PANEL_HEIGHT - BOTTOM};
    char title[128];
    snprintf(title, sizeof title, "%s, %s", panel->title, panel->unit);
    put_text(out, frame.left, HEAD + 14, "class=\"panel\"", title);
    if (!fit(&frame, panel)) {
        put_text(out, (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2,
                 "class=\"soft\" text-anchor=\"middle\"", "not measured");
        return;
    }
    draw_grid(out, &frame, panel);
    draw_legend(out, &frame, panel);
    for (size_t i = panel->count; i-- > 0;)
        draw_series(out, &frame, &panel->series[i]);
}

bool plot_svg(const char *title, const char *subtitle, const struct plot_panel *panels, size_t panel_count,
              struct buffer *out) {
    double width = PANEL_WIDTH * (double)panel_count, height = HEAD + PANEL_HEIGHT;
    buffer_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
                  "height=\"%.0f\" role=\"img\">\n<title>",
                  width, height, width, height);
    add_text(out, title);
    buffer_append_string(out, "</title>\n");
    buffer_append_string(out, style_sheet);
    put_text(out, LEFT, 36, "class=\"title\"", title);
    put_text(out, LEFT, 58, "class=\"soft\"", subtitle);
    for (size_t i = 0; i < panel_count; i++)
        draw_panel(out, &panels[i], PANEL_WIDTH * (double)i);
    buffer_append_string(out, "</svg>\n");
    return !out->failed;
}
