#include "server/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/serving.h"
#include "server/session_pool.h"

/* A request in work. */
struct task {
    struct job *job;
    struct calla_session *session;
    struct calla_generation *generation;
    double consumed; /* the model's time it has had, counted from what the others had when it came */
};

struct waiting {
    struct job *job;
    double since;
};

struct scheduler {
    struct scheduler_options options;
    struct log *log;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* something waits, or `stopping` */
    bool stopping;
    struct scheduler_view view;
    struct calla_error failure;
    struct calla_model *model; /* written once, before the state is SCHEDULER_READY */
    struct waiting *queue;     /* [queue_room], the first `view.waiting` in use; the oldest first */
    size_t queue_room;

    /* The thread's own. */
    struct session_pool *pool;
    struct task tasks[SCHEDULER_MOST_SESSIONS];
    size_t task_count;
};

/* Tasks */

static bool take_event(void *user, const struct calla_event *event) {
    return job_event(user, event);
}

static bool take_token(void *user, const struct calla_token_event *token) {
    return job_token(user, token);
}

static const char *finish_word(enum calla_finish finish) {
    static const char *const words[] = {"stop", "length", "tool_calls", "cancelled"};
    return words[finish];
}

/* Prompt and reply for the log. A zero byte may be part of them. */
static struct buffer text_of(const struct job *job, const struct calla_reply *reply) {
    struct buffer text = {0};
    const struct calla_prompt *prompt = exchange_prompt(job->exchange);
    buffer_append(&text, prompt->text, prompt->size);
    if (reply != NULL) {
        buffer_append(&text, reply->reasoning, reply->reasoning_size);
        buffer_append(&text, reply->content, reply->content_size);
        if (reply->tool_calls != NULL)
            buffer_append_string(&text, reply->tool_calls);
    }
    return text;
}

static void tell_numbers(const struct scheduler *scheduler, const struct task *task,
                         const struct calla_reply *reply, const char *finish) {
    struct job *job = task->job;
    size_t read = 0, made = 0, computed = 0;
    if (task->generation != NULL) {
        calla_generation_progress(task->generation, &read, &made);
        computed = generation_computed(task->generation);
    }
    struct buffer text = {0};
    if (scheduler->options.keep_text)
        text = text_of(job, reply);
    pthread_mutex_lock(&job->lock);
    struct job_numbers *numbers = &job->numbers;
    numbers->prompt_tokens = exchange_prompt(job->exchange)->tokens.count;
    numbers->computed_tokens = reply != NULL ? reply->computed_tokens : computed;
    numbers->read_tokens = reply != NULL ? reply->prompt_tokens : read;
    numbers->reply_tokens = reply != NULL ? reply->reply_tokens : made;
    numbers->finish = finish;
    buffer_free(&job->text);
    job->text = text;
    pthread_mutex_unlock(&job->lock);
}

/* Takes the task off the list; its session is free again. */
static void drop_task(struct scheduler *scheduler, size_t index) {
    struct task *task = &scheduler->tasks[index];
    calla_generation_free(task->generation);
    session_pool_give_back(scheduler->pool, task->session);
    job_release(task->job);
    scheduler->tasks[index] = scheduler->tasks[--scheduler->task_count];
    pthread_mutex_lock(&scheduler->lock);
    scheduler->view.active = scheduler->task_count;
    pthread_mutex_unlock(&scheduler->lock);
}

static void fail_task(struct scheduler *scheduler, size_t index, const struct calla_error *failure) {
    tell_numbers(scheduler, &scheduler->tasks[index], NULL, "error");
    job_fail(scheduler->tasks[index].job, failure);
    drop_task(scheduler, index);
}

static void cancel_task(struct scheduler *scheduler, size_t index) {
    tell_numbers(scheduler, &scheduler->tasks[index], NULL, "cancelled");
    drop_task(scheduler, index);
}

static void finish_task(struct scheduler *scheduler, size_t index) {
    struct task *task = &scheduler->tasks[index];
    struct calla_reply reply;
    struct calla_error error;
    if (!calla_generation_finish(task->generation, &reply, &error)) {
        fail_task(scheduler, index, &error);
        return;
    }
    tell_numbers(scheduler, task, &reply, finish_word(reply.finish));
    job_finish(task->job, &reply);
    calla_reply_free(&reply);
    drop_task(scheduler, index);
}

static double least_consumed(const struct scheduler *scheduler) {
    double least = 0;
    for (size_t i = 0; i < scheduler->task_count; i++)
        if (i == 0 || scheduler->tasks[i].consumed < least)
            least = scheduler->tasks[i].consumed;
    return least;
}

