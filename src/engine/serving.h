/* What the server asks of a generation besides the public interface. */
#ifndef CALLA_ENGINE_SERVING_H
#define CALLA_ENGINE_SERVING_H

#include "calla.h"

/* Tokens of the prompt that were computed so far. */
size_t generation_computed(const struct calla_generation *generation);

/* Goes on with what the model's cache has to do while nobody waits; false when that is nothing. */
bool cache_tend(struct calla_model *model);

/* Whether another generation is reading the same text at the moment and ahead, so that it is better to let
 * that one go on for now. A step of this one is never wrong. */
bool generation_waits(const struct calla_generation *generation);

#endif
