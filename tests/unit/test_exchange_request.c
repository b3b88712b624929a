/* What a request may say and what it may not: every refusal names its field, and what is accepted arrives in
 * the options and the prompt. */
#include "unit.h"

#include <stdio.h>

#include "base/json.h"
#include "base/system.h"
#include "checkpoint_fixture.h"
#include "server/exchange.h"
#include "server/text_endpoints.h"

static struct checkpoint_fixture fixture;
static struct calla_model *model;

static int open_model(void **state) {
    (void)state;
    char path[80];
    struct calla_error error = {0};
    if (!checkpoint_fixture_make(&fixture, 3))
        return -1;
    snprintf(path, sizeof path, "%s/model", fixture.folder);
    struct calla_model_options options = {.path = path, .tokenizer_only = true};
    model = calla_model_open(&options, &error);
    return model == NULL ? -1 : 0;
}

static int close_model(void **state) {
    (void)state;
    calla_model_close(model);
    checkpoint_fixture_remove(&fixture);
    return 0;
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define W                                                                                                    \
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","     \
    "\"properties\":{\"city\":{\"type\":\"string\"}}}}}"

static struct exchange_context context_of(uint32_t positions, bool only) {
    return (struct exchange_context){model, "tiny", positions, only};
}

/* The body must be refused with a 400 that blames `parameter`, and the error object must be JSON. */
static void refused(enum exchange_kind kind, const char *body, size_t size, const char *parameter) {
    const struct exchange_context context = context_of(100000, false);
    struct refusal refusal = {0};
    struct exchange *exchange = exchange_new(kind, &context, body, size, &refusal);
    if (exchange != NULL)
        fail_msg("%.200s was accepted", body);
    if (refusal.status != 400 || strcmp(refusal.parameter, parameter) != 0)
        fail_msg("%.200s: %u for \"%s\": %s", body, refusal.status, refusal.parameter, refusal.message);
    assert_string_equal(refusal.type, "invalid_request_error");
    struct buffer out = {0};
    struct calla_error error = {0};
    assert_true(refusal_write(&refusal, &out));
    json_t *object = json_parse(out.data, out.size, "the error", &error);
    if (object == NULL)
        fail_msg("%s: %s", error.message, out.data);
    assert_true(json_string_length(json_object_get(json_object_get(object, "error"), "message")) > 10);
    json_decref(object);
    buffer_free(&out);
}

static struct exchange *accepted(enum exchange_kind kind, const char *body) {
    const struct exchange_context context = context_of(100000, false);
    struct refusal refusal = {0};
    struct exchange *exchange = exchange_new(kind, &context, body, strlen(body), &refusal);
    if (exchange == NULL)
        fail_msg("%.300s: %u for \"%s\": %s", body, refusal.status, refusal.parameter, refusal.message);
    return exchange;
}

struct row {
    const char *fields, *parameter;
};

static void check_rows(enum exchange_kind kind, const char *start, const struct row *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char body[1024];
        int size = snprintf(body, sizeof body, "{%s,%s}", start, rows[i].fields);
        refused(kind, body, (size_t)size, rows[i].parameter);
    }
}

