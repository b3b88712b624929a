/* Lengths as people write them, and what several measurements of one thing say together. */
#ifndef CALLA_CLI_BENCH_NUMBERS_H
#define CALLA_CLI_BENCH_NUMBERS_H

#include <stdint.h>

#include "base/error.h"

#define BENCH_MOST_LENGTHS 32
#define BENCH_MOST_REPEATS 100

struct lengths {
    uint32_t values[BENCH_MOST_LENGTHS]; /* rising, each once */
    size_t count;
};

/* "256,1K,1024,128k" -> 256, 1024, 131072. `option` ("--prefill") names the source in the error. */
bool lengths_parse(struct lengths *lengths, const char *option, const char *text, struct calla_error *error);

/* Adds those of `more`. False when there are too many. */
bool lengths_merge(struct lengths *lengths, const struct lengths *more);

bool lengths_contain(const struct lengths *lengths, uint32_t length);

/* "4K" or "1000". */
void length_print(uint32_t length, char text[16]);

/* Repeated measurements of one figure, in the order in which they were taken. */
struct samples {
    double values[BENCH_MOST_REPEATS];
    size_t count;
};

void samples_add(struct samples *samples, double value);

/* numerator / each value, and a[i] / b[i] for as many as both have. */
struct samples samples_inverse(double numerator, const struct samples *samples);
struct samples samples_ratio(const struct samples *a, const struct samples *b);

/* Median and quartiles by linear interpolation between the sorted values: at (n - 1) p counted from 0. All 0
 * without a value. */
struct spread {
    double median, low_quartile, high_quartile, least, most;
    size_t count;
};

struct spread samples_spread(const struct samples *samples);

#endif
