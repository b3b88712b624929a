#include "text/argument_types.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/json_python.h"
#include "text/lenient_json.h"

/* Schemas can refer to themselves, and twice at each step: the work is bounded by counting it. */
#define SCHEMA_LIMIT 300

/* Schemas */

/* What a "$ref" of the form "#/a/b" points to in `root`, or NULL. */
static const json_t *resolve(const json_t *root, const json_t *reference) {
    const char *path = json_string_value(reference);
    if (path == NULL || path[0] != '#')
        return NULL;
    const json_t *at = root;
    for (path++; at != NULL && *path == '/';) {
        const char *end = strchr(++path, '/');
        size_t size = end == NULL ? strlen(path) : (size_t)(end - path);
        struct buffer key = {0};
        for (size_t i = 0; i < size; i++) {
            bool escaped = path[i] == '~' && i + 1 < size && (path[i + 1] == '0' || path[i + 1] == '1');
            buffer_append_byte(&key, !escaped ? path[i] : path[++i] == '0' ? '~' : '/');
        }
        at = json_is_array(at) && key.size > 0 ? json_array_get(at, strtoul(key.data, NULL, 10))
                                               : json_object_getn(at, key.size > 0 ? key.data : "", key.size);
        buffer_free(&key);
        path += size;
    }
    return *path == 0 ? at : NULL;
}

static unsigned named_type(const json_t *name) {
    /* The names of JSON schema, then those that people write instead. */
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"string", ARGUMENT_STRING},   {"integer", ARGUMENT_INTEGER}, {"number", ARGUMENT_NUMBER},
                 {"boolean", ARGUMENT_BOOLEAN}, {"null", ARGUMENT_NULL},       {"array", ARGUMENT_ARRAY},
                 {"object", ARGUMENT_OBJECT},   {"str", ARGUMENT_STRING},      {"text", ARGUMENT_STRING},
                 {"int", ARGUMENT_INTEGER},     {"float", ARGUMENT_NUMBER},    {"double", ARGUMENT_NUMBER},
                 {"bool", ARGUMENT_BOOLEAN},    {"none", ARGUMENT_NULL},       {"list", ARGUMENT_ARRAY},
                 {"tuple", ARGUMENT_ARRAY},     {"dict", ARGUMENT_OBJECT},     {"map", ARGUMENT_OBJECT}};
    const char *text = json_string_value(name);
    for (size_t i = 0; text != NULL && i < sizeof names / sizeof *names; i++)
        if (strcasecmp(text, names[i].name) == 0)
            return names[i].types;
    return ARGUMENT_ANY;
}

static unsigned value_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return ARGUMENT_OBJECT;
    case JSON_ARRAY:
        return ARGUMENT_ARRAY;
    case JSON_STRING:
        return ARGUMENT_STRING;
    case JSON_INTEGER:
        return ARGUMENT_INTEGER;
    case JSON_REAL:
        return ARGUMENT_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return ARGUMENT_BOOLEAN;
    case JSON_NULL:
        break;
    }
    return ARGUMENT_NULL;
}

struct search {
    const json_t *root;
    unsigned left; /* schemas that may still be looked at */
};

static unsigned types_of(struct search *search, const json_t *schema);

/* The union of what the alternatives allow; any without alternatives. */
static unsigned alternatives(struct search *search, const json_t *list) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= types_of(search, json_array_get(list, i));
    return json_array_size(list) > 0 ? types : ARGUMENT_ANY;
}

static unsigned enumerated(const json_t *values) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        types |= value_type(json_array_get(values, i));
    return json_array_size(values) > 0 ? types : ARGUMENT_ANY;
}

static unsigned types_of(struct search *search, const json_t *schema) {
    if (search->left == 0 || !json_is_object(schema))
        return ARGUMENT_ANY;
    search->left--;
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const");
    unsigned types = ARGUMENT_ANY;
    if (json_is_string(type))
        types = named_type(type);
    else if (json_array_size(type) > 0)
        types = 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= named_type(json_array_get(type, i));
    if (type == NULL && json_object_get(schema, "properties") != NULL)
        types = ARGUMENT_OBJECT;
    if (type == NULL && json_object_get(schema, "items") != NULL)
        types = ARGUMENT_ARRAY;
    /* An integer is a number too, and stays one where the other side says number. */
    if (types & ARGUMENT_NUMBER)
        types |= ARGUMENT_INTEGER;
    types &= enumerated(json_object_get(schema, "enum"));
    if (constant != NULL)
        types &= value_type(constant);
    if (json_object_get(schema, "$ref") != NULL)
        types &= types_of(search, resolve(search->root, json_object_get(schema, "$ref")));
    types &= alternatives(search, json_object_get(schema, "anyOf"));
    types &= alternatives(search, json_object_get(schema, "oneOf"));
    const json_t *all = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(all); i++)
        types &= types_of(search, json_array_get(all, i));
    if (json_is_true(json_object_get(schema, "nullable")))
        types |= ARGUMENT_NULL;
    return types == 0 ? ARGUMENT_ANY : types; /* a schema that nothing satisfies says nothing */
}

unsigned argument_types(const json_t *parameters, const json_t *schema) {
    if (schema == NULL)
        return ARGUMENT_STRING;
    struct search search = {parameters, SCHEMA_LIMIT};
    return types_of(&search, schema);
}

