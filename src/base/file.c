#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum file_kind file_kind(const char *path) {
    struct stat status, link;
    if (stat(path, &status) != 0)
        return (errno == ENOENT || errno == ENOTDIR) && lstat(path, &link) != 0 ? FILE_MISSING : FILE_OTHER;
    if (S_ISREG(status.st_mode))
        return FILE_REGULAR;
    return S_ISDIR(status.st_mode) ? FILE_FOLDER : FILE_OTHER;
}

char *path_join(const char *folder, const char *name) {
    struct buffer path = {0};
    buffer_append_string(&path, folder);
    if (path.size > 0 && path.data[path.size - 1] != '/')
        buffer_append_byte(&path, '/');
    buffer_append_string(&path, name);
    return buffer_take(&path, NULL);
}

bool folder_make(const char *path, struct calla_error *error) {
    char *copy = strdup(path);
    if (copy == NULL)
        return error_memory(error, "a file name", strlen(path));
    for (char *at = copy; *at != 0; at++)
        if (*at == '/' && at > copy) {
            *at = 0;
            mkdir(copy, 0700);
            *at = '/';
        }
    bool ok = mkdir(copy, 0700) == 0 || errno == EEXIST ||
              error_set(error, CALLA_IO, "The folder %s cannot be made: %s.", path, strerror(errno));
    free(copy);
    return ok;
}

bool file_open(struct file *file, const char *path, struct calla_error *error) {
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
    struct stat status;
    /* O_NONBLOCK: opening a named pipe must fail below, not wait for a writer. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return error_set(error, CALLA_NOT_FOUND, "%s cannot be opened: %s.", path, strerror(errno));
    if (fstat(descriptor, &status) != 0) {
        error_set(error, CALLA_IO, "%s cannot be read: %s.", path, strerror(errno));
        close(descriptor);
        return false;
    }
    if (!S_ISREG(status.st_mode)) {
        close(descriptor);
        return error_set(error, CALLA_BAD_INPUT, "%s is not a regular file.", path);
    }
    file->path = strdup(path);
    if (file->path == NULL) {
        close(descriptor);
        return error_memory(error, "a file name", strlen(path) + 1);
    }
    file->descriptor = descriptor;
    file->size = (uint64_t)status.st_size;
    return true;
}

void file_close(struct file *file) {
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->path);
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
}

bool file_read_at(const struct file *file, uint64_t offset, void *out, size_t size,
                  struct calla_error *error) {
    char *bytes = out;
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(file->descriptor, bytes + done, size - done, (off_t)(offset + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return error_set(error, CALLA_IO, "%s cannot be read at byte %llu: %s.", file->path,
                             (unsigned long long)(offset + done), strerror(errno));
        if (count == 0)
            return error_set(error, CALLA_IO, "%s ends at byte %llu, but %zu bytes were expected at %llu.",
                             file->path, (unsigned long long)(offset + done), size,
                             (unsigned long long)offset);
        done += (size_t)count;
    }
    return true;
}

bool file_read(const char *path, size_t limit, struct buffer *out, struct calla_error *error) {
    struct file file;
    if (!file_open(&file, path, error))
        return false;
    bool ok = true;
    if (file.size > limit)
        ok = error_set(error, CALLA_BAD_INPUT, "%s has %llu bytes; at most %zu are expected.", path,
                       (unsigned long long)file.size, limit);
    else if (!buffer_reserve(out, (size_t)file.size))
        ok = error_memory(error, path, (size_t)file.size);
    else if (file_read_at(&file, 0, out->data + out->size, (size_t)file.size, error))
        out->size += (size_t)file.size, out->data[out->size] = 0;
    else
        ok = false;
    file_close(&file);
    return ok;
}

const uint8_t *file_map(const struct file *file, struct calla_error *error) {
    if (file->size == 0) {
        error_set(error, CALLA_BAD_INPUT, "%s is empty.", file->path);
        return NULL;
    }
    void *map = mmap(NULL, (size_t)file->size, PROT_READ, MAP_SHARED, file->descriptor, 0);
    if (map == MAP_FAILED) {
        error_set(error, CALLA_IO, "%s cannot be mapped into memory: %s.", file->path, strerror(errno));
        return NULL;
    }
    return map;
}

void file_unmap(const uint8_t *map, uint64_t size) {
    if (map != NULL)
        munmap((void *)(uintptr_t)map, (size_t)size);
}
