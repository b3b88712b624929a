/* What the processor can do that this program has kernels for or may have. */
#ifndef CALLA_CLI_PROCESSOR_H
#define CALLA_CLI_PROCESSOR_H

#include <stddef.h>

/* Names of the vector extensions that this processor has ("avx2", "neon"), by index; NULL past the last. */
const char *processor_feature(size_t index);

#endif
