/* The socket that the server listens on. */
#ifndef CALLA_SERVER_LISTENER_H
#define CALLA_SERVER_LISTENER_H

#include "base/error.h"

struct listener {
    int descriptor;
    char address[160]; /* "http://127.0.0.1:8080" or "unix:/path" */
    char *path;        /* of a unix socket; NULL otherwise */
};

/* Listens on an address or name and a port; port 0 takes a free one, which the address then tells. */
bool listener_open_tcp(struct listener *listener, const char *host, uint16_t port, struct calla_error *error);

/* Listens on a unix socket that only its owner may use. A socket that nobody listens on any more is replaced.
 */
bool listener_open_unix(struct listener *listener, const char *path, struct calla_error *error);

/* Closes the socket, unless it was given away by setting the descriptor to -1, and removes its path, unless
 * somebody else listens there by now. */
void listener_close(struct listener *listener);

#endif
