/* Any bytes as a safetensors file: the first 8 give the header's length, as in a file. What is accepted must
 * keep the parser's promises. */
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const struct safetensors *header, uint64_t data_bytes) {
    uint64_t covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->offset > data_bytes || entry->bytes > data_bytes - entry->offset ||
            entry->rank > SAFETENSORS_MAX_RANK || entry->dtype_name == NULL)
            abort();
        if (i > 0 && strcmp(header->entries[i - 1].name, entry->name) >= 0)
            abort();
        covered += entry->bytes;
    }
    if (covered + header->unused != data_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    uint64_t length;
    if (size < 8)
        return 0;
    memcpy(&length, bytes, 8);
    if (length > size - 8)
        return 0;
    struct safetensors header;
    struct calla_error error = {0};
    uint64_t data_bytes = size - 8 - length;
    if (safetensors_parse(&header, (const char *)bytes + 8, length, data_bytes, "fuzz", &error))
        check(&header, data_bytes);
    else if (error.status == CALLA_OK || error.message[0] == 0)
        abort();
    safetensors_free(&header);
    return 0;
}