/* Gives the job a session, of which one is free, and begins its reply. */
static void begin_task(struct scheduler *scheduler, struct job *job, double waited) {
    const struct calla_prompt *prompt = exchange_prompt(job->exchange);
    struct calla_error error;
    struct task task = {.job = job, .consumed = least_consumed(scheduler)};
    struct calla_generate_options options = *exchange_options(job->exchange);
    options.event = take_event;
    options.token = take_token;
    options.user = job;
    options.progress = (struct calla_progress){0};
    pthread_mutex_lock(&job->lock);
    job->numbers.queued_seconds = waited;
    pthread_mutex_unlock(&job->lock);
    task.session = session_pool_take(scheduler->pool);
    task.generation = calla_generation_new(task.session, prompt, &options, &error);
    scheduler->tasks[scheduler->task_count++] = task;
    if (task.generation == NULL) {
        fail_task(scheduler, scheduler->task_count - 1, &error);
        return;
    }
    job_progress(job, calla_session_position(task.session), prompt->tokens.count);
    pthread_mutex_lock(&scheduler->lock);
    scheduler->view.active = scheduler->task_count;
    scheduler->view.sessions = session_pool_count(scheduler->pool);
    pthread_mutex_unlock(&scheduler->lock);
}

/* The task that has had the least; of several, the one that came last. One that waits for another to read
 * what it would read itself gets no turn; the other one does not wait. */
static size_t next_task(const struct scheduler *scheduler) {
    size_t index = 0;
    bool found = false;
    for (size_t i = 0; i < scheduler->task_count; i++) {
        const struct task *task = &scheduler->tasks[i];
        bool waits = generation_waits(task->generation) && !atomic_load(&task->job->cancelled);
        if (!waits && (!found || task->consumed <= scheduler->tasks[index].consumed)) {
            index = i;
            found = true;
        }
    }
    return index;
}

static void step(struct scheduler *scheduler) {
    size_t index = next_task(scheduler);
    struct task *task = &scheduler->tasks[index];
    if (atomic_load(&task->job->cancelled)) {
        cancel_task(scheduler, index);
        return;
    }
    size_t read_before, read, made;
    bool done = false;
    struct calla_error error;
    calla_generation_progress(task->generation, &read_before, &made);
    bool reading = read_before < exchange_prompt(task->job->exchange)->tokens.count;
    double start = system_seconds();
    bool ok = calla_generation_step(task->generation, &done, &error);
    double seconds = system_seconds() - start;
    task->consumed += seconds;
    calla_generation_progress(task->generation, &read, &made);
    job_progress(task->job, read, exchange_prompt(task->job->exchange)->tokens.count);
    pthread_mutex_lock(&task->job->lock);
    *(reading ? &task->job->numbers.prompt_seconds : &task->job->numbers.reply_seconds) += seconds;
    pthread_mutex_unlock(&task->job->lock);
    pthread_mutex_lock(&scheduler->lock);
    *(reading ? &scheduler->view.prompt_seconds : &scheduler->view.reply_seconds) += seconds;
    if (reading || done)
        calla_cache_info(scheduler->model, &scheduler->view.cache);
    pthread_mutex_unlock(&scheduler->lock);
    if (atomic_load(&task->job->cancelled))
        cancel_task(scheduler, index);
    else if (!ok)
        fail_task(scheduler, index, &error);
    else if (done)
        finish_task(scheduler, index);
}

/* The queue */

/* Takes the oldest waiting job out, or with `cancelled` the oldest that nobody wants any more. With the lock
 * held; false when there is none. */
static bool take_waiting(struct scheduler *scheduler, bool cancelled, struct waiting *out) {
    for (size_t i = 0; i < scheduler->view.waiting; i++) {
        if (cancelled && !atomic_load(&scheduler->queue[i].job->cancelled))
            continue;
        *out = scheduler->queue[i];
        scheduler->view.waiting--;
        memmove(&scheduler->queue[i], &scheduler->queue[i + 1],
                (scheduler->view.waiting - i) * sizeof *scheduler->queue);
        return true;
    }
    return false;
}

static void end_waiting(struct waiting *waiting, const struct calla_error *failure) {
    struct job *job = waiting->job;
    pthread_mutex_lock(&job->lock);
    job->numbers.queued_seconds = system_seconds() - waiting->since;
    job->numbers.prompt_tokens = exchange_prompt(job->exchange)->tokens.count;
    job->numbers.finish = "cancelled";
    pthread_mutex_unlock(&job->lock);
    if (failure != NULL)
        job_fail(job, failure);
    job_release(job);
}

/* With the lock held: until something changes, or for a twentieth of a second. */
static void wait_a_moment(struct scheduler *scheduler) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&scheduler->changed, &scheduler->lock, &until);
}

