#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/folder.h"

#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_LIMIT ((size_t)16 << 20)
#define MAX_FILES 4096

static bool add_file(struct folder *files, const char *name, struct calla_error *error) {
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->names[i], name) == 0)
            return true;
    if (files->count == MAX_FILES)
        return error_set(error, CALLA_UNSUPPORTED, "The checkpoint has more than %d files.", MAX_FILES);
    char **names = realloc(files->names, (files->count + 1) * sizeof *names);
    if (names != NULL)
        files->names = names;
    char *copy = names == NULL ? NULL : strdup(name);
    if (copy == NULL)
        return error_memory(error, "file names", strlen(name) + 1);
    files->names[files->count++] = copy;
    return true;
}

static int compare_strings(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* A shard is a plain name in the same folder: an index must not reach out of it. */
static bool plain_name(const char *name) {
    return name[0] != '.' && strchr(name, '/') == NULL && strchr(name, '\\') == NULL &&
           name_ends_with(name, ".safetensors");
}

static bool files_of_index(struct folder *files, json_t *index, const char *path, struct calla_error *error) {
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: weight_map must be an object that names each tensor's file.", path);
    const char *tensor, *last = "";
    json_t *value;
    json_object_foreach(map, tensor, value) {
        const char *name = json_string_value(value);
        if (name == NULL || !plain_name(name))
            return error_set(
                error, CALLA_BAD_INPUT,
                "%s: weight_map names the file \"%.200s\" for %.200s; the name of a .safetensors file "
                "in the same folder is expected.",
                path, name == NULL ? "(no string)" : name, tensor);
        if (strcmp(name, last) != 0 && !add_file(files, name, error))
            return false;
        last = name;
    }
    return true;
}

/* "model-00003-of-00004.safetensors": the numbers, or false. */
static bool shard_numbers(const char *name, unsigned *number, unsigned *total) {
    const char *dash = strrchr(name, '-');
    if (dash == NULL || dash - name < 9)
        return false;
    int end = 0;
    return sscanf(dash - 9, "-%5u-of-%5u.safetensors%n", number, total, &end) == 2 && end > 0 &&
           dash[-9 + end] == 0 && *total > 0 && *total <= MAX_FILES;
}

/* Without an index, numbered names still tell how many files there must be. */
static bool check_numbering(const struct folder *files, const char *folder, struct calla_error *error) {
    for (size_t i = 0; i < files->count; i++) {
        unsigned number, total;
        if (!shard_numbers(files->names[i], &number, &total))
            continue;
        int prefix = (int)(strlen(files->names[i]) - strlen("-00001-of-00001.safetensors"));
        for (unsigned wanted = 1; wanted <= total; wanted++) {
            bool found = false;
            unsigned other, other_total;
            for (size_t j = 0; j < files->count && !found; j++)
                found = shard_numbers(files->names[j], &other, &other_total) && other == wanted &&
                        other_total == total &&
                        strncmp(files->names[j], files->names[i], (size_t)prefix) == 0;
            if (!found)
                return error_set(
                    error, CALLA_NOT_FOUND,
                    "%s lacks %.*s-%05u-of-%05u.safetensors, part %u of %u of the weights; download "
                    "it again.",
                    folder, prefix, files->names[i], wanted, total, wanted, total);
        }
        return true;
    }
    return true;
}

static bool files_of_folder(struct folder *files, const char *path, struct calla_error *error) {
    struct folder folder;
    if (!folder_list(&folder, path, error))
        return false;
    const char *other = NULL;
    bool ok = true, single = false;
    for (size_t i = 0; i < folder.count; i++)
        single = single || strcmp(folder.names[i], "model.safetensors") == 0;
    for (size_t i = 0; i < folder.count && ok; i++) {
        const char *name = folder.names[i];
        if (name_ends_with(name, ".gguf") || name_ends_with(name, ".bin") || name_ends_with(name, ".npz"))
            other = name;
        if (name_ends_with(name, ".safetensors") && (!single || strcmp(name, "model.safetensors") == 0))
            ok = add_file(files, name, error);
    }
    if (ok && files->count == 0 && other != NULL)
        ok = error_set(
            error, CALLA_UNSUPPORTED,
            "%s holds its weights in %s, which this program does not read; use MLX's 4-bit safetensors "
            "of the same model.",
            path, other);
    folder_free(&folder);
    return ok && check_numbering(files, path, error);
}

static bool open_files(struct checkpoint *checkpoint, const char *folder, const struct folder *files,
                       struct calla_error *error) {
    if (files->count == 0)
        return error_set(error, CALLA_NOT_FOUND, "%s has a config.json but no weights (*.safetensors).",
                         folder);
    checkpoint->files = calloc(files->count, sizeof *checkpoint->files);
    checkpoint->headers = calloc(files->count, sizeof *checkpoint->headers);
    if (checkpoint->files == NULL || checkpoint->headers == NULL)
        return error_memory(error, "open files", files->count * sizeof *checkpoint->files);
    for (size_t i = 0; i < files->count; i++) {
        char *path = path_join(folder, files->names[i]);
        if (path == NULL)
            return error_memory(error, "a file name", strlen(folder) + 64);
        bool ok;
        if (file_kind(path) == FILE_MISSING)
            ok = error_set(error, CALLA_NOT_FOUND,
                           "%s lacks %s, file %zu of %zu that " INDEX_NAME " names; download it again.",
                           folder, files->names[i], i + 1, files->count);
        else
            ok = file_open(&checkpoint->files[i], path, error);
        free(path);
        if (!ok)
            return false;
        checkpoint->file_count++;
        if (!safetensors_read(&checkpoint->headers[i], &checkpoint->files[i], error))
            return false;
        checkpoint->tensor_count += checkpoint->headers[i].count;
    }
    return true;
}

static int compare_tensors(const void *left, const void *right) {
    const struct checkpoint_tensor *a = left, *b = right;
    return strcmp(a->entry->name, b->entry->name);
}

static bool sort_tensors(struct checkpoint *checkpoint, struct calla_error *error) {
    if (checkpoint->tensor_count == 0)
        return error_set(error, CALLA_BAD_INPUT, "%s has no tensors.", checkpoint->files[0].path);
    checkpoint->tensors = malloc(checkpoint->tensor_count * sizeof *checkpoint->tensors);
    if (checkpoint->tensors == NULL)
        return error_memory(error, "the list of tensors",
                            checkpoint->tensor_count * sizeof *checkpoint->tensors);
    size_t count = 0;
    for (uint32_t i = 0; i < checkpoint->file_count; i++)
        for (size_t j = 0; j < checkpoint->headers[i].count; j++)
            checkpoint->tensors[count++] = (struct checkpoint_tensor){&checkpoint->headers[i].entries[j], i};
    qsort(checkpoint->tensors, count, sizeof *checkpoint->tensors, compare_tensors);
    for (size_t i = 1; i < count; i++) {
        const struct checkpoint_tensor *a = &checkpoint->tensors[i - 1], *b = a + 1;
        if (compare_tensors(a, b) == 0)
            return error_set(error, CALLA_BAD_INPUT, "Tensor %s is in two files: %s and %s.", a->entry->name,
                             checkpoint->files[a->file].path, checkpoint->files[b->file].path);
    }
    return true;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name) {
    size_t low = 0, high = checkpoint->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(checkpoint->tensors[middle].entry->name, name);
        if (order == 0)
            return &checkpoint->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The index must tell the truth: a tensor that it promises and its file lacks means mixed-up downloads. */
static bool check_index(const struct checkpoint *checkpoint, json_t *index, const char *folder,
                        struct calla_error *error) {
    const char *tensor;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, value) {
        const struct checkpoint_tensor *found = checkpoint_find(checkpoint, tensor);
        const char *path = found == NULL ? "" : checkpoint->files[found->file].path;
        const char *name = json_string_value(value);
        const char *slash = strrchr(path, '/');
        if (found == NULL || strcmp(slash == NULL ? path : slash + 1, name) != 0)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: " INDEX_NAME
                             " places tensor %.200s in %.200s, which does not have it; the files do "
                             "not belong together.",
                             folder, tensor, name);
    }
    return true;
}

