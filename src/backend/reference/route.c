/* The choice of a router, which every backend on the processor makes with this one function. */
#include "backend/reference/reference.h"

void route_row(float *logits, size_t experts, size_t chosen, int32_t *ids, float *scores) {
    float *p = logits, largest = -INFINITY, total = 0, sum = 0;
    for (size_t e = 0; e < experts; e++)
        largest = p[e] > largest ? p[e] : largest;
    for (size_t e = 0; e < experts; e++) {
        p[e] = expf(p[e] - largest);
        total += p[e];
    }
    for (size_t e = 0; e < experts; e++)
        p[e] /= total;
    /* The first ones, falling, each later expert put before those that it exceeds: valid ids even among NaN.
     */
    for (size_t e = 0; e < experts; e++) {
        size_t place = e < chosen ? e : chosen;
        for (; place > 0 && p[e] > scores[place - 1]; place--)
            if (place < chosen) {
                scores[place] = scores[place - 1];
                ids[place] = ids[place - 1];
            }
        if (place < chosen) {
            scores[place] = p[e];
            ids[place] = (int32_t)e;
        }
    }
    for (size_t k = 0; k < chosen; k++)
        sum += scores[k];
    for (size_t k = 0; k < chosen; k++)
        scores[k] /= sum;
}
