/* A text that a session is reading, as the prefix cache sees it. */
#ifndef CALLA_ENGINE_READING_H
#define CALLA_ENGINE_READING_H

#include <stddef.h>
#include <stdint.h>

struct calla_session;

#define RETRY_STOPS 2

struct reading {
    struct calla_session *next; /* among those that are reading, the youngest first */
    const int32_t *tokens;
    size_t count;
    uint64_t order;                    /* earlier ones have smaller numbers; 0 while nothing is read */
    uint32_t last_stop;                /* or where it began */
    uint32_t retry_stops[RETRY_STOPS]; /* shortly before a question's end; 0: none */
    uint32_t *stops;                   /* [stop_count], rising; owned */
    size_t stop_count, stop_capacity;
    uint64_t awaited;    /* the order of the reading that is ahead in the same text, or 0 ... */
    uint32_t awaited_at; /* ... and the stop at which it can be taken over */
    uint64_t changes;    /* the cache's count of changes when it was looked at last */
};

#endif
