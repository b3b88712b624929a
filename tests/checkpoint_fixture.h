/* A small random checkpoint in a temporary folder, for tests that need a whole model: a byte-level tokenizer
 * without merges (id = byte for printable ASCII is not promised; use the tokenizer), the usual control
 * tokens, padding rows. */
#ifndef CALLA_TESTS_CHECKPOINT_FIXTURE_H
#define CALLA_TESTS_CHECKPOINT_FIXTURE_H

#include "calla.h"

struct checkpoint_fixture {
    char *folder; /* a scratch folder */
    char *model;  /* the model's, inside it */
};

#define FIXTURE_VOCABULARY 320
#define FIXTURE_BYTES 256 /* ids of single bytes; the control tokens follow */

/* Makes the folder with config.json, tokenizer.json and weights from `seed`. False when something fails. */
bool checkpoint_fixture_make(struct checkpoint_fixture *fixture, uint64_t seed);
void checkpoint_fixture_remove(struct checkpoint_fixture *fixture);

/* One checkpoint for a whole test program: setup and teardown of its group, *state is the struct. */
int checkpoint_setup(void **state);
int checkpoint_teardown(void **state);

/* The rest fails the running test when something goes wrong. `policy` is "NAME=VALUE" or NULL. */
struct calla_model *checkpoint_model(void **state, const char *backend, int threads, const char *policy);
/* The same of another folder, with two threads on the CPU and a cache of so many bytes. */
struct calla_model *cpu_model(const char *path, uint64_t cache_memory);
struct calla_session *checkpoint_session(struct calla_model *model);
void some_tokens(int32_t *tokens, size_t count, uint32_t seed);
/* Reads the tokens and returns the last one's logits. */
const float *read_all(struct calla_session *session, const int32_t *tokens, size_t count, size_t *computed);

#endif
