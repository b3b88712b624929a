#include "server/connections.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/system.h"

enum connection_state {
    CONNECTION_NEW,       /* the first headers are on their way */
    CONNECTION_RESTING,   /* between two requests */
    CONNECTION_RECEIVING, /* the body is */
    CONNECTION_WAITING    /* for its answer, or for the end of it */
};

struct connection {
    int descriptor;
    enum connection_state state;
    double since; /* it is in this state */
    double moved; /* a byte of the body came */
    size_t received;
    struct job *job;                    /* held while waiting */
    bool ended;                         /* shut down; its thread has not noticed yet */
    bool late;                          /* ended because its body was, and told so */
    struct connection *previous, *next; /* the oldest first */
};

struct connections {
    struct connection_limits limits;
    pthread_mutex_t lock;
    struct connection *first, *last;
    size_t count;
    struct pollfd *polled; /* [room] */
    struct connection **polled_connections;
    size_t room;
};

struct connections *connections_new(const struct connection_limits *limits, struct calla_error *error) {
    struct connections *connections = calloc(1, sizeof *connections);
    if (connections == NULL) {
        error_memory(error, "the list of connections", sizeof *connections);
        return NULL;
    }
    connections->limits = *limits;
    pthread_mutex_init(&connections->lock, NULL);
    return connections;
}

void connections_free(struct connections *connections) {
    if (connections == NULL)
        return;
    pthread_mutex_destroy(&connections->lock);
    free(connections->polled);
    free(connections->polled_connections);
    free(connections);
}

/* With the lock held, as are the next ones. */
static void end_connection(struct connection *connection) {
    if (connection->ended)
        return;
    connection->ended = true;
    if (connection->job != NULL)
        job_cancel(connection->job);
    shutdown(connection->descriptor, SHUT_RDWR);
}

/* Tells the client that its body was too slow. Its thread waits for more of the body, so nothing else is
 * being written to the socket; what does not fit into the socket's buffer at once is lost. */
