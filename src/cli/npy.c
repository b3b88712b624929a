#include "cli/npy.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char magic[6] = "\x93NUMPY";

/* A cursor over the header's dict: only what NumPy itself writes is understood, anything else is refused. */
struct dict_reader {
    const char *at, *end;
};

static void skip_spaces(struct dict_reader *reader) {
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n'))
        reader->at++;
}

/* Takes `text` if it comes next, spaces before it aside. */
static bool take(struct dict_reader *reader, const char *text) {
    skip_spaces(reader);
    size_t size = strlen(text);
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, text, size) != 0)
        return false;
    reader->at += size;
    return true;
}

/* A Python string without escapes. */
static bool take_string(struct dict_reader *reader, const char **text, size_t *size) {
    skip_spaces(reader);
    if (reader->at == reader->end || (*reader->at != '\'' && *reader->at != '"'))
        return false;
    char quote = *reader->at++;
    *text = reader->at;
    while (reader->at < reader->end && *reader->at != quote && *reader->at != '\\')
        reader->at++;
    if (reader->at == reader->end || *reader->at != quote)
        return false;
    *size = (size_t)(reader->at++ - *text);
    return true;
}

static bool take_number(struct dict_reader *reader, uint64_t *number) {
    skip_spaces(reader);
    const char *begin = reader->at;
    *number = 0;
    for (; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9'; reader->at++) {
        unsigned digit = (unsigned)(*reader->at - '0');
        if (*number > (UINT64_MAX - digit) / 10)
            return false;
        *number = *number * 10 + digit;
    }
    return reader->at > begin;
}

/* (3,) or (3, 4): one or two dimensions. More are counted and not kept. */
static bool take_shape(struct dict_reader *reader, struct npy_header *header) {
    if (!take(reader, "("))
        return false;
    header->dimensions = 0;
    while (!take(reader, ")")) {
        uint64_t length;
        if (!take_number(reader, &length))
            return false;
        if (header->dimensions < NPY_MOST_DIMENSIONS)
            header->shape[header->dimensions] = length;
        header->dimensions++;
        if (!take(reader, ",") && !(skip_spaces(reader), reader->at < reader->end && *reader->at == ')'))
            return false;
    }
    return true;
}

static bool is(const char *text, size_t size, const char *word) {
    return strlen(word) == size && memcmp(text, word, size) == 0;
}

static bool find_type(const char *text, size_t size, enum npy_type *type) {
    if (is(text, size, "<i4"))
        *type = NPY_INT32;
    else if (is(text, size, "<i8"))
        *type = NPY_INT64;
    else if (is(text, size, "<f4"))
        *type = NPY_FLOAT32;
    else
        return false;
    return true;
}

static bool parse_dict(struct dict_reader *reader, const char *name, struct npy_header *header,
                       struct calla_error *error) {
    bool have_type = false, have_order = false, have_shape = false;
    bool ok = take(reader, "{");
    while (ok && !take(reader, "}")) {
        const char *key, *text;
        size_t key_size, size;
        ok = take_string(reader, &key, &key_size) && take(reader, ":");
        if (ok && is(key, key_size, "descr")) {
            ok = take_string(reader, &text, &size);
            if (ok && !find_type(text, size, &header->type))
                return error_set(
                    error, CALLA_UNSUPPORTED,
                    "%s holds elements of NumPy type \"%.*s\"; int32, int64 and float32, little-endian, "
                    "are read.",
                    name, (int)(size < 40 ? size : 40), text);
            have_type = true;
        } else if (ok && is(key, key_size, "fortran_order")) {
            if (take(reader, "True"))
                return error_set(error, CALLA_UNSUPPORTED,
                                 "%s is in Fortran order; save numpy.ascontiguousarray(array) instead.",
                                 name);
            ok = take(reader, "False");
            have_order = true;
        } else if (ok && is(key, key_size, "shape")) {
            ok = take_shape(reader, header);
            have_shape = true;
        } else {
            ok = false;
        }
        if (ok && !take(reader, ",") &&
            !(skip_spaces(reader), reader->at < reader->end && *reader->at == '}'))
            ok = false;
    }
    if (!ok || !have_type || !have_order || !have_shape)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s has a damaged header; it is no .npy file as NumPy writes it.", name);
    if (header->dimensions < 1 || header->dimensions > NPY_MOST_DIMENSIONS)
        return error_set(error, CALLA_BAD_INPUT, "%s has %u dimensions; 1 or 2 are expected.", name,
                         header->dimensions);
    return true;
}

