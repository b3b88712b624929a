#include "base/json.h"

#include "base/file.h"

json_t *json_parse(const char *bytes, size_t size, const char *what, struct calla_error *error) {
    json_error_t failure;
    json_t *value = json_loadb(bytes == NULL ? "" : bytes, size,
                               JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &failure);
    if (value == NULL)
        error_set(error, CALLA_BAD_INPUT, "%s is not valid JSON: line %d, column %d: %s.", what, failure.line,
                  failure.column, failure.text);
    return value;
}

json_t *json_parse_file(const char *path, size_t limit, struct calla_error *error) {
    struct buffer bytes = {0};
    json_t *value = NULL;
    if (file_read(path, limit, &bytes, error))
        value = json_parse(bytes.data, bytes.size, path, error);
    buffer_free(&bytes);
    return value;
}
