/* What the server says about itself while it runs: one line for each request, and a few about its life. Lines
 * are key=value pairs, or JSON objects. */
#ifndef CALLA_SERVER_LOG_H
#define CALLA_SERVER_LOG_H

#include "server/job.h"

struct log {
    int descriptor; /* where the lines go; -1: nowhere */
    bool json;
    bool text; /* show prompts and replies */
};

/* "time level=info message=..." */
void log_say(const struct log *log, const char *format, ...) PRINTF_LIKE(2, 3);

/* The line of a request that has ended. Status 499 says that the client left before it was answered. */
void log_request(const struct log *log, const struct job *job, unsigned status, double seconds);

#endif
