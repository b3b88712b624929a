/* MLX-LM beside Calla: a Python program (tools/bench_mlx_lm.py) that loads the same folder once and then
 * measures a prompt whenever it is asked. One JSON object a line goes each way:
 *
 *   it says   {"version": ..., "mlx": ..., "device": ...}         when mlx_lm can be imported
 *   we say    {"load": DIR}                                        it: {"load_seconds": ...}
 *   we say    {"prompt": [ids], "tokens": N}                       it: {"prompt_seconds": ..., ...}
 *   it says   {"error": "one sentence"}                            instead of any of these
 *
 * It rests between two rounds and ends with its standard input. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/model_path.h"

#define ANSWER_LIMIT ((size_t)1 << 20)

#ifdef __APPLE__
extern char **environ; /* unistd.h has it elsewhere */
#endif

struct bench_peer {
    pid_t process;
    int input, output; /* ours to write to it and to read from it */
    char *script, *python;
    struct buffer received;
};

static bool ended_early(const struct bench_peer *peer, struct calla_error *error) {
    return error_set(error, CALLA_DEVICE,
                     "MLX-LM's program ended before it answered; \"%s %s\" run by hand tells why.",
                     peer->python, peer->script);
}

/* One line of the other program, without its end. Ctrl-C ends the wait. */
static bool receive_line(struct bench_peer *peer, struct buffer *line, struct calla_error *error) {
    for (;;) {
        const char *end =
            peer->received.size == 0 ? NULL : memchr(peer->received.data, '\n', peer->received.size);
        if (end != NULL) {
            size_t size = (size_t)(end - peer->received.data);
            struct buffer rest = {0};
            bool ok = buffer_append(line, peer->received.data, size) &&
                      buffer_append(&rest, end + 1, peer->received.size - size - 1);
            buffer_free(&peer->received);
            peer->received = rest;
            return ok || error_memory(error, "an answer of MLX-LM", size);
        }
        if (interrupted())
            return error_set(error, CALLA_CANCELLED, "The measurements were stopped.");
        struct pollfd output = {.fd = peer->output, .events = POLLIN};
        char bytes[4096];
        /* A short wait, since Ctrl-C may come between the look at it and the wait. */
        if (poll(&output, 1, 200) <= 0)
            continue;
        ssize_t size = read(peer->output, bytes, sizeof bytes);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0 || peer->received.size > ANSWER_LIMIT)
            return ended_early(peer, error);
        if (!buffer_append(&peer->received, bytes, (size_t)size))
            return error_memory(error, "an answer of MLX-LM", (size_t)size);
    }
}

static json_t *receive(struct bench_peer *peer, struct calla_error *error) {
    struct buffer line = {0};
    json_t *answer = NULL;
    if (receive_line(peer, &line, error))
        answer = json_parse(line.size == 0 ? "" : line.data, line.size, "MLX-LM's answer", error);
    buffer_free(&line);
    const char *problem = json_string_value(json_object_get(answer, "error"));
    if (problem == NULL)
        return answer;
    error_set(error, CALLA_DEVICE, "%.900s", problem);
    json_decref(answer);
    return NULL;
}

