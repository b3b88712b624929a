/* Reading JSON that may be hostile: limits and one clear sentence, on top of jansson. */
#ifndef CALLA_BASE_JSON_H
#define CALLA_BASE_JSON_H

#include <jansson.h>

#include "base/error.h"

/* Parses `size` bytes as one JSON value, rejecting duplicate keys, trailing text and nesting deeper than
 * jansson's limit. `what` names the source in the error ("tokenizer.json", "the request body"). The caller
 * owns the result. */
json_t *json_parse(const char *bytes, size_t size, const char *what, struct calla_error *error);

/* The same for a file of at most `limit` bytes. */
json_t *json_parse_file(const char *path, size_t limit, struct calla_error *error);

#endif
