#include "unit.h"

#include "cli/options.h"

/* One option of each kind, as a command would have them. */
struct flags {
    bool quiet, temperature_given;
    const char *model, *phase;
    uint64_t tokens, seed;
    double temperature;
    struct option_values policies, arguments;
};

static enum options_outcome parse(struct flags *flags, size_t most_arguments, struct calla_error *error,
                                  int argc, const char *const *argv) {
    *flags = (struct flags){.temperature = -1};
    memset(error, 0, sizeof *error);
    const struct option first[] = {
        {.name = "model", .letter = 'm', .value = "DIR", .help = "h", .text = &flags->model},
        {.name = "quiet", .letter = 'q', .help = "h", .flag = &flags->quiet},
        {.name = "phase", .choices = "prefill|decode", .help = "h", .text = &flags->phase},
    };
    const struct option second[] = {
        {.name = "max-tokens", .value = "N", .help = "h", .count = &flags->tokens, .least = 1, .most = 1000},
        {.name = "seed", .value = "N", .help = "h", .count = &flags->seed},
        {.name = "temperature",
         .value = "T",
         .help = "h",
         .number = &flags->temperature,
         .low = 0,
         .high = 2,
         .given = &flags->temperature_given},
        {.name = "policy", .value = "NAME=VALUE", .help = "h", .values = &flags->policies},
    };
    const struct option_group groups[] = {{"First", first, 3}, {"Second", second, 4}};
    const struct command_usage usage = {.name = "test",
                                        .synopsis = "",
                                        .about = "",
                                        .groups = groups,
                                        .group_count = 2,
                                        .most_arguments = most_arguments};
    char *copies[16] = {NULL};
    assert_true(argc < 15);
    for (int i = 0; i < argc; i++)
        copies[i + 1] = (char *)(uintptr_t)argv[i];
    copies[0] = (char *)(uintptr_t) "test";
    return options_parse(&usage, argc + 1, copies, &flags->arguments, error);
}

#define PARSE(flags, most, error, ...)                                                                       \
    parse(flags, most, error, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                 \
          (const char *[]){__VA_ARGS__})

static void every_kind_both_spellings(void **state) {
    (void)state;
    struct flags flags;
    struct calla_error error;
    assert_int_equal(PARSE(&flags, 2, &error, "-m", "folder", "--max-tokens", "7", "hello", "--quiet",
                           "--temperature=0.5", "--phase=decode", "--policy", "a=1", "--policy=b=2", "-"),
                     OPTIONS_PARSED);
    assert_string_equal(flags.model, "folder");
    assert_string_equal(flags.phase, "decode");
    assert_true(flags.quiet);
    assert_int_equal(flags.tokens, 7);
    assert_true(flags.temperature == 0.5 && flags.temperature_given);
    assert_int_equal(flags.policies.count, 2);
    assert_string_equal(flags.policies.values[0], "a=1");
    assert_string_equal(flags.policies.values[1], "b=2");
    assert_int_equal(flags.arguments.count, 2);
    assert_string_equal(flags.arguments.values[0], "hello");
    assert_string_equal(flags.arguments.values[1], "-");
}

static void spellings_of_values(void **state) {
    (void)state;
    struct flags flags;
    struct calla_error error;
    assert_int_equal(PARSE(&flags, 0, &error, "-mfolder"), OPTIONS_PARSED);
    assert_string_equal(flags.model, "folder");
    assert_int_equal(PARSE(&flags, 0, &error, "-m=folder"), OPTIONS_PARSED);
    assert_string_equal(flags.model, "folder");
    assert_int_equal(PARSE(&flags, 0, &error, "--model="), OPTIONS_PARSED);
    assert_string_equal(flags.model, "");
    assert_int_equal(PARSE(&flags, 0, &error, "--model", "-"), OPTIONS_PARSED);
    assert_string_equal(flags.model, "-");
    assert_int_equal(PARSE(&flags, 0, &error, "--model=--quiet"), OPTIONS_PARSED);
    assert_string_equal(flags.model, "--quiet");
    assert_false(flags.quiet);
    assert_int_equal(PARSE(&flags, 0, &error, "-m", "a", "-m", "b"), OPTIONS_PARSED);
    assert_string_equal(flags.model, "b");
    assert_int_equal(PARSE(&flags, 0, &error, "--seed", "18446744073709551615"), OPTIONS_PARSED);
    assert_true(flags.seed == UINT64_MAX);
    assert_int_equal(PARSE(&flags, 0, &error, "--temperature", "1e-1"), OPTIONS_PARSED);
    assert_true(flags.temperature == 0.1);
    assert_int_equal(PARSE(&flags, 2, &error, "--", "--quiet", "-m"), OPTIONS_PARSED);
    assert_int_equal(flags.arguments.count, 2);
    assert_false(flags.quiet);
    assert_int_equal(PARSE(&flags, 1, &error, ""), OPTIONS_PARSED);
    assert_int_equal(flags.arguments.count, 1);
}

