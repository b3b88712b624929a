/* Parts of sampling that its tests look at one by one. */
#ifndef CALLA_BACKEND_REFERENCE_SAMPLE_H
#define CALLA_BACKEND_REFERENCE_SAMPLE_H

#include "plan/op.h"

/* Number `draw` of the stream of `seed`, uniform in [0, 1), of 53 bits: SplitMix64 (Steele, Lea and Flood,
 * 2014), which gives any number of its stream without the ones before; the seed is mixed once first, so that
 * streams of neighbouring seeds do not overlap. */
double sample_uniform(uint64_t seed, uint32_t draw);

struct candidate {
    float logit;
    int32_t id;
};

/* Draws from softmax((logit - max) / temperature) over the candidates that top-k, top-p and min-p of the
 * record leave; -1 without candidates. Reorders them. */
int32_t sample_draw(struct candidate *candidates, size_t count, const struct step_record *record);

/* The same with top-p and min-p only, of the `limit` (at least 1) largest of all tokens, of which the
 * candidates are the `count` largest; their weights exp((logit - max) / temperature) add up to `total`, below
 * 0 if that is to be found out, for which count must be no less than limit. -1 if the candidates are too few
 * to tell. */
int32_t sample_draw_largest(struct candidate *candidates, size_t count, size_t limit, double total,
                            const struct step_record *record);

#endif
