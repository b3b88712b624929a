/* The header of a snapshot's file, as it is and with its digest made right, so that what comes after the
 * digest's check is reached too; and whole files, opened by name. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"
#include "engine/snapshot_file.h"

#define BEFORE_DIGEST (SNAPSHOT_HEADER_BYTES - 32)

static void parse(const unsigned char *bytes) {
    struct snapshot_header header;
    struct calla_error error = {0};
    if (!snapshot_header_parse(&header, bytes, "snapshot", &error)) {
        assert(error.message[0] != 0);
        return;
    }
    assert(header.position > header.base && header.id != 0);
    uint64_t total = snapshot_file_bytes(&header);
    for (int i = 0; i < SECTION_COUNT; i++)
        assert(header.bytes[i] < total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned char bytes[SNAPSHOT_HEADER_BYTES] = "CALLASNP\1\0\0\0\x08\1";
    if (size >= SNAPSHOT_HEADER_BYTES)
        parse(data);
    /* The rest of a header whose beginning and digest are right. */
    size_t most = BEFORE_DIGEST - 16;
    memcpy(bytes + 16, data, size < most ? size : most);
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, bytes, BEFORE_DIGEST);
    sha256_finish(&hash, bytes + BEFORE_DIGEST);
    parse(bytes);
    return 0;
}
