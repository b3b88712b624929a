/* Lengths as people write them, and statistics. */
#include "unit.h"

#include <stdio.h>

#include "cli/bench_numbers.h"

static void lengths_are_sorted_and_single(void **state) {
    (void)state;
    struct lengths lengths;
    struct calla_error error;
    assert_true(lengths_parse(&lengths, "--decode", "4K,256,1k,1024,128K,300", &error));
    static const uint32_t expected[] = {256, 300, 1024, 4096, 131072};
    assert_int_equal(lengths.count, 5);
    assert_memory_equal(lengths.values, expected, sizeof expected);
    assert_true(lengths_contain(&lengths, 300) && !lengths_contain(&lengths, 301));
    char text[16];
    length_print(131072, text);
    assert_string_equal(text, "128K");
    length_print(300, text);
    assert_string_equal(text, "300");
    length_print(1000, text);
    assert_string_equal(text, "1000");
}

static void wrong_lengths_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"",
                                        ",",
                                        "256,",
                                        ",256",
                                        "256,,512",
                                        "0",
                                        "0K",
                                        "-1",
                                        "1.5K",
                                        "K",
                                        "1M",
                                        "1KK",
                                        " 256",
                                        "256 ",
                                        "1e3",
                                        "+5",
                                        "a",
                                        "2147483648",
                                        "2097152K",
                                        "99999999999999999999",
                                        "18446744073709551617"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct lengths lengths;
        struct calla_error error = {0};
        if (lengths_parse(&lengths, "--decode", wrong[i], &error))
            fail_msg("\"%s\" is taken", wrong[i]);
        assert_non_null(strstr(error.message, "--decode"));
    }
}

static void there_is_an_end_to_lengths(void **state) {
    (void)state;
    char text[512] = "";
    size_t size = 0;
    for (int i = 1; i <= BENCH_MOST_LENGTHS; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%s%d", i > 1 ? "," : "", i);
    struct lengths lengths, more;
    struct calla_error error;
    assert_true(lengths_parse(&lengths, "--prefill", text, &error));
    assert_true(lengths_parse(&more, "--prefill", "5", &error) && lengths_merge(&lengths, &more));
    assert_true(lengths_parse(&more, "--prefill", "500", &error) && !lengths_merge(&lengths, &more));
    snprintf(text + size, sizeof text - size, ",500");
    assert_false(lengths_parse(&lengths, "--prefill", text, &error));
}

static struct samples samples_of(const double *values, size_t count) {
    struct samples samples = {0};
    for (size_t i = 0; i < count; i++)
        samples_add(&samples, values[i]);
    return samples;
}

#define CLOSE(a, b) assert_true((a) - (b) < 1e-12 && (b) - (a) < 1e-12)

/* The quartiles are those of numpy.percentile. */
static void medians_and_quartiles(void **state) {
    (void)state;
    const double five[] = {9, 1, 4, 2, 3}, four[] = {1, 2, 3, 10}, one[] = {7};
    struct samples samples = samples_of(five, 5);
    struct spread spread = samples_spread(&samples);
    CLOSE(spread.median, 3);
    CLOSE(spread.low_quartile, 2);
    CLOSE(spread.high_quartile, 4);
    CLOSE(spread.least, 1);
    CLOSE(spread.most, 9);
    assert_int_equal(spread.count, 5);
    CLOSE(samples.values[0], 9); /* in the order of measuring still */
    samples = samples_of(four, 4);
    spread = samples_spread(&samples);
    CLOSE(spread.median, 2.5);
    CLOSE(spread.low_quartile, 1.75);
    CLOSE(spread.high_quartile, 4.75);
    samples = samples_of(one, 1);
    spread = samples_spread(&samples);
    CLOSE(spread.median, 7);
    CLOSE(spread.low_quartile, 7);
    CLOSE(spread.most, 7);
    samples.count = 0;
    spread = samples_spread(&samples);
    assert_int_equal(spread.count, 0);
    CLOSE(spread.median, 0);
}

static void ratios_are_of_pairs(void **state) {
    (void)state;
    const double a[] = {2, 6, 5}, b[] = {1, 2};
    struct samples first = samples_of(a, 3), second = samples_of(b, 2);
    struct samples ratio = samples_ratio(&first, &second);
    assert_int_equal(ratio.count, 2);
    CLOSE(ratio.values[0], 2);
    CLOSE(ratio.values[1], 3);
    struct samples inverse = samples_inverse(12, &second);
    assert_int_equal(inverse.count, 2);
    CLOSE(inverse.values[1], 6);
    for (int i = 0; i < 2 * BENCH_MOST_REPEATS; i++)
        samples_add(&first, 1);
    assert_int_equal(first.count, BENCH_MOST_REPEATS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_sorted_and_single), cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(there_is_an_end_to_lengths),    cmocka_unit_test(medians_and_quartiles),
        cmocka_unit_test(ratios_are_of_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
