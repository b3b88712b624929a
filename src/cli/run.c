/* calla run: one prompt in, one answer out.
 *
 * Whatever the prompt comes from, it becomes the body of a chat-completions request, which is rendered and
 * generated from. Standard output carries the answer and nothing else. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_flags.h"
#include "cli/reply_printer.h"
#include "cli/request.h"
#include "cli/sampling_flags.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "server/exchange.h"

struct run {
    struct model_flags model;
    struct sampling_flags sampling;
    const char *request_path;
    bool json;
    struct option_values arguments;
    json_t *request;
    struct reply_printer printer;
};

static const char about[] =
    "Answers one prompt. The prompt is the argument, in quotes. \"-\" reads it from standard input, and so "
    "does\n"
    "leaving it out when standard input is a pipe or a file. With both (calla run \"Sum this up:\" - < "
    "notes.txt) what is\n"
    "read follows the argument after an empty line. Standard input is not touched otherwise.\n"
    "\n"
    "Only the answer goes to standard output; a tool call is one line of JSON. On a terminal the thinking is "
    "shown dim on\n"
    "standard error, where counts and speeds follow at the end. Ctrl-C ends the answer where it is.";

static bool wrong_usage(struct calla_error *error, int *exit_code, const char *sentence) {
    *exit_code = EXIT_WRONG_USAGE;
    return error_set(error, CALLA_BAD_INPUT, "%s", sentence);
}

/* The prompt's text from the argument, standard input, or both. */
static bool read_prompt(const struct run *run, struct buffer *prompt, int *exit_code,
                        struct calla_error *error) {
    const struct option_values *arguments = &run->arguments;
    bool from_input = arguments->count == 0;
    for (size_t i = 0; i < arguments->count; i++) {
        bool dash = strcmp(arguments->values[i], "-") == 0;
        if (i == 1 && (!dash || from_input))
            return wrong_usage(
                error, exit_code,
                "There is more than one prompt; put the prompt in quotes, so that it is one argument.");
        if (dash)
            from_input = true;
        else
            buffer_append_string(prompt, arguments->values[i]);
    }
    if (arguments->count == 0 && isatty(STDIN_FILENO))
        return wrong_usage(error, exit_code,
                           "There is no prompt; write it after \"run\", in quotes, or pipe it in.");
    if (from_input) {
        if (prompt->size > 0)
            buffer_append_string(prompt, "\n\n");
        if (!read_standard_input(prompt, error))
            return false;
        if (prompt->size > 0 && prompt->data[prompt->size - 1] == '\n')
            prompt->data[--prompt->size] = 0;
    }
    if (prompt->failed)
        return error_memory(error, "the prompt", prompt->size);
    size_t blank = prompt->size == 0 ? 0 : strspn(prompt->data, " \t\r\n");
    if (blank == prompt->size)
        return wrong_usage(error, exit_code, "The prompt is empty; write what is to be answered.");
    return true;
}

static bool request_from_prompt(struct run *run, int *exit_code, struct calla_error *error) {
    struct buffer prompt = {0}, text = {0};
    size_t replaced = 0;
    bool ok = read_prompt(run, &prompt, exit_code, error);
    if (ok && !append_utf8(&text, prompt.data, prompt.size, &replaced))
        ok = error_memory(error, "the prompt", prompt.size);
    if (ok && replaced > 0 && !run->model.quiet)
        fprintf(stderr,
                "calla: The prompt is not all UTF-8 text; U+FFFD stands in for what is not, in %zu places.\n",
                replaced);
    if (ok) {
        run->request =
            json_pack("{s:[{s:s, s:s%}]}", "messages", "role", "user", "content", text.data, text.size);
        ok = run->request != NULL || error_memory(error, "the prompt", text.size);
    }
    buffer_free(&prompt);
    buffer_free(&text);
    return ok;
}

static bool request_from_file(struct run *run, int *exit_code, struct calla_error *error) {
    if (run->arguments.count > 0)
        return wrong_usage(error, exit_code,
                           "A prompt and --request exclude each other; leave out one of them.");
    struct buffer bytes = {0};
    const char *name =
        strcmp(run->request_path, "-") == 0 ? "The request on standard input" : run->request_path;
    if (read_input(run->request_path, &bytes, error))
        run->request = json_parse(bytes.data, bytes.size, name, error);
    buffer_free(&bytes);
    if (run->request != NULL && !json_is_object(run->request))
        return error_set(error, CALLA_BAD_INPUT, "%s must be a JSON object with \"messages\".", name);
    return run->request != NULL;
}

static bool make_request(struct run *run, int *exit_code, struct calla_error *error) {
    if (!(run->request_path != NULL ? request_from_file(run, exit_code, error)
                                    : request_from_prompt(run, exit_code, error)))
        return false;
    if (run->sampling.system != NULL && !request_set_system(run->request, run->sampling.system, error))
        return false;
    return !run->sampling.no_think || request_disable_thinking(run->request, error);
}

static bool print_event(void *user, const struct calla_event *event) {
    struct run *run = user;
    return run->json ? !interrupted() : reply_printer_event(&run->printer, event);
}

