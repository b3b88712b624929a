/* The passes over all logits that sampling needs. A template: see vector_table.h. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_LOGITS_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_LOGITS_H

#include <math.h>

#include "backend/cpu/kernels/vector.h"
#include "backend/cpu/vector_kernels.h"

/* The reference's steps, each rounded as there. */
static inline vector penalised(vector logit, int_vector count, const struct step_record *record) {
    vector repeated =
        vector_select(logit > 0.0f, logit / record->repetition_penalty, logit * record->repetition_penalty);
    vector out = vector_select(count != 0, repeated, logit);
    int_vector generated = count & ~STEP_COUNT_IN_PROMPT;
    vector penalty =
        record->presence_penalty + record->frequency_penalty * __builtin_convertvector(generated, vector);
    return vector_select(generated > 0, out - penalty, out);
}

static struct logit_summary adjust_logits(const float *logits, const float *bias, const int32_t *counts,
                                          const struct step_record *record, float *out, size_t count) {
    const vector lowest = vector_of(-INFINITY);
    vector largest = lowest;
    int_vector finite = {0}, above = {0}; /* above: lanes that are not below infinity */
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector logit = vector_load_first(logits + i, left);
        int_vector seen = {0};
        memcpy(&seen, counts + i, left < LANES ? left * sizeof *counts : sizeof seen);
        if (vector_any(seen))
            logit = penalised(logit, seen, record);
        logit += vector_load_first(bias + i, left);
        if (out != NULL)
            vector_store_first(out + i, logit, left);
        if (left < LANES) {
            float lanes[LANES];
            vector_store(lanes, lowest);
            vector_store_first(lanes, logit, left);
            logit = vector_load(lanes);
        }
        above |= ~(logit < INFINITY);
        finite -= logit > lowest;
        largest = vector_max(largest, logit);
    }
    struct logit_summary summary = {-INFINITY, 0, vector_any(above)};
    for (size_t i = 0; i < LANES; i++) {
        summary.largest = largest[i] > summary.largest ? largest[i] : summary.largest;
        summary.count += (uint32_t)finite[i];
    }
    return summary;
}

static float sum_weights(const float *logits, float largest, float temperature, size_t count) {
    vector sum = {0};
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector weight = vector_exp((vector_load_first(logits + i, left) - largest) / temperature);
        if (left < LANES) {
            float lanes[LANES] = {0};
            vector_store_first(lanes, weight, left);
            weight = vector_load(lanes);
        }
        sum += weight;
    }
    return vector_sum(sum);
}

#endif
