/* One option parser for all commands, driven by tables.
 *
 * A command describes each option by a row: its name, and the variable that takes its value. Which of the
 * target pointers a row sets is its kind. Rows come in groups, so that what commands share (which model, how
 * to sample) is one table used by all of them. */
#ifndef CALLA_CLI_OPTIONS_H
#define CALLA_CLI_OPTIONS_H

#include <stdio.h>

#include "base/error.h"

#define OPTION_MOST_VALUES 64

/* Values of an option that may be repeated, or the arguments that belong to no option; borrowed from argv. */
struct option_values {
    const char *values[OPTION_MOST_VALUES];
    size_t count;
};

struct option {
    const char *name;    /* "max-tokens": --max-tokens N or --max-tokens=N */
    char letter;         /* 'm': -m VALUE or -mVALUE; 0 without */
    const char *value;   /* what the help calls the value ("N"); NULL for a flag */
    const char *choices; /* text options: the accepted values, "prefill|decode"; NULL takes any text */
    const char *help;

    /* The target, exactly one of: */
    bool *flag;                   /* set to true */
    const char **text;            /* borrowed from argv */
    uint64_t *count;              /* a whole number in [least, most]; most 0 is no limit */
    double *number;               /* a finite number in [low, high] */
    struct option_values *values; /* repeated text */

    uint64_t least, most;
    double low, high;
    bool *given; /* set to true when the option occurs; may be NULL */
};

struct option_group {
    const char *title; /* "Sampling" */
    const struct option *options;
    size_t count;
};

/* What a command accepts. */
struct command_usage {
    const char *name;     /* "run" */
    const char *synopsis; /* "[OPTIONS] [PROMPT | -]" */
    const char *about;    /* what the command does; a few lines for --help */
    const struct option_group *groups;
    size_t group_count;
    size_t most_arguments;     /* arguments that belong to no option */
    const char *argument_hint; /* added to the error about one too many; may be NULL */
};

enum options_outcome { OPTIONS_PARSED, OPTIONS_HELP, OPTIONS_WRONG };

/* Parses argv[1..argc). Options and arguments may be mixed; "--" ends the options. -h and --help win over
 * everything after them. OPTIONS_WRONG fills the error with one sentence. */
enum options_outcome options_parse(const struct command_usage *usage, int argc, char **argv,
                                   struct option_values *arguments, struct calla_error *error);

void options_print_help(FILE *file, const struct command_usage *usage);

/* What every command starts with: parses, prints help or the error, and says whether to go on. When not,
 * the command returns *exit_code. */
bool command_begin(const struct command_usage *usage, int argc, char **argv, struct option_values *arguments,
                   int *exit_code);

/* What every command ends with: the exit code of its work, and on standard error what went wrong. `failure`
 * is the exit code of a failure, 1 or 2; a command that Ctrl-C stopped ends with 130. */
int command_end(const struct command_usage *usage, bool ok, int failure, const struct calla_error *error);

/* The name most like `word` if it is near enough to be a slip of the keyboard, or NULL. `name` gives the
 * names by index, NULL past the last. */
const char *nearest_name(const char *word, const char *(*name)(const void *user, size_t index),
                         const void *user);

#endif
