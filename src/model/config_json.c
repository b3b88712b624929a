#include "model/config_json.h"

#include <stdio.h>
#include <string.h>

const char *json_describe(json_t *value, char *out, size_t size) {
    size_t length = json_dumpb(value, out, size - 1, JSON_COMPACT | JSON_ENCODE_ANY);
    if (length == 0)
        snprintf(out, size, "an unreadable value");
    else if (length < size)
        out[length] = 0;
    else if (size >= 4)
        memcpy(out + size - 4, "...", 4);
    return out;
}

json_t *json_source_get(const struct json_source *source, const char *key) {
    json_t *value = json_object_get(source->object, key);
    return json_is_null(value) ? NULL : value;
}

static bool complain(const struct json_source *source, const char *key, json_t *value, const char *expected) {
    char found[64];
    if (value == NULL)
        return error_set(source->error, CALLA_BAD_INPUT, "%s: %s is missing; %s is expected.", source->name,
                         key, expected);
    return error_set(source->error, CALLA_BAD_INPUT, "%s: %s is %s; %s is expected.", source->name, key,
                     json_describe(value, found, sizeof found), expected);
}

bool json_source_integer(const struct json_source *source, const char *key, uint32_t least, uint32_t most,
                         const uint32_t *fallback, uint32_t *value) {
    json_t *found = json_source_get(source, key);
    if (found == NULL && fallback != NULL) {
        *value = *fallback;
        return true;
    }
    json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < (json_int_t)least || number > (json_int_t)most) {
        char expected[64];
        snprintf(expected, sizeof expected, "an integer from %u to %u", least, most);
        return complain(source, key, found, expected);
    }
    *value = (uint32_t)number;
    return true;
}

bool json_source_number(const struct json_source *source, const char *key, double least, double most,
                        double *value) {
    json_t *found = json_source_get(source, key);
    if (found == NULL)
        return true;
    double number = json_number_value(found);
    if (!json_is_number(found) || !(number >= least && number <= most)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a number from %g to %g", least, most);
        return complain(source, key, found, expected);
    }
    *value = number;
    return true;
}

bool json_source_boolean(const struct json_source *source, const char *key, bool *value) {
    json_t *found = json_source_get(source, key);
    if (found == NULL)
        return true;
    if (!json_is_boolean(found))
        return complain(source, key, found, "true or false");
    *value = json_is_true(found);
    return true;
}

bool json_source_string(const struct json_source *source, const char *key, const char **value) {
    json_t *found = json_source_get(source, key);
    if (found == NULL)
        return true;
    if (!json_is_string(found))
        return complain(source, key, found, "a string");
    *value = json_string_value(found);
    return true;
}

bool json_source_object(const struct json_source *source, const char *key, char *name, size_t size,
                        struct json_source *value) {
    json_t *found = json_source_get(source, key);
    if (found != NULL && !json_is_object(found))
        return complain(source, key, found, "an object");
    snprintf(name, size, "%s: %s", source->name, key);
    *value = (struct json_source){found, name, source->error};
    return true;
}
