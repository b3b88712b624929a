/* What is different when a person looks on: dim text, a line that shows progress, and no control characters
 * from outside. */
#ifndef CALLA_CLI_TERMINAL_H
#define CALLA_CLI_TERMINAL_H

#include <stdio.h>

#include "calla.h"

bool terminal_is(FILE *file);

/* Turns dim text on or off. Does nothing when the file is no terminal that can, or NO_COLOR is set. */
void terminal_dim(FILE *file, bool on);

/* Writes UTF-8 text that came from outside (a model, a file). On a terminal, control characters other than
 * newline and tab are left out, so that the text cannot drive it; elsewhere the bytes go out as they are. */
void terminal_write(FILE *file, const char *text, size_t size);

/* One line on standard error that shows how far long work is, on a terminal only and not in the first moment.
 */
struct progress_line {
    bool enabled, shown;
    double started, drawn;
};

/* Starts the line and gives what the library reports to. Ctrl-C (see interrupt.h) cancels the reported work.
 * The line must outlive the work. */
struct calla_progress progress_line_start(struct progress_line *line, bool quiet);

/* Draws; for work that does not go through calla_progress. */
void progress_line_draw(struct progress_line *line, const char *what, uint64_t done, uint64_t total);

/* Removes the line if it is there. */
void progress_line_end(struct progress_line *line);

#endif
