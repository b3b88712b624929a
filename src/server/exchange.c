/* The life of an exchange, and the parts of a response that do not depend on its kind. */
#include "server/exchange_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/engine.h"
#include "server/openai_json.h"

#define MAX_WARNINGS 16

/* The request */

void exchange_warn(struct exchange *exchange, const char *format, ...) {
    char text[512];
    if (exchange->warning_count++ >= MAX_WARNINGS)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    buffer_append_string(&exchange->warnings, exchange->warnings.size == 0 ? "" : ",");
    openai_string(&exchange->warnings, text, strlen(text));
}

static void name_exchange(struct exchange *exchange, const struct exchange_context *context) {
    struct calla_model_info info;
    calla_model_info(context->model, &info);
    snprintf(exchange->id, sizeof exchange->id, "%s%016" PRIx64,
             exchange->kind == EXCHANGE_CHAT ? "chatcmpl-" : "cmpl-", system_random());
    buffer_printf(&exchange->head, "\"created\":%lld,\"model\":", (long long)time(NULL));
    openai_string(&exchange->head, context->model_name, strlen(context->model_name));
    buffer_printf(&exchange->head, ",\"system_fingerprint\":\"calla-%s-%s\"", calla_version(), info.backend);
}

static bool check_length(const struct exchange *exchange, uint32_t context, struct refusal *refusal) {
    size_t count = exchange->prompt.tokens.count;
    const char *field = exchange->kind == EXCHANGE_CHAT ? "messages" : "prompt";
    if (count == 0)
        return refuse(refusal, field, "The prompt is empty; send at least one token.");
    if (count <= context)
        return true;
    refuse(refusal, field, "The prompt has %zu tokens, but the context of this server holds %u; shorten it.",
           count, context);
    refusal->code = "context_length_exceeded";
    return false;
}

static bool read_request(struct exchange *exchange, const struct exchange_context *context, json_t *request,
                         struct refusal *refusal) {
    bool chat = exchange->kind == EXCHANGE_CHAT;
    name_exchange(exchange, context);
    if (!generation_request_read(exchange, context, request, refusal) ||
        !(chat ? chat_request_read : completion_request_read)(exchange, request, refusal) ||
        !check_length(exchange, context->context, refusal))
        return false;
    return !(exchange->head.failed || exchange->warnings.failed) || refuse_memory(refusal);
}

struct exchange *exchange_new(enum exchange_kind kind, const struct exchange_context *context,
                              const char *body, size_t size, struct refusal *refusal) {
    json_t *request = request_parse(body, size, refusal);
    if (request == NULL)
        return NULL;
    struct exchange *exchange = calloc(1, sizeof *exchange);
    bool ok = exchange != NULL || refuse_memory(refusal);
    if (ok) {
        exchange->kind = kind;
        exchange->model = context->model;
        ok = read_request(exchange, context, request, refusal);
    }
    json_decref(request);
    if (ok)
        return exchange;
    exchange_free(exchange);
    return NULL;
}

void exchange_free(struct exchange *exchange) {
    if (exchange == NULL)
        return;
    calla_prompt_free(&exchange->prompt);
    free(exchange->biases);
    for (size_t i = 0; i < EXCHANGE_MAX_STOPS; i++)
        free(exchange->stops[i]);
    free(exchange->tool_name);
    buffer_free(&exchange->head);
    buffer_free(&exchange->warnings);
    buffer_free(&exchange->reasoning);
    buffer_free(&exchange->content);
    buffer_free(&exchange->calls);
    token_log_free(&exchange->log);
    free(exchange);
}

const struct calla_prompt *exchange_prompt(const struct exchange *exchange) {
    return &exchange->prompt;
}

const struct calla_generate_options *exchange_options(const struct exchange *exchange) {
    return &exchange->options;
}

bool exchange_streams(const struct exchange *exchange) {
    return exchange->streams;
}

const char *exchange_id(const struct exchange *exchange) {
    return exchange->id;
}

