#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/interrupt.h"

#define LONGEST_NAME 32

/* Edit distance of two short words (insert, delete, replace, swap of neighbours). */
static size_t edit_distance(const char *a, const char *b) {
    size_t rows[3][LONGEST_NAME + 1];
    size_t a_size = strlen(a), b_size = strlen(b);
    if (a_size > LONGEST_NAME || b_size > LONGEST_NAME)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_size; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_size; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_above[j - 2] + 1 < best)
                best = two_above[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_size % 3][b_size];
}

const char *nearest_name(const char *word, const char *(*name)(const void *user, size_t index),
                         const void *user) {
    const char *nearest = NULL;
    size_t nearest_distance = strlen(word) < 5 ? 2 : 3; /* the first distance that is too far */
    const char *candidate;
    for (size_t i = 0; (candidate = name(user, i)) != NULL; i++) {
        size_t distance = edit_distance(word, candidate);
        if (distance < nearest_distance && distance < strlen(candidate))
            nearest = candidate, nearest_distance = distance;
    }
    return nearest;
}

static const struct option *option_at(const struct command_usage *usage, size_t index) {
    for (size_t g = 0; g < usage->group_count; g++) {
        if (index < usage->groups[g].count)
            return &usage->groups[g].options[index];
        index -= usage->groups[g].count;
    }
    return NULL;
}

static const char *option_name_at(const void *user, size_t index) {
    const struct option *option = option_at(user, index);
    return option == NULL ? NULL : option->name;
}

static const struct option *find_long(const struct command_usage *usage, const char *name, size_t size) {
    const struct option *option;
    for (size_t i = 0; (option = option_at(usage, i)) != NULL; i++)
        if (strlen(option->name) == size && memcmp(option->name, name, size) == 0)
            return option;
    return NULL;
}

static const struct option *find_letter(const struct command_usage *usage, char letter) {
    const struct option *option;
    for (size_t i = 0; (option = option_at(usage, i)) != NULL; i++)
        if (option->letter == letter)
            return option;
    return NULL;
}

static bool choice_allowed(const char *choices, const char *text) {
    size_t size = strlen(text);
    for (const char *choice = choices; choice != NULL;) {
        const char *end = strchr(choice, '|');
        size_t choice_size = end == NULL ? strlen(choice) : (size_t)(end - choice);
        if (choice_size == size && memcmp(choice, text, size) == 0)
            return true;
        choice = end == NULL ? NULL : end + 1;
    }
    return false;
}

static bool set_count(const struct option *option, const char *text, struct calla_error *error) {
    uint64_t most = option->most == 0 ? UINT64_MAX : option->most;
    bool digits = *text != 0 && text[strspn(text, "0123456789")] == 0;
    errno = 0;
    unsigned long long value = digits ? strtoull(text, NULL, 10) : 0;
    if (!digits || errno != 0 || value < option->least || value > most)
        return error_set(error, CALLA_BAD_INPUT, "--%s needs a whole number from %llu to %llu, not \"%s\".",
                         option->name, (unsigned long long)option->least, (unsigned long long)most, text);
    *option->count = value;
    return true;
}

static bool set_number(const struct option *option, const char *text, struct calla_error *error) {
    char *end = NULL;
    /* strtod alone would also take "inf", "nan", "0x1p3" and leading spaces. */
    bool decimal = *text != 0 && text[strspn(text, "0123456789.eE+-")] == 0;
    double value = decimal ? strtod(text, &end) : 0;
    if (!decimal || *end != 0 || !isfinite(value) || value < option->low || value > option->high)
        return error_set(error, CALLA_BAD_INPUT, "--%s needs a number from %g to %g, not \"%s\".",
                         option->name, option->low, option->high, text);
    *option->number = value;
    return true;
}

static bool set_value(const struct option *option, const char *text, struct calla_error *error) {
    if (option->given != NULL)
        *option->given = true;
    if (option->count != NULL)
        return set_count(option, text, error);
    if (option->number != NULL)
        return set_number(option, text, error);
    if (option->values != NULL) {
        if (option->values->count == OPTION_MOST_VALUES)
            return error_set(error, CALLA_BAD_INPUT, "--%s is given more than %d times.", option->name,
                             OPTION_MOST_VALUES);
        option->values->values[option->values->count++] = text;
        return true;
    }
    if (option->choices != NULL && !choice_allowed(option->choices, text))
        return error_set(error, CALLA_BAD_INPUT, "--%s needs one of %s, not \"%s\".", option->name,
                         option->choices, text);
    *option->text = text;
    return true;
}

static const char *value_name(const struct option *option) {
    return option->choices != NULL ? option->choices : option->value;
}

static bool takes_value(const struct option *option) {
    return option->flag == NULL;
}

/* The value of an option whose word ends without one: the next word. A word that is itself an option is not
 * taken, since "--text --json" is a forgotten value; "--text=--json" says that it is meant. */
static const char *next_word(const struct option *option, int argc, char **argv, int *at,
                             struct calla_error *error) {
    const char *word = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (word == NULL || (word[0] == '-' && word[1] == '-')) {
        error_set(error, CALLA_BAD_INPUT, "--%s needs a value: write --%s=%s.", option->name, option->name,
                  value_name(option));
        return NULL;
    }
    ++*at;
    return word;
}