/* The reply as one JSON object. */
static json_t *describe_reply(const struct calla_reply *reply) {
    json_t *calls =
        reply->tool_calls == NULL ? json_array() : json_loads(reply->tool_calls, JSON_ALLOW_NUL, NULL);
    size_t prompt = reply->prompt_tokens, completion = reply->reply_tokens;
    return json_pack("{s:s%, s:s%, s:o, s:s, s:{s:I, s:I, s:I, s:I}, s:{s:f, s:f}}", "content",
                     reply->content, reply->content_size, "reasoning_content", reply->reasoning,
                     reply->reasoning_size, "tool_calls", calls, "finish_reason", finish_name(reply->finish),
                     "usage", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion),
                     "cached_tokens", (json_int_t)(prompt - reply->computed_tokens), "timings",
                     "prompt_seconds", reply->prompt_seconds, "reply_seconds", reply->reply_seconds);
}

static bool print_reply(struct run *run, const struct calla_reply *reply, struct calla_error *error) {
    if (!run->json) {
        reply_printer_end(&run->printer, reply);
        return true;
    }
    progress_line_end(&run->printer.line);
    json_t *description = describe_reply(reply);
    bool ok = description != NULL ? print_json(description, error) : error_memory(error, "the reply", 0);
    json_decref(description);
    return ok;
}

/* Generates and prints. */
static bool answer(struct run *run, struct calla_session *session, const struct calla_prompt *prompt,
                   struct calla_generate_options *options, struct calla_error *error) {
    struct calla_reply reply;
    options->event = print_event;
    options->user = run;
    options->progress = progress_line_start(&run->printer.line, run->model.quiet);
    run->printer.show_thinking = run->sampling.show_thinking || (!run->model.quiet && terminal_is(stderr));
    bool ok = calla_generate(session, prompt, options, &reply, error);
    if (!ok) {
        reply_printer_end(&run->printer, NULL);
        return false;
    }
    ok = print_reply(run, &reply, error);
    if (ok && !run->model.quiet && !ferror(stdout))
        print_statistics(&reply);
    calla_reply_free(&reply);
    return ok;
}

/* Reads the request as the server does. Its prompt and options live in the exchange. */
static struct exchange *read_request(const struct run *run, const struct calla_model *model,
                                     struct calla_error *error) {
    struct calla_model_info info;
    calla_model_info(model, &info);
    /* The length is checked against the session's context, by check_length. */
    struct exchange_context context = {.model = model, .model_name = info.name, .context = UINT32_MAX};
    struct refusal refusal = {0};
    char *body = json_dumps(run->request, JSON_COMPACT);
    struct exchange *exchange = NULL;
    if (body == NULL)
        error_memory(error, "the request", 0);
    else if ((exchange = exchange_new(EXCHANGE_CHAT, &context, body, strlen(body), &refusal)) == NULL)
        error_set(error, CALLA_BAD_INPUT, "%s", refusal.message);
    free(body);
    return exchange;
}

static bool answer_request(struct run *run, struct calla_model *model, const struct exchange *exchange,
                           struct calla_error *error) {
    struct calla_generate_options options = *exchange_options(exchange);
    const struct calla_prompt *prompt = exchange_prompt(exchange);
    if (options.logprobs)
        return error_set(
            error, CALLA_UNSUPPORTED,
            "\"logprobs\" in the request is not printed here; leave it out, or ask calla serve.");
    sampling_flags_apply(&run->sampling, &options);
    struct calla_session *session = open_session(model, &run->model, error);
    bool ok = session != NULL &&
              check_room(model, "The prompt", prompt->tokens.count, calla_session_context(session), error) &&
              answer(run, session, prompt, &options, error);
    calla_session_close(session);
    return ok;
}

static bool run_request(struct run *run, struct calla_error *error) {
    struct calla_model *model = open_model(&run->model, false, error);
    struct exchange *exchange = model == NULL ? NULL : read_request(run, model, error);
    bool ok = exchange != NULL && answer_request(run, model, exchange, error);
    exchange_free(exchange);
    calla_model_close(model);
    return ok;
}

int command_run(int argc, char **argv) {
    struct run run = {0};
    struct option model_rows[MODEL_OPTIONS], sampling_rows[SAMPLING_OPTIONS];
    model_options(model_rows, &run.model);
    sampling_options(sampling_rows, &run.sampling);
    const struct option own[] = {
        {.name = "request",
         .value = "FILE|-",
         .help = "answer the body of a chat-completions request (messages,\ntools, temperature, ...); "
                 "options override it",
         .text = &run.request_path},
        {.name = "json",
         .help =
             "print one JSON object: content, reasoning_content,\ntool_calls, finish_reason, usage, timings",
         .flag = &run.json},
    };
    const struct option_group groups[] = {
        {"Input and output", own, sizeof own / sizeof *own},
        {"Reply", sampling_rows, SAMPLING_OPTIONS},
        {"Model", model_rows, MODEL_OPTIONS},
    };
    const struct command_usage usage = {.name = "run",
                                        .synopsis = "[OPTIONS] [PROMPT] [-]",
                                        .about = about,
                                        .groups = groups,
                                        .group_count = 3,
                                        .most_arguments = 2,
                                        .argument_hint =
                                            "put the prompt in quotes, so that it is one argument"};
    int exit_code;
    if (!command_begin(&usage, argc, argv, &run.arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    exit_code = EXIT_WRONG_USAGE;
    bool ok = model_flags_check(&run.model, &error);
    if (ok) {
        exit_code = EXIT_WORK_FAILED;
        ok = make_request(&run, &exit_code, &error);
    }
    if (ok) {
        interrupt_arm();
        ok = run_request(&run, &error);
    }
    json_decref(run.request);
    return command_end(&usage, ok, exit_code, &error);
}
