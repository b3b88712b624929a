/* The forward pass over a checkpoint, without tokenizer or engine: logits of every position. */
#ifndef CALLA_TESTS_EVALUATE_H
#define CALLA_TESTS_EVALUATE_H

#include "backend/backend.h"
#include "model/forward.h"

struct evaluation {
    const char *folder, *backend;
    int threads;
    const char *const *policies; /* "NAME=VALUE" each, NULL-terminated; may be NULL */
    const int32_t *tokens;
    uint32_t count;
    uint32_t context; /* 0: as many positions as tokens */
    bool older_gpu;   /* with the kernels that an older GPU would have */
};

/* The logits, float32 [count, vocabulary], to be freed; *vocabulary is filled. Chunks have the policy's
 * chunk_rows. Fails the running test when something goes wrong. */
float *evaluate(const struct evaluation *evaluation, uint32_t *vocabulary);

/* |found - expected| / |expected| (L2) of `count` numbers; NaN if one is. */
double relative_error(const float *found, const float *expected, size_t count);

#endif