static void wrong_fields_of_both(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"\"model\":5", "model"},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":1e9", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_tokens\":\"5\"", "max_tokens"},
        {"\"max_tokens\":true", "max_tokens"},
        {"\"max_completion_tokens\":0", "max_completion_tokens"},
        {"\"temperature\":\"0.7\"", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":[]", "temperature"},
        {"\"top_p\":2", "top_p"},
        {"\"top_p\":false", "top_p"},
        {"\"top_k\":0.5", "top_k"},
        {"\"top_k\":-2", "top_k"},
        {"\"min_p\":1.01", "min_p"},
        {"\"presence_penalty\":2.5", "presence_penalty"},
        {"\"frequency_penalty\":-2.5", "frequency_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"seed\":\"1\"", "seed"},
        {"\"seed\":0.5", "seed"},
        {"\"stop\":5", "stop"},
        {"\"stop\":[1]", "stop[0]"},
        {"\"stop\":[\"a\",null]", "stop[1]"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",\"\"]", "stop[1]"},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop"},
        {"\"stop\":{}", "stop"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"logit_bias\":{\"abc\":1}", "logit_bias"},
        {"\"logit_bias\":{\"\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias"},
        {"\"logit_bias\":{\"1\":\"1\"}", "logit_bias"},
        {"\"logit_bias\":{\"1\":null}", "logit_bias"},
        {"\"n\":0", "n"},
        {"\"n\":2", "n"},
        {"\"n\":\"1\"", "n"},
        {"\"stream\":\"yes\"", "stream"},
        {"\"stream\":1", "stream"},
        {"\"stream_options\":true", "stream_options"},
        {"\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
        {"\"response_format\":\"json\"", "response_format"},
        {"\"response_format\":{}", "response_format"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", "response_format"},
        {"\"response_format\":{\"type\":1}", "response_format.type"},
        {"\"grammar\":\"root ::= x\"", "grammar"},
        {"\"guided_json\":{}", "guided_json"},
    };
    check_rows(EXCHANGE_CHAT, HI, rows, sizeof rows / sizeof *rows);
    check_rows(EXCHANGE_COMPLETION, "\"prompt\":\"hi\"", rows, sizeof rows / sizeof *rows);
}

static void wrong_fields_of_chat(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"\"logprobs\":1", "logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":50", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":-1", "top_logprobs"},
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"tools\":{}", "tools"},
        {"\"tools\":[1]", "tools[0]"},
        {"\"tools\":[[]]", "tools[0]"},
        {"\"tools\":[" W ",{}]", "tools[1].name"},
        {"\"tools\":[{\"type\":5}]", "tools[0].type"},
        {"\"tools\":[{\"type\":\"function\",\"function\":\"f\"}]", "tools[0].function"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a>b\"}}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}]",
         "tools[0].function.description"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":\"required\",\"tools\":[{\"type\":\"web_search\"}]", "tool_choice"},
        {"\"tool_choice\":\"any\",\"tools\":[" W "]", "tool_choice"},
        {"\"tool_choice\":5,\"tools\":[" W "]", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"tools\":[" W "]",
         "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"},\"tools\":[" W "]", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}", "tool_choice"},
        {"\"parallel_tool_calls\":0", "parallel_tool_calls"},
        {"\"functions\":[{\"name\":\"f\"}]", "functions"},
        {"\"functions\":{\"name\":\"f\"}", "functions"},
        {"\"functions\":\"f\"", "functions"},
        {"\"chat_template_kwargs\":[]", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}", "chat_template_kwargs.enable_thinking"},
        {"\"enable_thinking\":0", "enable_thinking"},
        {"\"preserve_thinking\":\"x\"", "preserve_thinking"},
        {"\"reasoning_effort\":\"some\"", "reasoning_effort"},
        {"\"reasoning_effort\":0", "reasoning_effort"},
        {"\"reasoning_budget\":-2", "reasoning_budget"},
        {"\"reasoning_budget\":1.5", "reasoning_budget"},
        {"\"thinking\":{\"type\":\"off\"}", "thinking.type"},
        {"\"add_generation_prompt\":\"x\"", "add_generation_prompt"},
    };
    check_rows(EXCHANGE_CHAT, HI, rows, sizeof rows / sizeof *rows);
}

static void wrong_messages(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"\"messages\":{}", "messages"},
        {"\"messages\":[]", "messages"},
        {"\"messages\":null", "messages"},
        {"\"messages\":\"hi\"", "messages"},
        {"\"messages\":[5]", "messages[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"critic\",\"content\":\"b\"}]",
         "messages[1]"},
        {"\"messages\":[{\"content\":\"a\"}]", "messages[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "messages[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
         "messages[0]"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0]"},
        {"\"prompt\":\"x\"", "messages"},
    };
    check_rows(EXCHANGE_CHAT, "\"model\":\"x\"", rows, sizeof rows / sizeof *rows);
}

