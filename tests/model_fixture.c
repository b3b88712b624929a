#include "model_fixture.h"

#define FULL_CONFIG "tests/data/config-qwen36-35b-a3b-4bit.json"

void fixture_open(struct model_fixture *model, const char *backend, uint32_t layers) {
    struct buffer text = {0};
    struct calla_error error;
    if (!file_read(FULL_CONFIG, 1 << 20, &text, &error) ||
        !config_parse(&model->config, text.data, text.size, FULL_CONFIG, &error))
        fail_msg("%s", error.message);
    buffer_free(&text);
    if (layers > 0)
        model->config.layers = layers;
    if (!weight_table_new(&model->table, &model->config, &error))
        fail_msg("%s", error.message);
    policy_defaults(&model->policy, backend);
}

void fixture_close(struct model_fixture *model) {
    weight_table_free(&model->table);
    config_free(&model->config);
}

void fixture_plan(const struct model_fixture *model, struct plan *plan, uint32_t context, uint32_t rows,
                  enum forward_logits logits, bool sample) {
    struct calla_error error;
    struct forward_options options = {.rows = rows, .logits = logits, .sample = sample};
    if (!forward_plan(plan, &model->config, &model->table, &model->policy, context, &options, &error))
        fail_msg("%s", error.message);
}

void set_fusions(struct policy *policy, bool on) {
    policy->fuse_expert_gate_up = on;
    policy->fuse_expert_down = on;
    policy->fuse_qk_prep = on;
    policy->fuse_delta_norm = on;
    policy->fuse_delta_conv = on;
    policy->fuse_projections = on;
    policy->fuse_norm = on;
}
