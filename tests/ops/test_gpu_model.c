/* Whole models on a GPU, where there is one: logits against those of the reference, in every way that the
 * plans can be cut; and what the bundled model says against what it says on the CPU. Of CUDA, as it is and
 * with the kernels for older GPUs, or of the backend that CALLA_TEST_ONLY names. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "evaluate.h"
#include "older_gpu.h"
#ifdef CALLA_METAL_EMULATED
#include "backend/metal/metal_backend.h"
#include "metal_emulator/metal_emulator.h"
#endif

#ifndef CALLA_TEST_ONLY
#define CALLA_TEST_ONLY "cuda"
#endif
#define BUNDLED "models/calla-tiny"
#define PROMPTS "tests/data/tiny-heldout.jsonl"
#define IS_METAL (strcmp(CALLA_TEST_ONLY, "metal") == 0)
enum { POSITIONS = 80, PROMPT_COUNT = 20, REPLY_TOKENS = 64 };

/* Every so many'th request of the file, which has its short ones first: those are for the emulator of Metal.
 */
static int prompt_step(void) {
    return IS_METAL ? 12 : 27;
}

static float *logits_of(const char *backend, bool older, const char *const *policies, const int32_t *tokens,
                        uint32_t count, uint32_t *vocabulary) {
    struct evaluation evaluation = {.folder = BUNDLED,
                                    .backend = backend,
                                    .older_gpu = older,
                                    .threads = 2,
                                    .policies = policies,
                                    .tokens = tokens,
                                    .count = count};
    return evaluate(&evaluation, vocabulary);
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The median of |found - expected| / |expected| over the positions, and at how many the largest logit is the
 * same. Not the largest: where rounding makes a router choose another expert, the logits are others. */
static double middle_error(const float *found, const float *expected, uint32_t count, uint32_t vocabulary,
                           uint32_t *same) {
    double errors[POSITIONS];
    *same = 0;
    for (uint32_t t = 0; t < count; t++) {
        const float *a = found + (size_t)t * vocabulary, *b = expected + (size_t)t * vocabulary;
        uint32_t best_a = 0, best_b = 0;
        for (uint32_t i = 0; i < vocabulary; i++) {
            best_a = a[i] > a[best_a] ? i : best_a;
            best_b = b[i] > b[best_b] ? i : best_b;
        }
        errors[t] = relative_error(a, b, vocabulary);
        assert_false(isnan(errors[t]));
        *same += best_a == best_b;
    }
    qsort(errors, count, sizeof *errors, by_value);
    return errors[count / 2];
}

static void logits_agree_in_every_way(void **state) {
    (void)state;
    static const char *const ways[][10] = {
        {NULL},
        {"chunk_rows=1"},
        {"chunk_rows=2"},
        {"chunk_rows=7"},
        {"chunk_rows=79"},
        {"concurrent=off"},
        {"kv_dtype=f32"},
        {"fuse_expert_gate_up=off", "fuse_expert_down=off", "fuse_qk_prep=off", "fuse_delta_norm=off",
         "fuse_delta_conv=off", "fuse_projections=off", "fuse_norm=off"},
        {"fuse_expert_gate_up=off", "fuse_expert_down=off", "fuse_qk_prep=off", "fuse_delta_norm=off",
         "fuse_delta_conv=off", "fuse_projections=off", "fuse_norm=off", "chunk_rows=1"},
        {"fuse_delta_conv=off", "chunk_rows=1"},
    };
    int32_t tokens[POSITIONS];
    const uint32_t positions = IS_METAL ? 24 : POSITIONS; /* which takes its time in the emulator */
    for (int i = 0; i < POSITIONS; i++)
        tokens[i] = (i * 37 + i / 7) % 300;
    uint32_t vocabulary, same;
    float *expected = logits_of("reference", false, NULL, tokens, positions, &vocabulary);
    size_t way_count = sizeof ways / sizeof *ways;
    for (size_t i = 0; i < way_count * (IS_METAL ? 1 : 2); i += IS_METAL ? 7 : 1) {
        size_t way = i % way_count;
        bool older = i >= way_count;
        float *found = logits_of(CALLA_TEST_ONLY, older, ways[way], tokens, positions, &vocabulary);
        float *again = logits_of(CALLA_TEST_ONLY, older, ways[way], tokens, positions, &vocabulary);
        double error = middle_error(found, expected, positions, vocabulary, &same);
        print_message("way %zu%s: median of relative L2 errors %.2g, %u of %u likeliest tokens the same\n",
                      way, older ? " as on an older GPU" : "", error, same, positions);
        /* These tokens mean nothing, which makes the model sensitive: the CPU's bf16 products are off by
         * 0.039, those of simdgroup matrices by 0.056, tensor operations as an M5 adds them by 0.061. */
        assert_true(error < 8e-2);
        assert_true(same >= positions * 9 / 10);
        assert_memory_equal(found, again, (size_t)positions * vocabulary * sizeof *found);
        free(found);
        free(again);
    }
    free(expected);
}

/* Requests of the held-out file. */
static void read_requests(char *requests[PROMPT_COUNT]) {
    struct buffer text = {0};
    struct calla_error error = {0};
    if (!file_read(PROMPTS, 64 << 20, &text, &error))
        fail_msg("%s", error.message);
    const char *line = text.data;
    for (int i = 0; i < PROMPT_COUNT * prompt_step(); i++) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        if (i % prompt_step() == 0) {
            json_t *json = json_parse(line, (size_t)(end - line), PROMPTS, &error);
            if (json == NULL)
                fail_msg("%s", error.message);
            requests[i / prompt_step()] = json_dumps(json_object_get(json, "request"), 0);
            assert_non_null(requests[i / prompt_step()]);
            json_decref(json);
        }
        line = end + 1;
    }
    buffer_free(&text);
}

