/* What the sampling kernels are told: for C and for Metal. */
#ifndef CALLA_BACKEND_METAL_KERNELS_SAMPLE_PARAMETERS_H
#define CALLA_BACKEND_METAL_KERNELS_SAMPLE_PARAMETERS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* struct step_record, as it lies in memory. */
struct sample_record {
    uint32_t position, rows, draws, top_k;
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed;
};

#define SAMPLE_COUNT_IN_PROMPT 0x40000000

#define SAMPLE_SPAN 128 /* tokens that a simdgroup looks at */

struct sample_parameters {
    uint32_t vocabulary, spans;
};

#endif
