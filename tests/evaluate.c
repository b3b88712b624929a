#include "unit.h"

#include "evaluate.h"
#include "older_gpu.h"

#include <math.h>
#include <stdlib.h>

struct model {
    struct config config;
    struct weights weights;
    struct policy policy;
    const struct backend_class *class;
    struct backend *backend;
    struct session_layout layout;
    struct device_session *session;
};

static bool model_open(struct model *model, const struct evaluation *evaluation, uint32_t context,
                       struct calla_error *error) {
    model->class = backend_find(evaluation->backend, error);
    if (model->class == NULL)
        return false;
    policy_defaults(&model->policy, model->class->name);
    for (size_t i = 0; evaluation->policies != NULL && evaluation->policies[i] != NULL; i++)
        if (!policy_set(&model->policy, model->class->name, evaluation->policies[i], error))
            return false;
    struct backend_options options = {.threads = evaluation->threads, .policy = &model->policy};
    if (!config_read(&model->config, evaluation->folder, error) ||
        !weights_open(&model->weights, &model->config, evaluation->folder, error) ||
        (model->backend = model->class->open(&options, error)) == NULL)
        return false;
    if (evaluation->older_gpu)
        older_gpu_pretend(model->backend);
    if (!model->class->load(model->backend, &model->weights, NULL, error) ||
        !forward_layout(&model->layout, &model->config, &model->policy, context, error))
        return false;
    model->session = model->class->session_open(model->backend, &model->layout, error);
    return model->session != NULL;
}

static void model_close(struct model *model) {
    if (model->session != NULL)
        model->class->session_close(model->session);
    session_layout_free(&model->layout);
    if (model->backend != NULL)
        model->class->close(model->backend);
    weights_close(&model->weights);
    config_free(&model->config);
}

/* Reads `rows` tokens at `position` and fetches their logits. */
static bool read_chunk(struct model *model, const int32_t *tokens, uint32_t position, uint32_t rows,
                       uint32_t context, float *logits, struct calla_error *error) {
    const struct backend_class *class = model->class;
    struct step_record record = {.position = position, .rows = rows};
    struct forward_options options = {.rows = rows, .logits = LOGITS_ALL};
    struct plan plan;
    if (!forward_plan(&plan, &model->config, &model->weights.table, &model->policy, context, &options, error))
        return false;
    struct program *program = class->compile(model->session, &plan, error);
    plan_free(&plan);
    bool done =
        program != NULL &&
        class->write(model->session, SPACE_STEP, STEP_RECORD, 0, &record, sizeof record, error) &&
        class->write(model->session, SPACE_STEP, STEP_TOKENS, 0, tokens, rows * sizeof *tokens, error) &&
        class->run(model->session, program, INFINITY, &(bool){false}, error) &&
        class->read(model->session, SPACE_STEP, STEP_LOGITS, 0, logits,
                    (uint64_t)rows * model->config.vocabulary * sizeof *logits, error);
    class->program_free(program);
    return done;
}

float *evaluate(const struct evaluation *evaluation, uint32_t *vocabulary) {
    struct model model = {0};
    struct calla_error error = {0};
    uint32_t context = evaluation->context > 0 ? evaluation->context : evaluation->count;
    float *logits = NULL;
    bool done = model_open(&model, evaluation, context, &error);
    if (done) {
        *vocabulary = model.config.vocabulary;
        logits = calloc((size_t)evaluation->count * *vocabulary, sizeof *logits);
        done = logits != NULL || error_memory(&error, "logits", (size_t)evaluation->count * *vocabulary * 4);
    }
    for (uint32_t position = 0, rows; done && position < evaluation->count; position += rows) {
        uint32_t most = forward_logits_rows(&model.config, &model.policy),
                 left = evaluation->count - position;
        rows = left < most ? left : most;
        done = read_chunk(&model, evaluation->tokens + position, position, rows, context,
                          logits + (size_t)position * *vocabulary, &error);
    }
    model_close(&model);
    if (!done)
        fail_msg("%s", error.message);
    return logits;
}

double relative_error(const float *found, const float *expected, size_t count) {
    double difference = 0, length = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)found[i] - expected[i], 2);
        length += pow(expected[i], 2);
    }
    return sqrt(difference / length);
}
