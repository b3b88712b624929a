#include "model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is used as it lies in the file");

/* Far more than a checkpoint of this family has; keeps a hostile header from filling the memory. */
#define MAX_JSON_VALUES ((size_t)1 << 21)

static const struct {
    const char *name;
    unsigned bits;
    enum dtype dtype;
} dtypes[] = {
    {"F32", 32, DTYPE_F32},      {"F16", 16, DTYPE_F16},      {"BF16", 16, DTYPE_BF16},
    {"I32", 32, DTYPE_I32},      {"U32", 32, DTYPE_U32},      {"U8", 8, DTYPE_U8},
    {"BOOL", 8, DTYPE_COUNT},    {"I8", 8, DTYPE_COUNT},      {"I16", 16, DTYPE_COUNT},
    {"U16", 16, DTYPE_COUNT},    {"I64", 64, DTYPE_COUNT},    {"U64", 64, DTYPE_COUNT},
    {"F64", 64, DTYPE_COUNT},    {"C64", 64, DTYPE_COUNT},    {"F8_E4M3", 8, DTYPE_COUNT},
    {"F8_E5M2", 8, DTYPE_COUNT}, {"F8_E8M0", 8, DTYPE_COUNT}, {"F4", 4, DTYPE_COUNT},
};

const char *shape_describe(const uint64_t *shape, uint32_t rank, char *out, size_t size) {
    size_t used = (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRIu64, i == 0 ? "" : ", ", shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
    return out;
}

/* A non-negative integer; jansson reads no larger one than 2^63 - 1. */
static bool read_count(json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_entry(struct safetensors_entry *entry, json_t *value, uint64_t data_bytes, const char *file,
                       struct calla_error *error) {
    const char *name = entry->name;
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    json_t *shape = json_object_get(value, "shape");
    json_t *offsets = json_object_get(value, "data_offsets");
    if (dtype == NULL || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: tensor %s: an object with dtype, shape and two data_offsets is expected.", file,
                         name);
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, dtype) == 0) {
            entry->dtype_name = dtypes[i].name;
            entry->dtype = dtypes[i].dtype;
            bits = dtypes[i].bits;
        }
    if (bits == 0)
        return error_set(error, CALLA_UNSUPPORTED, "%s: tensor %s has the unknown dtype \"%.32s\".", file,
                         name, dtype);
    if (json_array_size(shape) > SAFETENSORS_MAX_RANK)
        return error_set(error, CALLA_UNSUPPORTED,
                         "%s: tensor %s has %zu dimensions; at most %d are expected.", file, name,
                         json_array_size(shape), SAFETENSORS_MAX_RANK);
    entry->rank = (uint32_t)json_array_size(shape);
    uint64_t size_bits = bits;
    for (uint32_t i = 0; i < entry->rank; i++) {
        if (!read_count(json_array_get(shape, i), &entry->shape[i]))
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: tensor %s: dimension %u of the shape is no non-negative integer.", file,
                             name, i);
        if (__builtin_mul_overflow(size_bits, entry->shape[i], &size_bits))
            return error_set(error, CALLA_BAD_INPUT, "%s: tensor %s has a shape larger than any file.", file,
                             name);
    }
    uint64_t begin, end;
    if (!read_count(json_array_get(offsets, 0), &begin) || !read_count(json_array_get(offsets, 1), &end) ||
        begin > end)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: tensor %s: data_offsets are no rising pair of non-negative integers.", file,
                         name);
    char text[256];
    if (size_bits % 8 != 0 || end - begin != size_bits / 8)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: tensor %s has %" PRIu64 " bytes, but %s %s takes %" PRIu64 ".", file, name,
                         end - begin, entry->dtype_name,
                         shape_describe(entry->shape, entry->rank, text, sizeof text), (size_bits + 7) / 8);
    if (end > data_bytes)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s is truncated: tensor %s ends at byte %" PRIu64 " of the data, but the file has "
                         "only %" PRIu64 " bytes of data; download it again.",
                         file, name, end, data_bytes);
    entry->offset = begin;
    entry->bytes = end - begin;
    return true;
}

