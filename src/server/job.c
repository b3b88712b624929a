#include "server/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"

static const char json_type[] = "application/json";
static const char stream_type[] = "text/event-stream";

struct job *job_new(const struct route *route, void (*ended)(void *user, struct job *job), void *user) {
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    if (pthread_mutex_init(&job->lock, NULL) != 0) {
        free(job);
        return NULL;
    }
    snprintf(job->id, sizeof job->id, "req_%016" PRIx64, system_random());
    job->route = route;
    job->ended = ended;
    job->user = user;
    job->born = job->spoke = system_seconds();
    atomic_init(&job->holders, 1);
    return job;
}

void job_hold(struct job *job) {
    atomic_fetch_add(&job->holders, 1);
}

void job_release(struct job *job) {
    if (atomic_fetch_sub(&job->holders, 1) != 1)
        return;
    if (job->ended != NULL)
        job->ended(job->user, job);
    exchange_free(job->exchange);
    buffer_free(&job->body);
    buffer_free(&job->output);
    buffer_free(&job->text);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* The functions below this line that end in _locked are called with the lock held. */

static void wake_locked(struct job *job) {
    if (!job->asleep)
        return;
    job->asleep = false;
    if (job->wake != NULL)
        job->wake(job->connection);
}

static void sleep_locked(struct job *job, void (*sleep)(void *connection)) {
    job->asleep = true;
    sleep(job->connection);
}

static bool wanted(const struct job *job) {
    return !atomic_load(&job->cancelled);
}

enum job_state job_poll(struct job *job, void (*sleep)(void *connection)) {
    pthread_mutex_lock(&job->lock);
    enum job_state state = JOB_PENDING;
    if (job->streaming)
        state = JOB_STREAMING;
    else if (job->answered)
        state = JOB_ANSWERED;
    else if (!wanted(job))
        state = JOB_ABANDONED;
    else
        sleep_locked(job, sleep);
    pthread_mutex_unlock(&job->lock);
    return state;
}

/* Bytes that are taken make room once they are at least half of all, so that each is moved once or less. */
static void drop_taken_locked(struct job *job) {
    size_t left = job->output.size - job->taken;
    if (job->taken < left)
        return;
    memmove(job->output.data, job->output.data + job->taken, left);
    job->output.size = left;
    job->taken = 0;
}

int64_t job_take(struct job *job, char *out, size_t room, void (*sleep)(void *connection)) {
    pthread_mutex_lock(&job->lock);
    size_t left = job->output.size - job->taken;
    int64_t result;
    if (!wanted(job) || job->output.failed) {
        result = JOB_BROKEN;
    } else if (left > 0) {
        size_t size = left < room ? left : room;
        memcpy(out, job->output.data + job->taken, size);
        job->taken += size;
        drop_taken_locked(job);
        result = (int64_t)size;
    } else if (job->answered) {
        result = JOB_END;
    } else {
        sleep_locked(job, sleep);
        result = 0;
    }
    pthread_mutex_unlock(&job->lock);
    return result;
}

void job_detach(struct job *job) {
    pthread_mutex_lock(&job->lock);
    job->wake = NULL;
    job->connection = NULL;
    job->asleep = false;
    if (!job->answered)
        atomic_store(&job->cancelled, true);
    pthread_mutex_unlock(&job->lock);
}

void job_cancel(struct job *job) {
    pthread_mutex_lock(&job->lock);
    atomic_store(&job->cancelled, true);
    wake_locked(job);
    pthread_mutex_unlock(&job->lock);
}

/* Answering */

void job_answer(struct job *job, unsigned status, const char *content_type, struct buffer *body) {
    pthread_mutex_lock(&job->lock);
    if (!job->answered && !job->streaming) {
        buffer_free(&job->output);
        job->output = *body;
        memset(body, 0, sizeof *body);
        job->status = status;
        job->content_type = content_type;
        job->answered = true;
        wake_locked(job);
    }
    pthread_mutex_unlock(&job->lock);
    buffer_free(body);
}

void job_refuse(struct job *job, const struct refusal *refusal) {
    struct buffer body = {0};
    if (!refusal_write(refusal, &body))
        buffer_free(&body);
    job_answer(job, refusal->status, json_type, &body);
}

void job_set_exchange(struct job *job, struct exchange *exchange) {
    pthread_mutex_lock(&job->lock);
    job->exchange = exchange;
    pthread_mutex_unlock(&job->lock);
}

static void spoke_locked(struct job *job) {
    size_t unsent = job->output.size - job->taken;
    if (job->streaming && unsent > 0) {
        if (unsent > JOB_MOST_UNSENT)
            atomic_store(&job->cancelled, true);
        job->spoke = system_seconds();
        wake_locked(job);
    }
}

void job_start(struct job *job) {
    pthread_mutex_lock(&job->lock);
    exchange_start(job->exchange, &job->output);
    if (exchange_streams(job->exchange)) {
        job->status = 200;
        job->content_type = stream_type;
        job->streaming = true;
        job->spoke = system_seconds();
        wake_locked(job);
    }
    pthread_mutex_unlock(&job->lock);
}

bool job_event(struct job *job, const struct calla_event *event) {
    pthread_mutex_lock(&job->lock);
    exchange_event(job->exchange, event, &job->output);
    spoke_locked(job);
    bool go_on = wanted(job) && !job->output.failed;
    pthread_mutex_unlock(&job->lock);
    return go_on;
}

bool job_token(struct job *job, const struct calla_token_event *token) {
    pthread_mutex_lock(&job->lock);
    exchange_token(job->exchange, token, &job->output);
    spoke_locked(job);
    bool go_on = wanted(job) && !job->output.failed;
    pthread_mutex_unlock(&job->lock);
    return go_on;
}

void job_progress(struct job *job, size_t read, size_t total) {
    pthread_mutex_lock(&job->lock);
    job->read = read;
    job->to_read = total;
    pthread_mutex_unlock(&job->lock);
}

static void answered_locked(struct job *job, unsigned status) {
    if (!job->streaming) {
        job->status = status;
        job->content_type = json_type;
    }
    job->answered = true;
    wake_locked(job);
}

void job_finish(struct job *job, const struct calla_reply *reply) {
    pthread_mutex_lock(&job->lock);
    if (!job->answered) {
        bool ok = exchange_finish(job->exchange, reply, &job->output) && !job->output.failed;
        answered_locked(job, ok ? 200 : 500);
    }
    pthread_mutex_unlock(&job->lock);
}

static unsigned failure_status(enum calla_status status) {
    switch (status) {
    case CALLA_BAD_INPUT:
    case CALLA_UNSUPPORTED:
    case CALLA_CONTEXT_FULL:
        return 400;
    case CALLA_OUT_OF_MEMORY:
    case CALLA_CANCELLED:
        return 503;
    default:
        return 500;
    }
}

void job_fail(struct job *job, const struct calla_error *failure) {
    pthread_mutex_lock(&job->lock);
    if (!job->answered) {
        if (!job->streaming)
            buffer_clear(&job->output);
        exchange_fail(job->exchange, failure, &job->output);
        job->numbers.finish = "error";
        answered_locked(job, failure_status(failure->status));
    }
    pthread_mutex_unlock(&job->lock);
}

void job_keep_alive(struct job *job, double now, double silence) {
    pthread_mutex_lock(&job->lock);
    if (job->streaming && !job->answered && now - job->spoke >= silence) {
        exchange_alive(job->exchange, job->read, job->to_read, &job->output);
        job->spoke = now;
        wake_locked(job);
    }
    pthread_mutex_unlock(&job->lock);
}
