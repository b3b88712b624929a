#include "server/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/system.h"

#define THREADS 2
#define CONNECTION_MEMORY ((size_t)64 << 10) /* of which the headers may take most */
#define IDLE_SECONDS 120u /* without a byte either way, for a reader that has stopped reading */
#define STREAM_BLOCK ((size_t)16 << 10)
/* A body that is refused is read all the same, up to this much more than is accepted: a client that is still
 * sending would not see the answer. */
#define MOST_DISCARDED ((size_t)64 << 20)
/* Bodies in memory at a time, in bodies of the largest size. */
#define MOST_BODIES 8

struct http {
    struct http_options options;
    struct MHD_Daemon *daemon;
    atomic_bool quiet;        /* connections end with their next answer */
    atomic_size_t body_bytes; /* that requests hold */
};

/* A request while HTTP has to do with it. */
struct request {
    struct http *http;
    struct job *job;
    struct MHD_Connection *connection;
    struct connection *watched;
    const char *rest;
    const char *origin; /* what Access-Control-Allow-Origin says; NULL: nothing */
    size_t received, counted;
    bool refused;  /* the job is answered already; the rest of the body is discarded */
    bool complete; /* the job was handed over */
    bool sent;     /* a response is queued */
};

static const char *header(struct MHD_Connection *connection, const char *name) {
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* Responses */

static const char *allowed_headers(const char *asked) {
    return asked != NULL ? asked : "Authorization, Content-Type";
}

static void add_headers(struct MHD_Response *response, const struct request *request) {
    const struct job *job = request->job;
    char number[16];
    if (job->content_type != NULL)
        MHD_add_response_header(response, "Content-Type", job->content_type);
    MHD_add_response_header(response, "X-Request-Id", job->id);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (job->streaming) {
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (job->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (job->status == 405 || (job->status == 204 && job->route->allow[0] != 0))
        MHD_add_response_header(response, "Allow", job->route->allow);
    if (job->status == 503) {
        snprintf(number, sizeof number, "%u", job->retry_after > 0 ? job->retry_after : 1);
        MHD_add_response_header(response, "Retry-After", number);
    }
    if (request->origin != NULL) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", request->origin);
        MHD_add_response_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
        MHD_add_response_header(response, "Vary", "Origin");
    }
    if (request->origin != NULL && job->status == 204) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", job->route->allow);
        MHD_add_response_header(
            response, "Access-Control-Allow-Headers",
            allowed_headers(header(request->connection, "Access-Control-Request-Headers")));
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    if (atomic_load(&request->http->quiet))
        MHD_add_response_header(response, "Connection", "close");
}

static void sleep_connection(void *connection) {
    MHD_suspend_connection(connection);
}

static void wake_connection(void *connection) {
    MHD_resume_connection(connection);
}

static ssize_t take_stream(void *user, uint64_t position, char *out, size_t room) {
    struct job *job = user;
    (void)position;
    int64_t taken = job_take(job, out, room, sleep_connection);
    return taken == JOB_END      ? MHD_CONTENT_READER_END_OF_STREAM
           : taken == JOB_BROKEN ? MHD_CONTENT_READER_END_WITH_ERROR
                                 : (ssize_t)taken;
}

static void release_stream(void *user) {
    job_release(user);
}

static enum MHD_Result queue_response(struct request *request, struct MHD_Response *response) {
    if (response == NULL)
        return MHD_NO;
    add_headers(response, request);
    request->sent = true;
    enum MHD_Result result = MHD_queue_response(request->connection, request->job->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_whole(struct request *request) {
    char lost[] = "{\"error\":{\"message\":\"Out of memory: the answer could not be "
                  "written.\",\"type\":\"server_error\","
                  "\"param\":null,\"code\":null}}";
    struct buffer *output = &request->job->output;
    if (output->failed || (output->data == NULL && request->job->status != 204)) {
        request->job->status = 500;
        return queue_response(request,
                              MHD_create_response_from_buffer(sizeof lost - 1, lost, MHD_RESPMEM_MUST_COPY));
    }
    size_t size = output->size;
    char *body = output->data;
    memset(output, 0, sizeof *output);
    struct MHD_Response *response = MHD_create_response_from_buffer(size, body, MHD_RESPMEM_MUST_FREE);
    if (response == NULL)
        free(body);
    return queue_response(request, response);
}

static enum MHD_Result send_stream(struct request *request) {
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK, take_stream, request->job, release_stream);
    if (response != NULL)
        job_hold(request->job);
    return queue_response(request, response);
}

static enum MHD_Result answer(struct request *request) {
    switch (job_poll(request->job, sleep_connection)) {
    case JOB_PENDING:
        return MHD_YES;
    case JOB_STREAMING:
        return send_stream(request);
    case JOB_ANSWERED:
        return send_whole(request);
    case JOB_ABANDONED:
        break;
    }
    return MHD_NO;
}

/* The beginning of a request */

static void refuse_request(struct request *request, const struct refusal *refusal) {
    request->refused = true;
    job_refuse(request->job, refusal);
}

static void answer_empty(struct request *request, unsigned status) {
    struct buffer nothing = {0};
    request->refused = true;
    job_answer(request->job, status, NULL, &nothing);
}

static bool too_large(const struct http *http, struct refusal *refusal) {
    *refusal = (struct refusal){.status = 413, .type = "invalid_request_error", .code = "body_too_large"};
    snprintf(refusal->message, sizeof refusal->message,
             "The body of a request may have %zu bytes; calla serve --max-body lets it have more.",
             http->options.max_body);
    return false;
}

static bool check_method(const struct route *route, const char *method, struct refusal *refusal) {
    *refusal = (struct refusal){.type = "invalid_request_error"};
    if (route->kind == ROUTE_UNKNOWN) {
        refusal->status = 404;
        refusal->code = "not_found";
        snprintf(refusal->message, sizeof refusal->message,
                 "There is nothing at this path; the API begins at /v1/models and /v1/chat/completions.");
        return false;
    }
    bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (route->post ? strcmp(method, "POST") == 0 : reads)
        return true;
    refusal->status = 405;
    refusal->code = "method_not_allowed";
    snprintf(refusal->message, sizeof refusal->message, "%s takes %s.", route->path, route->allow);
    return false;
}

/* A header that may be there once. */
struct single {
    const char *name;
    unsigned count;
};

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    struct single *single = user;
    (void)kind;
    (void)value;
    single->count += strcasecmp(name, single->name) == 0;
    return MHD_YES;
}

static bool check_single(struct MHD_Connection *connection, const char *name, struct refusal *refusal) {
    struct single single = {name, 0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_header, &single);
    if (single.count <= 1)
        return true;
    *refusal = (struct refusal){.status = 400, .type = "invalid_request_error"};
    snprintf(refusal->message, sizeof refusal->message, "The request has several %s headers.", name);
    return false;
}

/* Where a body ends must be said once: with two ways to read it, a proxy may have chosen the other one. */
static bool body_ends_clearly(struct MHD_Connection *connection) {
    const char *transfer = header(connection, "Transfer-Encoding");
    return transfer == NULL ||
           (strcasecmp(transfer, "chunked") == 0 && header(connection, "Content-Length") == NULL);
}

static bool check_body_headers(struct MHD_Connection *connection, struct refusal *refusal) {
    const char *coding = header(connection, "Content-Encoding");
    if (!check_single(connection, "Content-Length", refusal) ||
        !check_single(connection, "Transfer-Encoding", refusal))
        return false;
    if (!body_ends_clearly(connection))
        return refuse(
            refusal, "",
            "A body comes with a Content-Length or with \"Transfer-Encoding: chunked\", not with both "
            "or another encoding.");
    if (coding == NULL || strcasecmp(coding, "identity") == 0)
        return true;
    refuse(refusal, "", "The body has the Content-Encoding \"%.60s\"; send it without one.", coding);
    refusal->status = 415;
    return false;
}

/* A browser always says which host it means; only a client of HTTP/1.0 may leave it out. */
static bool check_host_sent(const char *version, const char *host, struct refusal *refusal) {
    return host != NULL || strcmp(version, "HTTP/1.0") == 0 ||
           refuse(refusal, "", "The request has no Host header, which HTTP/1.1 asks for.");
}

/* Whether the request may go on, as far as its headers tell. */
static bool check_headers(struct request *request, const char *method, const char *version,
                          struct refusal *refusal) {
    const struct guard *guard = request->http->options.guard;
    struct MHD_Connection *connection = request->connection;
    const struct route *route = request->job->route;
    const char *host = header(connection, "Host"), *origin = header(connection, "Origin");
    request->origin = guard_allowed_origin(guard, origin);
    if (!check_host_sent(version, host, refusal) || !check_single(connection, "Host", refusal) ||
        !check_body_headers(connection, refusal) || !guard_check_host(guard, host, refusal) ||
        !guard_check_origin(guard, origin, host, refusal))
        return false;
    if (strcmp(method, "OPTIONS") == 0 && route->kind != ROUTE_UNKNOWN)
        return true;
    if (route->kind != ROUTE_HEALTH && !guard_check_key(guard, header(connection, "Authorization"), refusal))
        return false;
    return check_method(route, method, refusal);
}

/* The length that the client announces, or 0. */
static uint64_t announced_length(struct MHD_Connection *connection) {
    const char *text = header(connection, "Content-Length");
    if (text == NULL)
        return 0;
    errno = 0;
    unsigned long long length = strtoull(text, NULL, 10);
    return errno == 0 ? length : UINT64_MAX;
}

static void job_ended(void *user, struct job *job) {
    struct http *http = user;
    bool left = atomic_load(&job->cancelled);
    http->options.handler.ended(http->options.handler.user, job, left ? 499 : job->status);
}

static struct connection *watched_connection(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

static enum MHD_Result begin(struct http *http, struct MHD_Connection *connection, const char *url,
                             const char *method, const char *version, void **context) {
    struct request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return MHD_NO;
    request->http = http;
    request->connection = connection;
    request->watched = watched_connection(connection);
    request->job = job_new(route_find(url, &request->rest), job_ended, http);
    if (request->job == NULL) {
        free(request);
        return MHD_NO;
    }
    request->job->wake = wake_connection;
    request->job->connection = connection;
    *context = request;
    connection_receives(http->options.connections, request->watched, 0);
    struct refusal refusal;
    uint64_t length = announced_length(connection);
    const struct http_handler *handler = &http->options.handler;
    if (!check_headers(request, method, version, &refusal))
        refuse_request(request, &refusal);
    else if (strcmp(method, "OPTIONS") == 0)
        answer_empty(request, 204);
    else if (length > http->options.max_body && !too_large(http, &refusal))
        refuse_request(request, &refusal);
    else if (!handler->accept(handler->user, request->job->route, &refusal))
        refuse_request(request, &refusal);
    /* Not to be waited for: a body that comes only when it is asked for, and one that has no end. */
    if (request->refused &&
        (header(connection, "Expect") != NULL || length > http->options.max_body + MOST_DISCARDED ||
         !body_ends_clearly(connection))) {
        connection_waits(http->options.connections, request->watched, request->job);
        return answer(request);
    }
    return MHD_YES;
}

/* The body */

static enum MHD_Result receive(struct request *request, const char *bytes, size_t *size) {
    struct http *http = request->http;
    struct buffer *body = &request->job->body;
    struct refusal refusal;
    connection_receives(http->options.connections, request->watched, *size);
    request->received += *size;
    if (!request->refused && request->received > http->options.max_body) {
        too_large(http, &refusal);
        refuse_request(request, &refusal);
    }
    if (!request->refused) {
        size_t most = http->options.max_body * MOST_BODIES;
        bool room = atomic_fetch_add(&http->body_bytes, *size) + *size <= most;
        request->counted += *size;
        if (!room || !buffer_append(body, bytes, *size)) {
            refusal = (struct refusal){.status = 503, .type = "server_error", .code = "busy"};
            snprintf(refusal.message, sizeof refusal.message,
                     "The server has as many bodies of requests as it can hold; ask again in a moment.");
            refuse_request(request, &refusal);
        }
    }
    if (request->refused)
        buffer_free(body);
    *size = 0;
    return request->received > http->options.max_body + MOST_DISCARDED ? MHD_NO : MHD_YES;
}

/* MHD calls this when the headers are complete, with each piece of the body, when all of it is there, and
 * then each time that the connection is woken, until a response is queued. */
static enum MHD_Result access_handler(void *user, struct MHD_Connection *connection, const char *url,
                                      const char *method, const char *version, const char *upload,
                                      size_t *upload_size, void **context) {
    struct http *http = user;
    struct request *request = *context;
    if (request == NULL)
        return begin(http, connection, url, method, version, context);
    if (*upload_size > 0)
        return receive(request, upload, upload_size);
    if (!request->complete) {
        request->complete = true;
        connection_waits(http->options.connections, request->watched, request->job);
        if (!request->refused)
            http->options.handler.handle(http->options.handler.user, request->job, request->rest);
    }
    return answer(request);
}

static void completed(void *user, struct MHD_Connection *connection, void **context,
                      enum MHD_RequestTerminationCode code) {
    struct http *http = user;
    struct request *request = *context;
    (void)connection;
    if (request == NULL)
        return;
    *context = NULL;
    struct refusal late;
    if (connection_was_late(http->options.connections, request->watched) && !refuse_late(&late))
        job_refuse(request->job, &late); /* it was sent already; this is for the log */
    else if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        job_cancel(request->job);
    job_detach(request->job);
    connection_rests(http->options.connections, request->watched);
    atomic_fetch_sub(&http->body_bytes, request->counted);
    job_release(request->job);
    free(request);
}

static void notify_connection(void *user, struct MHD_Connection *connection, void **context,
                              enum MHD_ConnectionNotificationCode code) {
    struct http *http = user;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        /* This is where the library's own threads can be reached. */
        system_give_way();
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info == NULL ? NULL : connections_add(http->options.connections, info->connect_fd);
    } else {
        connections_remove(http->options.connections, *context);
        *context = NULL;
    }
}

struct http *http_open(const struct http_options *options, struct calla_error *error) {
    struct http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        error_memory(error, "the HTTP server", sizeof *http);
        close(options->descriptor);
        return NULL;
    }
    http->options = *options;
    /* Not epoll: there MHD_quiesce_daemon and a worker may both take the listening socket out of the set, and
     * the second to do so ends the process ("Failed to remove listen FD from epoll set", 0.9.75 to 1.0.1). */
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    /* Those that connections_watch has ended still count for a moment. */
    unsigned most = (unsigned)options->max_connections + 64;
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, access_handler, http, MHD_OPTION_LISTEN_SOCKET, options->descriptor,
        MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY, MHD_OPTION_THREAD_POOL_SIZE, THREADS,
        MHD_OPTION_NOTIFY_COMPLETED, completed, http, MHD_OPTION_NOTIFY_CONNECTION, notify_connection, http,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_END);
    if (http->daemon != NULL)
        return http;
    error_set(error, CALLA_IO, "The HTTP server could not be started: %s.", strerror(errno));
    close(options->descriptor);
    free(http);
    return NULL;
}

void http_quiesce(struct http *http) {
    atomic_store(&http->quiet, true);
    MHD_socket descriptor = MHD_quiesce_daemon(http->daemon);
    if (descriptor != MHD_INVALID_SOCKET)
        close(descriptor);
}

void http_close(struct http *http) {
    if (http == NULL)
        return;
    MHD_stop_daemon(http->daemon);
    free(http);
}
