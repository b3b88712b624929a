#include "cli/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static bool fail(struct output_file *output, struct calla_error *error) {
    return error_set(error, CALLA_IO, "%s cannot be written: %s.", output->path, strerror(errno));
}

/* Whether the name is still that of the open, regular file. */
static bool is_at(int descriptor, const char *path) {
    struct stat open_file, named;
    return fstat(descriptor, &open_file) == 0 && lstat(path, &named) == 0 && S_ISREG(named.st_mode) &&
           open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

/* What an earlier attempt may have left is written over, but never through a link, and never while somebody
 * writes it: who does holds a lock. */
static int open_temporary(const char *path, mode_t mode) {
    int descriptor = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (descriptor < 0)
        return -1;
    bool is_free = flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (!is_free || !is_at(descriptor, path)) {
        errno = EBUSY; /* or it has just got its name */
    } else if (ftruncate(descriptor, 0) == 0 && (mode != 0600 || fchmod(descriptor, mode) == 0)) {
        return descriptor;
    }
    int reason = errno;
    close(descriptor);
    errno = reason;
    return -1;
}

bool output_file_open(struct output_file *output, const char *path, bool private, struct calla_error *error) {
    memset(output, 0, sizeof *output);
    enum file_kind kind = file_kind(path);
    if (path[0] == 0)
        return error_set(error, CALLA_BAD_INPUT, "The name of a file to write is empty; give one.");
    if (kind != FILE_MISSING && kind != FILE_REGULAR)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s is no regular file, so it is not replaced; name another.", path);
    struct buffer name = {0};
    buffer_append_string(&name, path);
    buffer_append_string(&name, ".partial");
    output->path = strdup(path);
    output->temporary = buffer_take(&name, NULL);
    if (output->path == NULL || output->temporary == NULL) {
        output_file_close(output);
        return error_memory(error, "a file name", strlen(path));
    }
    int descriptor = open_temporary(output->temporary, private ? 0600 : 0666);
    output->file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (output->file != NULL)
        return true;
    if (errno == EBUSY)
        error_set(error, CALLA_BAD_INPUT, "%s is being written already; wait for that, or name another file.",
                  path);
    else
        fail(output, error);
    if (descriptor >= 0) {
        close(descriptor);
        unlink(output->temporary);
    }
    output_file_close(output);
    return false;
}

bool output_file_finish(struct output_file *output, struct calla_error *error) {
    errno = EIO; /* for a write that failed earlier and whose reason is gone */
    bool ok = fflush(output->file) == 0 && !ferror(output->file) && fsync(fileno(output->file)) == 0 &&
              rename(output->temporary, output->path) == 0;
    if (!ok)
        return fail(output, error);
    fclose(output->file);
    output->file = NULL;
    return true;
}

void output_file_close(struct output_file *output) {
    if (output->file != NULL)
        fclose(output->file);
    if (output->file != NULL && output->temporary != NULL)
        unlink(output->temporary);
    free(output->path);
    free(output->temporary);
    memset(output, 0, sizeof *output);
}
