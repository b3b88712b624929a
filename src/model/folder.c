#include "model/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

bool folder_list(struct folder *folder, const char *path, struct calla_error *error) {
    memset(folder, 0, sizeof *folder);
    DIR *stream = opendir(path);
    if (stream == NULL)
        return error_set(error, CALLA_NOT_FOUND, "%s cannot be opened: %s.", path, strerror(errno));
    bool ok = true;
    size_t capacity = 0;
    for (struct dirent *entry; ok && (entry = readdir(stream)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        if (folder->count == capacity) {
            capacity = capacity == 0 ? 32 : capacity * 2;
            char **names = realloc(folder->names, capacity * sizeof *names);
            ok = names != NULL;
            if (!ok)
                break;
            folder->names = names;
        }
        ok = (folder->names[folder->count] = strdup(entry->d_name)) != NULL;
        folder->count += ok;
    }
    closedir(stream);
    if (!ok) {
        folder_free(folder);
        return error_memory(error, "a folder's names", capacity * sizeof(char *));
    }
    if (folder->count > 1)
        qsort(folder->names, folder->count, sizeof *folder->names, compare_names);
    return true;
}

void folder_free(struct folder *folder) {
    for (size_t i = 0; i < folder->count; i++)
        free(folder->names[i]);
    free(folder->names);
    memset(folder, 0, sizeof *folder);
}

bool name_ends_with(const char *name, const char *suffix) {
    size_t length = strlen(name), ending = strlen(suffix);
    return length >= ending && strcmp(name + length - ending, suffix) == 0;
}

#define EXPECTED "a folder with config.json, *.safetensors and tokenizer.json is expected"

static bool complain_no_config(const char *path, const struct folder *folder, struct calla_error *error) {
    if (folder->count == 0)
        return error_set(error, CALLA_NOT_FOUND, "%s is an empty folder; " EXPECTED ".", path);
    for (size_t i = 0; i < folder->count; i++)
        if (name_ends_with(folder->names[i], ".gguf"))
            return error_set(error, CALLA_UNSUPPORTED,
                             "%s holds a GGUF model (%s), which this program does not read; use MLX's 4-bit "
                             "safetensors of the same model.",
                             path, folder->names[i]);
    return error_set(error, CALLA_NOT_FOUND, "%s has no config.json, so it is not a model; " EXPECTED ".",
                     path);
}

bool folder_check(const char *path, struct calla_error *error) {
    switch (file_kind(path)) {
    case FILE_MISSING:
        return error_set(error, CALLA_NOT_FOUND, "%s does not exist; " EXPECTED ".", path);
    case FILE_REGULAR:
        if (name_ends_with(path, ".gguf"))
            return error_set(error, CALLA_UNSUPPORTED,
                             "%s is a GGUF file, which this program does not read; name the folder of MLX's "
                             "4-bit safetensors of the same model.",
                             path);
        if (name_ends_with(path, ".safetensors"))
            return error_set(error, CALLA_BAD_INPUT,
                             "%s is one file of a model; name the folder that it is in.", path);
        return error_set(error, CALLA_BAD_INPUT, "%s is a file; " EXPECTED ".", path);
    case FILE_OTHER:
        if (access(path, F_OK) != 0)
            return error_set(error, CALLA_NOT_FOUND, "%s cannot be opened: %s; " EXPECTED ".", path,
                             strerror(errno));
        return error_set(error, CALLA_BAD_INPUT, "%s is neither a file nor a folder; " EXPECTED ".", path);
    case FILE_FOLDER:
        break;
    }
    char *config = path_join(path, "config.json");
    if (config == NULL)
        return error_memory(error, "a file name", strlen(path) + 16);
    bool found = file_kind(config) != FILE_MISSING;
    free(config);
    if (found)
        return true;
    struct folder folder;
    if (!folder_list(&folder, path, error))
        return false;
    complain_no_config(path, &folder, error);
    folder_free(&folder);
    return false;
}
