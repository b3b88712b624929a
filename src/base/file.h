/* Files: whole reads with a limit, positioned reads, and read-only maps. */
#ifndef CALLA_BASE_FILE_H
#define CALLA_BASE_FILE_H

#include <stdint.h>

#include "base/buffer.h"

/* FILE_MISSING: nothing has that name. FILE_OTHER is also what cannot be looked at (a link to nothing or to
 * itself, a folder above it without permission): opening it tells why, and it is not mistaken for a file that
 * a model may do without. */
enum file_kind { FILE_MISSING, FILE_REGULAR, FILE_FOLDER, FILE_OTHER };

enum file_kind file_kind(const char *path);

/* "folder/name" on the heap, or NULL when memory is short. */
char *path_join(const char *folder, const char *name);

/* Makes a folder and those above it, where they are not there; only its owner may look into what is made. */
bool folder_make(const char *path, struct calla_error *error);

/* Appends the whole file to *out. Fails when it is not a regular file, larger than `limit` or cannot be read.
 */
bool file_read(const char *path, size_t limit, struct buffer *out, struct calla_error *error);

/* An open regular file, read only. */
struct file {
    char *path;
    int descriptor;
    uint64_t size;
};

bool file_open(struct file *file, const char *path, struct calla_error *error);
void file_close(struct file *file);

/* Reads exactly `size` bytes at `offset`. */
bool file_read_at(const struct file *file, uint64_t offset, void *out, size_t size,
                  struct calla_error *error);

/* Maps the whole file read only; file_unmap undoes it. The map outlives file_close. */
const uint8_t *file_map(const struct file *file, struct calla_error *error);
void file_unmap(const uint8_t *map, uint64_t size);

#endif
