/* calla serve: the model behind the OpenAI API, over HTTP. This file reads the options and minds the signals;
 * src/server does the rest. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/byte_size.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/model_path.h"
#include "server/server.h"

struct serve {
    struct model_flags model;
    const char *host, *unix_path, *key_file, *name, *log_format, *cache_memory, *cache_dir, *cache_disk;
    uint64_t cache_bytes, disk_bytes;
    uint64_t port, sessions, queue, max_body, max_connections;
    double drain_seconds, keepalive_seconds;
    bool insecure, only_name, log_text, have_port, have_host;
    struct option_values hosts, origins, arguments;
};

#define DEFAULT_DISK ((uint64_t)16 << 30)

static const char about[] =
    "Serves the model over HTTP, as the OpenAI API does: /v1/chat/completions, /v1/completions, /v1/models,\n"
    "and /health, /metrics, /tokenize, /detokenize, /apply-template. docs/api.md describes them.\n"
    "\n"
    "Only this machine is let in, and web pages are not, unless options say otherwise. SIGTERM or Ctrl-C "
    "lets\n"
    "what runs finish, for --drain-seconds at most; a second one ends at once.";

/* The one global: how many times the program was asked to end. */
static volatile sig_atomic_t asked;

static void ask(int signal_number) {
    if (asked)
        _exit(128 + signal_number);
    asked = 1;
}

static bool told_to_stop(void *user) {
    (void)user;
    return asked != 0;
}

