/* What chat completions say: chunks of a stream, or the one object at the end. Both are made of the same
 * events. */
#include <string.h>

#include "server/exchange_state.h"
#include "server/openai_json.h"
#include "text/json_python.h"

static const char chunk[] = "chat.completion.chunk";

/* A chunk up to its delta, which the caller writes; then end_delta. */
static void begin_delta(const struct exchange *exchange, struct buffer *out) {
    response_begin(exchange, chunk, out);
    buffer_append_string(out, ",\"choices\":[{\"index\":0,\"delta\":");
}

static void end_delta(const struct exchange *exchange, struct buffer *out) {
    buffer_append_string(out, ",\"logprobs\":null,\"finish_reason\":null}]");
    chunk_end(exchange, out);
}

void chat_start(struct exchange *exchange, struct buffer *out) {
    if (!exchange->streams)
        return;
    response_begin(exchange, chunk, out);
    response_warnings(exchange, out);
    buffer_append_string(out,
                         ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}");
    end_delta(exchange, out);
}

/* A call's id: "call_", the reply's own number, and the call's place in it. */
static void write_call_id(const struct exchange *exchange, uint32_t call, struct buffer *out) {
    buffer_printf(out, "\"call_%s_%u\"", strchr(exchange->id, '-') + 1, (unsigned)call);
}

static bool stream_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out) {
    bool ok = true;
    begin_delta(exchange, out);
    switch (event->kind) {
    case CALLA_EVENT_REASONING:
        buffer_append_string(out, "{\"reasoning_content\":");
        openai_string(out, event->text, event->size);
        buffer_append_string(out, "}");
        break;
    case CALLA_EVENT_CONTENT:
        buffer_append_string(out, "{\"content\":");
        openai_string(out, event->text, event->size);
        buffer_append_string(out, "},\"logprobs\":");
        ok = token_log_write_chat(&exchange->log, exchange->model, out);
        buffer_append_string(out, ",\"finish_reason\":null}]");
        chunk_end(exchange, out);
        return ok;
    case CALLA_EVENT_CALL:
        buffer_printf(out, "{\"tool_calls\":[{\"index\":%u,\"id\":", (unsigned)event->call);
        write_call_id(exchange, event->call, out);
        buffer_append_string(out, ",\"type\":\"function\",\"function\":{\"name\":");
        openai_string(out, event->text, event->size);
        buffer_append_string(out, ",\"arguments\":\"\"}}]}");
        break;
    case CALLA_EVENT_ARGUMENTS:
        buffer_printf(out,
                      "{\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", (unsigned)event->call);
        openai_string(out, event->text, event->size);
        buffer_append_string(out, "}}]}");
    }
    end_delta(exchange, out);
    return ok;
}

static void keep_event(struct exchange *exchange, const struct calla_event *event) {
    struct buffer *calls = &exchange->calls;
    switch (event->kind) {
    case CALLA_EVENT_REASONING:
        buffer_append(&exchange->reasoning, event->text, event->size);
        break;
    case CALLA_EVENT_CONTENT:
        buffer_append(&exchange->content, event->text, event->size);
        break;
    case CALLA_EVENT_CALL:
        buffer_append_string(calls, calls->size == 0 ? "{\"id\":" : "\"}},{\"id\":");
        write_call_id(exchange, event->call, calls);
        buffer_append_string(calls, ",\"type\":\"function\",\"function\":{\"name\":");
        openai_string(calls, event->text, event->size);
        buffer_append_string(calls, ",\"arguments\":\"");
        break;
    case CALLA_EVENT_ARGUMENTS:
        json_escape_python(calls, event->text, event->size);
    }
}

bool chat_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out) {
    exchange->call_count += event->kind == CALLA_EVENT_CALL;
    if (exchange->streams)
        return stream_event(exchange, event, out);
    keep_event(exchange, event);
    return true;
}

static void write_message(const struct exchange *exchange, struct buffer *out) {
    buffer_append_string(out, "{\"role\":\"assistant\",\"content\":");
    if (exchange->content.size == 0 && exchange->call_count > 0)
        buffer_append_string(out, "null");
    else
        openai_string(out, exchange->content.data, exchange->content.size);
    if (exchange->reasoning.size > 0) {
        buffer_append_string(out, ",\"reasoning_content\":");
        openai_string(out, exchange->reasoning.data, exchange->reasoning.size);
    }
    if (exchange->call_count > 0) {
        buffer_append_string(out, ",\"tool_calls\":[");
        buffer_append(out, exchange->calls.data, exchange->calls.size);
        buffer_append_string(out, "\"}}]");
    }
    buffer_append_string(out, ",\"refusal\":null}");
}

bool chat_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out) {
    const char *reason = finish_reason(exchange, reply);
    bool ok = true;
    if (exchange->streams) {
        begin_delta(exchange, out);
        buffer_printf(out, "{},\"logprobs\":null,\"finish_reason\":\"%s\"}],\"timings\":", reason);
        openai_timings(out, reply);
        chunk_end(exchange, out);
        stream_end(exchange, reply, chunk, out);
        return true;
    }
    response_begin(exchange, "chat.completion", out);
    buffer_append_string(out, ",\"choices\":[{\"index\":0,\"message\":");
    write_message(exchange, out);
    buffer_append_string(out, ",\"logprobs\":");
    ok = token_log_write_chat(&exchange->log, exchange->model, out);
    buffer_printf(out, ",\"finish_reason\":\"%s\"}]", reason);
    response_end(exchange, reply, out);
    return ok;
}