/* The response */

void response_begin(const struct exchange *exchange, const char *object, struct buffer *out) {
    buffer_printf(out, "%s{\"id\":\"%s\",\"object\":\"%s\",", exchange->streams ? "data: " : "", exchange->id,
                  object);
    buffer_append(out, exchange->head.data, exchange->head.size);
}

void chunk_end(const struct exchange *exchange, struct buffer *out) {
    buffer_append_string(out, exchange->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void response_warnings(const struct exchange *exchange, struct buffer *out) {
    if (exchange->warnings.size == 0)
        return;
    buffer_append_string(out, ",\"warnings\":[");
    buffer_append(out, exchange->warnings.data, exchange->warnings.size);
    buffer_append_byte(out, ']');
}

void response_end(const struct exchange *exchange, const struct calla_reply *reply, struct buffer *out) {
    buffer_append_string(out, ",\"usage\":");
    openai_usage(out, reply);
    buffer_append_string(out, ",\"timings\":");
    openai_timings(out, reply);
    response_warnings(exchange, out);
    buffer_append_byte(out, '}');
}

void stream_end(const struct exchange *exchange, const struct calla_reply *reply, const char *object,
                struct buffer *out) {
    if (exchange->include_usage) {
        response_begin(exchange, object, out);
        buffer_append_string(out, ",\"choices\":[],\"usage\":");
        openai_usage(out, reply);
        buffer_append_string(out, "}\n\n");
    }
    buffer_append_string(out, "data: [DONE]\n\n");
}

const char *finish_reason(const struct exchange *exchange, const struct calla_reply *reply) {
    switch (reply->finish) {
    case CALLA_FINISH_TOOL_CALLS:
        /* A stop string can end a reply before a call that the model went on to make was announced. */
        return exchange->call_count > 0 ? "tool_calls" : "stop";
    case CALLA_FINISH_LENGTH:
    case CALLA_FINISH_CANCELLED:
        return "length";
    case CALLA_FINISH_STOP:
        break;
    }
    return "stop";
}

/* What the client hears */

static bool written(const struct exchange *exchange, const struct buffer *out) {
    return !(out->failed || exchange->reasoning.failed || exchange->content.failed || exchange->calls.failed);
}

bool exchange_start(struct exchange *exchange, struct buffer *out) {
    (exchange->kind == EXCHANGE_CHAT ? chat_start : completion_start)(exchange, out);
    return written(exchange, out);
}

bool exchange_token(struct exchange *exchange, const struct calla_token_event *token, struct buffer *out) {
    (void)out;
    /* An end token has no text; the next that is said may have been held back as the start of a stop. */
    return model_is_end_token(exchange->model, token->token) || token_log_add(&exchange->log, token);
}

bool exchange_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out) {
    if (event->kind == CALLA_EVENT_CONTENT)
        token_log_say(&exchange->log);
    else
        token_log_drop(&exchange->log);
    bool ok = (exchange->kind == EXCHANGE_CHAT ? chat_event : completion_event)(exchange, event, out);
    return ok && written(exchange, out);
}

bool exchange_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out) {
    token_log_drop(&exchange->log);
    bool ok = (exchange->kind == EXCHANGE_CHAT ? chat_finish : completion_finish)(exchange, reply, out);
    return ok && written(exchange, out);
}

bool exchange_alive(struct exchange *exchange, size_t read, size_t total, struct buffer *out) {
    if (exchange->streams && exchange->include_progress)
        buffer_printf(out, ": prompt %zu/%zu\n\n", read, total);
    return written(exchange, out);
}

bool exchange_fail(struct exchange *exchange, const struct calla_error *failure, struct buffer *out) {
    struct refusal refusal;
    refuse_error(&refusal, "", failure);
    buffer_append_string(out, exchange->streams ? "data: " : "");
    refusal_write(&refusal, out);
    buffer_append_string(out, exchange->streams ? "\n\ndata: [DONE]\n\n" : "");
    return written(exchange, out);
}
