#include "server/readers.h"

#include <stdlib.h>

#include "base/system.h"

#define READERS_MOST 16

struct readers {
    void (*read)(void *user, struct job *job);
    void *user;
    pthread_t threads[READERS_MOST];
    unsigned count; /* started */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first, *last;
    bool closing;
};

static struct job *next_job(struct readers *readers) {
    pthread_mutex_lock(&readers->lock);
    while (readers->first == NULL && !readers->closing)
        pthread_cond_wait(&readers->changed, &readers->lock);
    struct job *job = readers->first;
    if (job != NULL)
        readers->first = job->next;
    pthread_mutex_unlock(&readers->lock);
    return job;
}

static void *run(void *argument) {
    struct readers *readers = argument;
    struct job *job;
    system_give_way();
    while ((job = next_job(readers)) != NULL) {
        if (!atomic_load(&job->cancelled))
            readers->read(readers->user, job);
        job_release(job);
    }
    return NULL;
}

struct readers *readers_open(unsigned count, void (*read)(void *user, struct job *job), void *user,
                             struct calla_error *error) {
    struct readers *readers = calloc(1, sizeof *readers);
    if (readers == NULL) {
        error_memory(error, "the readers", sizeof *readers);
        return NULL;
    }
    readers->read = read;
    readers->user = user;
    pthread_mutex_init(&readers->lock, NULL);
    pthread_cond_init(&readers->changed, NULL);
    while (readers->count < count && readers->count < READERS_MOST &&
           pthread_create(&readers->threads[readers->count], NULL, run, readers) == 0)
        readers->count++;
    if (readers->count > 0)
        return readers;
    error_set(error, CALLA_IO, "The threads that read requests could not be started.");
    readers_close(readers);
    return NULL;
}

void readers_stop(struct readers *readers) {
    pthread_mutex_lock(&readers->lock);
    readers->closing = true;
    pthread_cond_broadcast(&readers->changed);
    pthread_mutex_unlock(&readers->lock);
    for (unsigned i = 0; i < readers->count; i++)
        pthread_join(readers->threads[i], NULL);
    readers->count = 0;
}

void readers_close(struct readers *readers) {
    if (readers == NULL)
        return;
    readers_stop(readers);
    pthread_cond_destroy(&readers->changed);
    pthread_mutex_destroy(&readers->lock);
    free(readers);
}

bool readers_add(struct readers *readers, struct job *job) {
    pthread_mutex_lock(&readers->lock);
    bool open = !readers->closing;
    if (open) {
        job_hold(job);
        job->next = NULL;
        *(readers->first == NULL ? &readers->first : &readers->last->next) = job;
        readers->last = job;
        pthread_cond_signal(&readers->changed);
    }
    pthread_mutex_unlock(&readers->lock);
    return open;
}
