#include "server/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/openai_json.h"

/* One write a line, so that lines of several threads do not mix. What cannot be written is lost. */
static void write_line(const struct log *log, struct buffer *line) {
    buffer_append_byte(line, '\n');
    const char *at = line->data;
    size_t left = line->failed ? 0 : line->size;
    while (left > 0) {
        ssize_t written = write(log->descriptor, at, left);
        if (written <= 0)
            break;
        at += written;
        left -= (size_t)written;
    }
    buffer_free(line);
}

static void now_text(char out[48]) {
    struct timespec now;
    struct tm parts;
    char seconds[24];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out, 48, "%s.%03uZ", seconds, (unsigned)(now.tv_nsec / 1000000) % 1000);
}

/* A string as JSON, which is how both formats quote. */
static void append_quoted(struct buffer *line, const char *text) {
    openai_string(line, text, strlen(text));
}

static void append_key(const struct log *log, struct buffer *line, const char *key) {
    if (line->size > 0)
        buffer_append_byte(line, log->json ? ',' : ' ');
    buffer_printf(line, log->json ? "\"%s\":" : "%s=", key);
}

/* A word of letters, digits and a few marks needs no quotes in a line of pairs. */
static void append_word(const struct log *log, struct buffer *line, const char *key, const char *word) {
    append_key(log, line, key);
    if (log->json)
        append_quoted(line, word);
    else
        buffer_append_string(line, word);
}

static void append_count(const struct log *log, struct buffer *line, const char *key, size_t count) {
    append_key(log, line, key);
    buffer_printf(line, "%zu", count);
}

static void append_seconds(const struct log *log, struct buffer *line, const char *key, double seconds) {
    append_key(log, line, key);
    buffer_printf(line, "%.3f", seconds);
}

static void begin(const struct log *log, struct buffer *line) {
    char now[48];
    now_text(now);
    append_word(log, line, "time", now);
}

static void end(const struct log *log, struct buffer *line) {
    if (log->json) {
        struct buffer object = {0};
        buffer_append_byte(&object, '{');
        buffer_append(&object, line->data, line->size);
        buffer_append_byte(&object, '}');
        object.failed |= line->failed;
        buffer_free(line);
        *line = object;
    }
    write_line(log, line);
}

void log_say(const struct log *log, const char *format, ...) {
    if (log->descriptor < 0)
        return;
    char message[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    struct buffer line = {0};
    begin(log, &line);
    append_key(log, &line, "message");
    append_quoted(&line, message);
    end(log, &line);
}

void log_request(const struct log *log, const struct job *job, unsigned status, double seconds) {
    if (log->descriptor < 0)
        return;
    const struct job_numbers *numbers = &job->numbers;
    struct buffer line = {0};
    begin(log, &line);
    append_word(log, &line, "id", job->id);
    append_word(log, &line, "route", job->route->path);
    append_count(log, &line, "status", status);
    append_seconds(log, &line, "seconds", seconds);
    if (numbers->finish != NULL) {
        append_count(log, &line, "prompt_tokens", numbers->prompt_tokens);
        append_count(log, &line, "cached_tokens", numbers->read_tokens - numbers->computed_tokens);
        append_count(log, &line, "computed_tokens", numbers->computed_tokens);
        append_count(log, &line, "reply_tokens", numbers->reply_tokens);
        append_seconds(log, &line, "queued_seconds", numbers->queued_seconds);
        append_seconds(log, &line, "prefill_seconds", numbers->prompt_seconds);
        append_seconds(log, &line, "decode_seconds", numbers->reply_seconds);
        append_word(log, &line, "finish", numbers->finish);
    }
    if (log->text && job->text.size > 0 && !job->text.failed) {
        append_key(log, &line, "text");
        openai_string(&line, job->text.data, job->text.size);
    }
    end(log, &line);
}
