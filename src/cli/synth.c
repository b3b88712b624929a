/* calla synth: random weights of any shape of the family. */
#include <stdio.h>

#include "base/system.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "model/synth.h"

int command_synth(int argc, char **argv) {
    struct synth_options synth = {0};
    uint64_t shards = 0;
    const struct option options[] = {
        {.name = "config", .value = "FILE", .help = "config.json of the wanted shape", .text = &synth.config},
        {.name = "output",
         .letter = 'o',
         .value = "DIR",
         .help = "folder to write; new or empty",
         .text = &synth.out},
        {.name = "tokenizer",
         .value = "DIR",
         .help = "folder to copy the tokenizer's files from (default: none are written)",
         .text = &synth.tokenizer},
        {.name = "seed", .value = "N", .help = "which random weights (default 0)", .count = &synth.seed},
        {.name = "shards",
         .value = "N",
         .help = "files to spread the weights over (default: each below 5 GiB); the weights stay the same",
         .count = &shards,
         .least = 1,
         .most = 4096},
    };
    const struct option_group group = {"Options", options, sizeof options / sizeof *options};
    const struct command_usage usage = {
        .name = "synth",
        .synopsis = "--config FILE -o DIR [OPTIONS]",
        .about =
            "Writes a checkpoint with random weights of the shape that a config.json describes, laid out as "
            "the\n"
            "published one: for measuring speed and memory, and for tests, without a download. What such a\n"
            "model says has no meaning.",
        .groups = &group,
        .group_count = 1,
    };
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    if (synth.config == NULL || synth.out == NULL) {
        fprintf(stderr, "calla synth: %s is missing; see \"calla synth --help\".\n",
                synth.config == NULL ? "--config FILE" : "-o DIR");
        return EXIT_WRONG_USAGE;
    }
    synth.shards = (uint32_t)shards;
    struct synth_result result;
    struct calla_error error = {0};
    double start = system_seconds();
    if (!synth_write(&synth, &result, &error)) {
        fprintf(stderr, "calla: %s\n", error.message);
        return EXIT_WORK_FAILED;
    }
    printf("%s: %u tensors, %llu bytes in %u file%s, %.1f seconds\n", synth.out, result.tensors,
           (unsigned long long)result.bytes, result.files, result.files == 1 ? "" : "s",
           system_seconds() - start);
    return 0;
}
