/* Sampling: which ids can come (exactly), and how often they do, against distributions computed here. */
#include "op_bench.h"

#include "backend/reference/sample.h"

enum { SMALL = 12 };

struct sampler {
    struct bench bench;
    struct operand logits, bias, counts, tokens;
};

static void sampler_open(struct sampler *sampler, uint32_t vocabulary) {
    struct bench *bench = &sampler->bench;
    bench_open(bench, vocabulary);
    sampler->logits = bench_input(bench, 1, vocabulary, 2);
    sampler->bias = bench_buffer(bench, DTYPE_F32, 1, vocabulary, ACCESS_READ);
    sampler->counts = bench_buffer(bench, DTYPE_I32, 1, vocabulary, ACCESS_READ | ACCESS_WRITE);
    sampler->tokens = bench_buffer(bench, DTYPE_I32, 1, 1, ACCESS_WRITE);
    bench_op(bench, OP_SAMPLE,
             (struct operand[]){bench_record(ACCESS_READ | ACCESS_WRITE), sampler->logits, sampler->bias,
                                sampler->counts, sampler->tokens},
             5);
    bench->record = (struct step_record){.rows = 1, .top_p = 1, .repetition_penalty = 1};
}

static int32_t sample(struct sampler *sampler) {
    bench_run(&sampler->bench);
    return bench_ints(&sampler->bench, sampler->tokens)[0];
}

static float *logits_of(struct sampler *sampler) {
    return bench_floats(&sampler->bench, sampler->logits);
}

static void greedy_takes_the_first_largest(void **state) {
    (void)state;
    struct sampler sampler;
    sampler_open(&sampler, SMALL);
    const float logits[SMALL] = {1, 5, 5, 2, 5, -1, 0, 0, 0, 0, 0, 0};
    memcpy(logits_of(&sampler), logits, sizeof logits);
    sampler.bench.record.position = 7;
    sampler.bench.record.rows = 4;
    assert_int_equal(sample(&sampler), 1);
    assert_int_equal(sampler.bench.record.position, 11);
    assert_int_equal(sampler.bench.record.rows, 1);
    assert_int_equal(sampler.bench.record.draws, 1);
    assert_int_equal(bench_ints(&sampler.bench, sampler.counts)[1], 1);
    sampler.bench.record.temperature = -1; /* no more than 0 is greedy */
    assert_int_equal(sample(&sampler), 1);
    assert_int_equal(bench_ints(&sampler.bench, sampler.counts)[1], 2);
    bench_close(&sampler.bench);
}

/* Each penalty and the bias, exactly: greedy between an id that they change and one just above or below what
 * it becomes. */
