/* What an exchange says of a reply: for every raw reply of reply_cases.h, in several splits, the chunks of a
 * stream hold to the API's rules, and joined they are the one object of an answer without streaming. */
#include "unit.h"

#include <stdio.h>

#include "base/json.h"
#include "checkpoint_fixture.h"
#include "server/exchange.h"
#include "text/reply_parser.h"

#include "reply_cases.h"

static struct checkpoint_fixture fixture;
static struct calla_model *model;
static json_t *tools;

static int open_model(void **state) {
    (void)state;
    char path[80];
    struct calla_error error = {0};
    if (!checkpoint_fixture_make(&fixture, 3))
        return -1;
    snprintf(path, sizeof path, "%s/model", fixture.folder);
    struct calla_model_options options = {.path = path, .tokenizer_only = true};
    model = calla_model_open(&options, &error);
    tools = json_parse(tool_list, strlen(tool_list), "the tools", &error);
    return model == NULL || tools == NULL ? -1 : 0;
}

static int close_model(void **state) {
    (void)state;
    json_decref(tools);
    calla_model_close(model);
    checkpoint_fixture_remove(&fixture);
    return 0;
}

static struct exchange *exchange_of(enum exchange_kind kind, const char *body) {
    const struct exchange_context context = {model, "tiny", 100000, false};
    struct refusal refusal = {0};
    struct exchange *exchange = exchange_new(kind, &context, body, strlen(body), &refusal);
    if (exchange == NULL)
        fail_msg("%s", refusal.message);
    return exchange;
}

static json_t *get(json_t *value, const char *key) {
    json_t *found = json_object_get(value, key);
    if (found == NULL)
        fail_msg("no \"%s\"", key);
    return found;
}

static void assert_keys(json_t *object, size_t count) {
    if (json_object_size(object) != count)
        fail_msg("%s has other than %zu keys", json_dumps(object, 0), count);
}

/* A stream, checked chunk by chunk and joined in the notation of reply_cases.h, and the message that it adds
 * up to. */
struct heard {
    struct buffer record;
    char last[16];
    size_t chunks;
    bool finished, usage, done;
    json_t *message, *calls; /* borrowed: calls is in message, if there are any */
    char *reason;
};

static void hear(struct heard *heard, const char *mark, const json_t *text) {
    assert_true(json_is_string(text));
    if (strcmp(mark, heard->last) != 0) {
        buffer_append_string(&heard->record, mark);
        strcpy(heard->last, mark);
    }
    buffer_append(&heard->record, json_string_value(text), json_string_length(text));
}

/* Appends to a string field, which may not be there yet or null. */
static void join(json_t *object, const char *key, const json_t *text) {
    struct buffer joined = {0};
    const json_t *before = json_object_get(object, key);
    buffer_append(&joined, json_string_value(before), json_string_length(before));
    buffer_append(&joined, json_string_value(text), json_string_length(text));
    json_object_set_new(object, key, json_stringn(joined.data == NULL ? "" : joined.data, joined.size));
    buffer_free(&joined);
}

static void hear_call(struct heard *heard, json_t *delta) {
    char mark[16];
    json_int_t index = json_integer_value(get(delta, "index"));
    json_t *function = get(delta, "function"), *arguments = get(function, "arguments");
    if (heard->calls == NULL) {
        heard->calls = json_array();
        json_object_set_new(heard->message, "tool_calls", heard->calls);
    }
    if ((size_t)index == json_array_size(heard->calls)) {
        snprintf(mark, sizeof mark, "|N%d:", (int)index);
        hear(heard, mark, get(function, "name"));
        assert_keys(delta, 4);
        assert_keys(function, 2);
        assert_string_equal(json_string_value(arguments), "");
        assert_string_equal(json_string_value(get(delta, "type")), "function");
        assert_true(json_string_length(get(delta, "id")) > 8);
        json_object_del(delta, "index");
        json_array_append(heard->calls, delta);
        return;
    }
    assert_int_equal(index, json_array_size(heard->calls) - 1);
    assert_keys(delta, 2);
    assert_keys(function, 1);
    snprintf(mark, sizeof mark, "|A%d:", (int)index);
    hear(heard, mark, arguments);
    join(get(json_array_get(heard->calls, (size_t)index), "function"), "arguments", arguments);
}

