#include "cli/line_editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/streams.h"
#include "cli/terminal.h"

#define HISTORY_ENTRIES 1000
#define LONGEST_PASTE ((size_t)1 << 20)

static const char block_mark[] = "\"\"\"";

struct line_editor {
    EditLine *line; /* NULL: lines come from a pipe */
    History *history;
    char *history_path; /* NULL: not kept */
    bool continuing;    /* the prompt shows that a message goes on */
    bool interrupted;
};

static struct line_editor *editor_of(EditLine *line) {
    void *data = NULL;
    el_get(line, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt(EditLine *line) {
    static char first[] = "> ", next[] = "... ";
    return editor_of(line)->continuing ? next : first;
}

/* Ctrl-C and Ctrl-Z as keys: libedit waits on when a signal comes that it does not know, and ends the program
 * on one that it does. */
static unsigned char interrupt_key(EditLine *line, int key) {
    (void)key;
    editor_of(line)->interrupted = true;
    return CC_EOF;
}

static unsigned char suspend_key(EditLine *line, int key) {
    (void)line, (void)key;
    raise(SIGTSTP); /* libedit's own handler leaves the terminal as it was meanwhile */
    return CC_REFRESH;
}

/* What a terminal sends for a paste lies between ESC [ 200 ~ and ESC [ 201 ~, so that its newlines do not end
 * the message. */
static unsigned char paste_key(EditLine *line, int key) {
    (void)key;
    static const wchar_t end[] = L"\033[201~";
    const size_t end_size = sizeof end / sizeof *end - 1;
    wchar_t *text = NULL, character;
    size_t size = 0, capacity = 0;
    bool complete = false;
    while (!complete && size < LONGEST_PASTE && el_wgetc(line, &character) == 1) {
        if (size + 2 > capacity) {
            capacity = capacity * 2 + 256;
            wchar_t *more = realloc(text, capacity * sizeof *text);
            if (more == NULL)
                break;
            text = more;
        }
        text[size++] = character == L'\r' ? L'\n' : character;
        complete = size >= end_size && wmemcmp(text + size - end_size, end, end_size) == 0;
    }
    if (complete)
        size -= end_size;
    if (size > 0) {
        text[size] = 0;
        el_winsertstr(line, text);
    }
    free(text);
    return CC_REFRESH;
}

/* $XDG_STATE_HOME/calla/history with its folders made, or NULL. */
static char *find_history(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct buffer name = {0};
    if (state != NULL && state[0] == '/')
        buffer_printf(&name, "%s/calla/history", state);
    else if (home != NULL && home[0] == '/')
        buffer_printf(&name, "%s/.local/state/calla/history", home);
    else
        return NULL;
    char *path = buffer_take(&name, NULL);
    if (path == NULL)
        return NULL;
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    /* Made here so that it is nobody else's to read from the start. */
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor >= 0)
        close(descriptor);
    return path;
}

/* Editing needs a locale that knows UTF-8; numbers stay as in C. */
static void choose_locale(void) {
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1 && setlocale(LC_CTYPE, "C.UTF-8") == NULL)
        setlocale(LC_CTYPE, "en_US.UTF-8");
}