static void penalties_are_exact(void **state) {
    (void)state;
    const struct {
        float logit, repetition, presence, frequency, bias, expected;
        int32_t count;
    } cases[] = {
        {3, 1.5f, 0, 0, 0, 2, STEP_COUNT_IN_PROMPT},
        {3, 1.5f, 0, 0, 0, 2, 1},
        {-3, 1.5f, 0, 0, 0, -4.5f, 2},
        {3, 1.5f, 0, 0, 0, 3, 0},
        {3, 1, 0.5f, 0.25f, 0, 3,
         STEP_COUNT_IN_PROMPT}, /* ids of the prompt alone count for repetition only */
        {3, 1, 0.5f, 0.25f, 0, 1.75f, STEP_COUNT_IN_PROMPT | 3},
        {3, 1, 0.5f, 0.25f, 0, 2.25f, 1},
        {3, 2, 0.5f, 0.25f, -1, -0.25f, 1}, /* 3 / 2 - 0.75 - 1 */
        {3, 2, -0.5f, -0.25f, 4, 6.25f, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int above = 0; above < 2; above++) {
            struct sampler sampler;
            sampler_open(&sampler, SMALL);
            for (int id = 0; id < SMALL; id++)
                logits_of(&sampler)[id] = -100;
            logits_of(&sampler)[4] = cases[i].logit;
            logits_of(&sampler)[9] = cases[i].expected + (above ? 1e-3f : -1e-3f);
            bench_floats(&sampler.bench, sampler.bias)[4] = cases[i].bias;
            bench_ints(&sampler.bench, sampler.counts)[4] = cases[i].count;
            sampler.bench.record.repetition_penalty = cases[i].repetition;
            sampler.bench.record.presence_penalty = cases[i].presence;
            sampler.bench.record.frequency_penalty = cases[i].frequency;
            assert_int_equal(sample(&sampler), above ? 9 : 4);
            bench_close(&sampler.bench);
        }
}

static void forbidden_ids_never_come(void **state) {
    (void)state;
    for (int temperature = 0; temperature < 2; temperature++) {
        struct sampler sampler;
        sampler_open(&sampler, SMALL);
        float *logits = logits_of(&sampler), *bias = bench_floats(&sampler.bench, sampler.bias);
        sampler.bench.record.temperature = (float)temperature * 1e30f; /* as flat as it gets */
        for (int id = 0; id < SMALL; id++)
            bias[id] = id == 6 ? 0 : -INFINITY;
        for (int id = 0; id < SMALL; id++)
            logits[id] = id == 6 ? -1e30f : 1e30f;
        for (int draw = 0; draw < 20; draw++)
            assert_int_equal(sample(&sampler), 6);
        logits[6] = -INFINITY;
        assert_int_equal(sample(&sampler), -1);
        logits[6] = NAN;
        assert_int_equal(sample(&sampler), -1);
        logits[6] = INFINITY;
        assert_int_equal(sample(&sampler), -1);
        logits[6] = 1; /* NaN anywhere is broken, also where no id can come from */
        logits[2] = NAN;
        assert_int_equal(sample(&sampler), -1);
        for (int id = 0; id < SMALL; id++)
            assert_int_equal(bench_ints(&sampler.bench, sampler.counts)[id], id == 6 ? 20 : 0);
        bench_close(&sampler.bench);
    }
}

/* Probabilities of the ids by sorting all and cutting the list, in double. */
static void expected_distribution(const float *logits, int count, const struct step_record *record,
                                  double *probability) {
    int sorted[64];
    double total = 0, kept = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        int place = i;
        for (; place > 0 && logits[sorted[place - 1]] < logits[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = i;
    }
    int limit = record->top_k > 0 && (int)record->top_k < count ? (int)record->top_k : count;
    for (int i = 0; i < count; i++) {
        probability[sorted[i]] =
            i < limit ? exp(((double)logits[sorted[i]] - logits[sorted[0]]) / record->temperature) : 0;
        total += probability[sorted[i]];
    }
    double largest = probability[sorted[0]] / total;
    for (int i = 0; i < count; i++) {
        double p = probability[sorted[i]] / total;
        bool in = i == 0 || (sum < record->top_p && p >= record->min_p * largest);
        sum += p;
        probability[sorted[i]] = in ? p : 0;
        kept += probability[sorted[i]];
    }
    for (int i = 0; i < count; i++)
        probability[i] /= kept;
}

/* 100,000 draws: no id outside the kept ones, and chi-square of the others below its value at p = 1e-6. */
static void assert_distribution(const float *logits, int count, struct step_record record) {
    enum { DRAWS = 100000 };
    double probability[64], chi_square = 0;
    int found[64] = {0}, classes = 0;
    expected_distribution(logits, count, &record, probability);
    for (record.draws = 0; record.draws < DRAWS; record.draws++) {
        struct candidate candidates[64];
        for (int i = 0; i < count; i++)
            candidates[i] = (struct candidate){logits[i], i};
        int32_t id = sample_draw(candidates, (size_t)count, &record);
        assert_in_range(id, 0, count - 1);
        found[id]++;
    }
    for (int i = 0; i < count; i++) {
        double expected = probability[i] * DRAWS;
        if (probability[i] == 0)
            assert_int_equal(found[i], 0);
        if (expected < 5)
            continue;
        chi_square += (found[i] - expected) * (found[i] - expected) / expected;
        classes++;
    }
    /* Wilson and Hilferty's approximation of the quantile at 4.75 deviations. */
    double freedom = classes > 1 ? classes - 1 : 1,
           root = 1 - 2 / (9 * freedom) + 4.75 * sqrt(2 / (9 * freedom));
    if (chi_square > freedom * root * root * root)
        fail_msg("chi-square %g of %d classes", chi_square, classes);
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    const struct step_record settings[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.3f, .top_p = 1, .seed = 5},
        {.temperature = 3, .top_p = 1, .seed = 6},
        {.temperature = 1, .top_p = 1, .top_k = 1},
        {.temperature = 1, .top_p = 1, .top_k = 5, .seed = 7},
        {.temperature = 1, .top_p = 1, .top_k = 1000, .seed = 8},
        {.temperature = 1, .top_p = 0.8f, .seed = 9},
        {.temperature = 1, .top_p = 0, .seed = 10},
        {.temperature = 2, .top_p = 1, .min_p = 0.2f, .seed = 11},
        {.temperature = 1, .top_p = 0.9f, .min_p = 0.05f, .top_k = 20, .seed = 12},
        {.temperature = 1, .top_p = 0.95f, .top_k = 20, .seed = UINT64_MAX},
        {.temperature = 1.5f, .top_p = 0.5f, .top_k = 7, .min_p = 0.01f, .seed = 13},
    };
    struct bench bench;
    bench_open(&bench, 1);
    float logits[40], ties[40];
    for (int i = 0; i < 40; i++) {
        logits[i] = bench_normal(&bench) * 2;
        ties[i] = (float)(i * 7 % 5); /* eight ids of each of five logits */
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_distribution(logits, 40, settings[i]);
        assert_distribution(ties, 40, settings[i]);
        assert_distribution(logits, 1, settings[i]);
    }
    bench_close(&bench);
}

/* The kept set at exact borders: probabilities 1/2, 1/4, 1/8, 1/8. */
static void cuts_are_exact(void **state) {
    (void)state;
    const float logits[] = {-2 * 0.69314718f, -0.69314718f, -3 * 0.69314718f, -3 * 0.69314718f};
    const struct {
        uint32_t top_k;
        float top_p, min_p;
        unsigned kept; /* bit i: id i */
    } cases[] = {
        {0, 0.4f, 0, 2},   {0, 0.49f, 0, 2},   {0, 0.51f, 0, 3},  {0, 0.74f, 0, 3}, {0, 0.76f, 0, 7},
        {0, 0.874f, 0, 7}, {0, 0.876f, 0, 15}, {0, 1, 0.24f, 15}, {0, 1, 0.26f, 3}, {0, 1, 0.51f, 2},
        {3, 1, 0, 7},      {2, 1, 0, 3},       {2, 0.66f, 0, 2},  {2, 0.67f, 0, 3}, {3, 1, 0.3f, 3},
        {0, 1, 1, 2},      {1, 0.1f, 0.9f, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned kept = 0;
        struct step_record record = {
            .temperature = 1, .top_k = cases[i].top_k, .top_p = cases[i].top_p, .min_p = cases[i].min_p};
        for (record.draws = 0; record.draws < 2000; record.draws++) {
            struct candidate candidates[4];
            for (int id = 0; id < 4; id++)
                candidates[id] = (struct candidate){logits[id], id};
            kept |= 1u << sample_draw(candidates, 4, &record);
        }
        assert_int_equal(kept, cases[i].kept);
    }
}

/* Four equal ones, half of the probability: exactly the first two. */
static void top_p_stops_when_reached(void **state) {
    (void)state;
    unsigned kept = 0;
    struct step_record record = {.temperature = 1, .top_p = 0.5f};
    for (record.draws = 0; record.draws < 2000; record.draws++) {
        struct candidate candidates[] = {{1, 0}, {1, 1}, {1, 2}, {1, 3}};
        kept |= 1u << sample_draw(candidates, 4, &record);
    }
    assert_int_equal(kept, 3);
}

static void seeds_reproduce(void **state) {
    (void)state;
    struct sampler sampler;
    sampler_open(&sampler, 1000);
    sampler.bench.record.temperature = 1.2f;
    int32_t first[30];
    int same = 0, other = 0;
    for (int round = 0; round < 3; round++) {
        sampler.bench.record.seed = round < 2 ? 42 : 43;
        sampler.bench.record.draws = 0;
        memset(bench_ints(&sampler.bench, sampler.counts), 0, 4000);
        for (int i = 0; i < 30; i++) {
            int32_t id = sample(&sampler);
            if (round == 0)
                first[i] = id;
            same += round == 1 && id == first[i];
            other += round == 2 && id == first[i];
        }
    }
    assert_int_equal(same, 30);
    assert_true(other < 15);
    bench_close(&sampler.bench);
}

/* Uniform within a stream, across neighbouring seeds, and without correlation of neighbours. */
static void random_numbers_are_uniform(void **state) {
    (void)state;
    enum { COUNT = 100000, BINS = 100 };
    for (int across = 0; across < 2; across++) {
        int bins[BINS] = {0};
        double mean = 0, product = 0, last = 0.5;
        for (uint32_t i = 0; i < COUNT; i++) {
            double u = across ? sample_uniform(i, 3) : sample_uniform(77, i);
            assert_true(u >= 0 && u < 1);
            bins[(int)(u * BINS)]++;
            mean += u / COUNT;
            product += (u - 0.5) * (last - 0.5) / COUNT;
            last = u;
        }
        double chi_square = 0;
        for (int i = 0; i < BINS; i++)
            chi_square += pow(bins[i] - COUNT / BINS, 2) / (COUNT / BINS);
        assert_true(chi_square > 45 && chi_square < 180); /* 99 degrees of freedom */
        assert_true(fabs(mean - 0.5) < 0.005);
        assert_true(fabs(product) < 0.0015); /* 1/12/sqrt(COUNT) is 0.00026 */
    }
}

/* A vocabulary of the real size, top-p without top-k: the heap gives up few of many. */
static void a_large_vocabulary(void **state) {
    (void)state;
    struct sampler sampler;
    sampler_open(&sampler, 248320);
    struct bench *bench = &sampler.bench;
    const int32_t peaks[] = {17, 248319, 100000};
    for (int i = 0; i < 3; i++)
        logits_of(&sampler)[peaks[i]] = 30.0f - (float)i;
    bench->record.temperature = 1;
    bench->record.top_p = 0.95f;
    int seen[3] = {0};
    for (int i = 0; i < 12; i++) {
        int32_t id = sample(&sampler);
        for (int j = 0; j < 3; j++)
            seen[j] += id == peaks[j];
    }
    assert_int_equal(seen[0] + seen[1] + seen[2], 12);
    assert_true(seen[0] > 0);
    bench_close(bench);
}

/* Drawn from all logits that can come, as the definition has it. */
static int32_t expected_draw(struct sampler *sampler, uint32_t vocabulary) {
    struct candidate *candidates = calloc(vocabulary, sizeof *candidates);
    assert_non_null(candidates);
    size_t count = 0;
    for (uint32_t id = 0; id < vocabulary; id++)
        if (logits_of(sampler)[id] > -INFINITY)
            candidates[count++] = (struct candidate){logits_of(sampler)[id], (int32_t)id};
    int32_t id = sample_draw(candidates, count, &sampler->bench.record);
    free(candidates);
    return id;
}

/* However few of the logits are looked at for it. */
static void draws_are_those_of_the_definition(void **state) {
    (void)state;
    enum { VOCABULARY = 20011 };
    const struct {
        float temperature;
        uint32_t top_k;
        float top_p, min_p, spread;
    } cases[] = {
        {1, 20, 0.95f, 0, 1},       {1, 20, 0.95f, 0, 4},    {0.7f, 0, 0.9f, 0, 1},
        {0.7f, 0, 0.9f, 0, 4},      {1, 0, 1, 0, 1},         {0.2f, 0, 1, 0, 4},
        {1, 0, 1, 0.1f, 2},         {1, 0, 1, 0.001f, 1},    {1, 1, 1, 0, 1},
        {1, 5000, 1, 0, 2},         {1, 15000, 0.99f, 0, 1}, {1, 30000, 1, 0, 1},
        {1, 30000, 0.5f, 0.01f, 2}, {5, 40, 1, 0, 1},        {1, 79, 0.99f, 0.001f, 0},
        {1, 0, 0.6f, 0, 0},         {1e-30f, 0, 0.9f, 0, 1}, {1e30f, 0, 0.9f, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler sampler;
        sampler_open(&sampler, VOCABULARY);
        for (uint32_t id = 0; id < VOCABULARY; id++)
            logits_of(&sampler)[id] =
                id % 7 == 3 ? -INFINITY : roundf(64 * cases[i].spread * logits_of(&sampler)[id]) / 64;
        sampler.bench.record.temperature = cases[i].temperature;
        sampler.bench.record.top_k = cases[i].top_k;
        sampler.bench.record.top_p = cases[i].top_p;
        sampler.bench.record.min_p = cases[i].min_p;
        for (int draw = 0; draw < 3; draw++) {
            int32_t expected = expected_draw(&sampler, VOCABULARY);
            assert_int_equal(sample(&sampler), expected);
        }
        bench_close(&sampler.bench);
    }
}

/* The first and last of them, and each place in a vector. */
static void a_nan_anywhere_is_found(void **state) {
    (void)state;
    enum { VOCABULARY = 1031 };
    for (uint32_t place = 0; place < VOCABULARY; place = place < 20 || place >= 1010 ? place + 1 : 1010) {
        struct sampler sampler;
        sampler_open(&sampler, VOCABULARY);
        logits_of(&sampler)[place] = place % 2 == 0 ? NAN : INFINITY;
        assert_int_equal(sample(&sampler), -1);
        logits_of(&sampler)[place] = 100;
        assert_int_equal(sample(&sampler), place);
        bench_close(&sampler.bench);
    }
}

int main(void) {
    /* Of the definition's own functions, which no backend changes: run once. */
    const struct CMUnitTest definition[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(cuts_are_exact),
        cmocka_unit_test(top_p_stops_when_reached),
        cmocka_unit_test(random_numbers_are_uniform),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_largest),
        cmocka_unit_test(penalties_are_exact),
        cmocka_unit_test(forbidden_ids_never_come),
        cmocka_unit_test(seeds_reproduce),
        cmocka_unit_test(a_large_vocabulary),
        cmocka_unit_test(draws_are_those_of_the_definition),
        cmocka_unit_test(a_nan_anywhere_is_found),
    };
    int failed = cmocka_run_group_tests(definition, NULL, NULL);
    return failed + BENCH_RUN_TESTS(tests);
}
