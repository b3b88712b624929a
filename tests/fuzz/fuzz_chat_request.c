/* Any bytes as the body of a request, for a model that has a tokenizer and no weights. The first byte chooses
 * the kind. What is accepted starts and ends as JSON; what is refused has an error object that is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/exchange.h"
#include "server/text_endpoints.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Run from the project's folder, where the bundled model lies. */
static struct calla_model *open_model(void) {
    struct calla_error error = {0};
    struct calla_model_options options = {.path = "models/calla-tiny", .tokenizer_only = true};
    struct calla_model *model = calla_model_open(&options, &error);
    if (model == NULL) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
    return model;
}

static void check_json(const struct buffer *out) {
    struct calla_error error;
    json_t *value = json_parse(out->data, out->size, "the response", &error);
    if (!json_is_object(value))
        abort();
    json_decref(value);
}

static void check_refusal(const struct refusal *refusal) {
    struct buffer out = {0};
    if (refusal->status < 400 || refusal->status > 499 || refusal->message[0] == 0 ||
        !refusal_write(refusal, &out))
        abort();
    check_json(&out);
    buffer_free(&out);
}

/* Says a few things and ends. The response of an exchange that does not stream is one object. */
static void answer(struct exchange *exchange) {
    static const struct calla_event events[] = {{CALLA_EVENT_REASONING, "r", 1, 0},
                                                {CALLA_EVENT_CONTENT, "c\"", 2, 0},
                                                {CALLA_EVENT_CALL, "f", 1, 0},
                                                {CALLA_EVENT_ARGUMENTS, "{}", 2, 0}};
    const struct calla_token_event token = {.token = 'c', .logprob = -1};
    struct calla_reply reply = {.finish = CALLA_FINISH_STOP, .prompt_tokens = 1, .reply_tokens = 1};
    struct buffer out = {0};
    bool ok = exchange_start(exchange, &out);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i].kind == CALLA_EVENT_CONTENT || !exchange_options(exchange)->raw)
            ok = exchange_token(exchange, &token, &out) && exchange_event(exchange, &events[i], &out) && ok;
    ok = exchange_finish(exchange, &reply, &out) && ok;
    if (!ok)
        abort();
    if (!exchange_streams(exchange))
        check_json(&out);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static struct calla_model *model;
    static bool (*const text_answers[])(const struct calla_model *, const char *, size_t, struct buffer *,
                                        struct refusal *) = {tokenize_answer, detokenize_answer,
                                                             apply_template_answer};
    if (model == NULL)
        model = open_model();
    if (size == 0)
        return 0;
    const struct exchange_context context = {model, "tiny", 4096, (bytes[0] & 8) != 0};
    unsigned kind = bytes[0] % 5;
    const char *body = (const char *)bytes + 1;
    struct refusal refusal = {0};
    if (kind >= 2) {
        struct buffer out = {0};
        if (text_answers[kind - 2](model, body, size - 1, &out, &refusal))
            check_json(&out);
        else
            check_refusal(&refusal);
        buffer_free(&out);
        return 0;
    }
    struct exchange *exchange =
        exchange_new(kind == 0 ? EXCHANGE_CHAT : EXCHANGE_COMPLETION, &context, body, size - 1, &refusal);
    if (exchange == NULL)
        check_refusal(&refusal);
    else
        answer(exchange);
    exchange_free(exchange);
    return 0;
}
