/* What the machine has and can be asked for. */
#ifndef CALLA_BASE_SYSTEM_H
#define CALLA_BASE_SYSTEM_H

#include <stdint.h>

/* Bytes of physical memory; 0 if unknown. A container's limit counts where Linux tells it (cgroup v2). */
uint64_t system_memory(void);

/* Seconds of a clock that only moves forward. */
double system_seconds(void);

/* A number that differs from call to call and run to run: a seed for sampling. */
uint64_t system_random(void);

/* The calling thread gives way to the program's other threads when all processors are busy; calling it again
 * changes nothing. On Linux, where each thread has a nice value of its own, it is 10 above that of the main
 * thread; on macOS the thread is a utility. Where the system refuses, the thread stays as it is. */
void system_give_way(void);

#endif
