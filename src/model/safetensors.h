/* The header of a safetensors file: 8 bytes of length, a JSON object of name -> {dtype, shape, data_offsets},
 * then the data. Everything that the header says is checked against the file's size before a byte of data is
 * read. */
#ifndef CALLA_MODEL_SAFETENSORS_H
#define CALLA_MODEL_SAFETENSORS_H

#include "base/dtype.h"
#include "base/file.h"

#define SAFETENSORS_MAX_RANK 8
#define SAFETENSORS_MAX_HEADER ((uint64_t)100 << 20)

struct safetensors_entry {
    char *name;
    const char *dtype_name; /* as in the file; a static string */
    enum dtype dtype;       /* DTYPE_COUNT for a type that the format has and this program does not use */
    uint32_t rank;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
};

struct safetensors {
    struct safetensors_entry *entries; /* sorted by name */
    size_t count;
    uint64_t unused; /* bytes of the data region that no tensor covers */
};

/* Reads and checks the header of an open file. A failed call leaves a zeroed struct. */
bool safetensors_read(struct safetensors *header, const struct file *file, struct calla_error *error);

/* The same for a header's JSON text of a file with `data_bytes` bytes of data behind it. */
bool safetensors_parse(struct safetensors *header, const char *json, size_t size, uint64_t data_bytes,
                       const char *name, struct calla_error *error);
void safetensors_free(struct safetensors *header);

/* "[256, 512]" for messages; returns `out`. */
const char *shape_describe(const uint64_t *shape, uint32_t rank, char *out, size_t size);

#endif