static unsigned element_size(enum npy_type type) {
    return type == NPY_INT64 ? 8 : 4;
}

/* The elements must fill the file exactly. */
static bool check_size(const struct npy_header *header, uint64_t file_size, const char *name,
                       struct calla_error *error) {
    uint64_t rows = header->shape[0], columns = header->dimensions == 2 ? header->shape[1] : 1;
    uint64_t held = (file_size - header->data_offset) / element_size(header->type);
    bool exact = (file_size - header->data_offset) % element_size(header->type) == 0;
    if (columns == 0 || rows == 0)
        exact = exact && held == 0;
    else
        exact = exact && held / columns == rows && held % columns == 0;
    return exact ||
           error_set(error, CALLA_BAD_INPUT,
                     "%s is damaged: its header promises %llu x %llu elements of %u bytes, but %llu bytes "
                     "follow it.",
                     name, (unsigned long long)rows, (unsigned long long)columns, element_size(header->type),
                     (unsigned long long)(file_size - header->data_offset));
}

bool npy_parse_header(const uint8_t *bytes, size_t size, uint64_t file_size, const char *name,
                      struct npy_header *header, struct calla_error *error) {
    memset(header, 0, sizeof *header);
    if (size < 10 || memcmp(bytes, magic, sizeof magic) != 0)
        return error_set(error, CALLA_BAD_INPUT, "%s is no .npy file: it does not begin as NumPy's files do.",
                         name);
    unsigned version = bytes[6];
    if (version < 1 || version > 3)
        return error_set(error, CALLA_UNSUPPORTED,
                         "%s is a .npy file of version %u; versions 1 to 3 are read.", name, version);
    size_t dict_offset = version == 1 ? 10 : 12;
    uint64_t dict_size = bytes[8] | (uint64_t)bytes[9] << 8;
    if (version > 1 && size >= 12)
        dict_size |= (uint64_t)bytes[10] << 16 | (uint64_t)bytes[11] << 24;
    if (size < dict_offset || dict_size > size - dict_offset)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s ends inside its header, or its header is longer than %d bytes.", name,
                         NPY_HEADER_LIMIT);
    header->data_offset = dict_offset + dict_size;
    const char *dict = (const char *)bytes + dict_offset;
    struct dict_reader reader = {dict, dict + dict_size};
    return parse_dict(&reader, name, header, error) && check_size(header, file_size, name, error);
}

static bool read_header(const struct file *file, struct npy_header *header, struct calla_error *error) {
    uint8_t bytes[NPY_HEADER_LIMIT];
    size_t size = file->size < sizeof bytes ? (size_t)file->size : sizeof bytes;
    return file_read_at(file, 0, bytes, size, error) &&
           npy_parse_header(bytes, size, file->size, file->path, header, error);
}

/* Elements as they lie in the file, on the heap. */
static void *read_elements(const struct file *file, const struct npy_header *header,
                           struct calla_error *error) {
    uint64_t size = header->shape[0] * element_size(header->type);
    void *elements = size <= SIZE_MAX - 1 ? malloc((size_t)size + 1) : NULL;
    if (elements == NULL)
        error_memory(error, file->path, (size_t)size);
    else if (!file_read_at(file, header->data_offset, elements, (size_t)size, error)) {
        free(elements);
        elements = NULL;
    }
    return elements;
}

static bool narrow(const int64_t *wide, int32_t *narrowed, size_t count, const char *name,
                   struct calla_error *error) {
    for (size_t i = 0; i < count; i++) {
        if (wide[i] < INT32_MIN || wide[i] > INT32_MAX)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: element %zu is %lld; that is more than 32 bits hold.", name, i,
                             (long long)wide[i]);
        narrowed[i] = (int32_t)wide[i];
    }
    return true;
}