/* Waits until there is something to do. False when the scheduler stops. */
static bool wait_for_work(struct scheduler *scheduler) {
    pthread_mutex_lock(&scheduler->lock);
    bool tend = true;
    while (!scheduler->stopping && scheduler->task_count == 0 && scheduler->view.waiting == 0) {
        if (!tend) {
            pthread_cond_wait(&scheduler->changed, &scheduler->lock);
            continue;
        }
        pthread_mutex_unlock(&scheduler->lock);
        tend = cache_tend(scheduler->model);
        pthread_mutex_lock(&scheduler->lock);
        calla_cache_info(scheduler->model, &scheduler->view.cache);
        if (tend && !scheduler->stopping && scheduler->view.waiting == 0)
            wait_a_moment(scheduler);
    }
    bool go_on = !scheduler->stopping;
    pthread_mutex_unlock(&scheduler->lock);
    return go_on;
}

static void admit(struct scheduler *scheduler) {
    struct waiting waiting = {0};
    for (;;) {
        pthread_mutex_lock(&scheduler->lock);
        bool gone = take_waiting(scheduler, true, &waiting), more = scheduler->view.waiting > 0;
        pthread_mutex_unlock(&scheduler->lock);
        if (gone) {
            end_waiting(&waiting, NULL);
            continue;
        }
        if (!more || !session_pool_make_room(scheduler->pool))
            return;
        pthread_mutex_lock(&scheduler->lock);
        take_waiting(scheduler, false, &waiting);
        pthread_mutex_unlock(&scheduler->lock);
        begin_task(scheduler, waiting.job, system_seconds() - waiting.since);
    }
}

/* The thread */

static bool report_loading(void *user, const char *what, uint64_t done, uint64_t total) {
    struct scheduler *scheduler = user;
    pthread_mutex_lock(&scheduler->lock);
    snprintf(scheduler->view.loading, sizeof scheduler->view.loading, "%s", what);
    scheduler->view.done = done;
    scheduler->view.total = total;
    bool go_on = !scheduler->stopping;
    pthread_mutex_unlock(&scheduler->lock);
    return go_on;
}

static void say_of_cache(void *user, const char *sentence) {
    log_say(user, "%s", sentence);
}

static bool load(struct scheduler *scheduler, struct calla_error *error) {
    struct calla_model_options options = scheduler->options.model;
    options.progress = (struct calla_progress){report_loading, scheduler};
    options.cache_log = say_of_cache;
    options.cache_user = scheduler->log;
    struct calla_model *model = calla_model_open(&options, error);
    if (model == NULL)
        return false;
    const char *warning;
    for (size_t i = 0; (warning = calla_model_warning(model, i)) != NULL; i++)
        log_say(scheduler->log, "%s", warning);
    scheduler->pool =
        session_pool_open(model, scheduler->options.sessions, scheduler->options.context, error);
    bool ok = scheduler->pool != NULL;
    pthread_mutex_lock(&scheduler->lock);
    scheduler->model = model;
    if (ok) {
        scheduler->view.context = session_pool_context(scheduler->pool);
        scheduler->view.sessions = session_pool_count(scheduler->pool);
        scheduler->view.state = SCHEDULER_READY;
    }
    pthread_mutex_unlock(&scheduler->lock);
    if (ok)
        log_say(scheduler->log, "The model is loaded: %u positions a session, at most %u sessions at a time.",
                session_pool_context(scheduler->pool), session_pool_most(scheduler->pool));
    return ok;
}

/* Whoever is still there is told why nothing comes. */
static void end_all(struct scheduler *scheduler) {
    struct calla_error stopped;
    struct waiting waiting = {0};
    error_set(&stopped, CALLA_CANCELLED, "The server is shutting down.");
    while (scheduler->task_count > 0)
        fail_task(scheduler, 0, &stopped);
    for (;;) {
        pthread_mutex_lock(&scheduler->lock);
        bool found = take_waiting(scheduler, false, &waiting);
        pthread_mutex_unlock(&scheduler->lock);
        if (!found)
            return;
        end_waiting(&waiting, &stopped);
    }
}

static void *run(void *argument) {
    struct scheduler *scheduler = argument;
    struct calla_error error;
    bool ok = load(scheduler, &error);
    if (ok)
        while (wait_for_work(scheduler)) {
            admit(scheduler);
            if (scheduler->task_count > 0)
                step(scheduler);
        }
    pthread_mutex_lock(&scheduler->lock);
    if (!ok)
        scheduler->failure = error;
    scheduler->view.state = ok ? SCHEDULER_STOPPED : SCHEDULER_FAILED;
    pthread_mutex_unlock(&scheduler->lock);
    end_all(scheduler);
    session_pool_close(scheduler->pool);
    return NULL;
}