static bool parse_long(const struct command_usage *usage, int argc, char **argv, int *at,
                       struct calla_error *error) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t size = equals == NULL ? strlen(name) : (size_t)(equals - name);
    const struct option *option = find_long(usage, name, size);
    if (option == NULL) {
        char word[LONGEST_NAME + 1] = "";
        if (size <= LONGEST_NAME)
            snprintf(word, sizeof word, "%.*s", (int)size, name);
        const char *nearest = nearest_name(word, option_name_at, usage);
        if (nearest != NULL)
            return error_set(error, CALLA_BAD_INPUT, "Unknown option --%.*s; did you mean --%s?",
                             (int)(size < 200 ? size : 200), name, nearest);
        return error_set(error, CALLA_BAD_INPUT,
                         "Unknown option --%.*s; \"calla %s --help\" lists the options.",
                         (int)(size < 200 ? size : 200), name, usage->name);
    }
    if (!takes_value(option)) {
        if (equals != NULL)
            return error_set(error, CALLA_BAD_INPUT, "--%s takes no value: leave out \"%s\".", option->name,
                             equals);
        *option->flag = true;
        if (option->given != NULL)
            *option->given = true;
        return true;
    }
    const char *value = equals != NULL ? equals + 1 : next_word(option, argc, argv, at, error);
    return value != NULL && set_value(option, value, error);
}

static bool parse_short(const struct command_usage *usage, int argc, char **argv, int *at,
                        struct calla_error *error) {
    const char *word = argv[*at];
    const struct option *option = find_letter(usage, word[1]);
    if (option == NULL)
        return error_set(error, CALLA_BAD_INPUT, "Unknown option %s; \"calla %s --help\" lists the options.",
                         word, usage->name);
    if (!takes_value(option)) {
        if (word[2] != 0)
            return error_set(error, CALLA_BAD_INPUT, "-%c takes no value: leave out \"%s\".", option->letter,
                             word + 2);
        *option->flag = true;
        return true;
    }
    const char *value = word[2] == '=' ? word + 3 : word + 2;
    if (word[2] == 0)
        value = next_word(option, argc, argv, at, error);
    return value != NULL && set_value(option, value, error);
}

enum options_outcome options_parse(const struct command_usage *usage, int argc, char **argv,
                                   struct option_values *arguments, struct calla_error *error) {
    bool options_ended = false;
    arguments->count = 0;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (options_ended || word[0] != '-' || word[1] == 0) {
            if (arguments->count == usage->most_arguments || arguments->count == OPTION_MOST_VALUES) {
                error_set(error, CALLA_BAD_INPUT, "Unexpected argument \"%.200s\"; %s.", word,
                          usage->argument_hint != NULL ? usage->argument_hint : "leave it out");
                return OPTIONS_WRONG;
            }
            arguments->values[arguments->count++] = word;
        } else if (strcmp(word, "--") == 0) {
            options_ended = true;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            return OPTIONS_HELP;
        } else if (word[1] == '-' ? !parse_long(usage, argc, argv, &i, error)
                                  : !parse_short(usage, argc, argv, &i, error)) {
            return OPTIONS_WRONG;
        }
    }
    return OPTIONS_PARSED;
}

/* Prints text that may have several lines, starting at column `at`, later lines indented to `indent`. */
static void print_indented(FILE *file, const char *text, size_t at, size_t indent) {
    if (at + 1 > indent) {
        fputc('\n', file);
        at = 0;
    }
    fprintf(file, "%*s", (int)(indent - at), "");
    for (; *text != 0; text++) {
        fputc(*text, file);
        if (*text == '\n')
            fprintf(file, "%*s", (int)indent, "");
    }
    fputc('\n', file);
}

static void print_option(FILE *file, const struct option *option) {
    char left[128];
    int size = option->letter != 0 ? snprintf(left, sizeof left, "  -%c, --%s", option->letter, option->name)
                                   : snprintf(left, sizeof left, "      --%s", option->name);
    if (takes_value(option))
        size += snprintf(left + size, sizeof left - (size_t)size, " %s", value_name(option));
    fputs(left, file);
    print_indented(file, option->help, (size_t)size, 30);
}

void options_print_help(FILE *file, const struct command_usage *usage) {
    fprintf(file, "usage: calla %s %s\n\n%s\n", usage->name, usage->synopsis, usage->about);
    for (size_t g = 0; g < usage->group_count; g++) {
        fprintf(file, "\n%s:\n", usage->groups[g].title);
        for (size_t i = 0; i < usage->groups[g].count; i++)
            print_option(file, &usage->groups[g].options[i]);
    }
    fputs("\n  -h, --help                  print this and exit\n", file);
}

bool command_begin(const struct command_usage *usage, int argc, char **argv, struct option_values *arguments,
                   int *exit_code) {
    struct calla_error error;
    switch (options_parse(usage, argc, argv, arguments, &error)) {
    case OPTIONS_PARSED:
        return true;
    case OPTIONS_HELP:
        options_print_help(stdout, usage);
        *exit_code = 0;
        return false;
    case OPTIONS_WRONG:
        break;
    }
    fprintf(stderr, "calla %s: %s\n", usage->name, error.message);
    *exit_code = EXIT_WRONG_USAGE;
    return false;
}

int command_end(const struct command_usage *usage, bool ok, int failure, const struct calla_error *error) {
    if (!ok)
        fprintf(stderr, "calla %s: %s\n", usage->name, error->message);
    if (interrupted() && (ok || error->status == CALLA_CANCELLED))
        return 128 + interrupt_signal(); /* as shells report it */
    return ok ? 0 : failure;
}
