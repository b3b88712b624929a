#include "base/json.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* jansson goes on after some failed allocations with a character less, or blames the syntax. So it gets an
 * allocator that remembers: what was parsed while an allocation failed is thrown away. Like malloc it serves
 * the whole process, which is why it is set once and only once. */
static _Thread_local bool allocation_failed;

static void *allocate(size_t size) {
    void *block = malloc(size);
    if (block == NULL)
        allocation_failed = true;
    return block;
}

static void set_allocator(void) {
    json_set_alloc_funcs(allocate, free);
}

/* Text on its way to jansson. A piece ends before each quotation mark: where a string's memory could not be
 * had, jansson must not see its end, since it asserts that it has kept every character of it. */
struct source {
    const char *next;
    size_t left;
};

static size_t feed(void *out, size_t room, void *data) {
    struct source *source = data;
    if (allocation_failed || source->left == 0)
        return 0;
    size_t size = source->left < room ? source->left : room;
    const char *quote = memchr(source->next + 1, '"', size - 1);
    if (quote != NULL)
        size = (size_t)(quote - source->next);
    memcpy(out, source->next, size);
    source->next += size;
    source->left -= size;
    return size;
}

json_t *json_parse(const char *bytes, size_t size, const char *what, struct calla_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
    allocation_failed = false;
    json_error_t failure;
    struct source source = {bytes, size};
    json_t *value = json_load_callback(feed, &source,
                                       JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &failure);
    if (allocation_failed) {
        json_decref(value);
        error_set(error, CALLA_OUT_OF_MEMORY, "Out of memory: %s could not be parsed.", what);
        return NULL;
    }
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