/* From other threads */

struct scheduler *scheduler_open(const struct scheduler_options *options, struct log *log,
                                 struct calla_error *error) {
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    if (scheduler == NULL) {
        error_memory(error, "the scheduler", sizeof *scheduler);
        return NULL;
    }
    pthread_mutex_init(&scheduler->lock, NULL);
    pthread_cond_init(&scheduler->changed, NULL);
    scheduler->options = *options;
    scheduler->log = log;
    snprintf(scheduler->view.loading, sizeof scheduler->view.loading, "opening the model");
    /* Beyond those that wait come those that are on their way to a free session. */
    scheduler->queue_room = options->queue + SCHEDULER_MOST_SESSIONS;
    scheduler->queue = calloc(scheduler->queue_room, sizeof *scheduler->queue);
    if (scheduler->queue == NULL)
        error_memory(error, "the queue", scheduler->queue_room * sizeof *scheduler->queue);
    else if (pthread_create(&scheduler->thread, NULL, run, scheduler) != 0)
        error_set(error, CALLA_IO, "The thread that owns the model could not be started.");
    else
        scheduler->started = true;
    if (scheduler->started)
        return scheduler;
    scheduler_close(scheduler);
    return NULL;
}

void scheduler_stop(struct scheduler *scheduler) {
    pthread_mutex_lock(&scheduler->lock);
    scheduler->stopping = true;
    pthread_cond_broadcast(&scheduler->changed);
    pthread_mutex_unlock(&scheduler->lock);
    if (scheduler->started)
        pthread_join(scheduler->thread, NULL);
    scheduler->started = false;
}

void scheduler_close(struct scheduler *scheduler) {
    if (scheduler == NULL)
        return;
    scheduler_stop(scheduler);
    calla_model_close(scheduler->model);
    pthread_cond_destroy(&scheduler->changed);
    pthread_mutex_destroy(&scheduler->lock);
    free(scheduler->queue);
    free(scheduler);
}

void scheduler_look(struct scheduler *scheduler, struct scheduler_view *view) {
    pthread_mutex_lock(&scheduler->lock);
    *view = scheduler->view;
    pthread_mutex_unlock(&scheduler->lock);
}

const struct calla_model *scheduler_model(struct scheduler *scheduler) {
    pthread_mutex_lock(&scheduler->lock);
    const struct calla_model *model = scheduler->view.state == SCHEDULER_READY ? scheduler->model : NULL;
    pthread_mutex_unlock(&scheduler->lock);
    return model;
}

const struct calla_error *scheduler_failure(struct scheduler *scheduler) {
    return &scheduler->failure;
}

/* With the lock held. */
static bool room_locked(const struct scheduler *scheduler, struct refusal *refusal) {
    const struct scheduler_view *view = &scheduler->view;
    *refusal = (struct refusal){.status = 503, .type = "server_error"};
    if (view->state == SCHEDULER_LOADING) {
        refusal->code = "model_loading";
        snprintf(refusal->message, sizeof refusal->message,
                 "The model is being loaded; ask again in a moment (GET /health tells how far it is).");
        return false;
    }
    if (view->state != SCHEDULER_READY || scheduler->stopping) {
        refusal->code = "shutting_down";
        snprintf(refusal->message, sizeof refusal->message, "The server is shutting down.");
        return false;
    }
    /* A session that is free takes its job from the queue at once, so those places do not count. */
    size_t most = session_pool_most(scheduler->pool), spare = most > view->active ? most - view->active : 0;
    if (view->waiting < scheduler->options.queue + spare)
        return true;
    refusal->code = "queue_full";
    snprintf(refusal->message, sizeof refusal->message,
             "%zu requests are being answered and %zu are waiting, which is as many as may; ask again later.",
             view->active, view->waiting);
    return false;
}

bool scheduler_has_room(struct scheduler *scheduler, struct refusal *refusal) {
    pthread_mutex_lock(&scheduler->lock);
    bool room = room_locked(scheduler, refusal);
    pthread_mutex_unlock(&scheduler->lock);
    return room;
}

bool scheduler_submit(struct scheduler *scheduler, struct job *job, struct refusal *refusal) {
    pthread_mutex_lock(&scheduler->lock);
    bool room = room_locked(scheduler, refusal);
    if (room) {
        job_hold(job);
        job_start(job);
        scheduler->queue[scheduler->view.waiting++] = (struct waiting){job, system_seconds()};
        pthread_cond_signal(&scheduler->changed);
    }
    pthread_mutex_unlock(&scheduler->lock);
    return room;
}