static void hear_delta(struct heard *heard, json_t *choice) {
    json_t *delta = get(choice, "delta"), *value;
    assert_int_equal(json_integer_value(get(choice, "index")), 0);
    assert_true(json_is_null(get(choice, "logprobs")));
    if (heard->chunks++ == 0) {
        assert_keys(delta, 2);
        assert_string_equal(json_string_value(get(delta, "role")), "assistant");
        assert_true(json_is_null(get(delta, "content")));
        assert_true(json_is_null(get(choice, "finish_reason")));
        json_object_update(heard->message, delta);
        return;
    }
    assert_false(heard->finished);
    if (!json_is_null(get(choice, "finish_reason"))) {
        assert_keys(delta, 0);
        heard->reason = strdup(json_string_value(get(choice, "finish_reason")));
        heard->finished = true;
        return;
    }
    assert_keys(delta, 1);
    if ((value = json_object_get(delta, "reasoning_content")) != NULL) {
        hear(heard, "|R:", value);
        join(heard->message, "reasoning_content", value);
    } else if ((value = json_object_get(delta, "content")) != NULL) {
        hear(heard, "|C:", value);
        join(heard->message, "content", value);
    } else {
        assert_int_equal(json_array_size(get(delta, "tool_calls")), 1);
        hear_call(heard, json_array_get(get(delta, "tool_calls"), 0));
    }
}

static void hear_chunk(struct heard *heard, const char *text, size_t size) {
    struct calla_error error = {0};
    assert_false(heard->done);
    if (size == 6 && memcmp(text, "[DONE]", 6) == 0) {
        heard->done = true;
        return;
    }
    json_t *chunk = json_parse(text, size, "a chunk", &error);
    if (chunk == NULL)
        fail_msg("%s", error.message);
    assert_string_equal(json_string_value(get(chunk, "object")), "chat.completion.chunk");
    json_t *choices = get(chunk, "choices"), *usage = get(chunk, "usage");
    if (json_array_size(choices) == 0) {
        assert_true(heard->finished);
        assert_int_equal(json_integer_value(get(usage, "completion_tokens")), 4);
        heard->usage = true;
    } else {
        assert_true(json_is_null(usage));
        hear_delta(heard, json_array_get(choices, 0));
    }
    json_decref(chunk);
}

static void hear_stream(struct heard *heard, const struct buffer *stream) {
    const char *at = stream->data, *end;
    heard->message = json_object();
    while ((end = strstr(at, "\n\n")) != NULL) {
        assert_memory_equal(at, "data: ", 6);
        hear_chunk(heard, at + 6, (size_t)(end - at) - 6);
        at = end + 2;
    }
    assert_int_equal(*at, 0);
    assert_true(heard->done && heard->usage && heard->finished);
    if (json_is_null(json_object_get(heard->message, "content")) && heard->calls == NULL)
        json_object_set_new(heard->message, "content", json_string(""));
}

/* An exchange and where its bytes go. */
struct listener {
    struct exchange *exchange;
    struct buffer out;
};

static bool pass_on(void *user, const struct calla_event *event) {
    struct listener *listener = user;
    return exchange_event(listener->exchange, event, &listener->out);
}

/* Feeds a reply, cut into pieces of `step` bytes, to an exchange. */
static void tell(struct listener *listener, unsigned flags, const char *raw, size_t size, size_t step) {
    struct calla_error error = {0};
    struct reply_parser *parser = reply_parser_new((flags & THINKING) != 0, flags & NO_TOOLS ? NULL : tools,
                                                   NULL, pass_on, listener, &error);
    assert_true(exchange_start(listener->exchange, &listener->out));
    for (size_t at = 0; at < size; at += step)
        assert_true(reply_parser_feed(parser, raw + at, size - at < step ? size - at : step, &error));
    assert_true(reply_parser_finish(parser, (flags & CUT) != 0, &error));
    size_t calls = json_array_size(reply_parser_calls(parser));
    struct calla_reply reply = {.finish = flags & CUT ? CALLA_FINISH_LENGTH
                                          : calls > 0 ? CALLA_FINISH_TOOL_CALLS
                                                      : CALLA_FINISH_STOP,
                                .prompt_tokens = 7,
                                .computed_tokens = 5,
                                .reply_tokens = 4,
                                .reasoning_tokens = 1,
                                .prompt_seconds = 0.5,
                                .reply_seconds = 0.25};
    assert_true(exchange_finish(listener->exchange, &reply, &listener->out));
    reply_parser_free(parser);
    exchange_free(listener->exchange);
}

