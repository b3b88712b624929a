/* What text completions say: chunks of a stream, or the one object at the end. */
#include "server/exchange_state.h"
#include "server/openai_json.h"

static const char object[] = "text_completion";

/* The one choice. `reason` is NULL while the reply goes on. */
static bool write_choice(struct exchange *exchange, const char *text, size_t size, bool with_logprobs,
                         const char *reason, struct buffer *out) {
    bool ok = true;
    buffer_append_string(out, ",\"choices\":[{\"index\":0,\"text\":");
    openai_string(out, text, size);
    buffer_append_string(out, ",\"logprobs\":");
    if (with_logprobs)
        ok = token_log_write_completion(&exchange->log, exchange->model, out);
    else
        buffer_append_string(out, "null");
    buffer_append_string(out, ",\"finish_reason\":");
    openai_string_or_null(out, reason);
    buffer_append_string(out, "}]");
    return ok;
}

/* With "echo" the prompt is the first piece of the text. */
void completion_start(struct exchange *exchange, struct buffer *out) {
    const struct calla_prompt *prompt = &exchange->prompt;
    if (exchange->echo && !exchange->streams)
        buffer_append(&exchange->content, prompt->text, prompt->size);
    bool warns = exchange->warnings.size > 0;
    if (!exchange->streams || !(exchange->echo || warns))
        return;
    response_begin(exchange, object, out);
    response_warnings(exchange, out);
    write_choice(exchange, prompt->text, exchange->echo ? prompt->size : 0, false, NULL, out);
    chunk_end(exchange, out);
}

bool completion_event(struct exchange *exchange, const struct calla_event *event, struct buffer *out) {
    if (!exchange->streams)
        return buffer_append(&exchange->content, event->text, event->size);
    response_begin(exchange, object, out);
    bool ok = write_choice(exchange, event->text, event->size, true, NULL, out);
    chunk_end(exchange, out);
    return ok;
}

bool completion_finish(struct exchange *exchange, const struct calla_reply *reply, struct buffer *out) {
    const char *reason = finish_reason(exchange, reply);
    response_begin(exchange, object, out);
    if (!exchange->streams) {
        bool ok = write_choice(exchange, exchange->content.data, exchange->content.size, true, reason, out);
        response_end(exchange, reply, out);
        return ok;
    }
    write_choice(exchange, "", 0, false, reason, out);
    buffer_append_string(out, ",\"timings\":");
    openai_timings(out, reply);
    chunk_end(exchange, out);
    stream_end(exchange, reply, object, out);
    return true;
}