static bool open_terminal(struct line_editor *editor) {
    HistEvent event;
    choose_locale();
    editor->line = el_init("calla", stdin, stdout, stderr);
    editor->history = history_init();
    if (editor->line == NULL || editor->history == NULL)
        return false;
    history(editor->history, &event, H_SETSIZE, HISTORY_ENTRIES);
    history(editor->history, &event, H_SETUNIQUE, 1);
    editor->history_path = find_history();
    if (editor->history_path != NULL)
        history(editor->history, &event, H_LOAD, editor->history_path);
    el_set(editor->line, EL_CLIENTDATA, editor);
    el_set(editor->line, EL_PROMPT, prompt);
    el_set(editor->line, EL_EDITOR, "emacs");
    el_set(editor->line, EL_SIGNAL, 1);
    el_set(editor->line, EL_HIST, history, editor->history);
    /* The wide call keeps the names as they are; the other one copies them for good. */
    el_wset(editor->line, EL_ADDFN, L"calla-interrupt", L"Give up the message", interrupt_key);
    el_wset(editor->line, EL_ADDFN, L"calla-suspend", L"Stop the program for now", suspend_key);
    el_wset(editor->line, EL_ADDFN, L"calla-paste", L"Insert pasted text", paste_key);
    el_source(editor->line, NULL); /* the person's own ~/.editrc; what follows must hold */
    el_set(editor->line, EL_SETTY, "-d", "-isig", NULL);
    el_set(editor->line, EL_BIND, "^C", "calla-interrupt", NULL);
    el_set(editor->line, EL_BIND, "^Z", "calla-suspend", NULL);
    el_set(editor->line, EL_BIND, "\\e[200~", "calla-paste", NULL);
    el_set(editor->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return true;
}

struct line_editor *line_editor_open(struct calla_error *error) {
    struct line_editor *editor = calloc(1, sizeof *editor);
    bool terminal = terminal_is(stdin) && terminal_is(stdout);
    if (editor != NULL && (!terminal || open_terminal(editor)))
        return editor;
    error_memory(error, "the line editor", sizeof *editor);
    line_editor_close(editor);
    return NULL;
}

void line_editor_close(struct line_editor *editor) {
    if (editor == NULL)
        return;
    if (editor->line != NULL)
        el_end(editor->line);
    if (editor->history != NULL)
        history_end(editor->history);
    free(editor->history_path);
    free(editor);
}

bool line_editor_interactive(const struct line_editor *editor) {
    return editor->line != NULL;
}

static void remember(struct line_editor *editor, const char *message) {
    if (editor->history == NULL || *message == 0)
        return;
    HistEvent event;
    history(editor->history, &event, H_ENTER, message);
    if (editor->history_path != NULL)
        history(editor->history, &event, H_SAVE, editor->history_path);
}

static void bracket_pastes(bool on) {
    const char *kind = getenv("TERM");
    if (kind != NULL && strcmp(kind, "dumb") != 0) {
        fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
        fflush(stdout);
    }
}

static enum line_outcome edit_line(struct line_editor *editor, struct buffer *line) {
    int size = 0;
    editor->interrupted = false;
    bracket_pastes(true);
    const char *text = el_gets(editor->line, &size);
    bracket_pastes(false);
    if (text == NULL || size <= 0) {
        fputc('\n', stdout);
        return editor->interrupted ? LINE_CANCELLED : LINE_END;
    }
    buffer_append(line, text, (size_t)size);
    return LINE_MESSAGE;
}

static enum line_outcome read_pipe_line(struct buffer *line, struct calla_error *error) {
    int character;
    while ((character = getchar()) != EOF && line->size <= STREAM_LIMIT) {
        buffer_append_byte(line, (char)character);
        if (character == '\n')
            break;
    }
    if (character == EOF && ferror(stdin)) {
        error_set(error, CALLA_IO, "Standard input cannot be read: %s.", strerror(errno));
        return LINE_FAILED;
    }
    if (line->size > STREAM_LIMIT) {
        error_set(error, CALLA_BAD_INPUT, "A line on standard input is longer than %zu MiB.",
                  STREAM_LIMIT >> 20);
        return LINE_FAILED;
    }
    return line->size > 0 ? LINE_MESSAGE : LINE_END;
}

/* One line, without its newline. */
static enum line_outcome read_line(struct line_editor *editor, struct buffer *line,
                                   struct calla_error *error) {
    buffer_clear(line);
    enum line_outcome outcome = editor->line != NULL ? edit_line(editor, line) : read_pipe_line(line, error);
    if (outcome == LINE_MESSAGE && line->size > 0 && line->data[line->size - 1] == '\n')
        line->data[--line->size] = 0;
    if (outcome == LINE_MESSAGE && line->failed) {
        error_memory(error, "a message", line->size);
        return LINE_FAILED;
    }
    return outcome;
}

static bool ends_with(const struct buffer *line, const char *end) {
    size_t size = strlen(end);
    return line->size >= size && memcmp(line->data + line->size - size, end, size) == 0;
}

/* Appends a line to the message and says whether the message goes on. */
static bool add_line(struct buffer *message, struct buffer *line, bool first, bool *block) {
    size_t mark = sizeof block_mark - 1, skip = 0;
    if (first && line->size >= mark && memcmp(line->data, block_mark, mark) == 0) {
        *block = true;
        skip = mark;
    }
    size_t end = line->size;
    bool goes_on = false;
    if (*block) {
        goes_on = end - skip < mark || !ends_with(line, block_mark);
        end -= goes_on ? 0 : mark;
    } else if (ends_with(line, "\\")) {
        goes_on = true;
        end--;
    }
    buffer_append(message, line->data == NULL ? "" : line->data + skip, end - skip);
    /* The marks may stand on lines of their own, which are no lines of the message. */
    if (goes_on && !(*block && first && end == skip))
        buffer_append_byte(message, '\n');
    if (*block && !goes_on && end == 0 && message->size > 0)
        message->data[--message->size] = 0;
    return goes_on;
}

enum line_outcome line_editor_read(struct line_editor *editor, struct buffer *message,
                                   struct calla_error *error) {
    struct buffer line = {0};
    bool block = false, goes_on = true;
    enum line_outcome outcome = LINE_MESSAGE;
    buffer_clear(message);
    editor->continuing = false;
    while (goes_on && (outcome = read_line(editor, &line, error)) == LINE_MESSAGE) {
        goes_on = add_line(message, &line, !editor->continuing, &block);
        editor->continuing = true;
    }
    buffer_free(&line);
    if (outcome == LINE_END && editor->continuing) /* a message that was begun */
        outcome = editor->line != NULL ? LINE_CANCELLED : LINE_MESSAGE;
    if (outcome == LINE_MESSAGE && message->failed) {
        error_memory(error, "a message", message->size);
        outcome = LINE_FAILED;
    }
    if (outcome == LINE_MESSAGE && message->size > 0)
        remember(editor, message->data);
    return outcome;
}
