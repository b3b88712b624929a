/* A small random checkpoint in a temporary folder, for tests that need a whole model: a byte-level tokenizer
 * without merges (id = byte for printable ASCII is not promised; use the tokenizer), the usual control
 * tokens, padding rows. */
#ifndef CALLA_TESTS_CHECKPOINT_FIXTURE_H
#define CALLA_TESTS_CHECKPOINT_FIXTURE_H

#include "calla.h"

struct checkpoint_fixture {
    char folder[64];
};

#define FIXTURE_VOCABULARY 320
#define FIXTURE_BYTES 256 /* ids of single bytes; the control tokens follow */

/* Makes the folder with config.json, tokenizer.json and weights from `seed`. False when something fails. */
bool checkpoint_fixture_make(struct checkpoint_fixture *fixture, uint64_t seed);
void checkpoint_fixture_remove(struct checkpoint_fixture *fixture);

#endif
