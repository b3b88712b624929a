#include "unit.h"

#include "text/stop_matcher.h"

/* What comes through, with `split` bytes in the first piece and `step` in each later one. */
static char *filter(const char *const *stops, size_t count, const char *text, size_t split, size_t step,
                    bool *matched) {
    struct stop_matcher matcher = {.stops = stops, .count = count};
    struct buffer out = {0};
    size_t size = strlen(text);
    for (size_t at = 0, piece = split; at < size; at += piece, piece = step) {
        if (piece > size - at)
            piece = size - at;
        assert_true(stop_matcher_feed(&matcher, text + at, piece, &out));
    }
    assert_true(stop_matcher_finish(&matcher, &out));
    *matched = matcher.matched;
    stop_matcher_free(&matcher);
    return buffer_take(&out, NULL);
}

static void cuts_exactly_however_the_text_is_split(void **state) {
    (void)state;
    static const struct {
        const char *stops[4];
        const char *text, *expected;
        bool matched;
    } cases[] = {
        {{"beta gamma"}, "alpha beta gamma delta", "alpha ", true},
        {{"ta ga"}, "alpha beta gamma delta", "alpha be", true},
        {{"delta", "beta"}, "alpha beta gamma delta", "alpha ", true},
        {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo", true},
        {{"aab"}, "aaab", "a", true},
        {{"abcabd"}, "abcabcabd", "abc", true},
        {{"\xf0\x9f\x91\xa9"}, "x\xf0\x9f\x91\xa8\xf0\x9f\x91\xa9y", "x\xf0\x9f\x91\xa8", true},
        {{"end"}, "the en", "the en", false},
        {{"zzz", "yyy"}, "no stop in here zz", "no stop in here zz", false},
        {{"gamma", "beta gamma", "ta", "a b"}, "alpha beta gamma", "alph", true},
        {{"abcd", "bc"}, "abc", "a", true},
        {{"abcd", "bc"}, "abcx", "a", true},
        {{"x"}, "", "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t count = 0;
        while (count < 4 && cases[i].stops[count] != NULL)
            count++;
        size_t size = strlen(cases[i].text);
        for (size_t split = 1; split <= size + 1; split++)
            for (size_t step = 1; step <= size + 2; step += size + 1) {
                bool matched;
                char *result = filter(cases[i].stops, count, cases[i].text, split, step, &matched);
                assert_string_equal(result, cases[i].expected);
                assert_true(matched == cases[i].matched);
                free(result);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts_exactly_however_the_text_is_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