static struct calla_model *model_with(const char *backend, const char *policy) {
    struct calla_error error = {0};
    struct calla_model_options options = {.path = BUNDLED,
                                          .backend = backend,
                                          .policies = policy != NULL ? &policy : NULL,
                                          .policy_count = policy != NULL};
    struct calla_model *model = calla_model_open(&options, &error);
    if (model == NULL)
        fail_msg("%s", error.message);
    return model;
}

static struct calla_model *model_on(const char *backend) {
    return model_with(backend, NULL);
}

static struct calla_reply reply_of(struct calla_model *model, const char *request,
                                   const struct calla_sampling *sampling, uint32_t tokens) {
    struct calla_error error = {0};
    struct calla_prompt prompt;
    struct calla_reply reply = {0};
    struct calla_session_options options = {.context = 4096};
    struct calla_session *session = calla_session_open(model, &options, &error);
    struct calla_generate_options generate = {.sampling = *sampling, .max_tokens = tokens};
    if (session == NULL || !calla_render(model, request, strlen(request), &prompt, &error) ||
        !calla_generate(session, &prompt, &generate, &reply, &error))
        fail_msg("%s", error.message);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    return reply;
}

static struct calla_reply reply_to(struct calla_model *model, const char *request,
                                   const struct calla_sampling *sampling) {
    return reply_of(model, request, sampling, REPLY_TOKENS);
}

/* What the GPU was asked to do so far, as a number; 0 where nobody knows. */
static uint64_t trace_of(const struct calla_model *model) {
#ifdef CALLA_METAL_EMULATED
    return metal_emulator_counts(((const struct metal_backend *)model->backend)->device).trace;
#else
    (void)model;
    return 0;
#endif
}

/* Choices that half and double of their numbers leave as they are in so short a text. */
static const struct {
    const char *name, *value;
} small_values[] = {{"chunk_rows", "7"}, {"attention_split", "8"}};

static bool alternative_of(const struct policy *policy, size_t index, const char *name, size_t nth,
                           char value[32]) {
    for (size_t i = 0; i < sizeof small_values / sizeof *small_values; i++)
        if (strcmp(name, small_values[i].name) == 0) {
            snprintf(value, 32, "%s", small_values[i].value);
            return nth == 0;
        }
    return policy_alternative(policy, CALLA_TEST_ONLY, index, nth, value);
}

/* Every choice set to everything else that it may be gives the same text, and is another way to it: but for
 * command_work, for which there is too little work here (tests of it are in test_metal_host). */
static void every_policy_says_the_same(void **state) {
    (void)state;
    static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Who are you?\"}]}";
    const struct calla_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    enum { TOKENS = 16 };
    struct calla_model *model = model_on(CALLA_TEST_ONLY);
    struct calla_reply expected = reply_of(model, request, &greedy, TOKENS);
    uint64_t trace = trace_of(model);
    calla_model_close(model);
    assert_int_equal(expected.tokens.count, TOKENS);
    struct policy policy;
    policy_defaults(&policy, CALLA_TEST_ONLY);
    const char *name;
    char value[32], assignment[96];
    bool applies;
    for (size_t i = 0; policy_describe(&policy, CALLA_TEST_ONLY, i, &name, value, &applies); i++)
        for (size_t n = 0;
             applies && strcmp(name, "speculate") != 0 && alternative_of(&policy, i, name, n, value); n++) {
            snprintf(assignment, sizeof assignment, "%s=%s", name, value);
            model = model_with(CALLA_TEST_ONLY, assignment);
            struct calla_reply found = reply_of(model, request, &greedy, TOKENS);
            if (found.tokens.count != TOKENS ||
                memcmp(found.tokens.ids, expected.tokens.ids, TOKENS * sizeof(int32_t)) != 0)
                fail_msg("with %s the text is another", assignment);
            if (trace != 0 && trace_of(model) == trace && strcmp(name, "command_work") != 0)
                fail_msg("%s changes nothing", assignment);
            calla_reply_free(&found);
            calla_model_close(model);
        }
    calla_reply_free(&expected);
}

