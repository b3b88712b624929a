/* Prints a reply as it comes: the answer on standard output, the thinking dim on standard error, each tool
 * call as one line of JSON. */
#ifndef CALLA_CLI_REPLY_PRINTER_H
#define CALLA_CLI_REPLY_PRINTER_H

#include <stdbool.h>

#include "cli/terminal.h"

struct reply_printer {
    bool show_thinking;
    struct progress_line line; /* of reading the prompt: goes when the reply comes */
    bool thinking_started, thinking_ended, answer_started;
    size_t newlines; /* held back: the answer ends with exactly one */
};

/* Prints one event. False when standard output cannot be written, or Ctrl-C was pressed. */
bool reply_printer_event(struct reply_printer *printer, const struct calla_event *event);

/* Ends the reply: its tool calls, and the last newline. `reply` is NULL when generating failed. */
void reply_printer_end(struct reply_printer *printer, const struct calla_reply *reply);

/* Prints counts and speeds of the reply on standard error, one line. */
void print_statistics(const struct calla_reply *reply);

/* "stop", "length", "tool_calls" or "cancelled". */
const char *finish_name(enum calla_finish finish);

#endif
