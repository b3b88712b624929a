/* Finds the model's key in the background: all weights must be read for it once, and no answer waits for
 * that. */
#ifndef CALLA_ENGINE_KEY_SEARCH_H
#define CALLA_ENGINE_KEY_SEARCH_H

#include "engine/engine.h"

/* Weights of so many bytes are read so fast that one can wait for it. */
#define KEY_AT_ONCE ((uint64_t)256 << 20)

struct key_search;

enum key_state { KEY_SEARCHING, KEY_FOUND, KEY_FAILED };

/* Begins; what was found before is in `folder`. NULL if that cannot be. */
struct key_search *key_search_start(const struct calla_model *model, const char *folder,
                                    struct calla_error *error);

/* Whether it has ended, after some seconds at most. When it is found the model has its key. To be called by
 * the thread that owns the model. */
enum key_state key_search_look(struct key_search *search, struct calla_model *model, double seconds,
                               struct calla_error *error);

/* Gives it up, if it has not ended. NULL is fine. */
void key_search_end(struct key_search *search);

#endif
