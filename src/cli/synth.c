/* calla synth: random weights of any shape of the family. */
#include <stdio.h>

#include "base/system.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "model/synth.h"

static bool write_checkpoint(struct synth_options *synth, bool quiet, struct calla_error *error) {
    struct synth_result result;
    struct progress_line line;
    double start = system_seconds();
    interrupt_arm();
    synth->progress = progress_line_start(&line, quiet);
    bool ok = synth_write(synth, &result, error);
    progress_line_end(&line);
    if (ok)
        printf("%s: %u tensors, %llu bytes in %u file%s, %.1f seconds\n", synth->out, result.tensors,
               (unsigned long long)result.bytes, result.files, result.files == 1 ? "" : "s",
               system_seconds() - start);
    return ok;
}

int command_synth(int argc, char **argv) {
    struct synth_options synth = {0};
    uint64_t shards = 0, threads = 0;
    bool quiet = false;
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
        {.name = "threads",
         .value = "N",
         .help = "CPU threads (0: one a processor); the weights stay the same",
         .count = &threads,
         .most = 1024},
        {.name = "quiet", .help = "nothing on standard error but errors", .flag = &quiet},
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
    struct calla_error error = {0};
    if (synth.config == NULL || synth.out == NULL) {
        error_set(&error, CALLA_BAD_INPUT, "%s is missing; see \"calla synth --help\".",
                  synth.config == NULL ? "--config FILE" : "-o DIR");
        return command_end(&usage, false, EXIT_WRONG_USAGE, &error);
    }
    synth.shards = (uint32_t)shards;
    synth.threads = (int)threads;
    bool ok = write_checkpoint(&synth, quiet, &error);
    return command_end(&usage, ok, EXIT_WORK_FAILED, &error);
}
