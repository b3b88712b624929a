/* The commands. Each is called with its own name in argv[0] and returns the exit code: 0 success, 1 the work
 * failed, 2 wrong usage. Standard output is flushed and checked by main. */
#ifndef CALLA_CLI_COMMANDS_H
#define CALLA_CLI_COMMANDS_H

int command_run(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_info(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_synth(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);
int command_template(int argc, char **argv);

#define EXIT_WORK_FAILED 1
#define EXIT_WRONG_USAGE 2

#endif
