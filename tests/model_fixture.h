/* The published config, for tests that need a model's shapes and not its weights. */
#ifndef CALLA_TESTS_MODEL_FIXTURE_H
#define CALLA_TESTS_MODEL_FIXTURE_H

#include "unit.h"

#include "model/forward.h"

struct model_fixture {
    struct config config;
    struct weight_table table;
    struct policy policy; /* the backend's defaults */
};

/* The published config with its first `layers` layers, 0 for all. What fails here fails the test. */
void fixture_open(struct model_fixture *model, const char *backend, uint32_t layers);
void fixture_close(struct model_fixture *model);

void fixture_plan(const struct model_fixture *model, struct plan *plan, uint32_t context, uint32_t rows,
                  enum forward_logits logits, bool sample);

/* All fusions. */
void set_fusions(struct policy *policy, bool on);

#endif
