/* The server from start to end: it listens, loads the model, answers requests until it is told to stop, lets
 * what runs finish for a while, and goes. */
#ifndef CALLA_SERVER_SERVER_H
#define CALLA_SERVER_SERVER_H

#include "server/guard.h"
#include "server/log.h"
#include "server/scheduler.h"

struct server_options {
    const char *host; /* listen on this address ... */
    uint16_t port;
    const char *unix_path; /* ... or, if not NULL, on this unix socket */
    struct guard_options guard;
    bool insecure; /* no key is needed beyond this machine */
    size_t max_body;
    size_t max_connections;
    double drain_seconds, keepalive_seconds;
    const char *model_name; /* what clients call the model; NULL: its folder's name */
    bool only_model_name;
    struct scheduler_options scheduler;
    struct log log;
    bool (*stop)(void *user); /* asked a few times a second whether to end */
    void *user;
};

/* Returns when the server has ended: true if it was told to. */
bool server_run(const struct server_options *options, struct calla_error *error);

#endif