bool checkpoint_open(struct checkpoint *checkpoint, const char *folder, struct calla_error *error) {
    memset(checkpoint, 0, sizeof *checkpoint);
    struct folder files = {0};
    json_t *index = NULL;
    bool ok;
    char *path = path_join(folder, INDEX_NAME);
    if (path == NULL)
        return error_memory(error, "a file name", strlen(folder) + 64);
    if (file_kind(path) == FILE_MISSING) {
        ok = files_of_folder(&files, folder, error);
    } else {
        index = json_parse_file(path, INDEX_LIMIT, error);
        ok = index != NULL && files_of_index(&files, index, path, error);
    }
    if (files.count > 1)
        qsort(files.names, files.count, sizeof *files.names, compare_strings);
    ok = ok && open_files(checkpoint, folder, &files, error) && sort_tensors(checkpoint, error) &&
         (index == NULL || check_index(checkpoint, index, folder, error));
    json_decref(index);
    folder_free(&files);
    free(path);
    if (!ok)
        checkpoint_close(checkpoint);
    return ok;
}

void checkpoint_close(struct checkpoint *checkpoint) {
    for (uint32_t i = 0; i < checkpoint->file_count; i++) {
        file_close(&checkpoint->files[i]);
        safetensors_free(&checkpoint->headers[i]);
    }
    free(checkpoint->files);
    free(checkpoint->headers);
    free(checkpoint->tensors);
    memset(checkpoint, 0, sizeof *checkpoint);
}
