/* The command line: finds the command and hands over. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calla.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/streams.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"run", command_run, "answer one prompt"},
    {"chat", command_chat, "hold a conversation in the terminal"},
    {"serve", command_serve, "serve the model over HTTP, as the OpenAI API does"},
    {"info", command_info, "what the model is, what it needs, whether it fits here"},
    {"plan", command_plan, "ops, bytes and least time of a step or a chunk"},
    {"bench", command_bench, "measure speed and memory on this machine"},
    {"eval", command_eval, "perplexity of a text; comparison of logits"},
    {"synth", command_synth, "write a checkpoint with random weights"},
    {"tokenize", command_tokenize, "text to token ids"},
    {"detokenize", command_detokenize, "token ids to text"},
    {"template", command_template, "a chat request to the prompt, as the model sees it"},
    {NULL, NULL, NULL},
};

static const char *command_name_at(const void *user, size_t index) {
    (void)user;
    return commands[index].name;
}

static const struct command *find_command(const char *name) {
    for (const struct command *command = commands; command->name != NULL; command++)
        if (strcmp(command->name, name) == 0)
            return command;
    return NULL;
}

static void print_usage(FILE *file) {
    fputs("usage: calla COMMAND [OPTIONS]\n"
          "\n"
          "Calla runs Qwen3.6-35B-A3B, a 4-bit language model, on this machine.\n"
          "\n"
          "Commands:\n",
          file);
    for (const struct command *command = commands; command->name != NULL; command++)
        fprintf(file, "  %-12s %s\n", command->name, command->summary);
    fputs("\n"
          "  -h, --help     print this and exit; \"calla COMMAND --help\" tells about one command\n"
          "      --version  print the version and exit\n",
          file);
}

/* Output that could not be written is a failure, though not worth a message when nobody wants it. */
static int finish_output(int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    if (!standard_output_abandoned())
        fprintf(stderr, "calla: Standard output cannot be written: %s.\n", strerror(errno));
    return exit_code == 0 ? EXIT_WORK_FAILED : exit_code;
}

static int unknown_command(const char *word) {
    struct calla_error error;
    const char *nearest = nearest_name(word, command_name_at, NULL);
    if (word[0] == '-')
        error_set(&error, CALLA_BAD_INPUT, "Unknown option %.200s; options follow the command.", word);
    else if (nearest != NULL)
        error_set(&error, CALLA_BAD_INPUT, "Unknown command \"%.200s\"; did you mean \"calla %s\"?", word,
                  nearest);
    else
        error_set(&error, CALLA_BAD_INPUT, "Unknown command \"%.200s\"; \"calla --help\" lists the commands.",
                  word);
    fprintf(stderr, "calla: %s\n", error.message);
    return EXIT_WRONG_USAGE;
}

/* Whoever started the program may have closed a standard stream. The first file that is opened would then
 * take its number: a chat would read the weights as messages, and an answer would be written into them. So
 * the place is taken by a descriptor on which reading, or writing, fails. */
static bool fill_closed_streams(void) {
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0 &&
            open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream)
            return false;
    return true;
}

int main(int argc, char **argv) {
    if (!fill_closed_streams())
        return EXIT_WORK_FAILED;
    /* A reader that goes away shows as a failed write, so that every command ends in an orderly way. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* so does a file beyond the limit that the system sets */
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_WRONG_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (strcmp(word, "help") == 0 && argc == 2)) {
        print_usage(stdout);
        return finish_output(0);
    }
    if (strcmp(word, "--version") == 0) {
        printf("calla %s\n", CALLA_VERSION);
        return finish_output(0);
    }
    static char help[] = "--help";
    char *help_command[] = {argv[2], help, NULL};
    bool asks_help = strcmp(word, "help") == 0;
    const struct command *command = find_command(asks_help ? argv[2] : word);
    if (command == NULL)
        return unknown_command(asks_help ? argv[2] : word);
    return finish_output(asks_help ? command->run(2, help_command) : command->run(argc - 1, argv + 1));
}
