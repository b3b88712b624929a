/* calla chat: a conversation in the terminal, or line by line from a pipe.
 *
 * Each turn renders the whole conversation; the session has read most of it before and computes the rest. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/model_flags.h"
#include "cli/named_chat.h"
#include "cli/reply_printer.h"
#include "cli/sampling_flags.h"
#include "cli/streams.h"
#include "cli/terminal.h"

struct chat {
    struct model_flags model_flags;
    struct sampling_flags sampling;
    struct calla_model *model;
    struct calla_session *session;
    struct line_editor *editor;
    struct conversation conversation;
    const char *name;
    struct named_chat named;
    struct reply_printer printer;
    bool thinking, show_thinking;
    bool quit, failed; /* failed: a turn or command went wrong */
    size_t turns, computed_tokens, reply_tokens;
    double prompt_seconds, reply_seconds;
};

static void tell(struct chat *chat, const struct calla_error *error) {
    fprintf(stderr, "calla chat: %s\n", error->message);
    chat->failed = true;
}

/* A note for a person; a pipe does not need it. */
static void note(const struct chat *chat, const char *text) {
    if (line_editor_interactive(chat->editor))
        fprintf(stderr, "%s\n", text);
}

static bool print_event(void *user, const struct calla_event *event) {
    struct chat *chat = user;
    return reply_printer_event(&chat->printer, event);
}

static void count(struct chat *chat, const struct calla_reply *reply) {
    chat->turns++;
    chat->computed_tokens += reply->computed_tokens;
    chat->reply_tokens += reply->reply_tokens;
    chat->prompt_seconds += reply->prompt_seconds;
    chat->reply_seconds += reply->reply_seconds;
}

/* What the reply leaves in the conversation. One that was stopped before it answered leaves nothing. */
static void keep_reply(struct chat *chat, const struct calla_reply *reply) {
    struct calla_error error;
    uint32_t context = calla_session_context(chat->session);
    if (reply->finish == CALLA_FINISH_CANCELLED && reply->content_size == 0) {
        conversation_drop_last(&chat->conversation);
        note(chat, "Stopped before an answer; the message is taken back.");
    } else if (!conversation_add_reply(&chat->conversation, reply, &error)) {
        tell(chat, &error);
    }
    if (reply->finish == CALLA_FINISH_LENGTH && reply->prompt_tokens + reply->reply_tokens > context)
        fprintf(stderr,
                "calla chat: The context of %u tokens is full; /save keeps the conversation, /reset starts "
                "over.\n",
                context);
}

static bool check_length(const struct chat *chat, const struct calla_prompt *prompt,
                         struct calla_error *error) {
    uint32_t context = calla_session_context(chat->session);
    return prompt->tokens.count <= context ||
           error_set(
               error, CALLA_CONTEXT_FULL,
               "The conversation has %zu tokens with this message, but the context holds %u; /save keeps it, "
               "/reset starts over, and --context asks for more at the start.",
               prompt->tokens.count, context);
}

static bool generate(struct chat *chat, const struct calla_prompt *prompt, struct calla_error *error) {
    struct calla_generate_options options = {.event = print_event, .user = chat};
    struct calla_reply reply;
    calla_sampling_defaults(chat->model, &options.sampling);
    sampling_flags_apply(&chat->sampling, &options);
    chat->printer = (struct reply_printer){.show_thinking = chat->show_thinking};
    options.progress = progress_line_start(&chat->printer.line, chat->model_flags.quiet);
    bool ok = calla_generate(chat->session, prompt, &options, &reply, error);
    reply_printer_end(&chat->printer, ok ? &reply : NULL);
    if (!ok)
        return false;
    count(chat, &reply);
    if (!chat->model_flags.quiet && !ferror(stdout))
        print_statistics(&reply);
    keep_reply(chat, &reply);
    calla_reply_free(&reply);
    return true;
}

static void take_turn(struct chat *chat, const struct buffer *message) {
    struct calla_error error = {0};
    struct calla_prompt prompt = {0};
    struct buffer text = {0};
    size_t replaced;
    bool added = append_utf8(&text, message->data, message->size, &replaced)
                     ? conversation_add_user(&chat->conversation, text.data, text.size, &error)
                     : error_memory(&error, "the message", message->size);
    buffer_free(&text);
    char *request = added ? conversation_request(&chat->conversation, chat->thinking, &error) : NULL;
    interrupt_arm();
    bool ok = request != NULL && calla_render(chat->model, request, strlen(request), &prompt, &error) &&
              check_length(chat, &prompt, &error) && generate(chat, &prompt, &error);
    interrupt_disarm();
    calla_prompt_free(&prompt);
    free(request);
    if (!ok) {
        if (added)
            conversation_drop_last(&chat->conversation);
        tell(chat, &error);
    }
}

/* Commands */

