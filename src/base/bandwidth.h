/* How fast this machine reads memory: what a computation that must move its bytes is held against. */
#ifndef CALLA_BASE_BANDWIDTH_H
#define CALLA_BASE_BANDWIDTH_H

#include "base/error.h"

/* Bytes a second that `threads` threads (0: one per physical core) together read from memory. Takes
 * about a second, half a gigabyte and, to be worth anything, a machine that does nothing else. 0 with an
 * error when memory is short. */
double bandwidth_measure(int threads, struct calla_error *error);

#endif
