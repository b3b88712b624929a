/* How fast this machine reads memory: what a computation that must move its bytes is held against. */
#ifndef CALLA_BASE_BANDWIDTH_H
#define CALLA_BASE_BANDWIDTH_H

#include <stdint.h>

#include "base/error.h"

/* Threads and a buffer to read, kept so that the speed can be read off again beside other measurements: on a
 * machine that others use as well it changes from minute to minute. */
struct bandwidth_meter;

/* `threads` 0: one per physical core. The buffer takes half a gigabyte. NULL with an error when memory is
 * short. */
struct bandwidth_meter *bandwidth_meter_open(int threads, struct calla_error *error);
void bandwidth_meter_close(struct bandwidth_meter *meter);

/* Has the threads together read the next 64 MiB, which takes a few milliseconds; returns the seconds. Worth
 * anything only while nothing else runs in this program. */
double bandwidth_meter_read(struct bandwidth_meter *meter);
#define BANDWIDTH_WINDOW_BYTES ((size_t)1 << 26)

/* Bytes that the meter holds in memory. */
uint64_t bandwidth_meter_bytes(const struct bandwidth_meter *meter);

/* Bytes a second of the best of a second's readings. 0 with an error when memory is short. */
double bandwidth_measure(int threads, struct calla_error *error);

#endif