static void show_help(struct chat *chat, const char *argument) {
    (void)chat, (void)argument;
    puts("/help            this list\n"
         "/reset           forget the conversation, keep the system message\n"
         "/system [TEXT|-] show the system message, set it, or with - take it away\n"
         "/think [on|off]  think before answering, or not\n"
         "/save FILE       write the conversation as JSON\n"
         "/load FILE       go on with a conversation that was saved\n"
         "/stats           tokens and speeds so far\n"
         "/quit            end (as Ctrl-D does)\n"
         "\n"
         "A message of several lines: begin and end it with \"\"\", or end each line but the last with \\; "
         "pasted text stays\n"
         "one message. A message that begins with / needs a space before it. Ctrl-C stops an answer, or "
         "clears the line.");
}

static void forget(struct chat *chat, const char *argument) {
    (void)argument;
    struct calla_error error;
    conversation_reset(&chat->conversation);
    if (!calla_session_reset(chat->session, &error))
        tell(chat, &error);
    note(chat, "The conversation is forgotten.");
}

static void system_message(struct chat *chat, const char *argument) {
    struct calla_error error;
    const char *text = conversation_system(&chat->conversation);
    if (*argument != 0) {
        bool remove = strcmp(argument, "-") == 0;
        if (!conversation_set_system(&chat->conversation, remove ? NULL : argument, &error))
            tell(chat, &error);
        else
            note(chat, remove ? "There is no system message now." : "The system message is set.");
    } else if (text == NULL) {
        puts("There is no system message.");
    } else {
        terminal_write(stdout, text, strlen(text));
        putchar('\n');
    }
}

static void set_thinking(struct chat *chat, const char *argument) {
    struct calla_error error;
    if (strcmp(argument, "on") == 0 || strcmp(argument, "off") == 0) {
        chat->thinking = strcmp(argument, "on") == 0;
        note(chat, chat->thinking ? "Thinking is on." : "Thinking is off.");
    } else if (*argument == 0) {
        puts(chat->thinking ? "Thinking is on." : "Thinking is off.");
    } else {
        error_set(&error, CALLA_BAD_INPUT, "/think takes \"on\" or \"off\", not \"%.200s\".", argument);
        tell(chat, &error);
    }
}

/* The file that a command names, with ~/ as the home folder, on the heap. */
static char *file_argument(struct chat *chat, const char *command, const char *argument) {
    struct calla_error error;
    const char *home = getenv("HOME");
    struct buffer path = {0};
    if (*argument == 0) {
        error_set(&error, CALLA_BAD_INPUT, "/%s needs a file: /%s FILE.", command, command);
        tell(chat, &error);
        return NULL;
    }
    if (argument[0] == '~' && argument[1] == '/' && home != NULL) {
        buffer_append_string(&path, home);
        argument++;
    }
    buffer_append_string(&path, argument);
    return buffer_take(&path, NULL);
}

static void save(struct chat *chat, const char *argument) {
    struct calla_error error;
    char *path = file_argument(chat, "save", argument);
    if (path == NULL)
        return;
    if (!conversation_save(&chat->conversation, path, &error))
        tell(chat, &error);
    else
        note(chat, "The conversation is saved.");
    free(path);
}

static void load(struct chat *chat, const char *argument) {
    struct calla_error error;
    char *path = file_argument(chat, "load", argument);
    if (path == NULL)
        return;
    if (!conversation_load(&chat->conversation, path, &error))
        tell(chat, &error);
    else if (line_editor_interactive(chat->editor))
        fprintf(stderr, "%zu messages are loaded.\n", json_array_size(chat->conversation.messages));
    free(path);
}

