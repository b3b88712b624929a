#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system.h"
#include "cli/interrupt.h"

#define SECONDS_BEFORE_PROGRESS 0.4
#define SECONDS_BETWEEN_DRAWS 0.1

bool terminal_is(FILE *file) {
    return isatty(fileno(file)) == 1;
}

/* Whether escape sequences work there. */
static bool understands_sequences(FILE *file) {
    const char *kind = getenv("TERM");
    return terminal_is(file) && kind != NULL && *kind != 0 && strcmp(kind, "dumb") != 0;
}

void terminal_dim(FILE *file, bool on) {
    const char *no_color = getenv("NO_COLOR");
    if (understands_sequences(file) && (no_color == NULL || *no_color == 0))
        fputs(on ? "\033[2m" : "\033[0m", file);
}

void terminal_write(FILE *file, const char *text, size_t size) {
    if (!terminal_is(file)) {
        fwrite(text, 1, size, file);
        return;
    }
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
        /* U+0080 to U+009F, which some terminals take for control sequences, are C2 80 to C2 9F. */
        if (byte == 0xc2 && i + 1 < size && (unsigned char)text[i + 1] < 0xa0)
            i++;
        else if (!control)
            fputc(byte, file);
    }
}

static bool report(void *user, const char *what, uint64_t done, uint64_t total) {
    progress_line_draw(user, what, done, total);
    return !interrupted();
}

struct calla_progress progress_line_start(struct progress_line *line, bool quiet) {
    *line = (struct progress_line){.enabled = !quiet && understands_sequences(stderr),
                                   .started = system_seconds()};
    return (struct calla_progress){.report = report, .user = line};
}

void progress_line_draw(struct progress_line *line, const char *what, uint64_t done, uint64_t total) {
    double now = system_seconds();
    if (!line->enabled || now - line->started < SECONDS_BEFORE_PROGRESS ||
        now - line->drawn < SECONDS_BETWEEN_DRAWS)
        return;
    double percent = total == 0 ? 0 : 100.0 * (double)done / (double)total;
    fprintf(stderr, "\r%s: %.0f %%\033[K", what, percent);
    fflush(stderr);
    line->drawn = now;
    line->shown = true;
}

void progress_line_end(struct progress_line *line) {
    if (line->shown)
        fputs("\r\033[K", stderr);
    line->shown = false;
}
