/* The picture: what is drawn, where, and that no text or number can break it. */
#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "cli/plot.h"

static struct plot_panel *panels;

static int set_up(void **state) {
    (void)state;
    panels = calloc(2, sizeof *panels);
    panels[0] = (struct plot_panel){.title = "Prefill", .unit = "tokens/s"};
    panels[1] = (struct plot_panel){.title = "Decode", .unit = "tokens/s"};
    return panels == NULL;
}

static int tear_down(void **state) {
    (void)state;
    free(panels);
    return 0;
}

static void add(struct plot_panel *panel, const char *name, enum plot_style style, size_t count,
                const struct plot_point *points) {
    struct plot_series *series = &panel->series[panel->count++];
    *series = (struct plot_series){.name = name, .style = style, .count = count};
    memcpy(series->points, points, count * sizeof *points);
}

static size_t occurrences(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

static char *draw(const char *title) {
    struct buffer out = {0};
    assert_true(plot_svg(title, "a machine", panels, 2, &out));
    return buffer_take(&out, NULL);
}

static void lengths_are_logarithmic_and_values_start_at_0(void **state) {
    (void)state;
    const struct plot_point points[] = {{256, 100, 90, 110}, {1024, 50, 50, 50}, {4096, 25, 20, 30}};
    const struct plot_point limit[] = {{256, 200, 0, 0}, {4096, 150, 0, 0}};
    add(&panels[0], "calla", PLOT_FIRST, 3, points);
    add(&panels[0], "limit", PLOT_DASHED, 2, limit);
    char *svg = draw("model");
    const char *line = strstr(svg, "<polyline class=\"line first\" points=\"");
    double x[3], y[3];
    assert_non_null(line);
    assert_int_equal(sscanf(line, "<polyline class=\"line first\" points=\"%lf,%lf %lf,%lf %lf,%lf\"", &x[0],
                            &y[0], &x[1], &y[1], &x[2], &y[2]),
                     6);
    assert_true(fabs((x[1] - x[0]) - (x[2] - x[1])) < 0.2); /* four times as long both times */
    double zero = 2 * y[1] - y[0];                          /* 100 is as far above 50 as 50 above 0 */
    assert_true(fabs((zero - y[2]) * 2 - (zero - y[1])) < 0.3);
    assert_int_equal(occurrences(svg, "<circle class=\"first-dot\""), 3);
    assert_int_equal(occurrences(svg, "class=\"bar first\""), 2); /* one has no spread */
    assert_int_equal(occurrences(svg, "<polyline class=\"line dashed\""), 1);
    assert_int_equal(occurrences(svg, "not measured"), 1);
    assert_non_null(strstr(svg, ">4K</text>"));
    free(svg);
}

static void texts_are_escaped(void **state) {
    (void)state;
    char *svg = draw("</svg><script>\"&\x01\xff");
    assert_int_equal(occurrences(svg, "<script"), 0);
    assert_int_equal(occurrences(svg, "</svg>"), 1);
    assert_non_null(strstr(svg, "&lt;/svg&gt;&lt;script&gt;&quot;&amp; \xef\xbf\xbd"));
    free(svg);
}

static void odd_numbers_are_left_out(void **state) {
    (void)state;
    const struct plot_point points[] = {{0, 5, 0, 0},     {1, NAN, NAN, NAN},   {2, INFINITY, 0, 0},
                                        {3, -1, -2, 0},   {4, 1e-9, 0, NAN},    {8, 1e12, 1e12, INFINITY},
                                        {16, 0.02, 0, 0}, {UINT32_MAX, 3, 2, 4}};
    add(&panels[0], "odd", PLOT_SECOND, sizeof points / sizeof *points, points);
    add(&panels[1], "one", PLOT_DASHED, 1, (const struct plot_point[]){{256, 3, 3, 3}});
    char *svg = draw("numbers");
    assert_int_equal(occurrences(svg, "<circle class=\"second-dot\""), 4);
    assert_int_equal(occurrences(svg, "nan"), 0);
    assert_int_equal(occurrences(svg, "inf"), 0);
    /* A limit at one length is a line across. */
    assert_int_equal(occurrences(svg, "class=\"line dashed\" x1"), 2);
    assert_true(strlen(svg) < 20000);
    free(svg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lengths_are_logarithmic_and_values_start_at_0, set_up, tear_down),
        cmocka_unit_test_setup_teardown(texts_are_escaped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(odd_numbers_are_left_out, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
