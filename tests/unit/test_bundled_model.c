/* The bundled model's replies, as mlx-lm computed them from the same folder in its own precision:
 * tests/data/mlx_lm.json, written by tools/oracle/mlx_lm_compare.py. */
#include "unit.h"

#include <math.h>

#include "base/json.h"
#include "evaluate.h"

#define MODEL "models/calla-tiny"
#define FIXTURE "tests/data/mlx_lm.json"

struct sums {
    double expected, found; /* of log probabilities */
    size_t same, positions;
};

/* log softmax(logits)[id] */
static double log_probability(const float *logits, uint32_t vocabulary, uint32_t id) {
    double largest = -INFINITY, total = 0;
    for (uint32_t i = 0; i < vocabulary; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < vocabulary; i++)
        total += exp(logits[i] - largest);
    return logits[id] - largest - log(total);
}

static uint32_t likeliest(const float *logits, uint32_t vocabulary) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void add_conversation(const json_t *conversation, const char *const *policies, struct sums *sums) {
    const json_t *list = json_object_get(conversation, "tokens");
    const json_t *positions = json_object_get(conversation, "positions");
    uint32_t count = (uint32_t)json_array_size(list), vocabulary;
    int32_t *tokens = calloc(count + (size_t)1, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(list, i));
    struct evaluation evaluation = {.folder = MODEL,
                                    .backend = "cpu",
                                    .threads = 2,
                                    .policies = policies,
                                    .tokens = tokens,
                                    .count = count};
    float *logits = evaluate(&evaluation, &vocabulary);
    for (size_t i = 0; i < json_array_size(positions); i++) {
        size_t t = (size_t)json_integer_value(json_array_get(positions, i));
        assert_true(t + 1 < count);
        const float *row = logits + t * vocabulary;
        json_int_t top1 = json_integer_value(json_array_get(json_object_get(conversation, "top1"), i));
        sums->same += likeliest(row, vocabulary) == top1;
        sums->expected +=
            json_number_value(json_array_get(json_object_get(conversation, "log_probability"), i));
        sums->found += log_probability(row, vocabulary, (uint32_t)tokens[t + 1]);
        sums->positions++;
    }
    free(logits);
    free(tokens);
}

static void agrees_with_mlx_lm(const char *operands) {
    struct calla_error error = {0};
    json_t *conversations = json_parse_file(FIXTURE, 1 << 20, &error);
    if (conversations == NULL)
        fail_msg("%s", error.message);
    struct sums sums = {0};
    for (size_t i = 0; i < json_array_size(conversations); i++)
        add_conversation(json_array_get(conversations, i), (const char *[]){operands, NULL}, &sums);
    json_decref(conversations);
    double positions = (double)sums.positions;
    double ratio = exp(sums.expected / positions - sums.found / positions); /* of the perplexities */
    assert_true(sums.positions >= 192);
    if (!((double)sums.same >= 0.99 * positions))
        fail_msg("%zu of %zu positions have the same likeliest token", sums.same, sums.positions);
    if (!(fabs(ratio - 1) < 1e-3))
        fail_msg("calla's perplexity is %.6f times mlx-lm's", ratio);
}

static void replies_agree_with_mlx_lm(void **state) {
    (void)state;
    agrees_with_mlx_lm("matrix_operands=int8");
    agrees_with_mlx_lm("matrix_operands=bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(replies_agree_with_mlx_lm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