#define MESSAGES "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void take_ids(json_t *message) {
    size_t index;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), index, call) {
        const char *id = json_string_value(get(call, "id"));
        char end[24];
        snprintf(end, sizeof end, "_%zu", index);
        assert_memory_equal(id, "call_", 5);
        assert_string_equal(id + strlen(id) - strlen(end), end);
        json_object_del(call, "id");
    }
}

/* Both ways, and the events that the stream's deltas were. */
static void compare(unsigned flags, const char *raw, size_t size, size_t step, const char *events) {
    struct listener streamed = {
        exchange_of(EXCHANGE_CHAT, MESSAGES ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"),
        {0}};
    struct listener whole = {exchange_of(EXCHANGE_CHAT, MESSAGES "}"), {0}};
    struct heard heard = {0};
    struct calla_error error = {0};
    tell(&streamed, flags, raw, size, step);
    tell(&whole, flags, raw, size, step);
    hear_stream(&heard, &streamed.out);
    if (events != NULL && strcmp(events, heard.record.data == NULL ? "" : heard.record.data) != 0)
        fail_msg("reply %s\nexpected %s\nbut heard %s", raw, events, heard.record.data);

    json_t *response = json_parse(whole.out.data, whole.out.size, "the response", &error);
    if (response == NULL)
        fail_msg("%s: %s", error.message, whole.out.data);
    json_t *choice = json_array_get(get(response, "choices"), 0), *message = get(choice, "message");
    assert_string_equal(json_string_value(get(choice, "finish_reason")), heard.reason);
    assert_int_equal(json_integer_value(get(get(response, "usage"), "total_tokens")), 11);
    json_object_del(message, "refusal");
    take_ids(message);
    take_ids(heard.message);
    if (!json_equal(message, heard.message))
        fail_msg("whole %s\nstreamed %s", json_dumps(message, 0), json_dumps(heard.message, 0));
    json_decref(response);
    json_decref(heard.message);
    free(heard.reason);
    buffer_free(&heard.record);
    buffer_free(&streamed.out);
    buffer_free(&whole.out);
}

static void expect(unsigned flags, const char *raw, const char *events) {
    size_t size = strlen(raw);
    for (size_t step = 1; step <= 7; step += 2)
        compare(flags, raw, size, step, events);
    compare(flags, raw, size, size + 1, events);
}

/* Pieces of replies in any order, thousands of them. */
static void random_replies(void **state) {
    (void)state;
    static const char *const pieces[] = {"<tool_call>\n",
                                         "<function=get_weather>\n",
                                         "<function=write_file>\n",
                                         "<function=other>\n",
                                         "<parameter=city>\n",
                                         "<parameter=content>\n",
                                         "<parameter=mode>\n",
                                         "\n</parameter>\n",
                                         "</function>\n",
                                         "</tool_call>",
                                         "</think>",
                                         "<think>",
                                         "\n\n",
                                         "text",
                                         " \"quoted\\\" ",
                                         "[1, {\"a\": null}]",
                                         "\u00e9\U0001f600",
                                         "\xf0\x9f",
                                         "\x01\t",
                                         "42"};
    uint32_t seed = 12345;
    for (int round = 0; round < 3000; round++) {
        struct buffer raw = {0};
        seed = seed * 1664525u + 1013904223u;
        unsigned flags = seed >> 29, count = (seed >> 20) % 16;
        for (unsigned i = 0; i < count; i++) {
            seed = seed * 1664525u + 1013904223u;
            buffer_append_string(&raw, pieces[(seed >> 16) % (sizeof pieces / sizeof *pieces)]);
        }
        compare(flags, raw.data == NULL ? "" : raw.data, raw.size, 1 + (seed >> 24) % 9, NULL);
        buffer_free(&raw);
    }
}

/* Tokens with their log-probabilities, and the text that they complete: a letter is held back with the stop
 * string's beginning, an end token says nothing. */
static void tell_tokens(struct listener *listener) {
    static const struct {
        int32_t token;
        bool thinking;
        const char *content;
    } steps[] = {{'r', true, NULL},       {264, true, NULL},  {'a', false, "a"},  {0xc3, false, NULL},
                 {0xa9, false, "\u00e9"}, {'b', false, NULL}, {'c', false, "bc"}, {258, false, NULL}};
    struct calla_logprob top[2] = {{'z', -0.25f}, {0xc3, -2.5f}};
    assert_true(exchange_start(listener->exchange, &listener->out));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct calla_token_event token = {.token = steps[i].token,
                                          .thinking = steps[i].thinking,
                                          .logprob = -0.5f - (float)i,
                                          .top = top,
                                          .top_count = 2};
        assert_true(exchange_token(listener->exchange, &token, &listener->out));
        if (steps[i].content == NULL)
            continue;
        struct calla_event event = {CALLA_EVENT_CONTENT, steps[i].content, strlen(steps[i].content), 0};
        assert_true(exchange_event(listener->exchange, &event, &listener->out));
    }
    struct calla_reply reply = {
        .finish = CALLA_FINISH_STOP, .prompt_tokens = 7, .computed_tokens = 7, .reply_tokens = 4};
    assert_true(exchange_finish(listener->exchange, &reply, &listener->out));
    exchange_free(listener->exchange);
}

