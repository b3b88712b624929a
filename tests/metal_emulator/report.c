/* What a fault looks like in words, and where in the source it is: the compiler left the lines in the module,
 * and addr2line reads them. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "metal_emulator/emulator.h"

const char *lane_name(const struct worker *worker, uint32_t lane, char text[96]) {
    snprintf(text, 96, "lane %u of simdgroup %u of threadgroup (%u, %u, %u)", lane % METAL_SIMD_WIDTH,
             lane / METAL_SIMD_WIDTH, worker->group.x, worker->group.y, worker->group.z);
    return text;
}

/* "file:line" of a place in the kernel: of the calls inlined there, the innermost that is not in the
 * emulator's own headers. Empty if it cannot be told. */
static void find_line(const struct metal_library *library, const void *site, char line[160]) {
    line[0] = 0;
    if (site == NULL || (uintptr_t)site < library->low || (uintptr_t)site >= library->high)
        return;
    char command[700], found[512];
    /* A return address is past the call: the place before it is within. */
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%llx 2>/dev/null", library->path,
             (unsigned long long)((uintptr_t)site - library->low - 1));
    FILE *output = popen(command, "r");
    if (output == NULL)
        return;
    bool done = false;
    while (fgets(found, sizeof found, output) != NULL) {
        found[strcspn(found, "\n")] = 0;
        char *discriminator = strstr(found, " (discriminator");
        if (discriminator != NULL)
            *discriminator = 0;
        if (done || strstr(found, "/emulator/") != NULL || found[0] == '?')
            continue;
        const char *name = strrchr(found, '/');
        snprintf(line, 160, "%.150s", name != NULL ? name + 1 : found);
        done = true;
    }
    pclose(output);
}

bool same_line(const struct metal_library *library, const void *a, const void *b) {
    char first[160], second[160];
    find_line(library, a, first);
    find_line(library, b, second);
    return first[0] != 0 && strcmp(first, second) == 0;
}

/* Kernels that run unchecked do so on several threads. */
static pthread_mutex_t one_reports = PTHREAD_MUTEX_INITIALIZER;

static void write_down(struct metal_device *device, const struct dispatch *dispatch,
                       enum metal_fault_kind kind, const void *site, const void *other, const char *text) {
    const struct metal_pipeline *pipeline = dispatch->pipeline;
    uint64_t key = ((uint64_t)(uintptr_t)site * 31 + (uint64_t)(uintptr_t)other) * 31 + (uint64_t)kind * 31 +
                   (uint64_t)(uintptr_t)pipeline->kernel;
    for (uint32_t i = 0; i < device->fault_count; i++)
        if (device->seen[i] == key)
            return;
    if (device->fault_count == MAX_FAULTS)
        return;
    device->seen[device->fault_count] = key;
    struct metal_fault *fault = &device->faults[device->fault_count++];
    fault->kind = kind;
    snprintf(fault->kernel, sizeof fault->kernel, "%s", pipeline->kernel->name);
    char at[160], also[160];
    find_line(pipeline->library, site, at);
    find_line(pipeline->library, other, also);
    snprintf(fault->text, sizeof fault->text, "Kernel '%.40s': %s%s%.60s%s%.60s%s.", pipeline->kernel->name,
             text, at[0] != 0 ? " (" : "", at, also[0] != 0 ? "; the other at " : "", also,
             at[0] != 0 ? ")" : "");
}

void report(struct metal_device *device, const struct dispatch *dispatch, enum metal_fault_kind kind,
            const void *site, const void *other, const char *format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    atomic_store(&device->failed, true);
    pthread_mutex_lock(&one_reports);
    write_down(device, dispatch, kind, site, other, text);
    pthread_mutex_unlock(&one_reports);
}
