/* Any bytes as config.json and, after a zero byte, generation_config.json. An accepted config must give a
 * table of weights whose sizes add up. */
#include <stdlib.h>
#include <string.h>

#include "model/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const struct config *config) {
    struct weight_table table;
    struct calla_error error = {0};
    if (!weight_table_new(&table, config, &error)) {
        if (error.status == CALLA_OK || error.message[0] == 0)
            abort();
        return;
    }
    for (uint32_t i = 0; i < table.count; i++) {
        const struct weight *weight = &table.weights[i];
        if (weight->matrices == 0 || weight->rows == 0 || weight->columns == 0 || weight->part_count == 0 ||
            weight_bytes(weight) == 0)
            abort();
    }
    weight_table_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct config config;
    struct calla_error error = {0};
    const uint8_t *end = memchr(bytes, 0, size);
    size_t first = end == NULL ? size : (size_t)(end - bytes);
    if (!config_parse(&config, (const char *)bytes, first, "config.json", &error)) {
        if (error.status == CALLA_OK || error.message[0] == 0)
            abort();
        return 0;
    }
    if (config.rotary_size > config.head_size || config.rotary_size % 2 != 0 ||
        config.experts_per_token > config.experts || config.heads % config.kv_heads != 0 ||
        config.value_heads % config.key_heads != 0)
        abort();
    if (config.layers <= 64) /* more would only be slow */
        check(&config);
    if (end != NULL)
        config_parse_generation(&config, (const char *)end + 1, size - first - 1, "generation_config.json",
                                &error);
    config_free(&config);
    return 0;
}
