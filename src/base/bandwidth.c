/* The buffer is read over and over, a window at a time. The best window counts, since what it may suffer from
 * (other programs, threads that wake up late) only makes it slower; it is short, so that some get by without.
 */
#include "base/bandwidth.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"
#include "base/threads.h"

#define BUFFER_BYTES ((size_t)1 << 29)
#define WINDOW_BYTES ((size_t)1 << 26)
#define PIECE_BYTES ((size_t)1 << 20) /* what a thread reads at a time */
#define WORDS_A_LINE 8                /* 64 bytes */
#define PREFETCH_LINES 24
#define SECONDS 1.0

struct reading {
    uint64_t *words;
    size_t first, pieces; /* of the window; of the whole buffer */
    uint64_t *sums;       /* [pieces]: so that the reads are not left out as useless */
};

static void fill_piece(void *argument, size_t piece) {
    struct reading *reading = argument;
    memset((unsigned char *)reading->words + piece * PIECE_BYTES, 1, PIECE_BYTES);
}

static void read_piece(void *argument, size_t piece) {
    struct reading *reading = argument;
    piece += reading->first;
    const uint64_t *line = reading->words + piece * (PIECE_BYTES / sizeof *reading->words);
    const uint64_t *end = line + PIECE_BYTES / sizeof *line;
    uint64_t sums[WORDS_A_LINE] = {0};
    for (; line < end; line += WORDS_A_LINE) {
        __builtin_prefetch(line + (size_t)PREFETCH_LINES * WORDS_A_LINE);
        for (size_t i = 0; i < WORDS_A_LINE; i++)
            sums[i] += line[i];
    }
    for (size_t i = 0; i < WORDS_A_LINE; i++)
        reading->sums[piece] += sums[i];
}

/* Bytes a second of the best window. */
static double best_window(struct threads *team, struct reading *reading) {
    double best = 0, start = system_seconds(), before = start;
    while (before - start < SECONDS) {
        threads_run(team, read_piece, reading, WINDOW_BYTES / PIECE_BYTES);
        double now = system_seconds();
        if (now > before)
            best = fmax(best, (double)WINDOW_BYTES / (now - before));
        before = now;
        reading->first = (reading->first + WINDOW_BYTES / PIECE_BYTES) % reading->pieces;
    }
    return best;
}

double bandwidth_measure(int threads, struct calla_error *error) {
    uint64_t memory = system_memory();
    size_t bytes = memory > 0 && memory / 8 < BUFFER_BYTES ? (size_t)(memory / 8) : BUFFER_BYTES;
    bytes = (bytes / WINDOW_BYTES + 1) * WINDOW_BYTES;
    struct reading reading = {.pieces = bytes / PIECE_BYTES};
    struct threads *team = threads_open(threads, error);
    if (team == NULL)
        return 0;
    reading.words = malloc(bytes);
    reading.sums = calloc(reading.pieces, sizeof *reading.sums);
    double best = 0;
    if (reading.words != NULL && reading.sums != NULL) {
        threads_run(team, fill_piece, &reading, reading.pieces);
        best = best_window(team, &reading);
    } else {
        error_memory(error, "the measurement of the memory's bandwidth", bytes);
    }
    free(reading.words);
    free(reading.sums);
    threads_close(team);
    return best;
}
