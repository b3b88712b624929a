/* What the machine has. */
#ifndef CALLA_BASE_SYSTEM_H
#define CALLA_BASE_SYSTEM_H

#include <stdint.h>

/* Bytes of physical memory; 0 if unknown. A container's limit counts where Linux tells it (cgroup v2). */
uint64_t system_memory(void);

/* Seconds of a clock that only moves forward. */
double system_seconds(void);

/* A number that differs from call to call and run to run: a seed for sampling. */
uint64_t system_random(void);

#endif
