/* Threads that take the bodies of requests apart: parsing and tokenising a large one takes longer than a
 * thread that serves sockets may be away. */
#ifndef CALLA_SERVER_READERS_H
#define CALLA_SERVER_READERS_H

#include "server/job.h"

struct readers;

/* `read` is called with each job, on any of the threads. */
struct readers *readers_open(unsigned count, void (*read)(void *user, struct job *job), void *user,
                             struct calla_error *error);
/* Ends the threads when everything that was added has been read; nothing can be added any more. */
void readers_stop(struct readers *readers);
void readers_close(struct readers *readers);

/* Holds the job until it is read. False after readers_stop. */
bool readers_add(struct readers *readers, struct job *job);

#endif