static void wrong_fields_of_completions(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"\"logprobs\":true", "logprobs"}, {"\"logprobs\":21", "logprobs"},
        {"\"logprobs\":-1", "logprobs"},   {"\"echo\":true,\"logprobs\":0", "logprobs"},
        {"\"echo\":\"true\"", "echo"},     {"\"best_of\":2", "best_of"},
        {"\"best_of\":0", "best_of"},      {"\"suffix\":\"end\"", "suffix"},
        {"\"suffix\":5", "suffix"},
    };
    check_rows(EXCHANGE_COMPLETION, "\"prompt\":\"hi\"", rows, sizeof rows / sizeof *rows);
    static const struct row prompts[] = {
        {"\"x\":1", "prompt"},
        {"\"prompt\":null", "prompt"},
        {"\"prompt\":5", "prompt"},
        {"\"prompt\":{}", "prompt"},
        {"\"prompt\":\"\"", "prompt"},
        {"\"prompt\":[]", "prompt"},
        {"\"prompt\":[[]]", "prompt"},
        {"\"prompt\":[\"\"]", "prompt"},
        {"\"prompt\":[\"a\",\"b\"]", "prompt"},
        {"\"prompt\":[[1],[2]]", "prompt"},
        {"\"prompt\":[1,\"a\"]", "prompt"},
        {"\"prompt\":[1.5]", "prompt"},
        {"\"prompt\":[-1]", "prompt"},
        {"\"prompt\":[265]", "prompt"},
        {"\"prompt\":[[[1]]]", "prompt"},
    };
    check_rows(EXCHANGE_COMPLETION, "\"model\":null", prompts, sizeof prompts / sizeof *prompts);
}

static void refuse_whole(const char *body, size_t size) {
    double start = system_seconds();
    refused(EXCHANGE_CHAT, body, size, "");
    refused(EXCHANGE_COMPLETION, body, size, "");
    if (system_seconds() - start > 1)
        fail_msg("refusing %.40s takes %.1f s", body, system_seconds() - start);
}

static void what_is_no_request(void **state) {
    (void)state;
    static const char *const bodies[] = {"",
                                         " ",
                                         "[]",
                                         "5",
                                         "null",
                                         "\"{}\"",
                                         "{" HI,
                                         "{" HI "} x",
                                         "{" HI ",}",
                                         "{" HI "," HI "}",
                                         "{" HI ",\"x\":{\"a\":1,\"a\":2}}",
                                         "{" HI ",\"x\":\"\\ud800\"}",
                                         "{" HI ",\"x\":\"\\udc00\\ud800\"}",
                                         "{" HI ",\"x\":\"\\u0000\"}",
                                         "{" HI ",\"x\":\"\xff\"}",
                                         "{" HI ",\"x\":\"\xed\xa0\x80\"}",
                                         "{" HI ",\"x\":\"\xc0\x80\"}",
                                         "{" HI ",\"x\":1e999}",
                                         "{" HI ",\"seed\":123456789012345678901234567890}",
                                         "{" HI ",\"x\":NaN}",
                                         "{'messages':[]}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        refuse_whole(bodies[i], strlen(bodies[i]));
    refuse_whole("{" HI "\0}", sizeof "{" HI "\0}" - 1);
    static const char *const starts[] = {"{\"tools\":", "{\"x\":", "", "{" HI ",\"x\":"};
    static const char *const units[] = {"[", "{\"a\":", "[{\"items\":"};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            struct buffer body = {0};
            buffer_append_string(&body, starts[s]);
            for (int i = 0; i < 60000; i++)
                buffer_append_string(&body, units[u]);
            refuse_whole(body.data, body.size);
            buffer_free(&body);
        }
    }
}

