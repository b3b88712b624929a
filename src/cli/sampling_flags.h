/* The options of commands that generate: how to sample, how long, and what of the thinking to show. */
#ifndef CALLA_CLI_SAMPLING_FLAGS_H
#define CALLA_CLI_SAMPLING_FLAGS_H

#include "cli/options.h"

struct sampling_flags {
    double temperature, top_p, min_p;
    uint64_t top_k, seed, max_tokens;
    bool temperature_given, top_p_given, min_p_given, top_k_given, seed_given, max_tokens_given;
    bool no_think, show_thinking;
    const char *system;
};

#define SAMPLING_OPTIONS 9
void sampling_options(struct option rows[SAMPLING_OPTIONS], struct sampling_flags *flags);

/* Overrides the sampling and the number of tokens at most by the flags that were given. */
void sampling_flags_apply(const struct sampling_flags *flags, struct calla_generate_options *options);

#endif
