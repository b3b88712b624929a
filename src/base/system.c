#include "base/system.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <pthread.h>
#include <sys/sysctl.h>
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

#if !defined(__APPLE__)
/* The value of the first line "KEY : VALUE" of /proc/cpuinfo; false without one. */
static bool processor_field(const char *key, char *value, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(value, size, "%s", colon);
        found = *colon != 0;
    }
    if (file != NULL)
        fclose(file);
    return found;
}
#endif

void system_processor(char *name, size_t size) {
#if defined(__APPLE__)
    size_t length = size;
    if (sysctlbyname("machdep.cpu.brand_string", name, &length, NULL, 0) == 0)
        return;
#else
    if (processor_field("model name", name, size) || processor_field("Model", name, size))
        return;
#endif
    struct utsname system;
    snprintf(name, size, "%s", uname(&system) == 0 ? system.machine : "unknown processor");
}

void system_name(char *name, size_t size) {
    struct utsname system;
    bool known = uname(&system) == 0;
#if defined(__APPLE__)
    char version[64];
    size_t length = sizeof version;
    if (sysctlbyname("kern.osproductversion", version, &length, NULL, 0) == 0) {
        snprintf(name, size, "macOS %s", version);
        return;
    }
#endif
    if (known)
        snprintf(name, size, "%s %s", system.sysname, system.release);
    else
        snprintf(name, size, "unknown system");
}

#if defined(__linux__)
/* The processors that this process may run on, which taskset or a container may have made fewer. */
static bool allowed_processors(cpu_set_t *set) {
    return sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0;
}
#endif

int system_processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (allowed_processors(&set))
        return CPU_COUNT(&set);
#endif
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int)count;
}

int system_cores(void) {
#if defined(__APPLE__)
    int cores = 0;
    size_t length = sizeof cores;
    if (sysctlbyname("hw.physicalcpu", &cores, &length, NULL, 0) == 0 && cores > 0)
        return cores;
#elif defined(__linux__)
    /* A core counts once: for the first of its processors, whether or not that one may be used. */
    cpu_set_t set, firsts;
    CPU_ZERO(&firsts);
    bool known = allowed_processors(&set);
    for (int i = 0; known && i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set))
            continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        FILE *file = fopen(path, "r");
        int first = i;
        if (file != NULL && (fscanf(file, "%d", &first) != 1 || first < 0 || first >= CPU_SETSIZE))
            first = i;
        if (file != NULL)
            fclose(file);
        CPU_SET(first, &firsts);
    }
    if (CPU_COUNT(&firsts) > 0)
        return CPU_COUNT(&firsts);
#endif
    return system_processors();
}

void *system_allocate(size_t size) {
    void *data = NULL;
    size_t huge = size / HUGE_PAGE * HUGE_PAGE;
    if (posix_memalign(&data, huge > 0 ? HUGE_PAGE : 64, size) != 0)
        return NULL;
#if defined(MADV_HUGEPAGE)
    if (huge > 0)
        madvise(data, huge, MADV_HUGEPAGE);
#endif
    return data;
}

uint64_t system_peak_resident(void) {
#if !defined(__APPLE__)
    /* getrusage also knows the memory of who started this process. */
    FILE *file = fopen("/proc/self/status", "r");
    char line[128];
    unsigned long long kibibytes = 0;
    while (file != NULL && kibibytes == 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %llu kB", &kibibytes) != 1)
            kibibytes = 0;
    if (file != NULL)
        fclose(file);
    if (kibibytes > 0)
        return kibibytes * 1024;
#endif
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0 || usage.ru_maxrss < 0)
        return 0;
#if defined(__APPLE__)
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
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
