/* Where matrix operands in bfloat16 move the logits far from float32's, a router has chosen another expert
 * between two of nearly equal probability. Made to choose as the reference does, everything else that is
 * rounded stays small at every position. */
/* wrap: route_row */
#include "unit.h"

#include <math.h>

#include "backend/reference/reference.h"
#include "base/json.h"
#include "evaluate.h"

#define MODEL "models/calla-tiny"
#define FIXTURE "tests/data/mlx_lm.json"
#define FAR 2e-2 /* relative L2 error of a position's logits */
#define MOST_CHOSEN 16

void __real_route_row(float *logits, size_t experts, size_t chosen, int32_t *ids, float *scores);
void __wrap_route_row(float *logits, size_t experts, size_t chosen, int32_t *ids, float *scores);

/* The choices of one run in their order: layer by layer, row by row. */
struct choices {
    int32_t (*ids)[MOST_CHOSEN];
    size_t count, capacity;
};

static struct choices *recorded;
static const struct choices *imposed;
static size_t next_imposed;

static void impose(const float *p, size_t chosen, const int32_t *wanted, int32_t *ids, float *scores) {
    float sum = 0;
    for (size_t k = 0; k < chosen; k++)
        sum += p[wanted[k]];
    for (size_t k = 0; k < chosen; k++) {
        ids[k] = wanted[k];
        scores[k] = p[wanted[k]] / sum;
    }
}

void __wrap_route_row(float *logits, size_t experts, size_t chosen, int32_t *ids, float *scores) {
    assert_true(chosen <= MOST_CHOSEN);
    __real_route_row(logits, experts, chosen, ids, scores); /* leaves probabilities in place of logits */
    if (imposed != NULL) {
        assert_true(next_imposed < imposed->count);
        impose(logits, chosen, imposed->ids[next_imposed++], ids, scores);
    }
    if (recorded == NULL)
        return;
    if (recorded->count == recorded->capacity) {
        recorded->capacity = recorded->capacity * 2 + 256;
        recorded->ids = realloc(recorded->ids, recorded->capacity * sizeof *recorded->ids);
        assert_non_null(recorded->ids);
    }
    int32_t *row = recorded->ids[recorded->count++];
    memset(row, 0, sizeof *recorded->ids);
    memcpy(row, ids, chosen * sizeof *ids);
}

static bool same_set(const int32_t *a, const int32_t *b) {
    uint64_t sets[2] = {0};
    for (size_t k = 0; k < MOST_CHOSEN; k++) {
        assert_true(a[k] < 64 && b[k] < 64);
        sets[0] |= UINT64_C(1) << a[k];
        sets[1] |= UINT64_C(1) << b[k];
    }
    return sets[0] == sets[1];
}

/* One thread, so that the order of choices is that of layers and rows. */
static float *logits_of(const char *backend, const char *policy, const int32_t *tokens, uint32_t count,
                        uint32_t *vocabulary) {
    struct evaluation evaluation = {.folder = MODEL,
                                    .backend = backend,
                                    .threads = 1,
                                    .policies = (const char *[]){policy, NULL},
                                    .tokens = tokens,
                                    .count = count};
    return evaluate(&evaluation, vocabulary);
}

struct tally {
    size_t positions, far, flipped; /* far: over FAR; flipped: those of them where a router chose otherwise */
    size_t choices, flips;
    double worst, worst_imposed; /* free, and with the reference's choices */
};

static void read_conversation(const json_t *list, const char *policy, struct tally *tally) {
    uint32_t count = (uint32_t)json_array_size(list), vocabulary;
    int32_t *tokens = calloc(count, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(list, i));
    struct choices expected = {0}, found = {0};
    recorded = &expected;
    float *reference = logits_of("reference", NULL, tokens, count, &vocabulary);
    recorded = &found;
    float *free_run = logits_of("cpu", policy, tokens, count, &vocabulary);
    recorded = NULL;
    imposed = &expected;
    next_imposed = 0;
    float *imposed_run = logits_of("cpu", policy, tokens, count, &vocabulary);
    imposed = NULL;
    assert_int_equal(next_imposed, expected.count);
    assert_int_equal(found.count, expected.count);
    assert_int_equal(expected.count % count, 0);
    bool any_before = false;
    for (uint32_t t = 0; t < count; t++) {
        size_t flips = 0, at = (size_t)t * vocabulary;
        for (size_t i = t; i < expected.count; i += count, tally->choices++)
            flips += !same_set(expected.ids[i], found.ids[i]);
        any_before = any_before || flips > 0;
        double error = relative_error(free_run + at, reference + at, vocabulary);
        /* A position without a flip of its own looks back at those that had one. */
        assert_true(error < FAR || any_before);
        tally->positions++;
        tally->flips += flips;
        tally->far += error >= FAR;
        tally->flipped += error >= FAR && flips > 0;
        tally->worst = fmax(tally->worst, error);
        tally->worst_imposed =
            fmax(tally->worst_imposed, relative_error(imposed_run + at, reference + at, vocabulary));
    }
    free(reference);
    free(free_run);
    free(imposed_run);
    free(expected.ids);
    free(found.ids);
    free(tokens);
}

static struct tally tally_of(const char *policy) {
    struct calla_error error = {0};
    json_t *conversations = json_parse_file(FIXTURE, 1 << 20, &error);
    if (conversations == NULL)
        fail_msg("%s", error.message);
    struct tally tally = {0};
    for (size_t i = 0; i < json_array_size(conversations); i++)
        read_conversation(json_object_get(json_array_get(conversations, i), "tokens"), policy, &tally);
    json_decref(conversations);
    print_message(
        "%s: %zu of %zu choices differ; %zu of %zu positions are off by %.0e or more, %zu of these with "
        "another choice; worst %.4f, with the reference's choices %.4f\n",
        policy, tally.flips, tally.choices, tally.far, tally.positions, FAR, tally.flipped, tally.worst,
        tally.worst_imposed);
    return tally;
}

static void only_other_choices_go_far(void **state) {
    (void)state;
    struct tally tally = tally_of("matrix_operands=bf16");
    assert_true(tally.worst_imposed < FAR);
    assert_true(tally.far <= tally.positions / 20);
    assert_true(tally_of("matrix_operands=int8").worst_imposed < 3 * FAR);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_other_choices_go_far)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
