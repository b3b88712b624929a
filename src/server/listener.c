#include "server/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

static void keep_from_children(int descriptor) {
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

static void name_address(struct listener *listener) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getsockname(listener->descriptor, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(listener->address, sizeof listener->address,
             address.ss_family == AF_INET6 ? "http://[%.100s]:%s" : "http://%.100s:%s", host, port);
}

static bool bind_and_listen(struct listener *listener, const struct addrinfo *address) {
    listener->descriptor = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (listener->descriptor < 0)
        return false;
    int on = 1;
    keep_from_children(listener->descriptor);
    setsockopt(listener->descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener->descriptor, address->ai_addr, address->ai_addrlen) == 0 &&
        listen(listener->descriptor, BACKLOG) == 0)
        return true;
    int failure = errno;
    close(listener->descriptor);
    listener->descriptor = -1;
    errno = failure;
    return false;
}

bool listener_open_tcp(struct listener *listener, const char *host, uint16_t port,
                       struct calla_error *error) {
    *listener = (struct listener){.descriptor = -1};
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int status = getaddrinfo(host, service, &hints, &found);
    if (status != 0)
        return error_set(error, CALLA_BAD_INPUT, "--host %s is no address of this machine: %s.", host,
                         gai_strerror(status));
    errno = 0;
    for (const struct addrinfo *at = found; at != NULL && listener->descriptor < 0; at = at->ai_next)
        bind_and_listen(listener, at);
    freeaddrinfo(found);
    if (listener->descriptor >= 0) {
        name_address(listener);
        return true;
    }
    if (errno == EADDRINUSE)
        return error_set(error, CALLA_IO,
                         "Port %u of %s is in use; end what listens there, or choose another with --port.",
                         port, host);
    if (errno == EACCES)
        return error_set(error, CALLA_IO,
                         "Port %u may not be used without special rights; choose one above 1023 with --port.",
                         port);
    return error_set(error, CALLA_IO, "Cannot listen on %s, port %u: %s.", host, port, strerror(errno));
}

/* The path is short enough. */
static void fill_address(struct sockaddr_un *address, const char *path) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, strlen(path));
}

/* Whether somebody takes connections there. */
static bool somebody_listens(const struct sockaddr_un *address) {
    int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    if (descriptor < 0)
        return true;
    keep_from_children(descriptor);
    fcntl(descriptor, F_SETFL, O_NONBLOCK);
    bool refused = connect(descriptor, (const struct sockaddr *)address, sizeof *address) != 0 &&
                   (errno == ECONNREFUSED || errno == ENOENT);
    close(descriptor);
    return !refused;
}

/* Makes way for a new socket. */
static bool remove_stale(const struct sockaddr_un *address, const char *path, struct calla_error *error) {
    struct stat status;
    if (lstat(path, &status) != 0)
        return true;
    if (!S_ISSOCK(status.st_mode))
        return error_set(error, CALLA_BAD_INPUT, "%s exists and is no socket; choose another --unix path.",
                         path);
    if (somebody_listens(address))
        return error_set(error, CALLA_IO,
                         "Somebody listens on %s already; end that server, or choose another --unix path.",
                         path);
    return unlink(path) == 0 || errno == ENOENT ||
           error_set(error, CALLA_IO, "The old socket %s cannot be removed: %s.", path, strerror(errno));
}

bool listener_open_unix(struct listener *listener, const char *path, struct calla_error *error) {
    *listener = (struct listener){.descriptor = -1};
    struct sockaddr_un address;
    if (strlen(path) >= sizeof address.sun_path)
        return error_set(error, CALLA_BAD_INPUT,
                         "The path of a unix socket has at most %zu bytes; --unix has %zu.",
                         sizeof address.sun_path - 1, strlen(path));
    fill_address(&address, path);
    if (!remove_stale(&address, path, error))
        return false;
    listener->descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    /* Between bind and listen nobody can connect, so the mode counts from the first connection on. */
    if (listener->descriptor >= 0 &&
        bind(listener->descriptor, (const struct sockaddr *)&address, sizeof address) == 0) {
        keep_from_children(listener->descriptor);
        listener->path = strdup(path);
        snprintf(listener->address, sizeof listener->address, "unix:%.120s", path);
        if (listener->path != NULL && chmod(path, 0600) == 0 && listen(listener->descriptor, BACKLOG) == 0)
            return true;
    }
    error_set(error, CALLA_IO, "Cannot listen on the unix socket %s: %s.", path, strerror(errno));
    listener_close(listener);
    return false;
}

void listener_close(struct listener *listener) {
    struct sockaddr_un address;
    if (listener->descriptor >= 0)
        close(listener->descriptor);
    listener->descriptor = -1;
    if (listener->path == NULL)
        return;
    fill_address(&address, listener->path);
    if (!somebody_listens(&address))
        unlink(listener->path);
    free(listener->path);
    listener->path = NULL;
}
