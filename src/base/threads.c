#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/quota.h"
#include "base/system.h"

/* One generation counter under a mutex starts a round; an atomic counter hands out tasks; a count of busy
 * workers ends it. A waiting worker sleeps: an idle program uses no processor. */
struct threads {
    int count;
    int started; /* workers that run, besides the caller */
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t start, finish;
    unsigned long generation;
    int busy;
    bool quit;
    void (*work)(void *argument, size_t task);
    void *argument;
    size_t tasks;
    atomic_size_t next;
    /* threads_meet */
    atomic_int arrived, sleepers;
    atomic_uint meeting;
    pthread_cond_t met;
};

/* Rounds of a waiting loop before a thread sleeps (threads_meet) or lets others run (threads_pause): a pause
 * takes 10 to 50 ns, so this is longer than a round of small ops and shorter than a wake-up is worth. */
#define SPIN_ROUNDS 4000

static void take_tasks(struct threads *threads) {
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&threads->next, 1, memory_order_relaxed);
        if (task >= threads->tasks)
            return;
        threads->work(threads->argument, task);
    }
}

static void *worker_main(void *argument) {
    struct threads *threads = argument;
    unsigned long seen = 0;
    for (;;) {
        pthread_mutex_lock(&threads->mutex);
        while (threads->generation == seen && !threads->quit)
            pthread_cond_wait(&threads->start, &threads->mutex);
        seen = threads->generation;
        bool quit = threads->quit;
        pthread_mutex_unlock(&threads->mutex);
        if (quit)
            return NULL;
        take_tasks(threads);
        pthread_mutex_lock(&threads->mutex);
        if (--threads->busy == 0)
            pthread_cond_signal(&threads->finish);
        pthread_mutex_unlock(&threads->mutex);
    }
}

/* Threads that are started at most without being asked for. */
#define MOST_BY_DEFAULT 256

static int default_count(void) {
    int cores = system_cores(), quota = processor_quota("");
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores < MOST_BY_DEFAULT ? cores : MOST_BY_DEFAULT;
}

struct threads *threads_open(int count, struct calla_error *error) {
    if (count <= 0)
        count = default_count();
    struct threads *threads = calloc(1, sizeof *threads);
    if (threads == NULL || (threads->workers = calloc((size_t)count, sizeof *threads->workers)) == NULL) {
        free(threads);
        error_memory(error, "worker threads", sizeof *threads);
        return NULL;
    }
    threads->count = count;
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->start, NULL);
    pthread_cond_init(&threads->finish, NULL);
    pthread_cond_init(&threads->met, NULL);
    atomic_init(&threads->next, 0);
    atomic_init(&threads->arrived, 0);
    atomic_init(&threads->sleepers, 0);
    atomic_init(&threads->meeting, 0);
    for (int i = 0; i + 1 < count; i++) {
        if (pthread_create(&threads->workers[i], NULL, worker_main, threads) != 0) {
            error_set(error, CALLA_OUT_OF_MEMORY,
                      "Worker thread %d of %d could not be started; use fewer with --threads.", i + 2, count);
            threads_close(threads);
            return NULL;
        }
        threads->started++;
    }
    return threads;
}

void threads_close(struct threads *threads) {
    if (threads == NULL)
        return;
    pthread_mutex_lock(&threads->mutex);
    threads->quit = true;
    pthread_cond_broadcast(&threads->start);
    pthread_mutex_unlock(&threads->mutex);
    for (int i = 0; i < threads->started; i++)
        pthread_join(threads->workers[i], NULL);
    pthread_mutex_destroy(&threads->mutex);
    pthread_cond_destroy(&threads->start);
    pthread_cond_destroy(&threads->finish);
    pthread_cond_destroy(&threads->met);
    free(threads->workers);
    free(threads);
}

int threads_count(const struct threads *threads) {
    return threads->count;
}

void threads_run(struct threads *threads, void (*work)(void *argument, size_t task), void *argument,
                 size_t tasks) {
    if (threads->started == 0 || tasks <= 1) {
        for (size_t task = 0; task < tasks; task++)
            work(argument, task);
        return;
    }
    pthread_mutex_lock(&threads->mutex);
    threads->work = work;
    threads->argument = argument;
    threads->tasks = tasks;
    atomic_store_explicit(&threads->next, 0, memory_order_relaxed);
    threads->busy = threads->started;
    threads->generation++;
    pthread_cond_broadcast(&threads->start);
    pthread_mutex_unlock(&threads->mutex);
    take_tasks(threads);
    pthread_mutex_lock(&threads->mutex);
    while (threads->busy > 0)
        pthread_cond_wait(&threads->finish, &threads->mutex);
    pthread_mutex_unlock(&threads->mutex);
}

void threads_pause(unsigned round) {
    if (round >= SPIN_ROUNDS) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Sleeps until the meeting is another one. The count of sleepers is raised before the meeting is looked at,
 * and whoever ends a meeting looks at the count after that: one of the two sees the other. */
static void sleep_until_met(struct threads *threads, unsigned meeting) {
    pthread_mutex_lock(&threads->mutex);
    atomic_fetch_add(&threads->sleepers, 1);
    while (atomic_load(&threads->meeting) == meeting)
        pthread_cond_wait(&threads->met, &threads->mutex);
    atomic_fetch_sub(&threads->sleepers, 1);
    pthread_mutex_unlock(&threads->mutex);
}

void threads_meet(struct threads *threads, void (*last)(void *argument), void *argument) {
    unsigned meeting = atomic_load(&threads->meeting);
    if (atomic_fetch_add(&threads->arrived, 1) + 1 == threads->count) {
        atomic_store(&threads->arrived, 0);
        last(argument);
        atomic_store(&threads->meeting, meeting + 1);
        if (atomic_load(&threads->sleepers) > 0) {
            pthread_mutex_lock(&threads->mutex);
            pthread_cond_broadcast(&threads->met);
            pthread_mutex_unlock(&threads->mutex);
        }
        return;
    }
    for (unsigned round = 0; atomic_load_explicit(&threads->meeting, memory_order_acquire) == meeting;
         round++) {
        if (round >= SPIN_ROUNDS) {
            sleep_until_met(threads, meeting);
            return;
        }
        threads_pause(0);
    }
}