/* The "logprobs" of a response's first choice, or those of all the chunks: lists of the same name joined. */
static json_t *logprobs_of(const struct buffer *out) {
    json_t *joined = json_object();
    const char *at = out->data;
    bool stream = memcmp(at, "data: ", 6) == 0;
    for (; *at != 0 && strcmp(at, "data: [DONE]\n\n") != 0;) {
        const char *end = stream ? strstr(at, "\n\n") : at + strlen(at);
        json_t *object = json_loadb(at + (stream ? 6 : 0), (size_t)(end - at) - (stream ? 6 : 0), 0, NULL);
        const char *key;
        json_t *list;
        json_object_foreach(get(json_array_get(get(object, "choices"), 0), "logprobs"), key, list) {
            if (!json_is_array(list))
                continue;
            if (json_object_get(joined, key) == NULL)
                json_object_set_new(joined, key, json_array());
            json_array_extend(json_object_get(joined, key), list);
        }
        json_decref(object);
        at = end + (stream ? 2 : 0);
    }
    return joined;
}

static void check_logprobs(enum exchange_kind kind, const char *whole_body, const char *stream_body,
                           const char *expected) {
    struct listener whole = {exchange_of(kind, whole_body), {0}},
                    streamed = {exchange_of(kind, stream_body), {0}};
    tell_tokens(&whole);
    tell_tokens(&streamed);
    json_t *one = logprobs_of(&whole.out), *other = logprobs_of(&streamed.out);
    char *text = json_dumps(one, JSON_COMPACT);
    assert_string_equal(text, expected);
    assert_true(json_equal(one, other));
    free(text);
    json_decref(one);
    json_decref(other);
    buffer_free(&whole.out);
    buffer_free(&streamed.out);
}

static void logprobs_of_chat(void **state) {
    (void)state;
#define TOP                                                                                                  \
    "\"top_logprobs\":[{\"token\":\"z\",\"logprob\":-0.25,\"bytes\":[122]},"                                 \
    "{\"token\":\"\ufffd\",\"logprob\":-2.5,\"bytes\":[195]}]}"
    check_logprobs(EXCHANGE_CHAT, MESSAGES ",\"logprobs\":true,\"top_logprobs\":2}",
                   MESSAGES ",\"logprobs\":true,\"top_logprobs\":2,\"stream\":true}",
                   "{\"content\":[{\"token\":\"a\",\"logprob\":-2.5,\"bytes\":[97]," TOP
                   ",{\"token\":\"\ufffd\",\"logprob\":-3.5,\"bytes\":[195]," TOP
                   ",{\"token\":\"\ufffd\",\"logprob\":-4.5,\"bytes\":[169]," TOP
                   ",{\"token\":\"b\",\"logprob\":-5.5,\"bytes\":[98]," TOP
                   ",{\"token\":\"c\",\"logprob\":-6.5,\"bytes\":[99]," TOP "]}");
}

