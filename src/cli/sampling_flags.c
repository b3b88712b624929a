#include "cli/sampling_flags.h"

#include <string.h>

void sampling_options(struct option rows[SAMPLING_OPTIONS], struct sampling_flags *flags) {
    const struct option table[SAMPLING_OPTIONS] = {
        {.name = "system", .value = "TEXT", .help = "the system message", .text = &flags->system},
        {.name = "no-think", .help = "answer without thinking first", .flag = &flags->no_think},
        {.name = "show-thinking",
         .help = "print the thinking on standard error even when it is\nno terminal, or with --quiet",
         .flag = &flags->show_thinking},
        {.name = "max-tokens",
         .value = "N",
         .help = "tokens of the reply at most, thinking included\n(up to the end of the context)",
         .count = &flags->max_tokens,
         .least = 1,
         .most = INT32_MAX,
         .given = &flags->max_tokens_given},
        {.name = "temperature",
         .value = "T",
         .help = "0 takes the likeliest token each time\n(this and the next three: the model's defaults)",
         .number = &flags->temperature,
         .high = 100,
         .given = &flags->temperature_given},
        {.name = "top-p",
         .value = "P",
         .help = "sample from the likeliest tokens that make up P; 1: off",
         .number = &flags->top_p,
         .high = 1,
         .given = &flags->top_p_given},
        {.name = "top-k",
         .value = "K",
         .help = "sample from the K likeliest tokens; 0: off",
         .count = &flags->top_k,
         .most = INT32_MAX,
         .given = &flags->top_k_given},
        {.name = "min-p",
         .value = "P",
         .help = "only tokens at least P times as likely as the likeliest;\n0: off",
         .number = &flags->min_p,
         .high = 1,
         .given = &flags->min_p_given},
        {.name = "seed",
         .value = "N",
         .help = "the same seed gives the same reply (a fresh one)",
         .count = &flags->seed,
         .given = &flags->seed_given},
    };
    memcpy(rows, table, sizeof table);
}

void sampling_flags_apply(const struct sampling_flags *flags, struct calla_generate_options *options) {
    struct calla_sampling *sampling = &options->sampling;
    if (flags->temperature_given)
        sampling->temperature = (float)flags->temperature;
    if (flags->top_p_given)
        sampling->top_p = (float)flags->top_p;
    if (flags->min_p_given)
        sampling->min_p = (float)flags->min_p;
    if (flags->top_k_given)
        sampling->top_k = (uint32_t)flags->top_k;
    if (flags->seed_given)
        sampling->seed = flags->seed;
    if (flags->max_tokens_given)
        options->max_tokens = (uint32_t)flags->max_tokens;
}