static void tell_late(struct connection *connection) {
    struct refusal refusal;
    struct buffer body = {0}, response = {0};
    refuse_late(&refusal);
    refusal_write(&refusal, &body);
    buffer_printf(&response,
                  "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                  body.size);
    buffer_append(&response, body.data, body.size);
    if (!body.failed && !response.failed)
        connection->late = send(connection->descriptor, response.data, response.size, MSG_DONTWAIT) > 0;
    buffer_free(&body);
    buffer_free(&response);
}

/* Whether bytes have come that its thread has not got round to reading: the request may well be whole, and
 * that it was not read in time is not the client's fault. */
static bool has_unread(const struct connection *connection) {
    char byte;
    return recv(connection->descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* How little is lost when it goes: between two requests first, then those whose request is not complete; one
 * that waits for its answer, or to be heard, stays. */
static int worth(const struct connection *connection) {
    switch (connection->state) {
    case CONNECTION_RESTING:
        return has_unread(connection) ? 3 : 0;
    case CONNECTION_NEW:
        return has_unread(connection) ? 3 : 1;
    case CONNECTION_RECEIVING:
        return 2;
    case CONNECTION_WAITING:
        break;
    }
    return 3;
}

/* The oldest of the least worth makes way for `newcomer`; that one itself when all others wait for answers.
 */
static void make_way(struct connections *connections, struct connection *newcomer) {
    struct connection *least = NULL;
    for (struct connection *at = connections->first; at != NULL; at = at->next)
        if (!at->ended && at != newcomer && worth(at) < (least == NULL ? 3 : worth(least)))
            least = at;
    end_connection(least != NULL ? least : newcomer);
}

static size_t alive(const struct connections *connections) {
    size_t count = 0;
    for (const struct connection *at = connections->first; at != NULL; at = at->next)
        count += !at->ended;
    return count;
}

static bool reserve(struct connections *connections) {
    if (connections->count <= connections->room)
        return true;
    size_t room = connections->count * 2;
    struct pollfd *polled = realloc(connections->polled, room * sizeof *polled);
    if (polled == NULL)
        return false;
    connections->polled = polled;
    struct connection **list = realloc(connections->polled_connections, room * sizeof(struct connection *));
    if (list == NULL)
        return false;
    connections->polled_connections = list;
    connections->room = room;
    return true;
}

struct connection *connections_add(struct connections *connections, int descriptor) {
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;
    connection->descriptor = descriptor;
    connection->since = system_seconds();
    pthread_mutex_lock(&connections->lock);
    connections->count++;
    if (!reserve(connections)) {
        connections->count--;
        free(connection);
        connection = NULL;
    } else {
        connection->previous = connections->last;
        *(connections->last == NULL ? &connections->first : &connections->last->next) = connection;
        connections->last = connection;
        if (alive(connections) > connections->limits.most)
            make_way(connections, connection);
    }
    pthread_mutex_unlock(&connections->lock);
    return connection;
}

static void enter(struct connection *connection, enum connection_state state, struct job *job) {
    if (connection->job != NULL)
        job_release(connection->job);
    connection->job = job;
    if (job != NULL)
        job_hold(job);
    connection->state = state;
    connection->since = connection->moved = system_seconds();
    connection->received = 0;
}

void connections_remove(struct connections *connections, struct connection *connection) {
    if (connection == NULL)
        return;
    pthread_mutex_lock(&connections->lock);
    enter(connection, CONNECTION_RESTING, NULL);
    *(connection->previous == NULL ? &connections->first : &connection->previous->next) = connection->next;
    *(connection->next == NULL ? &connections->last : &connection->next->previous) = connection->previous;
    connections->count--;
    pthread_mutex_unlock(&connections->lock);
    free(connection);
}

void connection_receives(struct connections *connections, struct connection *connection, size_t more) {
    if (connection == NULL)
        return;
    pthread_mutex_lock(&connections->lock);
    if (connection->state != CONNECTION_RECEIVING)
        enter(connection, CONNECTION_RECEIVING, NULL);
    connection->received += more;
    connection->moved = system_seconds();
    pthread_mutex_unlock(&connections->lock);
}

void connection_waits(struct connections *connections, struct connection *connection, struct job *job) {
    if (connection == NULL)
        return;
    pthread_mutex_lock(&connections->lock);
    enter(connection, CONNECTION_WAITING, job);
    if (connection->ended)
        job_cancel(job);
    pthread_mutex_unlock(&connections->lock);
}

void connection_rests(struct connections *connections, struct connection *connection) {
    if (connection == NULL)
        return;
    pthread_mutex_lock(&connections->lock);
    enter(connection, CONNECTION_RESTING, NULL);
    pthread_mutex_unlock(&connections->lock);
}

bool connection_was_late(struct connections *connections, struct connection *connection) {
    if (connection == NULL)
        return false;
    pthread_mutex_lock(&connections->lock);
    bool late = connection->late;
    pthread_mutex_unlock(&connections->lock);
    return late;
}

/* Watching */

static bool overdue(const struct connection_limits *limits, const struct connection *connection, double now) {
    double age = now - connection->since;
    switch (connection->state) {
    case CONNECTION_NEW:
        return age > limits->header_seconds;
    case CONNECTION_RESTING:
        return age > limits->idle_seconds;
    case CONNECTION_RECEIVING:
        return now - connection->moved > limits->body_seconds ||
               (double)connection->received < (age - limits->body_seconds) * limits->body_rate;
    case CONNECTION_WAITING:
        break;
    }
    return false;
}

#if defined(POLLRDHUP)
#define LEFT_EVENTS POLLRDHUP
#else
#define LEFT_EVENTS POLLIN
#endif

/* Whether the other side has closed, or has said that it sends nothing more. */
static bool has_left(const struct pollfd *polled) {
    if ((polled->revents & (POLLHUP | POLLERR)) != 0)
        return true;
#if defined(POLLRDHUP)
    return (polled->revents & POLLRDHUP) != 0;
#else
    char byte;
    return (polled->revents & POLLIN) != 0 && recv(polled->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
#endif
}

void connections_watch(struct connections *connections, double now) {
    const struct connection_limits *limits = &connections->limits;
    size_t count = 0;
    pthread_mutex_lock(&connections->lock);
    for (struct connection *at = connections->first; at != NULL; at = at->next) {
        if (at->ended)
            continue;
        if (overdue(limits, at, now) && !has_unread(at)) {
            if (at->state == CONNECTION_RECEIVING)
                tell_late(at);
            end_connection(at);
        } else if (at->state == CONNECTION_WAITING) {
            connections->polled[count] = (struct pollfd){.fd = at->descriptor, .events = LEFT_EVENTS};
            connections->polled_connections[count++] = at;
            if (limits->silence > 0)
                job_keep_alive(at->job, now, limits->silence);
        }
    }
    if (count > 0 && poll(connections->polled, (nfds_t)count, 0) > 0)
        for (size_t i = 0; i < count; i++)
            if (has_left(&connections->polled[i]))
                end_connection(connections->polled_connections[i]);
    pthread_mutex_unlock(&connections->lock);
}

size_t connections_count(struct connections *connections) {
    pthread_mutex_lock(&connections->lock);
    size_t count = connections->count;
    pthread_mutex_unlock(&connections->lock);
    return count;
}

size_t connections_busy(struct connections *connections) {
    size_t count = 0;
    pthread_mutex_lock(&connections->lock);
    for (const struct connection *at = connections->first; at != NULL; at = at->next)
        count += at->state == CONNECTION_WAITING && !at->ended;
    pthread_mutex_unlock(&connections->lock);
    return count;
}
