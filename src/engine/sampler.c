/* Sampling: what the caller wants, checked and laid into the step buffers. The drawing itself is an op of the
 * plan. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"

void calla_sampling_defaults(const struct calla_model *model, struct calla_sampling *sampling) {
    const struct config *config = &model->config;
    *sampling = (struct calla_sampling){
        .temperature = config->sample ? config->temperature : 0,
        .top_k = config->top_k,
        .top_p = config->top_p,
        .min_p = config->min_p,
        .repetition_penalty = config->repetition_penalty,
        .seed = system_random(),
    };
}

static bool check_range(const char *name, float value, float low, float high, struct calla_error *error) {
    if (value >= low && value <= high)
        return true;
    return error_set(error, CALLA_BAD_INPUT, "%s is %g; it must be from %g to %g.", name, (double)value,
                     (double)low, (double)high);
}

bool sampling_check(const struct calla_model *model, const struct calla_sampling *sampling,
                    struct calla_error *error) {
    if (!check_range("temperature", sampling->temperature, 0, 100, error) ||
        !check_range("top_p", sampling->top_p, 0, 1, error) ||
        !check_range("min_p", sampling->min_p, 0, 1, error) ||
        !check_range("presence_penalty", sampling->presence_penalty, -100, 100, error) ||
        !check_range("frequency_penalty", sampling->frequency_penalty, -100, 100, error) ||
        !check_range("repetition_penalty", sampling->repetition_penalty, 0.01f, 100, error))
        return false;
    uint32_t tokens = tokenizer_count(model->tokenizer);
    for (size_t i = 0; i < sampling->bias_count; i++) {
        const struct calla_logit_bias *bias = &sampling->biases[i];
        if (bias->token < 0 || (uint32_t)bias->token >= tokens)
            return error_set(error, CALLA_BAD_INPUT, "logit_bias names token %ld; ids are 0 to %u.",
                             (long)bias->token, tokens - 1);
        if (isnan(bias->bias))
            return error_set(error, CALLA_BAD_INPUT, "logit_bias of token %ld is not a number.",
                             (long)bias->token);
    }
    return true;
}

bool session_bias(struct calla_session *session, const struct calla_sampling *sampling,
                  bool (*allowed)(const void *user, int32_t token), const void *user,
                  struct calla_error *error) {
    const struct calla_model *model = session->model;
    size_t bytes = (size_t)model->config.vocabulary * sizeof(float);
    float *biases = malloc(bytes);
    if (biases == NULL)
        return error_memory(error, "sampling", bytes);
    for (uint32_t id = 0; id < model->config.vocabulary; id++) {
        size_t size;
        bool known = tokenizer_bytes(model->tokenizer, (int32_t)id, &size) != NULL;
        biases[id] = known && (allowed == NULL || allowed(user, (int32_t)id)) ? 0 : -INFINITY;
    }
    for (size_t i = 0; i < sampling->bias_count; i++)
        biases[sampling->biases[i].token] += sampling->biases[i].bias;
    bool ok = model->class->write(session->device, SPACE_STEP, STEP_BIAS, 0, biases, bytes, error);
    free(biases);
    return ok;
}

bool session_start_sampling(struct calla_session *session, const struct calla_sampling *sampling,
                            const int32_t *tokens, size_t count, struct calla_error *error) {
    size_t bytes = (size_t)session->model->config.vocabulary * sizeof(int32_t);
    if (!session_bias(session, sampling, NULL, NULL, error))
        return false;
    int32_t *counts = calloc(1, bytes);
    if (counts == NULL)
        return error_memory(error, "sampling", bytes);
    for (size_t i = 0; i < count; i++)
        counts[tokens[i]] = STEP_COUNT_IN_PROMPT;
    bool ok = session->model->class->write(session->device, SPACE_STEP, STEP_COUNTS, 0, counts, bytes, error);
    free(counts);
    session->draws = 0;
    session->sampled = -1;
    session->record = (struct step_record){
        .top_k = sampling->top_k,
        .temperature = sampling->temperature,
        .top_p = sampling->top_p,
        .min_p = sampling->min_p,
        .presence_penalty = sampling->presence_penalty,
        .frequency_penalty = sampling->frequency_penalty,
        .repetition_penalty = sampling->repetition_penalty,
        .seed = sampling->seed,
    };
    return ok;
}
