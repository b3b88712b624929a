/* /proc/self/cgroup has a line for each hierarchy of control groups, "NUMBER:CONTROLLERS:PATH"; version 2 is
 * the one with number 0 and no controllers. A container may see the path that the machine outside gives, with
 * only its own part of the tree there, so every folder on the way up is tried and what is missing is nothing.
 */
#include "base/quota.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a file, without its end; "" for a longer one, or none. */
static void read_line(const char *root, const char *folder, const char *name, char *line, size_t size) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, folder, name);
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "r") : NULL;
    line[0] = 0;
    if (file == NULL)
        return;
    if (fgets(line, (int)size, file) == NULL || strlen(line) + 1 == size)
        line[0] = 0;
    fclose(file);
}

/* Of a folder: microseconds of processor time in a period of so many, divided and rounded up. */
static long long folder_quota(const char *root, const char *folder, bool unified) {
    char line[64], *end;
    read_line(root, folder, unified ? "cpu.max" : "cpu.cfs_quota_us", line, sizeof line);
    long long quota = strtoll(line, &end, 10); /* 0 for "max", -1 where version 1 has no limit */
    if (!unified) {
        read_line(root, folder, "cpu.cfs_period_us", line, sizeof line);
        end = line;
    }
    long long period = strtoll(end, NULL, 10);
    return quota <= 0 || period <= 0 ? 0 : (quota - 1) / period + 1;
}

static int least(int found, long long quota) {
    if (quota <= 0 || quota > INT_MAX)
        return found;
    return found == 0 || quota < found ? (int)quota : found;
}

static bool has_cpu(const char *controllers) {
    for (const char *name = controllers; name != NULL; name = strchr(name, ',')) {
        name += *name == ',';
        if (strncmp(name, "cpu", 3) == 0 && (name[3] == ',' || name[3] == 0))
            return true;
    }
    return false;
}

/* Of a group and all above it. */
static int group_quota(const char *root, char *path, bool unified) {
    int found = 0;
    char folder[PATH_MAX];
    for (;;) {
        path[strcspn(path, "\n")] = 0;
        int length = snprintf(folder, sizeof folder, "%s%s", unified ? "" : "/cpu", path);
        if (length >= 0 && (size_t)length < sizeof folder)
            found = least(found, folder_quota(root, folder, unified));
        char *last = strrchr(path, '/');
        if (last == NULL)
            return found;
        *last = 0;
    }
}

int processor_quota(const char *root) {
    char path[PATH_MAX], line[PATH_MAX + 128];
    int length = snprintf(path, sizeof path, "%s/proc/self/cgroup", root), found = 0;
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "r") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL || group[1] != '/' || strstr(group, "/..") != NULL)
            continue;
        *group = 0;
        bool unified = controllers[1] == 0;
        if (unified || has_cpu(controllers + 1))
            found = least(found, group_quota(root, group + 1, unified));
    }
    if (file != NULL)
        fclose(file);
    return found;
}