/* Escaped backslashes are no escapes, and quoted brackets no nesting. */
static void what_only_looks_hostile(void **state) {
    (void)state;
    struct buffer body = {0};
    buffer_append_string(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\\\u0000 \\\" ");
    for (int i = 0; i < 1000; i++)
        buffer_append_string(&body, "[{");
    buffer_append_string(&body, "\"}],\"x\":");
    for (int i = 0; i < 120; i++)
        buffer_append_string(&body, "[");
    for (int i = 0; i < 120; i++)
        buffer_append_string(&body, "]");
    buffer_append_string(&body, "}");
    exchange_free(accepted(EXCHANGE_CHAT, body.data));
    buffer_free(&body);
}

static void null_is_the_default(void **state) {
    (void)state;
    struct exchange *exchange = accepted(
        EXCHANGE_CHAT,
        "{" HI ",\"model\":null,\"max_tokens\":null,\"max_completion_tokens\":null,\"temperature\":null,"
        "\"top_p\":null,\"top_k\":null,\"min_p\":null,\"presence_penalty\":null,\"frequency_penalty\":null,"
        "\"repetition_penalty\":null,\"logit_bias\":null,\"seed\":null,\"stop\":null,\"n\":null,"
        "\"stream\":null,\"stream_options\":null,\"logprobs\":null,\"top_logprobs\":null,\"tools\":null,"
        "\"tool_choice\":null,\"parallel_tool_calls\":null,\"response_format\":null,"
        "\"chat_template_kwargs\":null,\"enable_thinking\":null,\"preserve_thinking\":null,"
        "\"reasoning_effort\":null,\"reasoning_budget\":null,\"thinking\":null,\"functions\":null,"
        "\"grammar\":null,\"unknown\":{\"a\":[null]},\"user\":5}");
    const struct calla_generate_options *options = exchange_options(exchange);
    struct calla_sampling defaults;
    calla_sampling_defaults(model, &defaults);
    assert_int_equal(options->max_tokens, 0);
    assert_true(options->sampling.temperature == defaults.temperature);
    assert_int_equal(options->sampling.bias_count, 0);
    assert_int_equal(options->stop_count, 0);
    assert_false(exchange_streams(exchange) || options->logprobs || options->tool_required ||
                 options->one_call || options->raw);
    assert_true(exchange_prompt(exchange)->thinking);
    assert_null(exchange_prompt(exchange)->tools);
    assert_memory_equal(exchange_id(exchange), "chatcmpl-", 9);
    exchange_free(exchange);
    exchange =
        accepted(EXCHANGE_COMPLETION, "{\"prompt\":\"hi\",\"logprobs\":null,\"echo\":null,\"suffix\":null,"
                                      "\"best_of\":null,\"max_tokens\":null,\"stop\":null}");
    assert_int_equal(exchange_options(exchange)->max_tokens, 16);
    assert_true(exchange_options(exchange)->raw);
    assert_false(exchange_options(exchange)->logprobs);
    assert_false(exchange_prompt(exchange)->thinking);
    assert_memory_equal(exchange_id(exchange), "cmpl-", 5);
    exchange_free(exchange);
}

