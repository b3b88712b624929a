#include "cli/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static bool fail(struct output_file *output, struct calla_error *error) {
    return error_set(error, CALLA_IO, "%s cannot be written: %s.", output->path, strerror(errno));
}

bool output_file_open(struct output_file *output, const char *path, bool private, struct calla_error *error) {
    memset(output, 0, sizeof *output);
    enum file_kind kind = file_kind(path);
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
    /* What an earlier attempt may have left is replaced, but never through a link. */
    unlink(output->temporary);
    int descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, private ? 0600 : 0666);
    output->file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (output->file != NULL)
        return true;
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
