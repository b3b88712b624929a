/* The one thread that owns the model. It loads it, and then makes the replies of several requests in turn:
 * one step (a quarter of a second of a prompt, or a token) at a time, always of the request that has had the
 * least of the model's time. So a short request gets its turn within a long prompt.
 *
 * A request in work has a session to itself. Those for which no session is free wait in a queue of bounded
 * length, first come, first served. */
#ifndef CALLA_SERVER_SCHEDULER_H
#define CALLA_SERVER_SCHEDULER_H

#include "server/job.h"
#include "server/log.h"

struct scheduler_options {
    struct calla_model_options model; /* progress is the scheduler's own */
    uint32_t sessions;                /* at most; 0: up to SCHEDULER_SESSIONS, as memory allows */
    uint32_t context;                 /* of each; 0: what the model and the memory allow */
    size_t queue;                     /* requests that may wait */
    bool keep_text;                   /* keep prompts and replies for the log */
};

#define SCHEDULER_SESSIONS 4
#define SCHEDULER_MOST_SESSIONS 64

enum scheduler_state { SCHEDULER_LOADING, SCHEDULER_READY, SCHEDULER_FAILED, SCHEDULER_STOPPED };

/* What health and metrics tell. */
struct scheduler_view {
    enum scheduler_state state;
    char loading[64]; /* what is being done, and how far it is, while loading */
    uint64_t done, total;
    size_t active, waiting;
    uint32_t sessions, context;
    double prompt_seconds, reply_seconds; /* of the model's time so far */
    struct calla_cache_info cache;
};

struct scheduler;

/* Starts the thread, which loads the model. The log must outlive the scheduler. */
struct scheduler *scheduler_open(const struct scheduler_options *options, struct log *log,
                                 struct calla_error *error);

/* Ends the thread after the step it is at; what is not done yet fails with CALLA_CANCELLED. Nothing can be
 * submitted any more. The model stays. */
void scheduler_stop(struct scheduler *scheduler);

/* After scheduler_stop, when no job is left. */
void scheduler_close(struct scheduler *scheduler);

void scheduler_look(struct scheduler *scheduler, struct scheduler_view *view);

/* NULL until it is loaded. */
const struct calla_model *scheduler_model(struct scheduler *scheduler);

/* Why the model could not be loaded, in SCHEDULER_FAILED. */
const struct calla_error *scheduler_failure(struct scheduler *scheduler);

/* Whether there is room for one more request; otherwise a refusal. */
bool scheduler_has_room(struct scheduler *scheduler, struct refusal *refusal);

/* Takes a job that has an exchange, starts its answer, and holds it until it is answered. False with a
 * refusal when the model is not there or too many wait. */
bool scheduler_submit(struct scheduler *scheduler, struct job *job, struct refusal *refusal);

#endif
