/* A checkpoint's folder: what lies in it, and what to say when it is not one. */
#ifndef CALLA_MODEL_FOLDER_H
#define CALLA_MODEL_FOLDER_H

#include "base/file.h"

/* The names in a folder, hidden ones left out, sorted. */
struct folder {
    char **names;
    size_t count;
};

bool folder_list(struct folder *folder, const char *path, struct calla_error *error);
void folder_free(struct folder *folder);
bool name_ends_with(const char *name, const char *suffix);

/* Whether `path` is a folder with a config.json; otherwise one sentence that says what it is instead. A path
 * is always a path: nothing is looked up anywhere else. */
bool folder_check(const char *path, struct calla_error *error);

#endif
