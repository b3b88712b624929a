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

/* build/calla of the source tree, an installation under any prefix, and the prefix that was configured. */
static const char *const places[] = {"../models/calla-tiny", "../share/calla/models/calla-tiny",
                                     CALLA_DATADIR "/models/calla-tiny"};

static char *bundled_model(struct calla_error *error) {
    char folder[LONGEST_PATH];
    executable_folder(folder);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bool absolute = places[i][0] == '/';
        if (!absolute && folder[0] == 0)
            continue;
        char *path = absolute ? strdup(places[i]) : path_join(folder, places[i]);
        if (path == NULL) {
            error_memory(error, "a file name", sizeof folder);
            return NULL;
        }
        char *real = realpath(path, NULL);
        free(path);
        if (real != NULL && file_kind(real) == FILE_FOLDER)
            return real;
        free(real);
    }
    error_set(error, CALLA_NOT_FOUND,
              "No model is named and the bundled calla-tiny is not in %s/models; name a model's folder with "
              "-m DIR.",
              CALLA_DATADIR);
    return NULL;
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
