#include "cli/bench_numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add_length(struct lengths *lengths, uint32_t length) {
    size_t place = 0;
    while (place < lengths->count && lengths->values[place] < length)
        place++;
    if (place < lengths->count && lengths->values[place] == length)
        return true;
    if (lengths->count == BENCH_MOST_LENGTHS)
        return false;
    memmove(&lengths->values[place + 1], &lengths->values[place],
            (lengths->count - place) * sizeof *lengths->values);
    lengths->values[place] = length;
    lengths->count++;
    return true;
}

/* One length, `size` characters of text: digits and perhaps K. 0 when it is none. */
static uint32_t parse_length(const char *text, size_t size) {
    size_t digits = strspn(text, "0123456789");
    bool thousands = digits + 1 == size && (text[digits] == 'K' || text[digits] == 'k');
    if (digits == 0 || digits > 10 || (digits != size && !thousands))
        return 0;
    uint64_t length = strtoull(text, NULL, 10) * (thousands ? 1024 : 1);
    return length <= INT32_MAX ? (uint32_t)length : 0;
}

bool lengths_parse(struct lengths *lengths, const char *option, const char *text, struct calla_error *error) {
    *lengths = (struct lengths){.count = 0};
    for (const char *word = text;; word++) {
        size_t size = strcspn(word, ",");
        uint32_t length = parse_length(word, size);
        if (length == 0)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: \"%.*s\" is no length: write numbers of tokens, such as 256,1K,32K.",
                             option, size > 64 ? 64 : (int)size, word);
        if (!add_length(lengths, length))
            return error_set(error, CALLA_BAD_INPUT, "%s names more than %d lengths.", option,
                             BENCH_MOST_LENGTHS);
        word += size;
        if (*word == 0)
            return true;
    }
}

bool lengths_merge(struct lengths *lengths, const struct lengths *more) {
    for (size_t i = 0; i < more->count; i++)
        if (!add_length(lengths, more->values[i]))
            return false;
    return true;
}

bool lengths_contain(const struct lengths *lengths, uint32_t length) {
    for (size_t i = 0; i < lengths->count; i++)
        if (lengths->values[i] == length)
            return true;
    return false;
}

void length_print(uint32_t length, char text[16]) {
    bool thousands = length >= 1024 && length % 1024 == 0;
    snprintf(text, 16, "%u%s", thousands ? length / 1024 : length, thousands ? "K" : "");
}

void samples_add(struct samples *samples, double value) {
    if (samples->count < BENCH_MOST_REPEATS)
        samples->values[samples->count++] = value;
}

struct samples samples_inverse(double numerator, const struct samples *samples) {
    struct samples inverse = {.count = samples->count};
    for (size_t i = 0; i < samples->count; i++)
        inverse.values[i] = samples->values[i] > 0 ? numerator / samples->values[i] : 0;
    return inverse;
}

struct samples samples_ratio(const struct samples *a, const struct samples *b) {
    struct samples ratio = {.count = a->count < b->count ? a->count : b->count};
    for (size_t i = 0; i < ratio.count; i++)
        ratio.values[i] = b->values[i] > 0 ? a->values[i] / b->values[i] : 0;
    return ratio;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t count, double share) {
    double place = (double)(count - 1) * share;
    size_t below = (size_t)place;
    double above = below + 1 < count ? sorted[below + 1] : sorted[below];
    return sorted[below] + (above - sorted[below]) * (place - (double)below);
}

struct spread samples_spread(const struct samples *samples) {
    struct spread spread = {.count = samples->count};
    if (samples->count == 0)
        return spread;
    double sorted[BENCH_MOST_REPEATS];
    memcpy(sorted, samples->values, samples->count * sizeof *sorted);
    qsort(sorted, samples->count, sizeof *sorted, compare_doubles);
    spread.median = quantile(sorted, samples->count, 0.5);
    spread.low_quartile = quantile(sorted, samples->count, 0.25);
    spread.high_quartile = quantile(sorted, samples->count, 0.75);
    spread.least = sorted[0];
    spread.most = sorted[samples->count - 1];
    return spread;
}
