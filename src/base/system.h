/* What the machine has and can be asked for. */
#ifndef CALLA_BASE_SYSTEM_H
#define CALLA_BASE_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of physical memory; 0 if unknown. A container's limit counts where Linux tells it (cgroup v2). */
uint64_t system_memory(void);

/* The processor's name as it tells it itself ("Apple M2 Max"), or its architecture. */
void system_processor(char *name, size_t size);

/* Name and version of the system ("Linux 6.1.0"). */
void system_name(char *name, size_t size);

/* Processors that this process may run on, and the physical cores that they belong to; 1 if unknown. */
int system_processors(void);
int system_cores(void);

/* Bytes of memory that this process has had resident at most, files that it has mapped included. */
uint64_t system_peak_resident(void);

/* 64-byte aligned memory of undefined contents, in huge pages as far as it fills some and the system has
 * them: the fewer pages, the less often the processor must find out where one lies. NULL if there is none.
 * Freed with free(). */
void *system_allocate(size_t size);
#define HUGE_PAGE ((size_t)2 << 20)

/* Seconds of a clock that only moves forward. */
double system_seconds(void);

/* A number that differs from call to call and run to run: a seed for sampling. */
uint64_t system_random(void);

/* The calling thread gives way to the program's other threads when all processors are busy; calling it again
 * changes nothing. On Linux, where each thread has a nice value of its own, it is 10 above that of the main
 * thread; on macOS the thread is a utility. Where the system refuses, the thread stays as it is. */
void system_give_way(void);

#endif