static void help_wins_over_what_follows(void **state) {
    (void)state;
    struct flags flags;
    struct calla_error error;
    assert_int_equal(PARSE(&flags, 0, &error, "--quiet", "--help", "--nonsense"), OPTIONS_HELP);
    assert_int_equal(PARSE(&flags, 0, &error, "-h"), OPTIONS_HELP);
    assert_int_equal(PARSE(&flags, 0, &error, "--model=--help"), OPTIONS_PARSED);
}

static void mistakes_name_the_flag(void **state) {
    (void)state;
    static const struct {
        const char *words[3];
        const char *message;
    } cases[] = {
        {{"--modle", "x"}, "Unknown option --modle; did you mean --model?"},
        {{"--max-token=3"}, "Unknown option --max-token; did you mean --max-tokens?"},
        {{"--frobnicate"}, "Unknown option --frobnicate; \"calla test --help\" lists the options."},
        {{"--"
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
         "Unknown option --aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; \"calla test "
         "--help\" lists the options."},
        {{"-x"}, "Unknown option -x; \"calla test --help\" lists the options."},
        {{"--model"}, "--model needs a value: write --model=DIR."},
        {{"-m"}, "--model needs a value: write --model=DIR."},
        {{"--model", "--quiet"}, "--model needs a value: write --model=DIR."},
        {{"--quiet=yes"}, "--quiet takes no value: leave out \"=yes\"."},
        {{"-qq"}, "-q takes no value: leave out \"q\"."},
        {{"--max-tokens", "0"}, "--max-tokens needs a whole number from 1 to 1000, not \"0\"."},
        {{"--max-tokens", "1001"}, "--max-tokens needs a whole number from 1 to 1000, not \"1001\"."},
        {{"--max-tokens", "-1"}, "--max-tokens needs a whole number from 1 to 1000, not \"-1\"."},
        {{"--max-tokens", "1.5"}, "--max-tokens needs a whole number from 1 to 1000, not \"1.5\"."},
        {{"--max-tokens", " 1"}, "--max-tokens needs a whole number from 1 to 1000, not \" 1\"."},
        {{"--max-tokens="}, "--max-tokens needs a whole number from 1 to 1000, not \"\"."},
        {{"--seed", "18446744073709551616"},
         "--seed needs a whole number from 0 to 18446744073709551615, not \"18446744073709551616\"."},
        {{"--temperature", "nan"}, "--temperature needs a number from 0 to 2, not \"nan\"."},
        {{"--temperature", "0x1"}, "--temperature needs a number from 0 to 2, not \"0x1\"."},
        {{"--temperature", "1e999"}, "--temperature needs a number from 0 to 2, not \"1e999\"."},
        {{"--temperature", "-0.1"}, "--temperature needs a number from 0 to 2, not \"-0.1\"."},
        {{"--temperature", "1."
                           "5e"},
         "--temperature needs a number from 0 to 2, not \"1.5e\"."},
        {{"--temperature", "\x1b[31m"}, "--temperature needs a number from 0 to 2, not \"?[31m\"."},
        {{"--phase", "both"}, "--phase needs one of prefill|decode, not \"both\"."},
        {{"--phase", "prefill|decode"}, "--phase needs one of prefill|decode, not \"prefill|decode\"."},
        {{"stray"}, "Unexpected argument \"stray\"; leave it out."},
        {{"-"}, "Unexpected argument \"-\"; leave it out."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int argc = 0;
        while (argc < 3 && cases[i].words[argc] != NULL)
            argc++;
        struct flags flags;
        struct calla_error error;
        assert_int_equal(parse(&flags, 0, &error, argc, cases[i].words), OPTIONS_WRONG);
        assert_string_equal(error.message, cases[i].message);
    }
}

static void a_repeated_option_has_a_limit(void **state) {
    (void)state;
    struct option_values values = {.count = OPTION_MOST_VALUES};
    const struct option options[] = {{.name = "policy", .value = "V", .help = "h", .values = &values}};
    const struct option_group group = {"Group", options, 1};
    const struct command_usage usage = {
        .name = "test", .synopsis = "", .about = "", .groups = &group, .group_count = 1};
    char name[] = "test", word[] = "--policy=x";
    char *argv[] = {name, word, NULL};
    struct option_values arguments;
    struct calla_error error;
    assert_int_equal(options_parse(&usage, 2, argv, &arguments, &error), OPTIONS_WRONG);
    assert_string_equal(error.message, "--policy is given more than 64 times.");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_both_spellings),     cmocka_unit_test(spellings_of_values),
        cmocka_unit_test(help_wins_over_what_follows),   cmocka_unit_test(mistakes_name_the_flag),
        cmocka_unit_test(a_repeated_option_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
