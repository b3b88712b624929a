#include "server/token_log.h"

#include <stdlib.h>
#include <string.h>

#include "server/openai_json.h"
#include "text/utf8.h"

void token_log_free(struct token_log *log) {
    free(log->records);
    memset(log, 0, sizeof *log);
}

bool token_log_add(struct token_log *log, const struct calla_token_event *event) {
    if (!log->on || event->thinking)
        return true;
    if (log->count == log->capacity) {
        size_t capacity = log->capacity * 2 + 16;
        struct token_record *records = realloc(log->records, capacity * sizeof *records);
        if (records == NULL)
            return false;
        log->records = records;
        log->capacity = capacity;
    }
    struct token_record *record = &log->records[log->count++];
    *record = (struct token_record){event->token, event->logprob, event->top_count, {{0, 0}}};
    if (event->top_count > 0)
        memcpy(record->top, event->top, event->top_count * sizeof *record->top);
    return true;
}

void token_log_say(struct token_log *log) {
    log->said = log->count;
}

void token_log_drop(struct token_log *log) {
    log->count = log->said;
}

static void forget_said(struct token_log *log) {
    if (log->said > 0)
        memmove(log->records, log->records + log->said, (log->count - log->said) * sizeof *log->records);
    log->count -= log->said;
    log->said = 0;
}

/* A token's bytes: on the heap, zero-terminated; NULL when memory is short. */
static char *token_bytes(const struct calla_model *model, int32_t token, size_t *size) {
    return calla_detokenize(model, &token, 1, size, NULL);
}

/* "token", "bytes", "logprob": the fields of a token and of each of its alternatives. */
static bool write_token(const struct calla_model *model, int32_t token, float logprob, struct buffer *out) {
    size_t size;
    char *bytes = token_bytes(model, token, &size);
    if (bytes == NULL)
        return false;
    buffer_append_string(out, "{\"token\":");
    openai_string(out, bytes, size);
    buffer_append_string(out, ",\"logprob\":");
    openai_logprob(out, logprob);
    buffer_append_string(out, ",\"bytes\":[");
    for (size_t i = 0; i < size; i++)
        buffer_printf(out, "%s%u", i == 0 ? "" : ",", (unsigned)(unsigned char)bytes[i]);
    free(bytes);
    return buffer_append_string(out, "]");
}

bool token_log_write_chat(struct token_log *log, const struct calla_model *model, struct buffer *out) {
    if (!log->on)
        return buffer_append_string(out, "null");
    buffer_append_string(out, "{\"content\":[");
    for (size_t i = 0; i < log->said; i++) {
        const struct token_record *record = &log->records[i];
        buffer_append_string(out, i == 0 ? "" : ",");
        if (!write_token(model, record->token, record->logprob, out))
            return false;
        buffer_append_string(out, ",\"top_logprobs\":[");
        for (uint32_t t = 0; t < record->top_count; t++) {
            buffer_append_string(out, t == 0 ? "" : ",");
            if (!write_token(model, record->top[t].token, record->top[t].logprob, out))
                return false;
            buffer_append_byte(out, '}');
        }
        buffer_append_string(out, "]}");
    }
    forget_said(log);
    return buffer_append_string(out, "],\"refusal\":null}");
}

/* The older form names tokens by their text alone; one that is no whole text is "bytes:\xe4\xbd". The number
 * of characters that begin in the token comes back in *characters. */
static bool write_name(const struct calla_model *model, int32_t token, size_t *characters,
                       struct buffer *out) {
    size_t size;
    char *bytes = token_bytes(model, token, &size);
    if (bytes == NULL)
        return false;
    bool text = true;
    *characters = 0;
    for (size_t at = 0; at < size;) {
        struct utf8_character character = utf8_read(bytes + at, size - at);
        text = text && character.kind == UTF8_VALID;
        at += character.size;
    }
    for (size_t i = 0; i < size; i++)
        *characters += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    if (text) {
        openai_string(out, bytes, size);
    } else {
        buffer_append_string(out, "\"bytes:");
        for (size_t i = 0; i < size; i++)
            buffer_printf(out, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
        buffer_append_byte(out, '"');
    }
    free(bytes);
    return true;
}

static bool write_top(const struct token_record *record, const struct calla_model *model,
                      struct buffer *out) {
    size_t characters;
    buffer_append_byte(out, '{');
    for (uint32_t t = 0; t < record->top_count; t++) {
        buffer_append_string(out, t == 0 ? "" : ",");
        if (!write_name(model, record->top[t].token, &characters, out))
            return false;
        buffer_append_byte(out, ':');
        openai_logprob(out, record->top[t].logprob);
    }
    return buffer_append_byte(out, '}');
}

bool token_log_write_completion(struct token_log *log, const struct calla_model *model, struct buffer *out) {
    if (!log->on)
        return buffer_append_string(out, "null");
    struct buffer logprobs = {0}, tops = {0}, offsets = {0};
    bool ok = buffer_append_string(out, "{\"tokens\":[");
    for (size_t i = 0; ok && i < log->said; i++) {
        const struct token_record *record = &log->records[i];
        const char *comma = i == 0 ? "" : ",";
        size_t characters = 0;
        buffer_append_string(out, comma);
        buffer_append_string(&logprobs, comma);
        buffer_append_string(&tops, comma);
        buffer_printf(&offsets, "%s%zu", comma, log->offset);
        openai_logprob(&logprobs, record->logprob);
        ok = write_name(model, record->token, &characters, out) && write_top(record, model, &tops);
        log->offset += characters;
    }
    forget_said(log);
    buffer_append_string(out, "],\"token_logprobs\":[");
    buffer_append(out, logprobs.data, logprobs.size);
    buffer_append_string(out, "],\"top_logprobs\":[");
    buffer_append(out, tops.data, tops.size);
    buffer_append_string(out, "],\"text_offset\":[");
    buffer_append(out, offsets.data, offsets.size);
    buffer_append_string(out, "]}");
    ok = ok && !logprobs.failed && !tops.failed && !offsets.failed && !out->failed;
    buffer_free(&logprobs);
    buffer_free(&tops);
    buffer_free(&offsets);
    return ok;
}