static double rate(size_t tokens, double seconds) {
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static void show_statistics(struct chat *chat, const char *argument) {
    (void)argument;
    printf("messages          %zu\n", json_array_size(chat->conversation.messages));
    printf("context           %u of %u tokens\n", calla_session_position(chat->session),
           calla_session_context(chat->session));
    printf("prompt            %zu tokens computed in %zu turns, %.1f tokens/s\n", chat->computed_tokens,
           chat->turns, rate(chat->computed_tokens, chat->prompt_seconds));
    printf("replies           %zu tokens, %.1f tokens/s\n", chat->reply_tokens,
           rate(chat->reply_tokens, chat->reply_seconds));
}

static void leave(struct chat *chat, const char *argument) {
    (void)argument;
    chat->quit = true;
}

static const struct chat_command {
    const char *name;
    void (*run)(struct chat *chat, const char *argument);
} chat_commands[] = {
    {"help", show_help},        {"reset", forget}, {"system", system_message},
    {"think", set_thinking},    {"save", save},    {"load", load},
    {"stats", show_statistics}, {"quit", leave},   {NULL, NULL},
};

static const char *chat_command_name(const void *user, size_t index) {
    (void)user;
    return chat_commands[index].name;
}

/* `line` is the text after the slash. */
static void run_chat_command(struct chat *chat, char *line) {
    size_t size = strcspn(line, " \t\n");
    char *argument = line + size + strspn(line + size, " \t\n");
    for (size_t end = strlen(argument); end > 0 && strchr(" \t\n", argument[end - 1]) != NULL; end--)
        argument[end - 1] = 0;
    line[size] = 0;
    for (const struct chat_command *command = chat_commands; command->name != NULL; command++)
        if (strcmp(command->name, line) == 0) {
            command->run(chat, argument);
            return;
        }
    struct calla_error error;
    const char *nearest = nearest_name(line, chat_command_name, NULL);
    if (nearest != NULL)
        error_set(&error, CALLA_BAD_INPUT, "Unknown command /%.100s; did you mean /%s?", line, nearest);
    else
        error_set(&error, CALLA_BAD_INPUT, "Unknown command /%.100s; /help lists the commands.", line);
    tell(chat, &error);
}

static bool converse(struct chat *chat, struct calla_error *error) {
    struct buffer message = {0};
    enum line_outcome outcome = LINE_MESSAGE;
    while (!chat->quit && !ferror(stdout)) {
        outcome = line_editor_read(chat->editor, &message, error);
        if (outcome == LINE_END || outcome == LINE_FAILED)
            break;
        if (outcome == LINE_CANCELLED || message.size == 0 || strspn(message.data, " \t\r\n") == message.size)
            continue;
        if (message.data[0] == '/')
            run_chat_command(chat, message.data + 1);
        else
            take_turn(chat, &message);
        struct calla_error unsaved;
        if (!named_chat_save(&chat->named, &chat->conversation, &unsaved))
            tell(chat, &unsaved);
        fflush(stdout);
        /* A script that is interrupted ends; a person who stops an answer goes on. */
        if (interrupted() && (interrupt_signal() != SIGINT || !line_editor_interactive(chat->editor)))
            break;
    }
    buffer_free(&message);
    return outcome != LINE_FAILED;
}

static bool open_chat(struct chat *chat, struct calla_error *error) {
    if (!conversation_open(&chat->conversation, error) ||
        (chat->name != NULL && !named_chat_open(&chat->named, chat->name, &chat->conversation, error)) ||
        (chat->sampling.system != NULL &&
         !conversation_set_system(&chat->conversation, chat->sampling.system, error)))
        return false;
    if (chat->name != NULL) {
        chat->model_flags.cache_memory = CALLA_CACHE_DEFAULT;
        chat->model_flags.cache_dir = chat->named.folder;
        chat->model_flags.cache_disk = NAMED_CHAT_DISK;
    }
    interrupt_arm();
    chat->model = open_model(&chat->model_flags, false, error);
    chat->session = chat->model == NULL ? NULL : open_session(chat->model, &chat->model_flags, error);
    interrupt_disarm();
    return chat->session != NULL && (chat->editor = line_editor_open(error)) != NULL;
}

static void greet(const struct chat *chat) {
    struct calla_model_info info;
    calla_model_info(chat->model, &info);
    if (line_editor_interactive(chat->editor) && !chat->model_flags.quiet)
        fprintf(stderr, "%s on %s, %u tokens of context; /help lists the commands.\n", info.name,
                info.backend, calla_session_context(chat->session));
    size_t messages = json_array_size(chat->conversation.messages);
    if (chat->name != NULL && messages > 0 && !chat->model_flags.quiet)
        fprintf(stderr, "Going on with %s: %zu messages.\n", chat->name, messages);
}

int command_chat(int argc, char **argv) {
    struct chat chat = {0};
    struct option model_rows[MODEL_OPTIONS], sampling_rows[SAMPLING_OPTIONS];
    model_options(model_rows, &chat.model_flags);
    sampling_options(sampling_rows, &chat.sampling);
    const struct option chat_rows[] = {
        {.name = "name",
         .value = "NAME",
         .help = "keep the conversation under this name, and go on\nwith it if there is one",
         .text = &chat.name},
    };
    const struct option_group groups[] = {{"Conversation", chat_rows, 1},
                                          {"Reply", sampling_rows, SAMPLING_OPTIONS},
                                          {"Model", model_rows, MODEL_OPTIONS}};
    const struct command_usage usage = {.name = "chat",
                                        .synopsis = "[OPTIONS]",
                                        .about = "A conversation in the terminal; /help there lists its "
                                                 "commands. From a pipe every line is a message, and\n"
                                                 "only the answers go to standard output.",
                                        .groups = groups,
                                        .group_count = 3,
                                        .argument_hint = "\"calla run\" answers a prompt"};
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    bool ok = model_flags_check(&chat.model_flags, &error);
    if (!ok)
        return command_end(&usage, false, EXIT_WRONG_USAGE, &error);
    ok = open_chat(&chat, &error);
    if (ok) {
        chat.thinking = !chat.sampling.no_think;
        chat.show_thinking = chat.sampling.show_thinking || (!chat.model_flags.quiet && terminal_is(stderr));
        greet(&chat);
        ok = converse(&chat, &error);
    }
    bool interactive = chat.editor != NULL && line_editor_interactive(chat.editor);
    line_editor_close(chat.editor);
    calla_session_close(chat.session);
    calla_model_close(chat.model);
    conversation_close(&chat.conversation);
    named_chat_close(&chat.named);
    exit_code = command_end(&usage, ok, EXIT_WORK_FAILED, &error);
    /* To a person an error was told when it happened; a script learns of it from the exit code. */
    if (ok && interactive)
        return 0;
    return exit_code == 0 && chat.failed ? EXIT_WORK_FAILED : exit_code;
}
