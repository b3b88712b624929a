#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#endif

#include "base/system.h"

/* 499 is a client that left before its answer. */
static const unsigned statuses[] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 499, 500, 503};
#define STATUSES (sizeof statuses / sizeof statuses[0])

struct metrics {
    pthread_mutex_t lock;
    double started;
    uint64_t requests[ROUTE_COUNT][STATUSES + 1]; /* the last column: other statuses */
    const char *paths[ROUTE_COUNT];               /* of the routes that were asked for */
    uint64_t prompt_tokens, cached_tokens, computed_tokens, reply_tokens;
    double queued_seconds;
};

struct metrics *metrics_new(struct calla_error *error) {
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics == NULL) {
        error_memory(error, "the metrics", sizeof *metrics);
        return NULL;
    }
    pthread_mutex_init(&metrics->lock, NULL);
    metrics->started = system_seconds();
    return metrics;
}

void metrics_free(struct metrics *metrics) {
    if (metrics == NULL)
        return;
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

void metrics_count(struct metrics *metrics, const struct job *job, unsigned status) {
    size_t column = 0;
    while (column < STATUSES && statuses[column] != status)
        column++;
    pthread_mutex_lock(&metrics->lock);
    metrics->requests[job->route->kind][column]++;
    metrics->paths[job->route->kind] = job->route->path;
    metrics->prompt_tokens += job->numbers.prompt_tokens;
    metrics->cached_tokens += job->numbers.read_tokens - job->numbers.computed_tokens;
    metrics->computed_tokens += job->numbers.computed_tokens;
    metrics->reply_tokens += job->numbers.reply_tokens;
    metrics->queued_seconds += job->numbers.queued_seconds;
    pthread_mutex_unlock(&metrics->lock);
}

/* Bytes of memory that are resident; 0 where the system does not tell. */
static uint64_t resident_memory(void) {
#if defined(__APPLE__)
    struct mach_task_basic_info info;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &count) != KERN_SUCCESS)
        return 0;
    return info.resident_size;
#else
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
#endif
}

static void write_head(struct buffer *out, const char *name, const char *type, const char *help) {
    buffer_printf(out, "# HELP calla_%s %s\n# TYPE calla_%s %s\n", name, help, name, type);
}

static void write_count(struct buffer *out, const char *name, const char *type, const char *help,
                        uint64_t value) {
    write_head(out, name, type, help);
    buffer_printf(out, "calla_%s %llu\n", name, (unsigned long long)value);
}

static void write_seconds(struct buffer *out, const char *name, const char *type, const char *help,
                          double value) {
    write_head(out, name, type, help);
    buffer_printf(out, "calla_%s %.6f\n", name, value);
}

static void write_requests(const struct metrics *metrics, struct buffer *out) {
    write_head(out, "requests_total", "counter",
               "Requests by route and status; 499 is a client that left before its answer.");
    for (size_t route = 0; route < ROUTE_COUNT; route++)
        for (size_t column = 0; column <= STATUSES; column++) {
            unsigned long long count = metrics->requests[route][column];
            if (count == 0)
                continue;
            char status[16] = "other";
            if (column < STATUSES)
                snprintf(status, sizeof status, "%u", statuses[column]);
            buffer_printf(out, "calla_requests_total{route=\"%s\",status=\"%s\"} %llu\n",
                          metrics->paths[route], status, count);
        }
}

static void write_cache(struct buffer *out, const struct calla_cache_info *cache) {
    write_count(out, "cache_requests_total", "counter", "Prompts that were looked up in the cache.",
                cache->requests);
    write_count(out, "cache_hits_total", "counter", "Prompts whose beginning was found there.", cache->hits);
    write_count(out, "cache_snapshots_taken_total", "counter", "Snapshots that were taken.", cache->taken);
    write_count(out, "cache_snapshots_evicted_total", "counter", "Snapshots that made room for others.",
                cache->evicted);
    write_count(out, "cache_snapshots", "gauge", "Snapshots in memory.", cache->snapshots);
    write_count(out, "cache_memory_bytes", "gauge", "Memory of the snapshots.", cache->memory);
    write_count(out, "cache_files_written_total", "counter", "Snapshots that were written to files.",
                cache->written);
    write_count(out, "cache_files_loaded_total", "counter", "Files that prompts went on from.",
                cache->loaded);
    write_count(out, "cache_files_failed_total", "counter", "Files that could not be written or used.",
                cache->failed);
    write_count(out, "cache_files", "gauge", "Files in the cache's folder.", cache->files);
    write_count(out, "cache_disk_bytes", "gauge", "Their size.", cache->disk);
    write_count(out, "cache_disk_limit_bytes", "gauge", "What it may grow to.", cache->disk_limit);
    write_count(out, "cache_memory_limit_bytes", "gauge", "What it may grow to.", cache->memory_limit);
}

void metrics_write(struct metrics *metrics, const struct scheduler_view *view, size_t connections,
                   struct buffer *out) {
    pthread_mutex_lock(&metrics->lock);
    write_requests(metrics, out);
    write_count(out, "prompt_tokens_total", "counter", "Tokens of prompts.", metrics->prompt_tokens);
    write_count(out, "computed_tokens_total", "counter", "Tokens of prompts that were computed.",
                metrics->computed_tokens);
    write_count(out, "cached_tokens_total", "counter", "Tokens of prompts that were found in the cache.",
                metrics->cached_tokens);
    write_count(out, "reply_tokens_total", "counter", "Tokens of replies.", metrics->reply_tokens);
    write_seconds(out, "queued_seconds_total", "counter", "Time that requests waited for a session.",
                  metrics->queued_seconds);
    double uptime = system_seconds() - metrics->started;
    pthread_mutex_unlock(&metrics->lock);
    write_seconds(out, "prefill_seconds_total", "counter", "Time that the model read prompts.",
                  view->prompt_seconds);
    write_seconds(out, "decode_seconds_total", "counter", "Time that the model made replies.",
                  view->reply_seconds);
    write_cache(out, &view->cache);
    write_count(out, "ready", "gauge", "1 when the model is loaded.", view->state == SCHEDULER_READY);
    write_count(out, "active_requests", "gauge", "Requests that the model works on.", view->active);
    write_count(out, "waiting_requests", "gauge", "Requests that wait for a session.", view->waiting);
    write_count(out, "sessions", "gauge", "Sessions that are open.", view->sessions);
    write_count(out, "connections", "gauge", "Connections that are open.", connections);
    write_count(out, "resident_memory_bytes", "gauge", "Resident memory of the process.", resident_memory());
    write_seconds(out, "uptime_seconds", "gauge", "Time since the server started.", uptime);
}
