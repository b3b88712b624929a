#include "cli/model_path.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/file.h"

#define LONGEST_PATH 4096

/* The folder that the program lies in, or "". */
static void executable_folder(char folder[LONGEST_PATH]) {
    folder[0] = 0;
#ifdef __APPLE__
    char link[LONGEST_PATH];
    uint32_t size = sizeof link;
    char *real = _NSGetExecutablePath(link, &size) == 0 ? realpath(link, NULL) : NULL;
    if (real != NULL && strlen(real) < LONGEST_PATH)
        memcpy(folder, real, strlen(real) + 1);
    free(real);
#else
    ssize_t size = readlink("/proc/self/exe", folder, LONGEST_PATH - 1);
    folder[size > 0 ? size : 0] = 0;
#endif
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = 0;
}

/* The real path of the first of these that exists, those that do not start with "/" looked for from the
 * program's folder; NULL without one, or when memory is short. */
static char *find_place(const char *const *places, size_t count, enum file_kind kind) {
    char folder[LONGEST_PATH];
    executable_folder(folder);
    for (size_t i = 0; i < count; i++) {
        bool absolute = places[i][0] == '/';
        if (!absolute && folder[0] == 0)
            continue;
        char *path = absolute ? strdup(places[i]) : path_join(folder, places[i]);
        char *real = path == NULL ? NULL : realpath(path, NULL);
        free(path);
        if (real != NULL && file_kind(real) == kind)
            return real;
        free(real);
    }
    return NULL;
}

/* build/calla of the source tree, an installation under any prefix, and the prefix that was configured. */
static const char *const places[] = {"../models/calla-tiny", "../share/calla/models/calla-tiny",
                                     CALLA_DATADIR "/models/calla-tiny"};
static const char *const tool_folders[] = {"../tools", "../share/calla/tools", CALLA_DATADIR "/tools"};

static char *bundled_model(struct calla_error *error) {
    char *path = find_place(places, sizeof places / sizeof *places, FILE_FOLDER);
    if (path == NULL)
        error_set(error, CALLA_NOT_FOUND,
                  "No model is named and the bundled calla-tiny is not in %s/models; name a model's folder "
                  "with -m DIR.",
                  CALLA_DATADIR);
    return path;
}

char *find_tool(const char *name, struct calla_error *error) {
    char *found = NULL;
    for (size_t i = 0; found == NULL && i < sizeof tool_folders / sizeof *tool_folders; i++) {
        char *path = path_join(tool_folders[i], name);
        const char *place = path;
        found = path == NULL ? NULL : find_place(&place, 1, FILE_REGULAR);
        free(path);
    }
    if (found == NULL)
        error_set(error, CALLA_NOT_FOUND, "%s is missing: it belongs into %s/tools.", name, CALLA_DATADIR);
    return found;
}

char *model_path(const char *named, bool *bundled, struct calla_error *error) {
    *bundled = false;
    const char *chosen = named != NULL ? named : getenv("CALLA_MODEL");
    if (named == NULL && chosen != NULL && *chosen == 0)
        chosen = NULL;
    if (chosen == NULL) {
        *bundled = true;
        return bundled_model(error);
    }
    if (*chosen == 0) {
        error_set(error, CALLA_BAD_INPUT, "--model is empty; name the model's folder.");
        return NULL;
    }
    char *path = strdup(chosen);
    if (path == NULL)
        error_memory(error, "a file name", strlen(chosen) + 1);
    return path;
}
