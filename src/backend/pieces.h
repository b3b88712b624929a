/* Reading a checkpoint's weights into a device's memory: cut into pieces, which several threads take in the
 * order of the files, with progress and the first error kept. */
#ifndef CALLA_BACKEND_PIECES_H
#define CALLA_BACKEND_PIECES_H

#include "model/weights.h"

#define PIECES_MOST_READERS 8

/* What is read at once: [first, first + count) of a weight's part, in whatever the backend counts. */
struct piece {
    uint32_t weight, part, file;
    uint64_t place; /* in the file: the order in which they are taken */
    uint64_t first, count;
    uint64_t bytes; /* for the progress report */
};

struct pieces {
    const struct weights *weights;
    const struct calla_progress *progress;
    struct piece *list; /* freed by the caller */
    size_t count;
    /* Reads a piece as reader number `reader`, below PIECES_MOST_READERS, in a thread of its own; once more
     * with NULL when the reader has no more, to wait for what it left under way. */
    bool (*read)(void *owner, size_t reader, const struct piece *piece, struct calla_error *error);
    void *owner;
};

/* Whether groups divide the columns of all affine weights. */
bool pieces_check(const struct weights *weights, struct calla_error *error);

/* As many readers as there is work for, two portions of it each at least, and the processor has cores. */
size_t pieces_readers(uint64_t portions);

/* Sorts the list and reads it with `readers` threads. The error is the first piece's that failed. */
bool pieces_read(struct pieces *pieces, size_t readers, struct calla_error *error);

/* Rows of all the matrices of a weight. */
static inline uint64_t piece_rows_of(const struct weight *weight) {
    return (uint64_t)weight->matrices * weight->rows;
}

#endif
