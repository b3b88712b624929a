/* Private to synth: random weights of a sane scale. Every value is a function of the seed, its tensor's name
 * and its place in the tensor alone, so the same seed gives the same model however it is cut into files. */
#ifndef CALLA_MODEL_RANDOM_WEIGHTS_H
#define CALLA_MODEL_RANDOM_WEIGHTS_H

#include "model/weights.h"

/* Writes bytes [offset, offset + size) of a part of a fresh table's weight; offset a multiple of 8. */
void random_weights_fill(const struct weight *weight, uint32_t part, uint64_t seed, uint64_t offset,
                         uint8_t *out, size_t size);

/* A 64-bit hash of the seed and a name. */
uint64_t random_key(uint64_t seed, const char *name);

#endif