static void what_is_asked_arrives(void **state) {
    (void)state;
    struct exchange *exchange =
        accepted(EXCHANGE_CHAT,
                 "{" HI ",\"max_tokens\":5,\"max_completion_tokens\":20.0,\"temperature\":0.5,\"top_p\":0.25,"
                 "\"top_k\":7,\"min_p\":0.125,\"presence_penalty\":1.5,\"frequency_penalty\":-1.5,"
                 "\"repetition_penalty\":1.25,\"logit_bias\":{\"65\":-100,\"66\":2.5},\"seed\":-7,"
                 "\"stop\":[\"a\",\"bb\",\"\u00e9\",\"\\n\"],\"n\":1,\"stream\":true,\"logprobs\":true,"
                 "\"top_logprobs\":3,\"tools\":[" W
                 ",{\"type\":\"function\",\"name\":\"flat\"}],\"tool_choice\":{\"type\":\"function\","
                 "\"function\":{\"name\":\"flat\"}},\"parallel_tool_calls\":false,\"reasoning_budget\":9,"
                 "\"response_format\":{\"type\":\"text\"}}");
    const struct calla_generate_options *options = exchange_options(exchange);
    const struct calla_sampling *sampling = &options->sampling;
    assert_int_equal(options->max_tokens, 20);
    assert_true(sampling->temperature == 0.5f && sampling->top_p == 0.25f && sampling->min_p == 0.125f);
    assert_true(sampling->presence_penalty == 1.5f && sampling->frequency_penalty == -1.5f);
    assert_true(sampling->repetition_penalty == 1.25f);
    assert_int_equal(sampling->top_k, 7);
    assert_true(sampling->seed == (uint64_t)-7);
    assert_int_equal(sampling->bias_count, 2);
    assert_int_equal(sampling->biases[0].token + sampling->biases[1].token, 65 + 66);
    assert_int_equal(options->stop_count, 4);
    assert_string_equal(options->stops[1], "bb");
    assert_string_equal(options->stops[2], "\u00e9");
    assert_true(options->logprobs && options->one_call && options->tool_required);
    assert_int_equal(options->top_logprobs, 3);
    assert_string_equal(options->tool_name, "flat");
    assert_int_equal(options->reasoning_budget, 9);
    assert_true(exchange_streams(exchange));
    assert_non_null(strstr(exchange_prompt(exchange)->tools, "get_weather"));
    exchange_free(exchange);
    exchange = accepted(EXCHANGE_CHAT, "{" HI ",\"top_k\":-1,\"tools\":[" W "],\"tool_choice\":\"none\"}");
    assert_int_equal(exchange_options(exchange)->sampling.top_k, 0);
    assert_null(exchange_prompt(exchange)->tools);
    assert_null(strstr(exchange_prompt(exchange)->text, "get_weather"));
    exchange_free(exchange);
    exchange = accepted(EXCHANGE_CHAT, "{" HI ",\"tools\":[" W "],\"tool_choice\":\"required\"}");
    assert_true(exchange_options(exchange)->tool_required);
    assert_null(exchange_options(exchange)->tool_name);
    exchange_free(exchange);
}

/* The first line of a stream, which carries the warnings. */
static char *first_line(struct exchange *exchange) {
    struct buffer out = {0};
    assert_true(exchange_start(exchange, &out));
    exchange_free(exchange);
    return buffer_take(&out, NULL);
}

static void unknown_tools_are_skipped_and_named(void **state) {
    (void)state;
    struct exchange *exchange =
        accepted(EXCHANGE_CHAT, "{" HI ",\"stream\":true,\"tools\":[{\"type\":\"web_search\"},{\"type\":"
                                "\"namespace\",\"name\":\"m\",\"tools\":[]}," W "]}");
    assert_null(strstr(exchange_prompt(exchange)->tools, "web_search"));
    assert_null(strstr(exchange_prompt(exchange)->text, "namespace"));
    assert_non_null(strstr(exchange_prompt(exchange)->text, "get_weather"));
    char *line = first_line(exchange);
    assert_non_null(strstr(line, "\"warnings\":[\"tools[0] was skipped: its type is \\\"web_search\\\""));
    assert_non_null(strstr(line, "\"tools[1] was skipped: its type is \\\"namespace\\\""));
    free(line);
    line = first_line(accepted(EXCHANGE_CHAT, "{" HI ",\"stream\":true,\"tools\":[" W "]}"));
    assert_null(strstr(line, "warnings"));
    free(line);
}