static void logprobs_of_completions(void **state) {
    (void)state;
    /* The reasoning that this reply has is the test's: completions have none. */
    check_logprobs(
        EXCHANGE_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":2}",
        "{\"prompt\":\"x\",\"logprobs\":2,\"stream\":true}",
        "{\"tokens\":[\"a\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"b\",\"c\"],"
        "\"token_logprobs\":[-2.5,-3.5,-4.5,-5.5,-6.5],"
        "\"top_logprobs\":[{\"z\":-0.25,\"bytes:\\\\xc3\":-2.5},{\"z\":-0.25,\"bytes:\\\\xc3\":-2."
        "5},{\"z\":-0.25,\"bytes:\\\\xc3\":-2.5},{\"z\":-0.25,\"bytes:\\\\xc3\":-2.5},{\"z\":-0.25,"
        "\"bytes:\\\\xc3\":-2.5}],\"text_offset\":[0,1,2,2,3]}");
}

static void echo_puts_the_prompt_first(void **state) {
    (void)state;
    struct listener whole = {exchange_of(EXCHANGE_COMPLETION, "{\"prompt\":\"x\\\"y\",\"echo\":true}"), {0}};
    struct listener streamed = {
        exchange_of(EXCHANGE_COMPLETION, "{\"prompt\":\"x\\\"y\",\"echo\":true,\"stream\":true}"), {0}};
    tell_tokens(&whole);
    tell_tokens(&streamed);
    assert_non_null(strstr(whole.out.data, "\"text\":\"x\\\"ya\u00e9bc\""));
    assert_non_null(strstr(whole.out.data, "\"object\":\"text_completion\""));
    assert_non_null(
        strstr(streamed.out.data, "\"text\":\"x\\\"y\",\"logprobs\":null,\"finish_reason\":null"));
    buffer_free(&whole.out);
    buffer_free(&streamed.out);
}

static void failures_and_progress(void **state) {
    (void)state;
    struct calla_error failure = {CALLA_NUMERIC, "The logits are not numbers."};
    struct buffer out = {0};
    struct exchange *streamed = exchange_of(EXCHANGE_CHAT, MESSAGES ",\"stream\":true}");
    assert_true(exchange_alive(streamed, 512, 2048, &out));
    assert_string_equal(out.data, ": prompt 512/2048\n\n");
    buffer_clear(&out);
    assert_true(exchange_fail(streamed, &failure, &out));
    assert_string_equal(out.data, "data: {\"error\":{\"message\":\"The logits are not numbers.\","
                                  "\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"
                                  "data: [DONE]\n\n");
    exchange_free(streamed);
    buffer_clear(&out);
    struct exchange *quiet = exchange_of(EXCHANGE_CHAT, MESSAGES
                                         ",\"stream\":true,\"stream_options\":{\"include_progress\":false}}");
    assert_true(exchange_alive(quiet, 512, 2048, &out));
    exchange_free(quiet);
    struct exchange *whole = exchange_of(EXCHANGE_CHAT, MESSAGES "}");
    assert_true(exchange_alive(whole, 512, 2048, &out));
    assert_int_equal(out.size, 0);
    assert_true(exchange_fail(whole, &failure, &out));
    assert_memory_equal(out.data, "{\"error\":{", 10);
    exchange_free(whole);
    buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        REPLY_CASES,
        cmocka_unit_test(random_replies),
        cmocka_unit_test(logprobs_of_chat),
        cmocka_unit_test(logprobs_of_completions),
        cmocka_unit_test(echo_puts_the_prompt_first),
        cmocka_unit_test(failures_and_progress),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