static void mind_signals(void) {
    struct sigaction action = {.sa_handler = ask};
    sigemptyset(&action.sa_mask);
    asked = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool check(struct serve *serve, struct calla_error *error) {
    serve->cache_bytes = CALLA_CACHE_DEFAULT;
    if (serve->cache_memory != NULL &&
        !byte_size_parse(serve->cache_memory, "cache-memory", &serve->cache_bytes, error))
        return false;
    serve->disk_bytes = DEFAULT_DISK;
    if (serve->cache_disk != NULL &&
        !byte_size_parse(serve->cache_disk, "cache-disk", &serve->disk_bytes, error))
        return false;
    if (serve->cache_disk != NULL && serve->cache_dir == NULL)
        return error_set(error, CALLA_BAD_INPUT, "--cache-disk needs --cache-dir DIR, where the files go.");
    if (serve->cache_dir != NULL && serve->cache_bytes == 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "--cache-dir needs memory for the cache; leave out --cache-memory 0.");
    if (serve->unix_path != NULL && (serve->have_port || serve->have_host))
        return error_set(error, CALLA_BAD_INPUT,
                         "--unix excludes --host and --port; leave out one or the other.");
    for (size_t i = 0; i < serve->origins.count; i++) {
        const char *origin = serve->origins.values[i], *name = strstr(origin, "://");
        if (strcmp(origin, "*") != 0 && (name == NULL || name[3] == 0 || strchr(name + 3, '/') != NULL))
            return error_set(
                error, CALLA_BAD_INPUT,
                "--cors needs an origin such as https://example.org (no path), or *, not \"%.200s\".",
                origin);
    }
    return model_flags_check(&serve->model, error);
}

static bool run(const struct serve *serve, struct calla_error *error) {
    bool bundled;
    char *path = model_path(serve->model.model, &bundled, error);
    if (path == NULL)
        return false;
    struct server_options options = {
        .host = serve->host,
        .port = (uint16_t)serve->port,
        .unix_path = serve->unix_path,
        .guard = {.hosts = serve->hosts.values,
                  .host_count = serve->hosts.count,
                  .origins = serve->origins.values,
                  .origin_count = serve->origins.count,
                  .key_file = serve->key_file},
        .insecure = serve->insecure,
        .max_body = (size_t)serve->max_body,
        .max_connections = (size_t)serve->max_connections,
        .drain_seconds = serve->drain_seconds,
        .keepalive_seconds = serve->keepalive_seconds,
        .model_name = serve->name,
        .only_model_name = serve->only_name,
        .scheduler = {.model = {.path = path,
                                .backend = serve->model.backend,
                                .threads = (int)serve->model.threads,
                                .policies = serve->model.policies.values,
                                .policy_count = serve->model.policies.count,
                                .cache_memory = serve->cache_bytes,
                                .cache_dir = serve->cache_dir,
                                .cache_disk = serve->disk_bytes},
                      .sessions = (uint32_t)serve->sessions,
                      .context = (uint32_t)serve->model.context,
                      .queue = (size_t)serve->queue,
                      .keep_text = serve->log_text},
        .log = {.descriptor = serve->model.quiet ? -1 : STDERR_FILENO,
                .json = strcmp(serve->log_format, "json") == 0,
                .text = serve->log_text},
        .stop = told_to_stop,
    };
    if (bundled)
        log_say(&options.log,
                "No model is named: using the small bundled model, calla-tiny; -m DIR names another.");
    mind_signals();
    bool ok = server_run(&options, error);
    free(path);
    return ok;
}

int command_serve(int argc, char **argv) {
    struct serve serve = {.host = "127.0.0.1",
                          .port = 8080,
                          .queue = 64,
                          .max_body = 16u << 20,
                          .max_connections = 256,
                          .drain_seconds = 10,
                          .keepalive_seconds = 5,
                          .log_format = "text"};
    struct option model[MODEL_OPTIONS];
    model_options(model, &serve.model);
    const struct option where[] = {
        {.name = "host",
         .value = "ADDRESS",
         .help = "listen on this address (127.0.0.1)",
         .text = &serve.host,
         .given = &serve.have_host},
        {.name = "port",
         .value = "N",
         .help = "and this port (8080); 0 takes a free one",
         .count = &serve.port,
         .most = 65535,
         .given = &serve.have_port},
        {.name = "unix",
         .value = "PATH",
         .help = "listen on a unix socket instead, which only its\nowner may use",
         .text = &serve.unix_path},
    };
    const struct option who[] = {
        {.name = "api-key-file",
         .value = "FILE",
         .help = "let in only who has one of these keys, one a\nline; nobody else may read the file",
         .text = &serve.key_file},
        {.name = "insecure", .help = "let other machines in without a key", .flag = &serve.insecure},
        {.name = "allow-host",
         .value = "NAME",
         .help = "a name by which this server is called, besides\nlocalhost and its address; may be repeated",
         .values = &serve.hosts},
        {.name = "cors",
         .value = "ORIGIN",
         .help = "let web pages of this origin in, or of any (*);\nmay be repeated",
         .values = &serve.origins},
    };
    const struct option work[] = {
        {.name = "name",
         .value = "NAME",
         .help = "what clients call the model (its folder's name)",
         .text = &serve.name},
        {.name = "only-name",
         .help = "refuse requests for a model of another name",
         .flag = &serve.only_name},
        {.name = "sessions",
         .value = "N",
         .help = "requests that are answered at the same time\n(up to 4, as memory allows)",
         .count = &serve.sessions,
         .least = 1,
         .most = SCHEDULER_MOST_SESSIONS},
        {.name = "queue",
         .value = "N",
         .help = "requests that may wait (64); others get 503",
         .count = &serve.queue,
         .most = 100000},
        {.name = "max-body",
         .value = "BYTES",
         .help = "of a request (16777216)",
         .count = &serve.max_body,
         .least = 1024,
         .most = (uint64_t)1 << 30},
        {.name = "max-connections",
         .value = "N",
         .help = "at a time (256)",
         .count = &serve.max_connections,
         .least = 1,
         .most = 10000},
        {.name = "keepalive-seconds",
         .value = "S",
         .help = "a stream is never silent for longer (5); 0: it\nmay be",
         .number = &serve.keepalive_seconds,
         .high = 3600},
        {.name = "drain-seconds",
         .value = "S",
         .help = "what runs at the end may go on for so long (10)",
         .number = &serve.drain_seconds,
         .high = 86400},
    };
    const struct option cache[] = {
        {.name = "cache-memory",
         .value = "SIZE",
         .help = "memory for what was read before, such as 4G (a\nquarter of what the weights leave, 8G at "
                 "most); 0:\n"
                 "every prompt is computed whole",
         .text = &serve.cache_memory},
        {.name = "cache-dir",
         .value = "DIR",
         .help = "keep it in files here too, which survive a restart;\nthey hold what was said, and only "
                 "their owner may\n"
                 "read them",
         .text = &serve.cache_dir},
        {.name = "cache-disk",
         .value = "SIZE",
         .help = "of the files at most (16G)",
         .text = &serve.cache_disk},
    };
    const struct option log[] = {
        {.name = "log-format",
         .choices = "text|json",
         .help = "of the lines on standard error, one a request",
         .text = &serve.log_format},
        {.name = "log-text", .help = "show prompts and replies in them", .flag = &serve.log_text},
    };
    const struct option_group groups[] = {
        {"Model", model, MODEL_OPTIONS},
        {"Where it listens", where, sizeof where / sizeof where[0]},
        {"Who may ask", who, sizeof who / sizeof who[0]},
        {"Work", work, sizeof work / sizeof work[0]},
        {"Cache", cache, sizeof cache / sizeof cache[0]},
        {"Log", log, sizeof log / sizeof log[0]},
    };
    const struct command_usage usage = {"serve", "[OPTIONS]", about, groups, sizeof groups / sizeof groups[0],
                                        0,       NULL};
    int exit_code;
    struct calla_error error;
    if (!command_begin(&usage, argc, argv, &serve.arguments, &exit_code))
        return exit_code;
    if (!check(&serve, &error))
        return command_end(&usage, false, EXIT_WRONG_USAGE, &error);
    return command_end(&usage, run(&serve, &error), EXIT_WORK_FAILED, &error);
}