static void thinking_is_turned_off_in_many_ways(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        bool thinking, warns;
        uint32_t budget;
    } rows[] = {
        {"\"x\":0", true, false, 0},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false}", false, false, 0},
        {"\"enable_thinking\":false", false, false, 0},
        {"\"thinking\":{\"type\":\"disabled\"}", false, false, 0},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":64}", true, false, 64},
        {"\"reasoning_effort\":\"none\"", false, false, 0},
        {"\"reasoning\":{\"effort\":\"none\"}", false, false, 0},
        {"\"chat_template_kwargs\":{\"reasoning_effort\":\"none\"}", false, false, 0},
        {"\"reasoning_effort\":\"high\"", true, false, 0},
        {"\"reasoning_budget\":0", false, false, 0},
        {"\"reasoning_budget\":-1", true, false, 0},
        {"\"reasoning_budget\":32", true, false, 32},
        {"\"thinking_budget\":33", true, false, 33},
        {"\"thinking_token_budget\":34", true, false, 34},
        {"\"thinking_budget_tokens\":35", true, false, 35},
        {"\"chat_template_kwargs\":{\"thinking_budget\":36}", true, false, 36},
        {"\"chat_template_kwargs\":{\"thinking_budget\":36},\"thinking_budget\":36", true, false, 36},
        {"\"chat_template_kwargs\":{\"thinking_budget\":36},\"thinking_budget\":37", true, true, 36},
        {"\"enable_thinking\":false,\"reasoning_effort\":\"none\"", false, false, 0},
        {"\"chat_template_kwargs\":{\"enable_thinking\":true},\"enable_thinking\":false", true, true, 0},
        {"\"chat_template_kwargs\":{\"enable_thinking\":null},\"enable_thinking\":false", false, false, 0},
        {"\"enable_thinking\":true,\"reasoning_effort\":\"none\"", true, true, 0},
        {"\"enable_thinking\":false,\"reasoning_effort\":\"high\"", false, true, 0},
        {"\"enable_thinking\":true,\"reasoning_budget\":0", true, true, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" HI ",\"stream\":true,%s}", rows[i].fields);
        struct exchange *exchange = accepted(EXCHANGE_CHAT, body);
        if (exchange_prompt(exchange)->thinking != rows[i].thinking ||
            exchange_options(exchange)->reasoning_budget != rows[i].budget)
            fail_msg("%s: thinking %d, budget %u", rows[i].fields, exchange_prompt(exchange)->thinking,
                     exchange_options(exchange)->reasoning_budget);
        char *line = first_line(exchange);
        if ((strstr(line, "warnings") != NULL) != rows[i].warns)
            fail_msg("%s: %s", rows[i].fields, line);
        free(line);
    }
}

static void the_context_has_an_end(void **state) {
    (void)state;
    struct refusal refusal = {0};
    const char *body = "{\"prompt\":[1,2,3,4,5]}";
    struct exchange_context context = context_of(4, false);
    assert_null(exchange_new(EXCHANGE_COMPLETION, &context, body, strlen(body), &refusal));
    assert_int_equal(refusal.status, 400);
    assert_string_equal(refusal.code, "context_length_exceeded");
    assert_non_null(strstr(refusal.message, "5 tokens"));
    assert_non_null(strstr(refusal.message, "holds 4"));
    context.context = 5;
    struct exchange *exchange = exchange_new(EXCHANGE_COMPLETION, &context, body, strlen(body), &refusal);
    assert_non_null(exchange);
    exchange_free(exchange);
}

static void the_model_may_have_to_be_named(void **state) {
    (void)state;
    struct refusal refusal = {0};
    const char *body = "{" HI ",\"model\":\"gpt-4o\"}", *named = "{" HI ",\"model\":\"tiny\"}";
    struct exchange_context context = context_of(1000, true);
    assert_null(exchange_new(EXCHANGE_CHAT, &context, body, strlen(body), &refusal));
    assert_int_equal(refusal.status, 404);
    assert_string_equal(refusal.code, "model_not_found");
    assert_string_equal(refusal.parameter, "model");
    struct exchange *exchange = exchange_new(EXCHANGE_CHAT, &context, named, strlen(named), &refusal);
    assert_non_null(exchange);
    exchange_free(exchange);
    exchange_free(accepted(EXCHANGE_CHAT, body));
}

