/* The values of a tool call's arguments: the model writes text, the tool's JSON schema says what it means. */
#ifndef CALLA_TEXT_ARGUMENT_TYPES_H
#define CALLA_TEXT_ARGUMENT_TYPES_H

#include <jansson.h>

#include "base/buffer.h"

/* A set of JSON types. */
enum argument_type {
    ARGUMENT_STRING = 1,
    ARGUMENT_INTEGER = 2,
    ARGUMENT_NUMBER = 4,
    ARGUMENT_BOOLEAN = 8,
    ARGUMENT_NULL = 16,
    ARGUMENT_ARRAY = 32,
    ARGUMENT_OBJECT = 64,
    ARGUMENT_ANY = 127
};

/* The schema of a property of `parameters` (a function's schema, may be NULL), or NULL if it declares none of
 * this name. */
const json_t *argument_schema(const json_t *parameters, const char *name, size_t size);

/* The types that a property's schema allows: type (a name or a list), enum, const, nullable, anyOf, oneOf,
 * allOf and $ref within `parameters`. A schema that says nothing allows any. NULL (no schema at all) allows
 * strings only. Always ends: past 300 schemas looked at, the rest allows any. */
unsigned argument_types(const json_t *parameters, const json_t *schema);

/* Appends the text as a JSON value of one of the types; as a string if it is none of them. Only the types say
 * how the text is read: with ARGUMENT_STRING alone every byte is kept. */
bool argument_write(struct buffer *out, const char *text, size_t size, unsigned types);

#endif
