#include "server/openai_json.h"

#include <math.h>
#include <string.h>

#include "text/json_python.h"
#include "text/utf8.h"

void openai_string(struct buffer *out, const char *text, size_t size) {
    buffer_append_byte(out, '"');
    text = size == 0 ? "" : text;
    size_t begin = 0;
    for (size_t at = 0; at < size;) {
        struct utf8_character character = utf8_read(text + at, size - at);
        if (character.kind != UTF8_VALID) {
            json_escape_python(out, text + begin, at - begin);
            buffer_append_string(out, UTF8_REPLACEMENT);
            begin = at + character.size;
        }
        at += character.size;
    }
    if (begin < size) /* no text at all may be a null pointer */
        json_escape_python(out, text + begin, size - begin);
    buffer_append_byte(out, '"');
}

void openai_string_or_null(struct buffer *out, const char *text) {
    if (text == NULL)
        buffer_append_string(out, "null");
    else
        openai_string(out, text, strlen(text));
}

void openai_number(struct buffer *out, double value) {
    buffer_printf(out, "%.9g", isfinite(value) ? value : 0);
}

void openai_logprob(struct buffer *out, float logprob) {
    openai_number(out, isfinite(logprob) ? (double)logprob : -9999);
}

void openai_usage(struct buffer *out, const struct calla_reply *reply) {
    buffer_printf(out,
                  "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
                  reply->prompt_tokens, reply->reply_tokens, reply->prompt_tokens + reply->reply_tokens,
                  reply->prompt_tokens - reply->computed_tokens, reply->reasoning_tokens);
}

static void timing(struct buffer *out, const char *name, size_t tokens, double seconds) {
    double count = (double)tokens;
    buffer_printf(out, "\"%s_n\":%zu,\"%s_ms\":", name, tokens, name);
    openai_number(out, seconds * 1e3);
    buffer_printf(out, ",\"%s_per_token_ms\":", name);
    openai_number(out, tokens == 0 ? 0 : seconds * 1e3 / count);
    buffer_printf(out, ",\"%s_per_second\":", name);
    openai_number(out, seconds > 0 ? count / seconds : 0);
}

void openai_timings(struct buffer *out, const struct calla_reply *reply) {
    buffer_printf(out, "{\"cache_n\":%zu,", reply->prompt_tokens - reply->computed_tokens);
    timing(out, "prompt", reply->computed_tokens, reply->prompt_seconds);
    buffer_append_byte(out, ',');
    timing(out, "predicted", reply->reply_tokens, reply->reply_seconds);
    buffer_append_byte(out, '}');
}
