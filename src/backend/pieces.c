#include "backend/pieces.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/system.h"
#include "base/threads.h"

struct reading {
    const struct pieces *pieces;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t mutex; /* for done, error and the progress report */
    uint64_t done;
    struct calla_error *error;
};

bool pieces_check(const struct weights *weights, struct calla_error *error) {
    for (uint32_t i = 0; i < weights->table.count; i++) {
        const struct weight *weight = &weights->table.weights[i];
        if (weight->part_count == 3 && weight->columns % DTYPE_AFFINE_GROUP != 0)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: its %u columns are no multiple of the group size %d.", weight->module,
                             weight->columns, DTYPE_AFFINE_GROUP);
    }
    return true;
}

size_t pieces_readers(uint64_t portions) {
    size_t cores = (size_t)system_cores(), most = cores < PIECES_MOST_READERS ? cores : PIECES_MOST_READERS;
    size_t readers = portions / 2 < most ? (size_t)(portions / 2) : most;
    return readers > 0 ? readers : 1;
}

static int compare_pieces(const void *left, const void *right) {
    const struct piece *a = left, *b = right;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* After `bytes` were read or, with an error, were not: whether to go on. */
static bool note(struct reading *reading, uint64_t bytes, bool ok, const struct calla_error *error) {
    const struct calla_progress *progress = reading->pieces->progress;
    pthread_mutex_lock(&reading->mutex);
    bool first_failure = !atomic_load(&reading->failed);
    reading->done += bytes;
    if (!ok && first_failure)
        error_set(reading->error, error->status, "%s", error->message);
    if (ok && bytes > 0 && first_failure && progress != NULL && progress->report != NULL &&
        !progress->report(progress->user, "reading weights", reading->done, reading->pieces->weights->bytes))
        ok = error_set(reading->error, CALLA_CANCELLED, "Reading the weights was cancelled.");
    if (!ok)
        atomic_store(&reading->failed, true);
    pthread_mutex_unlock(&reading->mutex);
    return ok;
}

static void read_pieces(void *argument, size_t reader) {
    struct reading *reading = argument;
    const struct pieces *pieces = reading->pieces;
    struct calla_error error = {0};
    for (size_t i;
         !atomic_load(&reading->failed) && (i = atomic_fetch_add(&reading->next, 1)) < pieces->count;) {
        const struct piece *piece = &pieces->list[i];
        bool ok = pieces->read(pieces->owner, reader, piece, &error);
        if (!note(reading, piece->bytes, ok, &error))
            break;
    }
    bool ended = pieces->read(pieces->owner, reader, NULL, &error);
    note(reading, 0, ended, &error);
}

bool pieces_read(struct pieces *pieces, size_t readers, struct calla_error *error) {
    qsort(pieces->list, pieces->count, sizeof *pieces->list, compare_pieces);
    struct threads *threads = threads_open((int)readers, error);
    if (threads == NULL)
        return false;
    struct reading reading = {.pieces = pieces, .error = error};
    pthread_mutex_init(&reading.mutex, NULL);
    threads_run(threads, read_pieces, &reading, readers);
    threads_close(threads);
    pthread_mutex_destroy(&reading.mutex);
    return !atomic_load(&reading.failed);
}