static bool send_json(struct bench_peer *peer, json_t *question, struct calla_error *error) {
    char *text = question == NULL ? NULL : json_dumps(question, JSON_COMPACT);
    json_decref(question);
    if (text == NULL)
        return error_set(error, CALLA_BAD_INPUT,
                         "The model's path is not UTF-8, so MLX-LM cannot be told of it.");
    size_t size = strlen(text);
    text[size++] = '\n'; /* in place of the zero */
    size_t done = 0;
    while (done < size) {
        ssize_t written = write(peer->input, text + done, size - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            break;
        done += (size_t)written;
    }
    free(text);
    return done == size || ended_early(peer, error);
}

/* Two pipes, kept from every other process; -1 where there is none. */
static bool open_pipes(int to_it[2], int from_it[2], struct calla_error *error) {
    bool ok = pipe(to_it) == 0 && pipe(from_it) == 0;
    for (int i = 0; ok && i < 2; i++)
        ok = fcntl(to_it[i], F_SETFD, FD_CLOEXEC) == 0 && fcntl(from_it[i], F_SETFD, FD_CLOEXEC) == 0;
    return ok || error_set(error, CALLA_IO, "No pipe to MLX-LM can be opened: %s.", strerror(errno));
}

/* In a process group of its own: Ctrl-C in the terminal is for us, and we end it. */
static int spawn(struct bench_peer *peer, const int to_it[2], const int from_it[2]) {
    /* By its first argument Python finds the virtual environment that it belongs to. */
    char *const arguments[] = {peer->python, peer->script, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    if (posix_spawn_file_actions_init(&actions) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    int failure = posix_spawn_file_actions_adddup2(&actions, to_it[0], STDIN_FILENO);
    if (failure == 0)
        failure = posix_spawn_file_actions_adddup2(&actions, from_it[1], STDOUT_FILENO);
    if (failure == 0)
        failure = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (failure == 0)
        failure = posix_spawnattr_setsigdefault(&attributes, &defaults);
    if (failure == 0)
        failure = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    if (failure == 0)
        failure = posix_spawnp(&peer->process, peer->python, &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failure;
}

static bool start(struct bench_peer *peer, struct calla_error *error) {
    int to_it[2] = {-1, -1}, from_it[2] = {-1, -1};
    bool ok = open_pipes(to_it, from_it, error);
    if (ok) {
        int failure = spawn(peer, to_it, from_it);
        if (failure != 0) {
            peer->process = 0;
            ok = error_set(
                error, CALLA_NOT_FOUND,
                "--against mlx-lm needs Python with mlx_lm, but \"%s\" cannot be run (%s); name the "
                "interpreter in the variable CALLA_PYTHON.",
                peer->python, strerror(failure));
        }
    }
    for (int i = 0; i < 2; i++) {
        int keep = i == 0 ? from_it[0] : to_it[1], close_it = i == 0 ? to_it[0] : from_it[1];
        *(i == 0 ? &peer->output : &peer->input) = keep;
        if (close_it >= 0)
            close(close_it);
    }
    return ok;
}

static void copy_text(char *out, size_t size, const json_t *answer, const char *key) {
    const char *text = json_string_value(json_object_get(answer, key));
    snprintf(out, size, "%s", text != NULL ? text : "unknown");
}

bool bench_peer_open(struct bench *bench, struct calla_error *error) {
    struct bench_peer *peer = bench->peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return error_memory(error, "the other program", sizeof *peer);
    peer->input = peer->output = -1;
    const char *python = getenv("CALLA_PYTHON");
    peer->python = strdup(python != NULL && *python != 0 ? python : "python3");
    if (peer->python == NULL)
        return error_memory(error, "the other program", sizeof *peer);
    peer->script = find_tool("bench_mlx_lm.py", error);
    if (peer->script == NULL || !start(peer, error))
        return false;
    json_t *hello = receive(peer, error);
    if (hello == NULL)
        return false;
    copy_text(bench->peer_info.version, sizeof bench->peer_info.version, hello, "version");
    copy_text(bench->peer_info.library, sizeof bench->peer_info.library, hello, "mlx");
    copy_text(bench->peer_info.device, sizeof bench->peer_info.device, hello, "device");
    json_decref(hello);
    return true;
}

void bench_peer_close(struct bench *bench) {
    struct bench_peer *peer = bench->peer;
    bench->peer = NULL;
    if (peer == NULL)
        return;
    if (peer->input >= 0)
        close(peer->input);
    if (peer->output >= 0)
        close(peer->output);
    if (peer->process > 0) {
        /* It has nothing to lose, and Python may be a script that started another program. */
        kill(-peer->process, SIGKILL);
        while (waitpid(peer->process, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    buffer_free(&peer->received);
    free(peer->script);
    free(peer->python);
    free(peer);
}

static bool take_seconds(const struct bench_peer *peer, const json_t *answer, const char *key,
                         double *seconds, struct calla_error *error) {
    const json_t *value = json_object_get(answer, key);
    *seconds = json_number_value(value);
    return (json_is_number(value) && *seconds > 0) ||
           error_set(error, CALLA_DEVICE, "%s answered without \"%s\".", peer->script, key);
}

bool bench_peer_load(struct bench *bench, struct calla_error *error) {
    struct bench_peer *peer = bench->peer;
    if (!send_json(peer, json_pack("{s:s}", "load", bench->path), error))
        return false;
    json_t *answer = receive(peer, error);
    bool ok =
        answer != NULL && take_seconds(peer, answer, "load_seconds", &bench->peer_info.load_seconds, error);
    json_decref(answer);
    return ok;
}

bool bench_peer_round(struct bench *bench, uint32_t length, uint32_t tokens, double seconds[BENCH_PHASES],
                      struct calla_error *error) {
    struct bench_peer *peer = bench->peer;
    json_t *ids = json_array();
    for (uint32_t i = 0; i < length; i++)
        if (json_array_append_new(ids, json_integer(bench->prompt[i])) != 0) {
            json_decref(ids);
            return error_memory(error, "the prompt for MLX-LM", length);
        }
    if (!send_json(peer, json_pack("{s:o, s:I}", "prompt", ids, "tokens", (json_int_t)tokens), error))
        return false;
    json_t *answer = receive(peer, error);
    bool ok = answer != NULL &&
              take_seconds(peer, answer, "prompt_seconds", &seconds[BENCH_PREFILL], error) &&
              (tokens == 0 || take_seconds(peer, answer, "decode_seconds", &seconds[BENCH_DECODE], error));
    if (ok)
        bench->peer_info.peak_resident =
            (uint64_t)json_integer_value(json_object_get(answer, "peak_resident_bytes"));
    json_decref(answer);
    return ok;
}
