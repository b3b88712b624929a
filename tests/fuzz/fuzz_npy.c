/* Headers of .npy files: whatever the bytes, the elements that a header promises lie in the file. */
#include <stdlib.h>

#include "cli/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct npy_header header;
    struct calla_error error;
    size_t given = size < NPY_HEADER_LIMIT ? size : NPY_HEADER_LIMIT;
    if (!npy_parse_header(data, given, size, "fuzz.npy", &header, &error))
        return 0;
    uint64_t columns = header.dimensions == 2 ? header.shape[1] : 1;
    uint64_t element = header.type == NPY_INT64 ? 8 : 4, held = size - header.data_offset;
    if (header.dimensions < 1 || header.dimensions > 2 || header.data_offset > size)
        abort();
    if (columns != 0 && header.shape[0] != held / element / columns)
        abort();
    return 0;
}
