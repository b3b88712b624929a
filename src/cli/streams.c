#include "cli/streams.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/output_file.h"
#include "text/utf8.h"

bool read_standard_input(struct buffer *out, struct calla_error *error) {
    size_t start = out->size;
    for (;;) {
        if (!buffer_reserve(out, 1 << 16))
            return error_memory(error, "standard input", out->size);
        ssize_t count = read(STDIN_FILENO, out->data + out->size, 1 << 16);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return error_set(error, CALLA_IO, "Standard input cannot be read: %s.", strerror(errno));
        out->size += (size_t)count;
        out->data[out->size] = 0;
        if (count == 0)
            return true;
        if (out->size - start > STREAM_LIMIT)
            return error_set(error, CALLA_BAD_INPUT,
                             "Standard input has more than %zu MiB; give less at a time.",
                             STREAM_LIMIT >> 20);
    }
}

bool read_input(const char *path, struct buffer *out, struct calla_error *error) {
    return strcmp(path, "-") == 0 ? read_standard_input(out, error)
                                  : file_read(path, STREAM_LIMIT, out, error);
}

bool write_file(const char *path, const char *bytes, size_t size, struct calla_error *error) {
    struct output_file output;
    if (!output_file_open(&output, path, true, error))
        return false;
    fwrite(bytes, 1, size, output.file);
    bool ok = output_file_finish(&output, error);
    output_file_close(&output);
    return ok;
}

bool standard_output_abandoned(void) {
    struct pollfd output = {.fd = STDOUT_FILENO};
    return poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

bool standard_output_check(struct calla_error *error) {
    if (standard_output_abandoned())
        return error_set(error, CALLA_IO, "Nobody reads standard output any more.");
    return write(STDOUT_FILENO, "", 0) == 0 ||
           error_set(error, CALLA_IO, "Standard output cannot be written: %s.", strerror(errno));
}

bool print_json(const json_t *value, struct calla_error *error) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (text == NULL)
        return error_memory(error, "the JSON text", 0);
    puts(text);
    free(text);
    return true;
}

bool append_utf8(struct buffer *out, const char *text, size_t size, size_t *replaced) {
    *replaced = 0;
    for (size_t done = 0; done < size;) {
        struct utf8_character character = utf8_read(text + done, size - done);
        if (character.kind == UTF8_VALID && character.code != 0) {
            buffer_append(out, text + done, character.size);
        } else {
            buffer_append_string(out, UTF8_REPLACEMENT);
            ++*replaced;
        }
        done += character.size;
    }
    return !out->failed;
}
