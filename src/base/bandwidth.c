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
#define PIECE_BYTES ((size_t)1 << 20) /* what a thread reads at a time */
#define WORDS_A_LINE 8                /* 64 bytes */
#define PREFETCH_LINES 24
#define SECONDS 1.0

struct bandwidth_meter {
    struct threads *team;
    uint64_t *words;
    size_t first, pieces; /* of the window; of the whole buffer */
    uint64_t *sums;       /* [pieces]: so that the reads are not left out as useless */
};

static void fill_piece(void *argument, size_t piece) {
    struct bandwidth_meter *meter = argument;
    memset((unsigned char *)meter->words + piece * PIECE_BYTES, 1, PIECE_BYTES);
}

static void read_piece(void *argument, size_t piece) {
    struct bandwidth_meter *meter = argument;
    piece += meter->first;
    const uint64_t *line = meter->words + piece * (PIECE_BYTES / sizeof *meter->words);
    const uint64_t *end = line + PIECE_BYTES / sizeof *line;
    uint64_t sums[WORDS_A_LINE] = {0};
    for (; line < end; line += WORDS_A_LINE) {
        __builtin_prefetch(line + (size_t)PREFETCH_LINES * WORDS_A_LINE);
        for (size_t i = 0; i < WORDS_A_LINE; i++)
            sums[i] += line[i];
    }
    for (size_t i = 0; i < WORDS_A_LINE; i++)
        meter->sums[piece] += sums[i];
}

double bandwidth_meter_read(struct bandwidth_meter *meter) {
    double start = system_seconds();
    threads_run(meter->team, read_piece, meter, BANDWIDTH_WINDOW_BYTES / PIECE_BYTES);
    meter->first = (meter->first + BANDWIDTH_WINDOW_BYTES / PIECE_BYTES) % meter->pieces;
    return system_seconds() - start;
}

uint64_t bandwidth_meter_bytes(const struct bandwidth_meter *meter) {
    return (uint64_t)meter->pieces * PIECE_BYTES;
}

struct bandwidth_meter *bandwidth_meter_open(int threads, struct calla_error *error) {
    uint64_t memory = system_memory();
    size_t bytes = memory > 0 && memory / 8 < BUFFER_BYTES ? (size_t)(memory / 8) : BUFFER_BYTES;
    bytes = (bytes / BANDWIDTH_WINDOW_BYTES + 1) * BANDWIDTH_WINDOW_BYTES;
    struct bandwidth_meter *meter = calloc(1, sizeof *meter);
    if (meter != NULL) {
        meter->pieces = bytes / PIECE_BYTES;
        meter->words = system_allocate(bytes);
        meter->sums = calloc(meter->pieces, sizeof *meter->sums);
    }
    if (meter == NULL || meter->words == NULL || meter->sums == NULL)
        error_memory(error, "the measurement of the memory's bandwidth", bytes);
    else if ((meter->team = threads_open(threads, error)) != NULL) {
        threads_run(meter->team, fill_piece, meter, meter->pieces);
        return meter;
    }
    bandwidth_meter_close(meter);
    return NULL;
}

void bandwidth_meter_close(struct bandwidth_meter *meter) {
    if (meter == NULL)
        return;
    threads_close(meter->team);
    free(meter->words);
    free(meter->sums);
    free(meter);
}

double bandwidth_measure(int threads, struct calla_error *error) {
    struct bandwidth_meter *meter = bandwidth_meter_open(threads, error);
    double least = INFINITY, start = system_seconds();
    while (meter != NULL && system_seconds() - start < SECONDS)
        least = fmin(least, bandwidth_meter_read(meter));
    bandwidth_meter_close(meter);
    return least > 0 ? (double)BANDWIDTH_WINDOW_BYTES / least : 0;
}
