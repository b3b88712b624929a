/* A checkpoint with random weights of any shape of the family, for measuring and testing without the real
 * one.
 */
#ifndef CALLA_MODEL_SYNTH_H
#define CALLA_MODEL_SYNTH_H

#include "base/error.h"

struct synth_options {
    const char *config;    /* path of a config.json; a generation_config.json beside it is copied too */
    const char *out;       /* folder to write; must be empty or not exist */
    const char *tokenizer; /* folder to copy the tokenizer's files from, or NULL: none are written */
    uint64_t seed;         /* the weights depend on the seed, not on the number of shards or threads */
    uint32_t shards;       /* 0: as many as keep each below 5 GiB */
    int threads;           /* 0: one per processor */
    struct calla_progress progress; /* called from any thread, one at a time */
};

struct synth_result {
    uint32_t tensors;
    uint64_t bytes; /* of the tensors */
    uint32_t files; /* of weights */
};

/* Writes MLX's layout as the published checkpoint has it: headers unpadded, so that the data starts at an odd
 * byte, tensors of a file in no order, a matrix's parts possibly in different files. The config is written
 * last, so an interrupted folder is not taken for a model. A failed or cancelled call removes what it wrote.
 */
bool synth_write(const struct synth_options *options, struct synth_result *result, struct calla_error *error);

#endif
