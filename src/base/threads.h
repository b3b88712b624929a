/* A team of worker threads that together work through numbered tasks. */
#ifndef CALLA_BASE_THREADS_H
#define CALLA_BASE_THREADS_H

#include "base/error.h"

struct threads;

/* A team of `count` threads, the caller's own included (1: none is started). 0 means one for each
 * physical core that may be used, and no more than a container's share of processor time has room for. */
struct threads *threads_open(int count, struct calla_error *error);
void threads_close(struct threads *threads);
int threads_count(const struct threads *threads);

/* Calls work(argument, task) once for each task in [0, tasks), on any thread in any order, and returns when
 * all are done; everything they wrote is visible to the caller. Not to be called from within a task or from
 * two threads. */
void threads_run(struct threads *threads, void (*work)(void *argument, size_t task), void *argument,
                 size_t tasks);

/* Within a threads_run of as many tasks as there are threads: waits until every task has come here as often,
 * after which all see what each has written. The last to come first calls last(argument). Threads that wait
 * spin for some microseconds before they sleep. */
void threads_meet(struct threads *threads, void (*last)(void *argument), void *argument);

/* A moment's rest in a loop that waits for another thread: `round` counts the loop's rounds. */
void threads_pause(unsigned round);

#endif
