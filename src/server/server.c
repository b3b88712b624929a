#include "server/server.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "server/http.h"
#include "server/listener.h"
#include "server/metrics.h"
#include "server/readers.h"
#include "server/text_endpoints.h"

#define READERS 2
#define WATCH_MILLISECONDS 100
#define FLUSH_SECONDS 2.0 /* for the last bytes of answers, at the end */

struct server {
    const struct server_options *options;
    struct log log;
    struct listener listener;
    struct guard *guard;
    struct connections *connections;
    struct metrics *metrics;
    struct scheduler *scheduler;
    struct readers *readers;
    struct http *http;
    time_t started;
};

static const char answer_type[] = "application/json";

static const char *model_name(const struct server *server, const struct calla_model *model) {
    if (server->options->model_name != NULL)
        return server->options->model_name;
    struct calla_model_info info;
    calla_model_info(model, &info);
    return info.name;
}

/* Answers that are made on the spot */

static void answer_json(struct job *job, unsigned status, json_t *value) {
    struct buffer body = {0};
    char *text = value == NULL ? NULL : json_dumps(value, JSON_COMPACT);
    if (text != NULL)
        buffer_append_string(&body, text);
    free(text);
    json_decref(value);
    job_answer(job, status, answer_type, &body);
}

static void answer_health(struct server *server, struct job *job) {
    struct scheduler_view view;
    scheduler_look(server->scheduler, &view);
    if (view.state == SCHEDULER_LOADING) {
        double progress = view.total == 0 ? 0 : (double)view.done / (double)view.total;
        answer_json(
            job, 503,
            json_pack("{s:s, s:s, s:f}", "status", "loading", "doing", view.loading, "progress", progress));
    } else if (view.state == SCHEDULER_READY) {
        answer_json(job, 200,
                    json_pack("{s:s, s:I, s:I}", "status", "ok", "active", (json_int_t)view.active, "waiting",
                              (json_int_t)view.waiting));
    } else {
        answer_json(job, 503, json_pack("{s:s}", "status", "shutting down"));
    }
}

static void answer_metrics(struct server *server, struct job *job) {
    struct scheduler_view view;
    struct buffer body = {0};
    scheduler_look(server->scheduler, &view);
    metrics_write(server->metrics, &view, connections_count(server->connections), &body);
    job_answer(job, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static json_t *describe_model(const struct server *server, const struct calla_model *model) {
    struct calla_model_info info;
    struct scheduler_view view;
    calla_model_info(model, &info);
    scheduler_look(server->scheduler, &view);
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:I}", "id", model_name(server, model), "object", "model",
                     "created", (json_int_t)server->started, "owned_by", "calla", "context_window",
                     (json_int_t)view.context, "max_model_len", (json_int_t)view.context);
}

static void answer_model(const struct server *server, struct job *job, const char *name) {
    const struct calla_model *model = scheduler_model(server->scheduler);
    if (model != NULL && strcmp(name, model_name(server, model)) == 0) {
        answer_json(job, 200, describe_model(server, model));
        return;
    }
    struct refusal refusal = {
        .status = 404, .type = "invalid_request_error", .parameter = "model", .code = "model_not_found"};
    snprintf(refusal.message, sizeof refusal.message,
             "The model \"%.200s\" does not exist here; GET /v1/models names the one that does.", name);
    job_refuse(job, &refusal);
}

/* Why there is no model to ask: it is being loaded, or the server ends. */
static void refuse_unready(struct server *server, struct job *job) {
    struct refusal refusal;
    scheduler_has_room(server->scheduler, &refusal);
    job_refuse(job, &refusal);
}

/* Answers that a reader begins */

static void submit_exchange(struct server *server, struct job *job, enum exchange_kind kind) {
    const struct calla_model *model = scheduler_model(server->scheduler);
    struct scheduler_view view;
    struct refusal refusal;
    scheduler_look(server->scheduler, &view);
    if (model == NULL) {
        refuse_unready(server, job);
        return;
    }
    struct exchange_context context = {.model = model,
                                       .model_name = model_name(server, model),
                                       .context = view.context,
                                       .only_model_name = server->options->only_model_name};
    struct exchange *exchange =
        exchange_new(kind, &context, job->body.data == NULL ? "" : job->body.data, job->body.size, &refusal);
    buffer_free(&job->body);
    if (exchange == NULL) {
        job_refuse(job, &refusal);
        return;
    }
    job_set_exchange(job, exchange);
    if (!scheduler_submit(server->scheduler, job, &refusal))
        job_refuse(job, &refusal);
}

static void answer_text(struct server *server, struct job *job) {
    const struct calla_model *model = scheduler_model(server->scheduler);
    const char *body = job->body.data == NULL ? "" : job->body.data;
    struct buffer out = {0};
    struct refusal refusal;
    bool ok;
    if (model == NULL) {
        refuse_unready(server, job);
        return;
    }
    if (job->route->kind == ROUTE_TOKENIZE)
        ok = tokenize_answer(model, body, job->body.size, &out, &refusal);
    else if (job->route->kind == ROUTE_DETOKENIZE)
        ok = detokenize_answer(model, body, job->body.size, &out, &refusal);
    else
        ok = apply_template_answer(model, body, job->body.size, &out, &refusal);
    buffer_free(&job->body);
    if (ok)
        job_answer(job, 200, answer_type, &out);
    else
        job_refuse(job, &refusal);
    buffer_free(&out);
}

