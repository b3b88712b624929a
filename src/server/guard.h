/* Who may ask: the checks of a request's headers, before anything else is done with it.
 *
 * A web page that a person happens to visit can make the browser send requests to this machine. So the Host
 * must be a name of this server, which a page that has rebound its own name (DNS rebinding) cannot claim; and
 * an Origin other than the server's own is refused unless it was allowed. */
#ifndef CALLA_SERVER_GUARD_H
#define CALLA_SERVER_GUARD_H

#include "server/exchange.h"

struct guard;

struct guard_options {
    const char
        *bound_host; /* what the server was told to listen on; NULL on a unix socket: Host is not checked */
    const char *const *hosts; /* further names by which it may be called */
    size_t host_count;
    const char *const *origins; /* web origins that may ask, or "*" */
    size_t origin_count;
    const char *key_file; /* one API key a line; NULL: no key is asked for */
};

struct guard *guard_open(const struct guard_options *options, struct calla_error *error);
void guard_close(struct guard *guard);
bool guard_has_keys(const struct guard *guard);

/* The headers' values, NULL where a header is missing. */
bool guard_check_host(const struct guard *guard, const char *host, struct refusal *refusal);
bool guard_check_origin(const struct guard *guard, const char *origin, const char *host,
                        struct refusal *refusal);
bool guard_check_key(const struct guard *guard, const char *authorization, struct refusal *refusal);

/* What Access-Control-Allow-Origin says to this Origin; NULL: nothing. */
const char *guard_allowed_origin(const struct guard *guard, const char *origin);

/* Whether `host` (as given to listen on) is reached from this machine only. */
bool host_is_loopback(const char *host);

#endif
