/* Typed, checked reading of a request's fields. A field that is absent or null leaves its target as it is;
 * one of another type or out of range refuses the request and is named. */
#ifndef CALLA_SERVER_REQUEST_FIELDS_H
#define CALLA_SERVER_REQUEST_FIELDS_H

#include <jansson.h>
#include <stdint.h>

#include "server/refusal.h"

/* Nesting that no honest request reaches. */
#define REQUEST_MAX_DEPTH 128

/* An object, and the path to it as errors name it: "" for the request, "stream_options." for one inside. */
struct request_object {
    json_t *json;
    const char *path;
};

/* The body as a JSON object, or NULL with the refusal. Nesting and NUL characters are looked for before
 * anything is parsed, so that hostile bodies cost no more than their bytes. The caller owns the result. */
json_t *request_parse(const char *body, size_t size, struct refusal *refusal);

/* The field's value; NULL if it is absent or null. */
json_t *request_value(struct request_object object, const char *name);

bool request_boolean(struct request_object object, const char *name, bool *target, struct refusal *refusal);
bool request_number(struct request_object object, const char *name, double low, double high, float *target,
                    struct refusal *refusal);
/* A number without fraction: 20 or 20.0. */
bool request_whole(struct request_object object, const char *name, int64_t least, int64_t most,
                   int64_t *target, struct refusal *refusal);
/* Borrowed from the request. */
bool request_string(struct request_object object, const char *name, const char **target,
                    struct refusal *refusal);
/* An object inside: target->json is NULL without one. `path` names what is in it ("stream_options."). */
bool request_inner(struct request_object object, const char *name, const char *path,
                   struct request_object *target, struct refusal *refusal);

/* What a value is, for an error: "a string", "a list", ... */
const char *request_kind(const json_t *value);

#endif
