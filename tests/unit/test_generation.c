#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "checkpoint_fixture.h"
#include "engine/engine.h"
#include "model/weights.h"

#define LENGTH 150

/* A prompt of one user message. */
static void render(struct calla_model *model, const char *text, bool thinking, struct calla_prompt *prompt) {
    char request[256];
    snprintf(request, sizeof request,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"enable_thinking\":%s}", text,
             thinking ? "true" : "false");
    struct calla_error error = {0};
    if (!calla_render(model, request, strlen(request), prompt, &error))
        fail_msg("%s", error.message);
    assert_true(prompt->thinking == thinking);
}

static struct calla_reply generate(struct calla_session *session, const struct calla_prompt *prompt,
                                   const struct calla_generate_options *options) {
    struct calla_reply reply;
    struct calla_error error = {0};
    if (!calla_generate(session, prompt, options, &reply, &error))
        fail_msg("%s", error.message);
    return reply;
}

static struct calla_generate_options greedy(uint32_t max_tokens) {
    struct calla_generate_options options = {.max_tokens = max_tokens};
    options.sampling.top_p = 1;
    options.sampling.repetition_penalty = 1;
    return options;
}

static void greedy_repeats_and_counts(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_generate_options options = greedy(20);
    struct calla_reply a = generate(session, &prompt, &options);
    struct calla_reply b = generate(session, &prompt, &options);
    assert_int_equal(a.prompt_tokens, prompt.tokens.count);
    assert_int_equal(a.computed_tokens, prompt.tokens.count);
    assert_true(a.reply_tokens > 0 && a.reply_tokens <= 20);
    assert_int_equal(a.tokens.count, a.reply_tokens);
    assert_int_equal(a.tokens.count, b.tokens.count);
    assert_memory_equal(a.tokens.ids, b.tokens.ids, a.tokens.count * sizeof(int32_t));
    assert_string_equal(a.content, b.content);
    if (a.reply_tokens == 20)
        assert_int_equal(a.finish, CALLA_FINISH_LENGTH);
    calla_reply_free(&a);
    calla_reply_free(&b);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static void seeds_repeat_and_differ_and_padding_never_comes(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_generate_options options = greedy(200);
    options.sampling.temperature = 50; /* nearly uniform: padding rows would come */
    bool differ = false;
    struct calla_reply first = {0};
    for (uint64_t seed = 0; seed < 4; seed++) {
        options.sampling.seed = seed;
        struct calla_reply a = generate(session, &prompt, &options);
        struct calla_reply b = generate(session, &prompt, &options);
        assert_int_equal(a.tokens.count, b.tokens.count);
        assert_memory_equal(a.tokens.ids, b.tokens.ids, a.tokens.count * sizeof(int32_t));
        for (size_t i = 0; i < a.tokens.count; i++)
            assert_in_range(a.tokens.ids[i], 0, 264);
        differ = differ || (seed > 0 && a.tokens.ids[0] != first.tokens.ids[0]);
        calla_reply_free(&b);
        if (seed == 0)
            first = a;
        else
            calla_reply_free(&a);
    }
    assert_true(differ);
    calla_reply_free(&first);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static void end_tokens_end_and_thinking_closes_first(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    for (int32_t id = 256; id <= 258; id++) { /* both end tokens, and the one that would open a turn */
        struct calla_logit_bias bias = {.token = id, .bias = 1000};
        struct calla_generate_options options = greedy(50);
        options.sampling.biases = &bias;
        options.sampling.bias_count = 1;
        struct calla_prompt prompt;
        render(model, "Hello", false, &prompt);
        struct calla_reply reply = generate(session, &prompt, &options);
        assert_int_equal(reply.finish, CALLA_FINISH_STOP);
        assert_int_equal(reply.tokens.count, 1);
        assert_string_equal(reply.content, "");
        calla_reply_free(&reply);
        calla_prompt_free(&prompt);
        render(model, "Hello", true, &prompt);
        reply = generate(session, &prompt, &options);
        assert_int_equal(reply.finish, CALLA_FINISH_STOP);
        static const int32_t closed[] = {264, '\n',
                                         '\n'}; /* in place of the end, and the line end after it */
        assert_int_equal(reply.tokens.count, 4);
        assert_memory_equal(reply.tokens.ids, closed, sizeof closed);
        assert_int_equal(reply.tokens.ids[3], id);
        calla_reply_free(&reply);
        calla_prompt_free(&prompt);
    }
    calla_session_close(session);
    calla_model_close(model);
}

static void the_context_ends_a_reply(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_session_options session_options = {.context = (uint32_t)prompt.tokens.count + 5};
    struct calla_session *session = calla_session_open(model, &session_options, NULL);
    assert_non_null(session);
    struct calla_logit_bias bias = {.token = 'a', .bias = 1000};
    struct calla_generate_options options = greedy(0);
    options.sampling.biases = &bias;
    options.sampling.bias_count = 1;
    struct calla_reply reply = generate(session, &prompt, &options);
    assert_int_equal(reply.finish, CALLA_FINISH_LENGTH);
    assert_int_equal(reply.tokens.count, 6);
    assert_string_equal(reply.content, "aaaaaa");
    calla_reply_free(&reply);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static bool stop_at_third(void *user, const struct calla_event *event) {
    int *count = user;
    assert_int_equal(event->kind, CALLA_EVENT_CONTENT);
    return ++*count < 3;
}

static bool refuse(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)total;
    return done == 0;
}

static void callers_can_cancel(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, "chunk_rows=16");
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_logit_bias bias = {.token = 'a', .bias = 1000};
    struct calla_generate_options options = greedy(100);
    options.sampling.biases = &bias;
    options.sampling.bias_count = 1;
    int count = 0;
    options.event = stop_at_third;
    options.user = &count;
    struct calla_reply reply = generate(session, &prompt, &options);
    assert_int_equal(reply.finish, CALLA_FINISH_CANCELLED);
    assert_string_equal(reply.content, "aaa");
    calla_reply_free(&reply);
    /* While reading: the session is back at nothing. */
    int32_t tokens[LENGTH];
    some_tokens(tokens, LENGTH, 9);
    struct calla_progress progress = {.report = refuse};
    struct calla_error error = {0};
    assert_false(calla_session_read(session, tokens, LENGTH, NULL, &progress, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    assert_int_equal(calla_session_position(session), 0);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

/* A generation that is freed while its session is within a chunk of the prompt, of which no more is wanted.
 */
static void a_chunk_is_given_up_with_its_generation(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, "chunk_rows=4");
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_generate_options options = greedy(1);
    struct calla_error error = {0};
    bool done;
    for (int within = 0; within < 2; within++) {
        struct calla_generation *generation = calla_generation_new(session, &prompt, &options, &error);
        assert_non_null(generation);
        assert_true(calla_generation_step(generation, &done, &error));
        assert_int_equal(calla_session_position(session), within ? 8 : 4); /* it goes on from the first */
        session->chunk = within ? 4 : 0; /* as the backend leaves it that has stopped within the chunk */
        calla_generation_free(generation);
        assert_int_equal(calla_session_position(session), within ? 0 : 4);
        assert_int_equal(session->chunk, 0);
    }
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static void stops_end_content_and_sleep_in_thinking(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_logit_bias bias = {.token = 'a', .bias = 1000};
    static const char *const stops[] = {"zz", "aaa"};
    struct calla_generate_options options = greedy(20);
    options.sampling.biases = &bias;
    options.sampling.bias_count = 1;
    options.stops = stops;
    options.stop_count = 2;
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_reply reply = generate(session, &prompt, &options);
    assert_int_equal(reply.finish, CALLA_FINISH_STOP);
    assert_string_equal(reply.content, "");
    assert_int_equal(reply.tokens.count, 3);
    calla_reply_free(&reply);
    calla_prompt_free(&prompt);
    render(model, "Hello", true, &prompt);
    options.reasoning_budget = 5;
    reply = generate(session, &prompt, &options);
    assert_int_equal(reply.finish, CALLA_FINISH_STOP);
    assert_string_equal(reply.reasoning, "aaaaa");
    assert_string_equal(reply.content, "");
    assert_int_equal(reply.tokens.count, 5 + 4 + 3);
    options.stop_count = 0;
    calla_reply_free(&reply);
    reply = generate(session, &prompt, &options);
    assert_int_equal(reply.finish, CALLA_FINISH_LENGTH);
    assert_string_equal(reply.reasoning, "aaaaa");
    assert_string_equal(reply.content, "aaaaaaaaaaa");
    calla_reply_free(&reply);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static const char WITH_TOOLS[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"enable_thinking\":%s,\"tools\":["
    "{\"type\":\"function\",\"function\":{\"name\":\"list\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"lift_it\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{}}}}]}";

static void a_required_call_comes(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session_options session_options = {.context = 512};
    struct calla_session *session = calla_session_open(model, &session_options, NULL);
    assert_non_null(session);
    for (int thinking = 0; thinking < 2; thinking++)
        for (int named = 0; named < 2; named++) {
            char request[sizeof WITH_TOOLS + 8];
            snprintf(request, sizeof request, WITH_TOOLS, thinking ? "true" : "false");
            struct calla_prompt prompt;
            struct calla_error error = {0};
            if (!calla_render(model, request, strlen(request), &prompt, &error))
                fail_msg("%s", error.message);
            /* The template's instructions are long for a vocabulary of bytes: only its end is kept. */
            prompt.tokens.count = 200;
            struct calla_generate_options options = greedy(60);
            options.tool_required = true;
            options.tool_name = named ? "lift_it" : NULL;
            options.reasoning_budget = 4;
            struct calla_reply reply = generate(session, &prompt, &options);
            size_t size;
            char *text = calla_detokenize(model, reply.tokens.ids, reply.tokens.count, &size, NULL);
            assert_non_null(text);
            const char *call = strstr(text, "<tool_call>\n<function=");
            assert_non_null(call);
            call += strlen("<tool_call>\n<function=");
            const char *body = strchr(call, '\n');
            assert_true(strncmp(call, "lift_it>\n", 9) == 0 || (!named && strncmp(call, "list>\n", 6) == 0));
            assert_true(strncmp(body, "\n<parameter", 11) == 0 || strncmp(body, "\n</function>", 12) == 0);
            assert_true(reply.reasoning_tokens == 0 ? !thinking : reply.reasoning_tokens < 15);
            if (thinking)
                assert_memory_equal(call - strlen("</think>\n\n<tool_call>\n<function="), "</think>\n\n", 10);
            free(text);
            calla_reply_free(&reply);
            options.raw = true;
            assert_false(calla_generate(session, &prompt, &options, &reply, &error));
            calla_prompt_free(&prompt);
        }
    calla_session_close(session);
    calla_model_close(model);
}

struct heard {
    size_t count;
    double sum;
};

static bool hear_token(void *user, const struct calla_token_event *event) {
    struct heard *heard = user;
    heard->count++;
    assert_int_equal(event->top_count, 5);
    assert_true(event->logprob <= 0);
    /* Greedy: the token is the likeliest. */
    assert_int_equal(event->top[0].token, event->token);
    assert_true(event->top[0].logprob == event->logprob);
    double sum = 0;
    for (uint32_t i = 0; i < event->top_count; i++) {
        assert_true(i == 0 || event->top[i].logprob <= event->top[i - 1].logprob);
        sum += exp((double)event->top[i].logprob);
    }
    assert_true(sum > 0 && sum <= 1.0001);
    assert_false(event->thinking);
    heard->sum += (double)event->logprob;
    return true;
}

static void logprobs_are_those_of_the_distribution(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct heard heard = {0};
    struct calla_generate_options options = greedy(12);
    options.token = hear_token;
    options.user = &heard;
    options.logprobs = true;
    options.top_logprobs = 5;
    options.raw = true;
    struct calla_reply reply = generate(session, &prompt, &options);
    assert_int_equal(heard.count, reply.tokens.count);
    /* The same sum from an evaluation of prompt and reply. */
    size_t before = prompt.tokens.count, count = before + reply.tokens.count;
    int32_t all[256];
    assert_true(count < 256);
    memcpy(all, prompt.tokens.ids, before * sizeof *all);
    memcpy(all + before, reply.tokens.ids, reply.tokens.count * sizeof *all);
    double sum = 0;
    for (size_t i = before; i < count; i++) {
        const float *logits = read_all(session, all, i, NULL);
        double total = 0;
        for (int id = 0; id < 265; id++)
            total += exp((double)logits[id]);
        sum += (double)logits[all[i]] - log(total);
    }
    assert_true(fabs(sum - heard.sum) < 1e-4);
    calla_reply_free(&reply);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

static void bad_sampling_is_refused(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 1, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    struct calla_logit_bias bias = {.token = 265, .bias = 1};
    struct {
        struct calla_sampling sampling;
        const char *name;
    } cases[] = {
        {{.temperature = -1, .top_p = 1, .repetition_penalty = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repetition_penalty = 1}, "temperature"},
        {{.top_p = 1.5f, .repetition_penalty = 1}, "top_p"},
        {{.top_p = 1, .min_p = -1, .repetition_penalty = 1}, "min_p"},
        {{.top_p = 1, .repetition_penalty = 0}, "repetition_penalty"},
        {{.top_p = 1, .repetition_penalty = 1, .presence_penalty = INFINITY}, "presence_penalty"},
        {{.top_p = 1, .repetition_penalty = 1, .biases = &bias, .bias_count = 1}, "265"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct calla_generate_options options = {.sampling = cases[i].sampling, .max_tokens = 1};
        struct calla_reply reply;
        struct calla_error error = {0};
        assert_false(calla_generate(session, &prompt, &options, &reply, &error));
        assert_int_equal(error.status, CALLA_BAD_INPUT);
        assert_non_null(strstr(error.message, cases[i].name));
    }
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

/* Overwrites the first value of the final norm with a NaN. */
static void damage(const char *folder) {
    struct config config;
    struct weights weights;
    assert_true(config_read(&config, folder, NULL));
    assert_true(weights_open(&weights, &config, folder, NULL));
    const struct weight_part *part = &weights.table.weights[weights.table.final_norm].parts[0];
    FILE *file = fopen(weights.files[part->file].path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)part->offset, SEEK_SET), 0);
    assert_int_equal(fwrite("\xc0\x7f", 1, 2, file), 2);
    assert_int_equal(fclose(file), 0);
    weights_close(&weights);
    config_free(&config);
}

static void damaged_weights_give_an_error_and_not_text(void **state) {
    (void)state;
    struct checkpoint_fixture damaged;
    void *pointer = &damaged;
    assert_true(checkpoint_fixture_make(&damaged, 8));
    damage(damaged.model);
    struct calla_model *model = checkpoint_model(&pointer, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_prompt prompt;
    render(model, "Hello", false, &prompt);
    for (int sampled = 0; sampled < 2; sampled++) {
        struct calla_generate_options options = greedy(10);
        options.sampling.temperature = (float)sampled;
        struct calla_reply reply;
        struct calla_error error = {0};
        assert_false(calla_generate(session, &prompt, &options, &reply, &error));
        assert_int_equal(error.status, CALLA_NUMERIC);
    }
    struct calla_error error = {0};
    assert_true(calla_session_read(session, prompt.tokens.ids, prompt.tokens.count, NULL, NULL, &error));
    assert_null(calla_session_logits(session, &error));
    assert_int_equal(error.status, CALLA_NUMERIC);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
    checkpoint_fixture_remove(&damaged);
}

static void fused_and_plain_plans_give_the_same_text(void **state) {
    static const char *const policies[] = {
        NULL,
        "fuse_expert_gate_up=off",
        "fuse_expert_down=off",
        "fuse_qk_prep=off",
        "fuse_delta_norm=off",
        "fuse_delta_conv=off",
        "fuse_projections=off",
        "fuse_norm=off",
        "concurrent=off",
    };
    int32_t first[30];
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct calla_model *model = checkpoint_model(state, "cpu", 2, policies[i]);
        struct calla_session *session = checkpoint_session(model);
        struct calla_prompt prompt;
        render(model, "Hello", false, &prompt);
        struct calla_logit_bias ends[] = {{256, -1000}, {257, -1000}, {258, -1000}};
        struct calla_generate_options options = greedy(30);
        options.sampling.biases = ends;
        options.sampling.bias_count = 3;
        struct calla_reply reply = generate(session, &prompt, &options);
        assert_int_equal(reply.tokens.count, 30);
        if (i == 0)
            memcpy(first, reply.tokens.ids, sizeof first);
        assert_memory_equal(first, reply.tokens.ids, sizeof first);
        calla_reply_free(&reply);
        calla_prompt_free(&prompt);
        calla_session_close(session);
        calla_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_repeats_and_counts),
        cmocka_unit_test(seeds_repeat_and_differ_and_padding_never_comes),
        cmocka_unit_test(end_tokens_end_and_thinking_closes_first),
        cmocka_unit_test(the_context_ends_a_reply),
        cmocka_unit_test(callers_can_cancel),
        cmocka_unit_test(a_chunk_is_given_up_with_its_generation),
        cmocka_unit_test(stops_end_content_and_sleep_in_thinking),
        cmocka_unit_test(a_required_call_comes),
        cmocka_unit_test(logprobs_are_those_of_the_distribution),
        cmocka_unit_test(bad_sampling_is_refused),
        cmocka_unit_test(damaged_weights_give_an_error_and_not_text),
        cmocka_unit_test(fused_and_plain_plans_give_the_same_text),
    };
    return cmocka_run_group_tests(tests, checkpoint_setup, checkpoint_teardown);
}