/* Control tokens of a message are text; those of a completion's prompt are what they say. */
static void control_tokens(void **state) {
    (void)state;
    struct exchange *exchange = accepted(EXCHANGE_COMPLETION, "{\"prompt\":\"<|im_start|>\"}");
    assert_int_equal(exchange_prompt(exchange)->tokens.count, 1);
    exchange_free(exchange);
    exchange = accepted(EXCHANGE_COMPLETION, "{\"prompt\":[[257,10]]}");
    assert_int_equal(exchange_prompt(exchange)->tokens.count, 2);
    assert_string_equal(exchange_prompt(exchange)->text, "<|im_start|>\n");
    exchange_free(exchange);
}

typedef bool (*answer_function)(const struct calla_model *, const char *, size_t, struct buffer *,
                                struct refusal *);

/* NULL: refused, with that parameter. */
static void answers(answer_function answer, const char *body, const char *expected, const char *parameter) {
    struct buffer out = {0};
    struct refusal refusal = {0};
    bool ok = answer(model, body, strlen(body), &out, &refusal);
    if (ok != (expected != NULL))
        fail_msg("%s: %s", body, ok ? out.data : refusal.message);
    if (ok)
        assert_string_equal(out.data, expected);
    else
        assert_string_equal(refusal.parameter, parameter);
    buffer_free(&out);
}

static void text_endpoints(void **state) {
    (void)state;
    answers(tokenize_answer, "{\"content\":\"\"}", "{\"tokens\":[],\"count\":0}", NULL);
    answers(tokenize_answer, "{\"content\":\"<|im_end|>\",\"special\":true}",
            "{\"tokens\":[258],\"count\":1}", NULL);
    answers(tokenize_answer, "{\"prompt\":\"<|im_end|>\",\"parse_special\":true}",
            "{\"tokens\":[258],\"count\":1}", NULL);
    answers(tokenize_answer, "{\"content\":\"\u00e9\",\"with_pieces\":true}",
            "{\"tokens\":[{\"id\":195,\"piece\":[195]},{\"id\":169,\"piece\":[169]}],\"count\":2}", NULL);
    answers(tokenize_answer, "{}", NULL, "content");
    answers(tokenize_answer, "{\"content\":5}", NULL, "content");
    answers(tokenize_answer, "{\"content\":\"a\",\"special\":1}", NULL, "special");
    answers(tokenize_answer, "[]", NULL, "");
    answers(detokenize_answer, "{\"tokens\":[195,169,258]}", "{\"content\":\"\u00e9<|im_end|>\"}", NULL);
    answers(detokenize_answer, "{\"tokens\":[195]}", "{\"content\":\"\ufffd\"}", NULL);
    answers(detokenize_answer, "{\"tokens\":[]}", "{\"content\":\"\"}", NULL);
    answers(detokenize_answer, "{}", NULL, "tokens");
    answers(detokenize_answer, "{\"tokens\":[9999]}", NULL, "tokens");
    answers(detokenize_answer, "{\"tokens\":[\"a\"]}", NULL, "tokens");
    answers(apply_template_answer, "{" HI ",\"enable_thinking\":false}",
            "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</"
            "think>\\n\\n\",\"count\":27}",
            NULL);
    answers(apply_template_answer, "{\"messages\":[]}", NULL, "messages");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_fields_of_both),
        cmocka_unit_test(wrong_fields_of_chat),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(wrong_fields_of_completions),
        cmocka_unit_test(what_is_no_request),
        cmocka_unit_test(what_only_looks_hostile),
        cmocka_unit_test(null_is_the_default),
        cmocka_unit_test(what_is_asked_arrives),
        cmocka_unit_test(unknown_tools_are_skipped_and_named),
        cmocka_unit_test(thinking_is_turned_off_in_many_ways),
        cmocka_unit_test(the_context_has_an_end),
        cmocka_unit_test(the_model_may_have_to_be_named),
        cmocka_unit_test(control_tokens),
        cmocka_unit_test(text_endpoints),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