static void read_body(void *user, struct job *job) {
    struct server *server = user;
    switch (job->route->kind) {
    case ROUTE_CHAT:
        submit_exchange(server, job, EXCHANGE_CHAT);
        break;
    case ROUTE_COMPLETION:
        submit_exchange(server, job, EXCHANGE_COMPLETION);
        break;
    default:
        answer_text(server, job);
        break;
    }
}

/* What HTTP asks */

static bool accept_request(void *user, const struct route *route, struct refusal *refusal) {
    struct server *server = user;
    if (route->kind == ROUTE_HEALTH || route->kind == ROUTE_METRICS)
        return true;
    if (route->kind == ROUTE_CHAT || route->kind == ROUTE_COMPLETION)
        return scheduler_has_room(server->scheduler, refusal);
    return scheduler_model(server->scheduler) != NULL || scheduler_has_room(server->scheduler, refusal);
}

static void handle_request(void *user, struct job *job, const char *rest) {
    struct server *server = user;
    const struct calla_model *model;
    switch (job->route->kind) {
    case ROUTE_HEALTH:
        answer_health(server, job);
        break;
    case ROUTE_METRICS:
        answer_metrics(server, job);
        break;
    case ROUTE_MODELS:
        model = scheduler_model(server->scheduler);
        answer_json(job, model == NULL ? 503 : 200,
                    model == NULL
                        ? NULL
                        : json_pack("{s:s, s:[o]}", "object", "list", "data", describe_model(server, model)));
        break;
    case ROUTE_MODEL:
        answer_model(server, job, rest);
        break;
    default:
        if (!readers_add(server->readers, job))
            refuse_unready(server, job);
        break;
    }
}

static void request_ended(void *user, struct job *job, unsigned status) {
    struct server *server = user;
    metrics_count(server->metrics, job, status);
    log_request(&server->log, job, status, system_seconds() - job->born);
}

/* From start to end */

static bool open_listener(struct server *server, struct calla_error *error) {
    const struct server_options *options = server->options;
    if (options->unix_path != NULL)
        return listener_open_unix(&server->listener, options->unix_path, error);
    if (!host_is_loopback(options->host) && !guard_has_keys(server->guard) && !options->insecure)
        return error_set(error, CALLA_BAD_INPUT,
                         "--host %s lets other machines in: protect it with --api-key-file FILE, or say "
                         "--insecure if everybody may use it.",
                         options->host);
    return listener_open_tcp(&server->listener, options->host, options->port, error);
}

static bool start(struct server *server, struct calla_error *error) {
    const struct server_options *options = server->options;
    struct connection_limits limits = {.most = options->max_connections,
                                       .header_seconds = 10,
                                       .idle_seconds = 60,
                                       .body_seconds = 10,
                                       .body_rate = 100,
                                       .silence = options->keepalive_seconds};
    struct guard_options guard = options->guard;
    guard.bound_host = options->unix_path == NULL ? options->host : NULL;
    if ((server->guard = guard_open(&guard, error)) == NULL || !open_listener(server, error) ||
        (server->connections = connections_new(&limits, error)) == NULL ||
        (server->metrics = metrics_new(error)) == NULL ||
        (server->readers = readers_open(READERS, read_body, server, error)) == NULL ||
        (server->scheduler = scheduler_open(&options->scheduler, &server->log, error)) == NULL)
        return false;
    struct http_options http = {
        .descriptor = server->listener.descriptor,
        .max_body = options->max_body,
        .max_connections = options->max_connections,
        .guard = server->guard,
        .connections = server->connections,
        .handler = {accept_request, handle_request, request_ended, server},
    };
    server->listener.descriptor = -1;
    server->http = http_open(&http, error);
    if (server->http == NULL)
        return false;
    log_say(&server->log, "Listening on %s.", server->listener.address);
    return true;
}

static void watch(struct server *server) {
    poll(NULL, 0, WATCH_MILLISECONDS);
    connections_watch(server->connections, system_seconds());
}

static bool model_failed(struct server *server, struct calla_error *error) {
    struct scheduler_view view;
    scheduler_look(server->scheduler, &view);
    if (view.state != SCHEDULER_FAILED)
        return false;
    *error = *scheduler_failure(server->scheduler);
    return true;
}

/* Lets what was accepted finish, for a while. */
static void drain(struct server *server) {
    double until = system_seconds() + server->options->drain_seconds;
    log_say(&server->log, "Ending: no new connections; what runs may go on for %.0f s.",
            server->options->drain_seconds);
    http_quiesce(server->http);
    struct scheduler_view view;
    do {
        scheduler_look(server->scheduler, &view);
        if (view.state != SCHEDULER_READY || connections_busy(server->connections) == 0)
            break;
        watch(server);
    } while (system_seconds() < until);
    scheduler_stop(server->scheduler);
    until = system_seconds() + FLUSH_SECONDS;
    while (connections_busy(server->connections) > 0 && system_seconds() < until)
        watch(server);
}

static void end(struct server *server) {
    if (server->scheduler != NULL)
        scheduler_stop(server->scheduler);
    if (server->readers != NULL)
        readers_stop(server->readers);
    http_close(server->http);
    readers_close(server->readers);
    listener_close(&server->listener);
    scheduler_close(server->scheduler);
    connections_free(server->connections);
    metrics_free(server->metrics);
    guard_close(server->guard);
}

bool server_run(const struct server_options *options, struct calla_error *error) {
    struct server server = {
        .options = options, .log = options->log, .listener = {.descriptor = -1}, .started = time(NULL)};
    bool ok = start(&server, error), told = false;
    while (ok && !told) {
        watch(&server);
        told = options->stop(options->user);
        ok = told || !model_failed(&server, error);
    }
    if (told)
        drain(&server);
    end(&server);
    return ok;
}
