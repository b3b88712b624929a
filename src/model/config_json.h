/* Private to the config reader: a JSON object together with its name, so that every complaint about one of
 * its keys names file, key, found and expected. A key that is null counts as absent. */
#ifndef CALLA_MODEL_CONFIG_JSON_H
#define CALLA_MODEL_CONFIG_JSON_H

#include "base/json.h"
#include "model/config.h"

struct json_source {
    json_t *object;   /* borrowed */
    const char *name; /* "folder/config.json: text_config" */
    struct calla_error *error;
};

/* A short form of a value for an error message; returns `out`. */
const char *json_describe(json_t *value, char *out, size_t size);

/* The value, or NULL if absent or null. */
json_t *json_source_get(const struct json_source *source, const char *key);

/* Each fails if the value is there and of another type or out of range. An absent one leaves *value alone;
 * for an integer it is *fallback, or an error where that is NULL. */
bool json_source_integer(const struct json_source *source, const char *key, uint32_t least, uint32_t most,
                         const uint32_t *fallback, uint32_t *value);
bool json_source_number(const struct json_source *source, const char *key, double least, double most,
                        double *value);
bool json_source_boolean(const struct json_source *source, const char *key, bool *value);
bool json_source_string(const struct json_source *source, const char *key, const char **value);

/* A nested object, whose name is written to `name`; an absent one has a NULL object. */
bool json_source_object(const struct json_source *source, const char *key, char *name, size_t size,
                        struct json_source *value);

/* "quantization" (or "quantization_config"): bits and per-module overrides. */
bool config_read_quantization(struct config *config, const struct json_source *top);

#endif