/* Greedy, and drawn with a seed. */
static void check_replies(bool older) {
    const struct calla_sampling samplings[] = {
        {.top_p = 1, .repetition_penalty = 1},
        {.temperature = 0.7f, .top_p = 0.95f, .top_k = 20, .repetition_penalty = 1, .seed = 5},
    };
    struct calla_model *cpu = model_on("cpu"), *gpu = model_on(CALLA_TEST_ONLY);
    if (older)
        older_gpu_pretend(gpu->backend);
    char *requests[PROMPT_COUNT];
    read_requests(requests);
    int different[2] = {0};
    for (int i = 0; i < PROMPT_COUNT; i++) {
        for (int drawn = 0; drawn < (IS_METAL && i % 5 != 0 ? 1 : 2); drawn++) {
            struct calla_reply a = reply_to(cpu, requests[i], &samplings[drawn]);
            struct calla_reply b = reply_to(gpu, requests[i], &samplings[drawn]);
            size_t common = 0;
            while (common < a.tokens.count && common < b.tokens.count &&
                   a.tokens.ids[common] == b.tokens.ids[common])
                common++;
            if (common < a.tokens.count || common < b.tokens.count) {
                print_message("prompt %d, %s: the same for %zu of %zu tokens\n", i,
                              drawn ? "drawn" : "greedy", common, a.tokens.count);
                different[drawn]++;
            }
            calla_reply_free(&a);
            calla_reply_free(&b);
        }
        free(requests[i]);
    }
    calla_model_close(cpu);
    calla_model_close(gpu);
    assert_int_equal(different[0], 0);
    /* A draw that falls on the border of two tokens may go either way. */
    assert_true(different[1] <= 2);
}

static void the_bundled_model_says_the_same(void **state) {
    (void)state;
    check_replies(false);
}

static void it_says_the_same_as_on_an_older_gpu(void **state) {
    (void)state;
    check_replies(true);
}

static struct calla_session *session_of(struct calla_model *model, uint32_t context) {
    struct calla_error error = {0};
    struct calla_session_options options = {.context = context};
    struct calla_session *session = calla_session_open(model, &options, &error);
    if (session == NULL)
        fail_msg("%s", error.message);
    return session;
}

/* The logits after the session has read all of these tokens. */
static const float *logits_after(struct calla_session *session, const int32_t *tokens, size_t count,
                                 size_t computed) {
    struct calla_error error = {0};
    size_t found;
    const float *logits = NULL;
    if (calla_session_read(session, tokens, count, &found, NULL, &error))
        logits = calla_session_logits(session, &error);
    if (logits == NULL)
        fail_msg("%s", error.message);
    assert_int_equal(found, computed);
    return logits;
}

/* Sessions that part from one text share its keys and values and do not disturb each other: each goes on, to
 * the bit, like one that has read its text alone. */
static void branches_have_the_bits_of_sessions_alone(void **state) {
    (void)state;
    enum { BRANCHES = 3, MOST = 4000 };
    const uint32_t common = IS_METAL ? 20 : 2500, more = IS_METAL ? 9 : 1400, whole = common + more;
    static int32_t tokens[BRANCHES][MOST];
    for (uint32_t i = 0; i < whole; i++)
        for (int b = 0; b < BRANCHES; b++)
            tokens[b][i] = (int32_t)((i * 37 + i / 7 + (i < common ? 0 : (unsigned)b * 11)) % 300);
    struct calla_model *model = model_on(CALLA_TEST_ONLY);
    struct calla_model_info info;
    calla_model_info(model, &info);
    size_t size = info.vocabulary * sizeof(float);
    struct calla_error error = {0};
    struct calla_session *branches[BRANCHES] = {session_of(model, 5000)};
    logits_after(branches[0], tokens[0], common, common);
    for (int b = 1; b < BRANCHES; b++) {
        branches[b] = calla_session_fork(branches[b - 1], &error);
        if (branches[b] == NULL)
            fail_msg("%s", error.message);
    }
    /* In turns, so that each has the others' rows to spoil. */
    for (uint32_t end = common + more / 3; end <= whole; end += more - more / 3)
        for (int b = 0; b < BRANCHES; b++)
            logits_after(branches[b], tokens[b], end, end == whole ? more - more / 3 : more / 3);
    for (int b = 0; b < BRANCHES; b++) {
        struct calla_session *alone = session_of(model, 5000);
        logits_after(alone, tokens[b], common, common);
        logits_after(alone, tokens[b], common + more / 3, more / 3);
        const float *expected = logits_after(alone, tokens[b], whole, more - more / 3);
        assert_memory_equal(calla_session_logits(branches[b], &error), expected, size);
        calla_session_close(alone);
    }
    for (int b = 0; b < BRANCHES; b++)
        calla_session_close(branches[b]);
    calla_model_close(model);
}

int main(void) {
    struct calla_error error;
    if (backend_find(CALLA_TEST_ONLY, &error) == NULL) {
        print_message("Nothing to test. %s\n", error.message);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(branches_have_the_bits_of_sessions_alone),
        cmocka_unit_test(logits_agree_in_every_way),
        cmocka_unit_test(the_bundled_model_says_the_same),
        cmocka_unit_test(every_policy_says_the_same),
    };
    const struct CMUnitTest of_cuda[] = {cmocka_unit_test(it_says_the_same_as_on_an_older_gpu)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + (IS_METAL ? 0 : cmocka_run_group_tests(of_cuda, NULL, NULL));
}