static const json_t *find_property(struct search *search, const json_t *schema, const char *name,
                                   size_t size) {
    if (search->left == 0 || !json_is_object(schema))
        return NULL;
    search->left--;
    const json_t *found = json_object_getn(json_object_get(schema, "properties"), name, size);
    const json_t *reference = json_object_get(schema, "$ref");
    if (found == NULL && reference != NULL)
        found = find_property(search, resolve(search->root, reference), name, size);
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = json_object_get(schema, lists[k]);
        for (size_t i = 0; found == NULL && i < json_array_size(list); i++)
            found = find_property(search, json_array_get(list, i), name, size);
    }
    return found;
}

const json_t *argument_schema(const json_t *parameters, const char *name, size_t size) {
    struct search search = {parameters, SCHEMA_LIMIT};
    return find_property(&search, parameters, name, size);
}

/* Values */

static bool is_word(const char *text, size_t size, const char *word) {
    return size == strlen(word) && strncasecmp(text, word, size) == 0;
}

static bool all_digits(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return size > 0;
}

/* Appends a number that Python's int() or float() reads as JSON writes it: no "+", no zeros in front, digits
 * on both sides of the point. False, with nothing appended, if it is none, or a fraction where an integer is
 * asked for. */
static bool write_number(struct buffer *out, const char *text, size_t size, bool integer) {
    const char *end = text + size;
    bool negative = size > 0 && *text == '-';
    if (size > 0 && (*text == '-' || *text == '+'))
        text++;
    const char *whole = text;
    while (text < end && *text >= '0' && *text <= '9')
        text++;
    size_t whole_size = (size_t)(text - whole);
    const char *fraction = text;
    if (text < end && *text == '.')
        for (fraction = ++text; text < end && *text >= '0' && *text <= '9';)
            text++;
    size_t fraction_size = (size_t)(text - fraction);
    const char *exponent = text;
    if (text < end && (*text == 'e' || *text == 'E')) {
        text++;
        if (text < end && (*text == '+' || *text == '-'))
            text++;
        if (!all_digits(text, (size_t)(end - text)))
            return false;
        text = end;
    }
    if (text != end || whole_size + fraction_size == 0)
        return false;
    if (integer) {
        for (size_t i = 0; i < fraction_size; i++)
            if (fraction[i] != '0')
                return false;
        if (exponent < end || whole_size == 0)
            return false;
        fraction_size = 0;
    }
    while (whole_size > 1 && *whole == '0') {
        whole++;
        whole_size--;
    }
    if (negative)
        buffer_append_byte(out, '-');
    buffer_append(out, whole_size > 0 ? whole : "0", whole_size > 0 ? whole_size : 1);
    if (fraction_size > 0) {
        buffer_append_byte(out, '.');
        buffer_append(out, fraction, fraction_size);
    }
    return buffer_append(out, exponent, (size_t)(end - exponent));
}

/* A list or an object; also one that was written as a string literal around the JSON. */
static bool write_structure(struct buffer *out, const char *text, size_t size, bool quoted_too) {
    size_t before = out->size;
    char kind = size > 0 ? lenient_json_write(out, text, size) : 0;
    if (kind == '{' || kind == '[')
        return true;
    bool found = false;
    if (kind == '"' && quoted_too) {
        json_t *inner =
            json_loadb(out->data + before, out->size - before, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        struct buffer decoded = {0};
        kind = lenient_json_write(&decoded, json_string_value(inner), json_string_length(inner));
        found = kind == '{' || kind == '[';
        if (found) {
            out->size = before;
            buffer_append(out, decoded.data, decoded.size);
        }
        buffer_free(&decoded);
        json_decref(inner);
    }
    if (!found && out->data != NULL) {
        out->size = before;
        out->data[before] = 0;
    }
    return found;
}

static bool write_typed(struct buffer *out, const char *text, size_t size, unsigned types) {
    while (size > 0 && strchr(" \t\r\n", text[0]) != NULL && text[0] != 0) {
        text++;
        size--;
    }
    while (size > 0 && strchr(" \t\r\n", text[size - 1]) != NULL && text[size - 1] != 0)
        size--;
    bool or_string = types & ARGUMENT_STRING;
    /* A model that leaves a value out writes null, whether or not the schema has it. */
    if (((types & ARGUMENT_NULL) || !or_string) &&
        (is_word(text, size, "null") || is_word(text, size, "none")))
        return buffer_append_string(out, "null");
    if (types & ARGUMENT_BOOLEAN) {
        if (is_word(text, size, "true"))
            return buffer_append_string(out, "true");
        if (is_word(text, size, "false"))
            return buffer_append_string(out, "false");
    }
    if (types & (ARGUMENT_INTEGER | ARGUMENT_NUMBER)) {
        /* Where a string is allowed, only what JSON itself calls a number is one: "007" stays text. */
        bool number = !or_string || (size > 0 && json_number_size(text, size) == size);
        if (number && write_number(out, text, size, !(types & ARGUMENT_NUMBER)))
            return true;
    }
    return (types & (ARGUMENT_ARRAY | ARGUMENT_OBJECT)) && write_structure(out, text, size, !or_string);
}

bool argument_write(struct buffer *out, const char *text, size_t size, unsigned types) {
    if (size > 0 && types != ARGUMENT_STRING && write_typed(out, text, size, types))
        return true;
    buffer_append_byte(out, '"');
    json_escape_python(out, text, size);
    return buffer_append_byte(out, '"');
}
