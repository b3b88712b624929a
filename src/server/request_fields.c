#include "server/request_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

/* One pass over the bytes: brackets outside of strings, and \u0000 inside of them. */
static bool scan(const char *body, size_t size, struct refusal *refusal) {
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char byte = body[i];
        if (byte == 0)
            return refuse(refusal, "", "The request has a zero byte at byte %zu; send JSON text.", i);
        if (in_string && byte == '\\') {
            if (size - i >= 6 && memcmp(body + i, "\\u0000", 6) == 0)
                return refuse(refusal, "",
                              "A string of the request has a NUL character (\\u0000) at byte %zu.", i);
            i++;
        } else if (byte == '"') {
            in_string = !in_string;
        } else if (!in_string && (byte == '[' || byte == '{')) {
            if (++depth > REQUEST_MAX_DEPTH)
                return refuse(refusal, "", "The request is nested deeper than %d levels at byte %zu.",
                              REQUEST_MAX_DEPTH, i);
        } else if (!in_string && (byte == ']' || byte == '}') && depth > 0) {
            depth--;
        }
    }
    return true;
}

json_t *request_parse(const char *body, size_t size, struct refusal *refusal) {
    struct calla_error error = {0};
    if (size == 0) {
        refuse(refusal, "", "The request has no body; send a JSON object.");
        return NULL;
    }
    if (!scan(body, size, refusal))
        return NULL;
    json_t *json = json_parse(body, size, "The request", &error);
    if (json == NULL) {
        refuse_error(refusal, "", &error);
        return NULL;
    }
    if (json_is_object(json))
        return json;
    refuse(refusal, "", "The request must be a JSON object, not %s.", request_kind(json));
    json_decref(json);
    return NULL;
}

const char *request_kind(const json_t *value) {
    if (value == NULL)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}

json_t *request_value(struct request_object object, const char *name) {
    json_t *value = json_object_get(object.json, name);
    return json_is_null(value) ? NULL : value;
}

/* A number as it was sent; for anything else what it is. */
static const char *found(const json_t *value, char *text, size_t size) {
    if (json_is_integer(value))
        snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%g", json_real_value(value));
    else
        return request_kind(value);
    return text;
}

static bool refuse_field(struct request_object object, const char *name, const json_t *value,
                         const char *expected, struct refusal *refusal) {
    char parameter[128], text[64];
    snprintf(parameter, sizeof parameter, "%s%s", object.path, name);
    return refuse(refusal, parameter, "\"%s\" must be %s, not %s.", parameter, expected,
                  found(value, text, sizeof text));
}

bool request_boolean(struct request_object object, const char *name, bool *target, struct refusal *refusal) {
    const json_t *value = request_value(object, name);
    if (value == NULL)
        return true;
    if (!json_is_boolean(value))
        return refuse_field(object, name, value, "true or false", refusal);
    *target = json_is_true(value);
    return true;
}

bool request_number(struct request_object object, const char *name, double low, double high, float *target,
                    struct refusal *refusal) {
    const json_t *value = request_value(object, name);
    if (value == NULL)
        return true;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high)) {
        char expected[80];
        snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
        return refuse_field(object, name, value, expected, refusal);
    }
    *target = (float)number;
    return true;
}

bool request_whole(struct request_object object, const char *name, int64_t least, int64_t most,
                   int64_t *target, struct refusal *refusal) {
    const json_t *value = request_value(object, name);
    if (value == NULL)
        return true;
    double real = json_number_value(value);
    bool whole = json_is_integer(value) || (json_is_real(value) && real == floor(real) && fabs(real) < 1e15);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : whole ? (int64_t)real : 0;
    if (!whole || number < least || number > most) {
        char expected[96];
        snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)least,
                 (long long)most);
        return refuse_field(object, name, value, expected, refusal);
    }
    *target = number;
    return true;
}

bool request_string(struct request_object object, const char *name, const char **target,
                    struct refusal *refusal) {
    const json_t *value = request_value(object, name);
    if (value == NULL)
        return true;
    if (!json_is_string(value))
        return refuse_field(object, name, value, "a string", refusal);
    *target = json_string_value(value);
    return true;
}

bool request_inner(struct request_object object, const char *name, const char *path,
                   struct request_object *target, struct refusal *refusal) {
    json_t *value = request_value(object, name);
    *target = (struct request_object){NULL, path};
    if (value == NULL)
        return true;
    if (!json_is_object(value))
        return refuse_field(object, name, value, "an object", refusal);
    target->json = value;
    return true;
}
