/* What the server counts, as GET /metrics shows it in the text format of Prometheus. */
#ifndef CALLA_SERVER_METRICS_H
#define CALLA_SERVER_METRICS_H

#include "server/job.h"
#include "server/scheduler.h"

struct metrics;

struct metrics *metrics_new(struct calla_error *error);
void metrics_free(struct metrics *metrics);

/* Counts a request that has ended, with the status that the log gives it. */
void metrics_count(struct metrics *metrics, const struct job *job, unsigned status);

/* `view` and the number of connections are as of now. */
void metrics_write(struct metrics *metrics, const struct scheduler_view *view, size_t connections,
                   struct buffer *out);

#endif
