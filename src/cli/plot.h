/* A picture of values over lengths: panels side by side, each with a logarithmic axis of lengths, one of
 * values from 0, and a line for each series. The SVG needs nothing besides itself and follows the viewer's
 * light or dark colours. */
#ifndef CALLA_CLI_PLOT_H
#define CALLA_CLI_PLOT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

struct plot_point {
    uint32_t length;         /* at least 1 */
    double value, low, high; /* low == high draws no bar */
};

/* How a series looks: a line with dots in the first or the second colour, or dashed grey without dots. */
enum plot_style { PLOT_FIRST, PLOT_SECOND, PLOT_DASHED };

#define PLOT_MOST_POINTS 64
#define PLOT_MOST_SERIES 3

struct plot_series {
    const char *name;
    enum plot_style style;
    struct plot_point points[PLOT_MOST_POINTS]; /* rising lengths; other lengths and values are left out */
    size_t count;
};

struct plot_panel {
    const char *title, *unit;
    struct plot_series series[PLOT_MOST_SERIES];
    size_t count;
};

/* Appends the SVG. Texts may be of any bytes. False when memory is short. */
bool plot_svg(const char *title, const char *subtitle, const struct plot_panel *panels, size_t panel_count,
              struct buffer *out);

#endif
