/* The open connections, watched from outside: a connection that waits for the model is not looked at by the
 * HTTP library, and one that sends a byte now and then looks busy to it.
 *
 * Watching ends those that miss a deadline and finds clients that have left. When there are too many, the one
 * that does the least makes way. A connection is ended by shutting its socket down, which its own thread then
 * sees; so a descriptor is never closed, and reused, behind anybody's back. */
#ifndef CALLA_SERVER_CONNECTIONS_H
#define CALLA_SERVER_CONNECTIONS_H

#include "server/job.h"

struct connection_limits {
    size_t most; /* connections at a time */
    double
        header_seconds; /* from the first moment, or the end of the last request, to the end of the headers */
    double idle_seconds; /* the same between two requests */
    double body_seconds; /* without a byte of the body */
    double body_rate;    /* bytes a second that a body must come with, after `body_seconds` */
    double silence;      /* after which a stream says that it lives; 0: never */
};

struct connections;
struct connection;

struct connections *connections_new(const struct connection_limits *limits, struct calla_error *error);
void connections_free(struct connections *connections);

/* Called from the threads that own the sockets. NULL when memory is short. */
struct connection *connections_add(struct connections *connections, int descriptor);
void connections_remove(struct connections *connections, struct connection *connection);

/* The headers are complete, and a body of a request follows; `more` bytes of it have come. */
void connection_receives(struct connections *connections, struct connection *connection, size_t more);
/* The request is complete, and the job answers it. */
void connection_waits(struct connections *connections, struct connection *connection, struct job *job);
/* The answer is sent, and the next request may follow. */
void connection_rests(struct connections *connections, struct connection *connection);
/* The body missed its deadline, and the client has been answered that (refuse_late). */
bool connection_was_late(struct connections *connections, struct connection *connection);

/* To be called a few times a second. */
void connections_watch(struct connections *connections, double now);

size_t connections_count(struct connections *connections);
/* Those whose request is not answered yet. */
size_t connections_busy(struct connections *connections);

#endif
