/* SHA-256 (FIPS 180-4): says whether two files are the same without keeping one of them. */
#ifndef CALLA_BASE_SHA256_H
#define CALLA_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t size; /* bytes added so far */
    unsigned char block[64];
};

void sha256_start(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *bytes, size_t size);
void sha256_finish(struct sha256 *hash, unsigned char digest[32]);

/* 64 lower-case hexadecimal digits and a zero byte. */
void sha256_hex(const unsigned char digest[32], char hex[65]);

#endif
