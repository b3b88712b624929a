/* NumPy's .npy files: one array, a header that is a Python dict, and the elements in rows (C order).
 *
 * Arrays of logits are larger than memory should hold, so both directions work row by row. Files are read as
 * little-endian int32, int64 and float32, in versions 1 to 3 of the format, and written as version 1.
 * Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef CALLA_CLI_NPY_H
#define CALLA_CLI_NPY_H

#include "base/file.h"
#include "cli/output_file.h"

enum npy_type { NPY_INT32, NPY_INT64, NPY_FLOAT32 };

#define NPY_MOST_DIMENSIONS 2

struct npy_header {
    enum npy_type type;
    uint32_t dimensions; /* 1 or 2 */
    uint64_t shape[NPY_MOST_DIMENSIONS];
    uint64_t data_offset; /* where the elements begin in the file */
};

/* Reads the header from the first bytes of a file of `file_size` bytes (`size` of them given: all, or at
 * least NPY_HEADER_LIMIT) and checks that the elements fill the rest exactly. `name` is used in errors. */
#define NPY_HEADER_LIMIT 4096
bool npy_parse_header(const uint8_t *bytes, size_t size, uint64_t file_size, const char *name,
                      struct npy_header *header, struct calla_error *error);

/* Reads a whole int32 or int64 [T] file as int32 (free with free()). */
int32_t *npy_read_integers(const char *path, size_t *count, struct calla_error *error);

/* A float32 [rows, columns] file, read a row at a time. */
struct npy_reader {
    struct file file;
    struct npy_header header;
};
bool npy_reader_open(struct npy_reader *reader, const char *path, struct calla_error *error);
bool npy_reader_row(const struct npy_reader *reader, uint64_t row, float *values, struct calla_error *error);
void npy_reader_close(struct npy_reader *reader);

/* Writes a float32 [rows, columns] file a row at a time. It appears under its name when npy_writer_finish
 * finds every row there. npy_writer_close afterwards, or to give up; a zeroed writer is closed harmlessly. */
struct npy_writer {
    struct output_file output;
    uint64_t rows, columns, written;
};
bool npy_writer_open(struct npy_writer *writer, const char *path, uint64_t rows, uint64_t columns,
                     struct calla_error *error);
bool npy_writer_row(struct npy_writer *writer, const float *values, struct calla_error *error);
bool npy_writer_finish(struct npy_writer *writer, struct calla_error *error);
void npy_writer_close(struct npy_writer *writer);

#endif
