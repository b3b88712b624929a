/* The published config, for tests that need a model's shapes and not its weights. */
#ifndef CALLA_TESTS_MODEL_FIXTURE_H
#define CALLA_TESTS_MODEL_FIXTURE_H

#include "unit.h"

#include "model/forward.h"

#define FULL_CONFIG "tests/data/config-qwen36-35b-a3b-4bit.json"

struct model_fixture {
    struct config config;
    struct weight_table table;
    struct policy policy;
};

static inline void fixture_open(struct model_fixture *model, const char *backend) {
    struct buffer text = {0};
    struct calla_error error;
    if (!file_read(FULL_CONFIG, 1 << 20, &text, &error) ||
        !config_parse(&model->config, text.data, text.size, FULL_CONFIG, &error) ||
        !weight_table_new(&model->table, &model->config, &error))
        fail_msg("%s", error.message);
    buffer_free(&text);
    policy_defaults(&model->policy, backend);
}

static inline void fixture_close(struct model_fixture *model) {
    weight_table_free(&model->table);
    config_free(&model->config);
}

static inline void fixture_plan(const struct model_fixture *model, struct plan *plan, uint32_t context,
                                uint32_t rows, enum forward_logits logits, bool sample) {
    struct calla_error error;
    struct forward_options options = {.rows = rows, .logits = logits, .sample = sample};
    if (!forward_plan(plan, &model->config, &model->table, &model->policy, context, &options, &error))
        fail_msg("%s", error.message);
}

static inline void set_fusions(struct policy *policy, bool on) {
    policy->fuse_expert_gate_up = on;
    policy->fuse_expert_down = on;
    policy->fuse_qk_prep = on;
    policy->fuse_delta_norm = on;
    policy->fuse_projections = on;
}

#endif