static int compare_offsets(const void *left, const void *right) {
    const struct safetensors_entry *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_names(const void *left, const void *right) {
    const struct safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Sorts by offset; tensors may leave holes, which are counted, but must not share bytes. */
static bool check_overlaps(struct safetensors *header, uint64_t data_bytes, const char *file,
                           struct calla_error *error) {
    qsort(header->entries, header->count, sizeof *header->entries, compare_offsets);
    uint64_t end = 0, covered = 0;
    const char *before = "";
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->bytes == 0)
            continue;
        if (entry->offset < end)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: tensors %s and %s overlap: one ends at byte %" PRIu64
                             " of the data, the other starts at %" PRIu64 ".",
                             file, before, entry->name, end, entry->offset);
        end = entry->offset + entry->bytes;
        covered += entry->bytes;
        before = entry->name;
    }
    header->unused = data_bytes - covered;
    return true;
}

static bool check_values(const char *json, size_t size, const char *file, struct calla_error *error) {
    size_t values = 0;
    for (size_t i = 0; i < size; i++)
        values += json[i] == ',' || json[i] == '[' || json[i] == '{';
    if (values <= MAX_JSON_VALUES)
        return true;
    return error_set(error, CALLA_UNSUPPORTED,
                     "%s: the header has more than %zu values, too many for a model.", file, MAX_JSON_VALUES);
}

bool safetensors_parse(struct safetensors *header, const char *json, size_t size, uint64_t data_bytes,
                       const char *name, struct calla_error *error) {
    memset(header, 0, sizeof *header);
    header->unused = data_bytes;
    if (!check_values(json, size, name, error))
        return false;
    char what[1024];
    snprintf(what, sizeof what, "The header of %s", name);
    json_t *object = json_parse(json, size, what, error);
    if (object == NULL)
        return false;
    bool ok = true;
    if (!json_is_object(object))
        ok = error_set(error, CALLA_BAD_INPUT, "%s: the header is not a JSON object.", name);
    size_t most = json_object_size(object);
    if (ok && most > 0 && (header->entries = calloc(most, sizeof *header->entries)) == NULL)
        ok = error_memory(error, "a header", most * sizeof *header->entries);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (!ok)
            break;
        if (strcmp(key, "__metadata__") == 0)
            continue;
        struct safetensors_entry *entry = &header->entries[header->count];
        entry->name = strdup(key);
        if (entry->name == NULL) {
            ok = error_memory(error, "a tensor's name", strlen(key) + 1);
            break;
        }
        header->count++;
        ok = read_entry(entry, value, data_bytes, name, error);
    }
    json_decref(object);
    if (ok && header->count > 0) {
        ok = check_overlaps(header, data_bytes, name, error);
        qsort(header->entries, header->count, sizeof *header->entries, compare_names);
    }
    if (!ok)
        safetensors_free(header);
    return ok;
}

bool safetensors_read(struct safetensors *header, const struct file *file, struct calla_error *error) {
    memset(header, 0, sizeof *header);
    uint8_t prefix[8];
    uint64_t length = 0;
    if (file->size < sizeof prefix)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s has only %" PRIu64 " bytes, so it is no safetensors file; download it again.",
                         file->path, file->size);
    if (!file_read_at(file, 0, prefix, sizeof prefix, error))
        return false;
    if (memcmp(prefix, "version ", sizeof prefix) == 0)
        return error_set(
            error, CALLA_BAD_INPUT,
            "%s is a Git LFS pointer instead of the file itself; fetch it with \"git lfs pull\".",
            file->path);
    memcpy(&length, prefix, sizeof length);
    if (length > SAFETENSORS_MAX_HEADER)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s is no safetensors file: its first 8 bytes give a header of %" PRIu64
                         " bytes; at most %" PRIu64 " are expected.",
                         file->path, length, SAFETENSORS_MAX_HEADER);
    if (length > file->size - sizeof prefix)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s is truncated: its header takes %" PRIu64 " bytes, but the file has only %" PRIu64
                         "; download it again.",
                         file->path, length, file->size);
    char *json = malloc((size_t)length + 1);
    if (json == NULL)
        return error_memory(error, "a header", (size_t)length + 1);
    bool ok = file_read_at(file, sizeof prefix, json, (size_t)length, error) &&
              safetensors_parse(header, json, (size_t)length, file->size - sizeof prefix - length, file->path,
                                error);
    free(json);
    for (size_t i = 0; ok && i < header->count; i++)
        header->entries[i].offset += sizeof prefix + length;
    return ok;
}

void safetensors_free(struct safetensors *header) {
    for (size_t i = 0; i < header->count; i++)
        free(header->entries[i].name);
    free(header->entries);
    memset(header, 0, sizeof *header);
}
