/* HTTP: connections, headers, limits, bodies and responses, on libmicrohttpd. What a complete request means
 * is decided elsewhere (struct http_handler). */
#ifndef CALLA_SERVER_HTTP_H
#define CALLA_SERVER_HTTP_H

#include "server/connections.h"
#include "server/guard.h"

struct http;

struct http_handler {
    /* Whether it is worth while to receive the body of a request for this route; otherwise a refusal. */
    bool (*accept)(void *user, const struct route *route, struct refusal *refusal);
    /* A request is complete: the job is to be answered, now or later, from any thread. `rest` is what follows
     * the path of the route. Must not take long. */
    void (*handle)(void *user, struct job *job, const char *rest);
    /* Nobody holds the job any more. `status` is what was answered, 499 if the client left before. */
    void (*ended)(void *user, struct job *job, unsigned status);
    void *user;
};

struct http_options {
    int descriptor; /* listens; closed by http_close */
    size_t max_body;
    size_t max_connections;
    const struct guard *guard;
    struct connections *connections;
    struct http_handler handler;
};

struct http *http_open(const struct http_options *options, struct calla_error *error);

/* Takes no new connections; those that are open go on, and end with their next answer. */
void http_quiesce(struct http *http);

/* Every job must have been answered or cancelled. */
void http_close(struct http *http);

#endif
