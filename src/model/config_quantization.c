/* Which matrices are quantised, and to how many bits: MLX writes a default and, beside it in the same object,
 * one key per module that differs. */
#include <stdlib.h>
#include <string.h>

#include "model/config_json.h"

/* Overrides are written with the prefix of the conversion that made them; the rest of the name decides. */
static const char *short_name(const char *module) {
    static const char prefix[] = "language_model.";
    return strncmp(module, prefix, sizeof prefix - 1) == 0 ? module + sizeof prefix - 1 : module;
}

static int compare_overrides(const void *left, const void *right) {
    const struct quantization_override *a = left, *b = right;
    return strcmp(a->module, b->module);
}

uint32_t config_bits(const struct config *config, const char *module) {
    const char *name = short_name(module);
    size_t low = 0, high = config->override_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(config->overrides[middle].module, name);
        if (order == 0)
            return config->overrides[middle].bits;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return config->bits;
}

/* bits, group_size and mode of one object; *bits is kept where the object does not say. */
static bool read_parameters(const struct json_source *source, uint32_t *bits) {
    uint32_t group, group_size = CONFIG_GROUP_SIZE, fallback = *bits;
    const char *mode = NULL;
    if (!json_source_string(source, "mode", &mode) ||
        !json_source_integer(source, "group_size", 1, UINT32_MAX, &group_size, &group) ||
        !json_source_integer(source, "bits", 1, 32, fallback == 0 ? NULL : &fallback, bits))
        return false;
    if (mode != NULL && strcmp(mode, "affine") != 0)
        return error_set(source->error, CALLA_UNSUPPORTED,
                         "%s: mode is \"%.64s\"; only \"affine\" is supported.", source->name, mode);
    if (group != CONFIG_GROUP_SIZE)
        return error_set(source->error, CALLA_UNSUPPORTED, "%s: group_size is %u; only %d is supported.",
                         source->name, group, CONFIG_GROUP_SIZE);
    if (*bits != 4 && *bits != 8)
        return error_set(source->error, CALLA_UNSUPPORTED, "%s: bits is %u; only 4 and 8 are supported.",
                         source->name, *bits);
    return true;
}

static bool read_override(struct config *config, const struct json_source *source, const char *module,
                          json_t *value) {
    uint32_t bits = config->bits;
    if (json_is_object(value)) {
        struct json_source object;
        char name[512];
        if (!json_source_object(source, module, name, sizeof name, &object) ||
            !read_parameters(&object, &bits))
            return false;
    } else if (json_is_false(value)) {
        bits = 0;
    } else if (!json_is_true(value)) {
        char found[64];
        return error_set(source->error, CALLA_UNSUPPORTED,
                         "%s: \"%.200s\" is %s; only bits, group_size, mode and modules (an object or false) "
                         "are supported.",
                         source->name, module, json_describe(value, found, sizeof found));
    }
    struct quantization_override *override = &config->overrides[config->override_count];
    override->module = strdup(short_name(module));
    if (override->module == NULL)
        return error_memory(source->error, "quantization overrides", strlen(module) + 1);
    override->bits = bits;
    config->override_count++;
    return true;
}

bool config_read_quantization(struct config *config, const struct json_source *top) {
    const char *key = json_source_get(top, "quantization") != NULL ? "quantization" : "quantization_config";
    struct json_source source;
    char name[512];
    if (!json_source_object(top, key, name, sizeof name, &source))
        return false;
    if (source.object == NULL)
        return true;
    const char *method = NULL;
    if (!json_source_string(&source, "quant_method", &method))
        return false;
    if (method != NULL)
        return error_set(top->error, CALLA_UNSUPPORTED,
                         "%s: quant_method is \"%.64s\"; only MLX's affine 4-bit and 8-bit weights are "
                         "supported.",
                         source.name, method);
    if (!read_parameters(&source, &config->bits))
        return false;
    config->overrides = calloc(json_object_size(source.object), sizeof *config->overrides);
    if (config->overrides == NULL)
        return error_memory(top->error, "quantization overrides", json_object_size(source.object));
    const char *module;
    json_t *value;
    json_object_foreach(source.object, module, value) {
        bool parameter =
            strcmp(module, "bits") == 0 || strcmp(module, "group_size") == 0 || strcmp(module, "mode") == 0;
        if (!parameter && !config_skips(module) && !read_override(config, &source, module, value))
            return false;
    }
    if (config->override_count > 0)
        qsort(config->overrides, config->override_count, sizeof *config->overrides, compare_overrides);
    for (size_t i = 1; i < config->override_count; i++)
        if (strcmp(config->overrides[i - 1].module, config->overrides[i].module) == 0)
            return error_set(top->error, CALLA_BAD_INPUT,
                             "%s: %.200s is named twice, with and without \"language_model.\".", source.name,
                             config->overrides[i].module);
    return true;
}