int32_t *npy_read_integers(const char *path, size_t *count, struct calla_error *error) {
    struct file file;
    struct npy_header header;
    int32_t *integers = NULL;
    if (!file_open(&file, path, error))
        return NULL;
    if (!read_header(&file, &header, error)) {
        /* the error is set */
    } else if (header.dimensions != 1 || header.type == NPY_FLOAT32) {
        error_set(error, CALLA_BAD_INPUT, "%s must be a one-dimensional array of int32.", path);
    } else {
        *count = (size_t)header.shape[0];
        void *elements = read_elements(&file, &header, error);
        if (elements != NULL && header.type == NPY_INT64) {
            integers = malloc(*count * sizeof *integers + 1);
            if (integers == NULL)
                error_memory(error, path, *count * sizeof *integers);
            else if (!narrow(elements, integers, *count, path, error)) {
                free(integers);
                integers = NULL;
            }
            free(elements);
        } else {
            integers = elements;
        }
    }
    file_close(&file);
    return integers;
}

bool npy_reader_open(struct npy_reader *reader, const char *path, struct calla_error *error) {
    if (!file_open(&reader->file, path, error))
        return false;
    bool ok = read_header(&reader->file, &reader->header, error);
    if (ok && (reader->header.dimensions != 2 || reader->header.type != NPY_FLOAT32))
        ok = error_set(error, CALLA_BAD_INPUT, "%s must be a two-dimensional array of float32.", path);
    if (!ok)
        file_close(&reader->file);
    return ok;
}

bool npy_reader_row(const struct npy_reader *reader, uint64_t row, float *values, struct calla_error *error) {
    uint64_t bytes = reader->header.shape[1] * sizeof *values;
    return file_read_at(&reader->file, reader->header.data_offset + row * bytes, values, (size_t)bytes,
                        error);
}

void npy_reader_close(struct npy_reader *reader) {
    file_close(&reader->file);
}

/* The elements begin at a multiple of 64 bytes, and the header ends in a newline, as the format asks. */
static bool write_header(FILE *file, uint64_t rows, uint64_t columns) {
    char dict[118];
    int size =
        snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
                 (unsigned long long)rows, (unsigned long long)columns);
    memset(dict + size, ' ', sizeof dict - (size_t)size);
    dict[sizeof dict - 1] = '\n';
    const unsigned char lead[4] = {1, 0, sizeof dict, 0};
    return fwrite(magic, sizeof magic, 1, file) == 1 && fwrite(lead, sizeof lead, 1, file) == 1 &&
           fwrite(dict, sizeof dict, 1, file) == 1;
}

static bool write_failed(const struct npy_writer *writer, struct calla_error *error) {
    return error_set(error, CALLA_IO, "%s cannot be written: %s.", writer->output.path, strerror(errno));
}

bool npy_writer_open(struct npy_writer *writer, const char *path, uint64_t rows, uint64_t columns,
                     struct calla_error *error) {
    *writer = (struct npy_writer){.rows = rows, .columns = columns};
    if (!output_file_open(&writer->output, path, false, error))
        return false;
    if (write_header(writer->output.file, rows, columns))
        return true;
    write_failed(writer, error);
    npy_writer_close(writer);
    return false;
}

bool npy_writer_row(struct npy_writer *writer, const float *values, struct calla_error *error) {
    writer->written++;
    return fwrite(values, sizeof *values, (size_t)writer->columns, writer->output.file) == writer->columns ||
           write_failed(writer, error);
}

bool npy_writer_finish(struct npy_writer *writer, struct calla_error *error) {
    if (writer->written != writer->rows)
        return error_set(error, CALLA_BAD_INPUT, "%s got %llu of its %llu rows.", writer->output.path,
                         (unsigned long long)writer->written, (unsigned long long)writer->rows);
    return output_file_finish(&writer->output, error);
}

void npy_writer_close(struct npy_writer *writer) {
    output_file_close(&writer->output);
}
