/* Sizes on the command line: "512M", "4G", "1.5TiB", or bytes. */
#ifndef CALLA_CLI_BYTE_SIZE_H
#define CALLA_CLI_BYTE_SIZE_H

#include "base/error.h"

/* K, M, G and T (with B or iB behind them or not) are powers of 1,024. `option` is named in the error. */
bool byte_size_parse(const char *text, const char *option, uint64_t *bytes, struct calla_error *error);

#endif
