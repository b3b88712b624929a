/* A request on its way through the server: its body, what is answered, and how it went.
 *
 * Three kinds of threads meet here. The one that owns the connection brings the body and takes the answer's
 * bytes; a reader takes the body apart; the scheduler feeds in what the model says. Nobody waits for anybody:
 * whoever has bytes appends them to the job's output and wakes the connection, which sleeps while there are
 * none. A job lives as long as somebody holds it. */
#ifndef CALLA_SERVER_JOB_H
#define CALLA_SERVER_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/exchange.h"
#include "server/route.h"

/* How the request went; for the log and the metrics. Complete when the job ends. */
struct job_numbers {
    size_t prompt_tokens, read_tokens, computed_tokens,
        reply_tokens;                                     /* read: computed or found in the cache */
    double queued_seconds, prompt_seconds, reply_seconds; /* waiting; computing the one and the other */
    const char
        *finish; /* "stop", "length", "tool_calls", "cancelled", "error"; NULL: the model was not asked */
};

struct job {
    /* Set before the job is shared. */
    char id[24];
    const struct route *route;                  /* never NULL: what is not found has a route as well */
    double born;                                /* system_seconds() */
    struct buffer body;                         /* of the request, until a reader has taken it apart */
    void (*ended)(void *user, struct job *job); /* called once, when nobody holds the job any more */
    void *user;

    struct job *next; /* in the list of whoever has it */
    atomic_uint holders;
    atomic_bool cancelled; /* nobody wants the answer; whoever works on it drops it */

    /* The rest is for who holds the lock. */
    pthread_mutex_t lock;
    void (*wake)(void *connection); /* NULL: the connection is gone */
    void *connection;
    bool asleep;    /* the connection waits to be woken */
    bool answered;  /* status and output are all there will be ... */
    bool streaming; /* ... or, while this is set and `answered` is not, more output follows */
    unsigned status;
    const char *content_type;
    unsigned retry_after; /* seconds; 0 without */
    struct exchange *exchange;
    struct buffer output;
    size_t taken; /* bytes of the output that the connection has */
    double spoke; /* when a stream last had something appended */
    size_t read, to_read;
    struct buffer text; /* of the prompt and the reply, for a log that shows it; empty otherwise */
    struct job_numbers numbers;
};

/* Held once, by the caller. NULL when memory is short. */
struct job *job_new(const struct route *route, void (*ended)(void *user, struct job *job), void *user);
void job_hold(struct job *job);
void job_release(struct job *job);

/* --- For the connection --- */

enum job_state { JOB_PENDING, JOB_STREAMING, JOB_ANSWERED, JOB_ABANDONED };

/* What there is to send. With JOB_PENDING `sleep` has been called under the lock, and `wake` will be. */
enum job_state job_poll(struct job *job, void (*sleep)(void *connection));

/* Moves at most `room` bytes of a stream to `out`. When there are none, `sleep` is called as above and 0
 * comes back. JOB_END after the last byte; JOB_BROKEN when the stream cannot be completed. */
#define JOB_END (-1)
#define JOB_BROKEN (-2)
int64_t job_take(struct job *job, char *out, size_t room, void (*sleep)(void *connection));

/* The connection is done with the job, or gone. Cancels what is not answered. */
void job_detach(struct job *job);

/* --- For whoever answers --- */

/* The whole answer at once; takes the body's bytes. Of several answers the first counts. */
void job_answer(struct job *job, unsigned status, const char *content_type, struct buffer *body);
void job_refuse(struct job *job, const struct refusal *refusal);

/* A client that is this many bytes of a stream behind is given up. */
#define JOB_MOST_UNSENT ((size_t)32 << 20)

/* Hands the exchange to the job. */
void job_set_exchange(struct job *job, struct exchange *exchange);
/* Before the first event. The headers of a stream go out, and its first bytes. */
void job_start(struct job *job);
bool job_event(struct job *job, const struct calla_event *event);
bool job_token(struct job *job, const struct calla_token_event *token);
void job_progress(struct job *job, size_t read, size_t total);
void job_finish(struct job *job, const struct calla_reply *reply);
void job_fail(struct job *job, const struct calla_error *failure);

/* Nobody wants the answer: the work on it ends, and the connection is woken to find that out. */
void job_cancel(struct job *job);

/* Lets a stream that has been silent for `silence` seconds say that it lives. */
void job_keep_alive(struct job *job, double now, double silence);

#endif
