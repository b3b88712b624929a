#include "cli/reply_printer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/interrupt.h"

static void end_thinking(struct reply_printer *printer) {
    if (!printer->thinking_started || printer->thinking_ended)
        return;
    terminal_dim(stderr, false);
    fputs("\n\n", stderr);
    fflush(stderr);
    printer->thinking_ended = true;
}

static void print_thinking(struct reply_printer *printer, const struct calla_event *event) {
    if (!printer->show_thinking)
        return;
    if (!printer->thinking_started)
        terminal_dim(stderr, true);
    printer->thinking_started = true;
    terminal_write(stderr, event->text, event->size);
    fflush(stderr);
}

static void print_answer(struct reply_printer *printer, const struct calla_event *event) {
    end_thinking(printer);
    size_t size = event->size;
    while (size > 0 && event->text[size - 1] == '\n')
        size--;
    if (size > 0) {
        for (; printer->newlines > 0; printer->newlines--)
            putchar('\n');
        terminal_write(stdout, event->text, size);
        fflush(stdout);
        printer->answer_started = true;
    }
    printer->newlines += event->size - size;
}

bool reply_printer_event(struct reply_printer *printer, const struct calla_event *event) {
    progress_line_end(&printer->line);
    if (event->kind == CALLA_EVENT_REASONING)
        print_thinking(printer, event);
    else if (event->kind == CALLA_EVENT_CONTENT)
        print_answer(printer, event);
    return !ferror(stdout) && !interrupted();
}

static void print_calls(const char *calls) {
    json_t *array = json_loads(calls, JSON_ALLOW_NUL, NULL);
    size_t index;
    json_t *call;
    json_array_foreach(array, index, call) {
        char *line = json_dumps(call, JSON_COMPACT);
        if (line != NULL)
            puts(line);
        free(line);
    }
    json_decref(array);
}

void reply_printer_end(struct reply_printer *printer, const struct calla_reply *reply) {
    progress_line_end(&printer->line);
    end_thinking(printer);
    bool calls = reply != NULL && reply->tool_calls != NULL;
    if (printer->answer_started || (reply != NULL && !calls))
        putchar('\n');
    if (calls)
        print_calls(reply->tool_calls);
    fflush(stdout);
}

static void print_rate(size_t tokens, double seconds) {
    if (tokens > 0 && seconds > 0)
        fprintf(stderr, " (%.1f tokens/s)", (double)tokens / seconds);
}

void print_statistics(const struct calla_reply *reply) {
    size_t reused = reply->prompt_tokens - reply->computed_tokens;
    terminal_dim(stderr, true);
    fprintf(stderr, "prompt: %zu tokens", reply->prompt_tokens);
    if (reused > 0)
        fprintf(stderr, ", %zu of them read before", reused);
    print_rate(reply->computed_tokens, reply->prompt_seconds);
    fprintf(stderr, "; reply: %zu tokens", reply->reply_tokens);
    print_rate(reply->reply_tokens, reply->reply_seconds);
    if (reply->finish == CALLA_FINISH_LENGTH)
        fputs("; cut off at the most tokens that were allowed", stderr);
    else if (reply->finish == CALLA_FINISH_CANCELLED)
        fputs("; stopped", stderr);
    terminal_dim(stderr, false);
    fputc('\n', stderr);
}

const char *finish_name(enum calla_finish finish) {
    switch (finish) {
    case CALLA_FINISH_STOP:
        return "stop";
    case CALLA_FINISH_LENGTH:
        return "length";
    case CALLA_FINISH_TOOL_CALLS:
        return "tool_calls";
    case CALLA_FINISH_CANCELLED:
        break;
    }
    return "cancelled";
}
