#include "base/system.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <pthread.h>
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/resource.h>
#endif

static uint64_t container_limit(void) {
    unsigned long long limit = 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%llu", &limit) != 1) /* "max": no limit */
        limit = 0;
    fclose(file);
    return limit;
}

uint64_t system_memory(void) {
    uint64_t bytes = 0;
#if defined(__APPLE__)
    size_t size = sizeof bytes;
    if (sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) != 0)
        bytes = 0;
#else
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        bytes = (uint64_t)pages * (uint64_t)page;
#endif
    uint64_t limit = container_limit();
    return limit > 0 && limit < bytes ? limit : bytes;
}

double system_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t system_random(void) {
    uint64_t value = 0;
    int descriptor = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) {
        if (read(descriptor, &value, sizeof value) != (ssize_t)sizeof value)
            value = 0;
        close(descriptor);
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return value ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec;
}

void system_give_way(void) {
#if defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
#elif defined(__linux__)
    /* A process id names the main thread, and 0 the calling one. What getpriority cannot tell is -1, a value
     * like any other. The kernel takes at most 19. */
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, (id_t)getpid()) + 10);
#endif
}
