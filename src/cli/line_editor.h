/* Messages from a person at a terminal, or lines from a pipe.
 *
 * At a terminal: line editing, a history that outlives the program, pasted text of many lines taken as one. A
 * message of several lines is written between two lines of """, or with a backslash at the end of each line
 * but the last; this holds for a pipe too. */
#ifndef CALLA_CLI_LINE_EDITOR_H
#define CALLA_CLI_LINE_EDITOR_H

#include "base/buffer.h"

struct line_editor;

enum line_outcome {
    LINE_MESSAGE,
    LINE_CANCELLED, /* Ctrl-C: what was typed is gone */
    LINE_END,       /* Ctrl-D, or the end of the pipe */
    LINE_FAILED
};

/* A terminal is edited on when both standard input and standard output are one. The history is kept in
 * $XDG_STATE_HOME/calla/history (~/.local/state), readable by its owner only; without a home there is none.
 */
struct line_editor *line_editor_open(struct calla_error *error);
void line_editor_close(struct line_editor *editor);

/* Whether a person types. */
bool line_editor_interactive(const struct line_editor *editor);

/* Puts the next message into *message, without its last newline. */
enum line_outcome line_editor_read(struct line_editor *editor, struct buffer *message,
                                   struct calla_error *error);

#endif
