/* The measuring. One session a length; in it warm-up rounds and then the repeats.
 *
 * A round reads the prompt from an empty session if prefill is measured at this length (or --real-context
 * asks for it), and decodes from where that ends; otherwise the context is filled with random values
 * (calla_session_fill). Time stands still outside of the two: opening, filling, the first token that only has
 * to be drawn, and reading off the memory's speed between the steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/system.h"
#include "cli/bench.h"
#include "cli/interrupt.h"

/* The memory's speed is read off between steps, in so much of their time. */
#define METER_SHARE 0.1

struct memory_readings {
    double seconds, bytes; /* of all readings */
    double last, end;      /* seconds of the latest, and when it ended */
};

struct bench_figure *bench_figures_new(const struct bench *bench, size_t *count, struct calla_error *error) {
    *count = bench->lengths[BENCH_PREFILL].count + bench->lengths[BENCH_DECODE].count;
    struct bench_figure *figures = calloc(*count, sizeof *figures), *figure = figures;
    if (figures == NULL)
        error_memory(error, "the results", *count * sizeof *figures);
    for (int phase = 0; figures != NULL && phase < BENCH_PHASES; phase++)
        for (size_t i = 0; i < bench->lengths[phase].count; i++, figure++) {
            uint32_t length = bench->lengths[phase].values[i];
            bool decode = phase == BENCH_DECODE;
            *figure =
                (struct bench_figure){.phase = (enum bench_phase)phase,
                                      .length = length,
                                      .tokens = decode ? (uint32_t)bench->tokens : length,
                                      .filled = decode && !bench->real_context &&
                                                !lengths_contain(&bench->lengths[BENCH_PREFILL], length)};
        }
    return figures;
}

/* As many ids as the longest length has, drawn evenly among those that the tokenizer defines. */
static bool make_prompt(struct bench *bench, struct calla_error *error) {
    size_t longest = 1;
    uint64_t state = bench->seed;
    for (int phase = 0; phase < BENCH_PHASES; phase++)
        for (size_t i = 0; i < bench->lengths[phase].count; i++)
            if (bench->lengths[phase].values[i] > longest)
                longest = bench->lengths[phase].values[i];
    bench->prompt = malloc(longest * sizeof *bench->prompt);
    if (bench->prompt == NULL)
        return error_memory(error, "the prompt", longest * sizeof *bench->prompt);
    for (size_t i = 0; i < longest; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bench->prompt[i] = (int32_t)((state >> 33) * bench->info.tokens >> 31);
    }
    return true;
}

/* For backends that compute from this machine's own memory, where limits are told. Short of memory, the
 * bandwidth is measured at the end, with no model left. */
static void open_meter(struct bench *bench) {
    if (bench->bandwidth_given || bench->class->bandwidth != NULL || bench->ablation_count > 0)
        return;
    bench->peak_before_meter = system_peak_resident();
    bench->meter = bandwidth_meter_open(bench->info.threads, NULL);
}

bool bench_contestant_open(struct bench *bench, struct bench_contestant *contestant,
                           struct calla_error *error) {
    if (contestant->model != NULL)
        return true;
    double start = system_seconds();
    contestant->model = open_model(&contestant->flags, false, error);
    if (contestant->model == NULL)
        return false;
    if (bench->name != NULL)
        return true;
    bench->ready_seconds = system_seconds() - start;
    calla_model_info(contestant->model, &bench->info);
    bench->name = strdup(bench->info.name);
    if (bench->name == NULL)
        return error_memory(error, "the model's name", strlen(bench->info.name));
    bench->info.name = bench->name;
    open_meter(bench);
    return make_prompt(bench, error);
}

void bench_contestant_close(struct bench_contestant *contestant) {
    calla_model_close(contestant->model);
    contestant->model = NULL;
}

static bool stopped(struct calla_error *error) {
    error_set(error, CALLA_CANCELLED, "The measurements were stopped.");
    return interrupted();
}

static bool watch(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    struct bench *bench = user;
    progress_line_draw(&bench->line, "reading a prompt", done, total);
    return !interrupted();
}

/* Reads the prompt into an empty session, up to the logits of its last token. */
static bool read_prompt(struct bench *bench, struct calla_session *session, uint32_t length, double *seconds,
                        struct calla_error *error) {
    struct calla_progress progress = {.report = watch, .user = bench};
    if (!calla_session_reset(session, error))
        return false;
    double start = system_seconds();
    bool ok = calla_session_read(session, bench->prompt, length, NULL, &progress, error) &&
              calla_session_logits(session, error) != NULL;
    *seconds = system_seconds() - start;
    return ok;
}

/* The tokens that would end a reply, forbidden. */
static size_t forbid_ends(const struct bench *bench, const struct calla_model *model,
                          struct calla_logit_bias biases[CONFIG_MAX_END_TOKENS + 1]) {
    static const char opening[] = "<|im_start|>"; /* ends a reply as well */
    size_t count = 0;
    for (uint32_t i = 0; i < bench->config.end_token_count; i++)
        if ((uint32_t)bench->config.end_tokens[i] < bench->info.tokens) /* others are never drawn */
            biases[count++] = (struct calla_logit_bias){bench->config.end_tokens[i], -INFINITY};
    struct calla_tokens tokens = {0};
    if (calla_tokenize(model, opening, sizeof opening - 1, true, &tokens, NULL) && tokens.count == 1)
        biases[count++] = (struct calla_logit_bias){tokens.ids[0], -INFINITY};
    calla_tokens_free(&tokens);
    return count;
}

/* Returns the seconds that it took. */
static double read_memory(const struct bench *bench, struct memory_readings *readings) {
    double now = system_seconds();
    if (bench->meter == NULL || now - readings->end < readings->last / METER_SHARE)
        return 0;
    readings->last = bandwidth_meter_read(bench->meter);
    readings->seconds += readings->last;
    readings->bytes += (double)BANDWIDTH_WINDOW_BYTES;
    readings->end = system_seconds();
    return readings->end - now;
}

/* Decodes tokens after the first `length` of the prompt, all or all but the last of which are in the session:
 * greedily and without text around it, as a reply is made. */
static bool decode(struct bench *bench, const struct calla_model *model, struct calla_session *session,
                   uint32_t length, double *seconds, struct memory_readings *memory,
                   struct calla_error *error) {
    struct calla_logit_bias biases[CONFIG_MAX_END_TOKENS + 1];
    size_t bias_count = forbid_ends(bench, model, biases);
    const struct calla_prompt prompt = {.tokens = {.ids = bench->prompt, .count = length}};
    const struct calla_generate_options options = {
        .sampling = {.top_p = 1, .repetition_penalty = 1, .biases = biases, .bias_count = bias_count},
        .max_tokens = (uint32_t)bench->tokens + 1,
        .raw = true};
    struct calla_generation *generation = calla_generation_new(session, &prompt, &options, error);
    if (generation == NULL)
        return false;
    size_t read, made = 0;
    double start = 0, paused = 0;
    bool done = false, ok = true;
    while (ok && !done) {
        ok = calla_generation_step(generation, &done, error);
        size_t before = made;
        calla_generation_progress(generation, &read, &made);
        if (before == 0 && made == 1)
            start = system_seconds();
        else if (ok && !done && made > 1)
            paused += read_memory(bench, memory);
        if (ok && !done && interrupted())
            ok = !stopped(error);
    }
    *seconds = system_seconds() - start - paused;
    if (ok && made != bench->tokens + 1)
        ok = error_set(error, CALLA_UNSUPPORTED, "Only %zu of %llu tokens were decoded at context %u.", made,
                       (unsigned long long)bench->tokens + 1, length);
    calla_generation_free(generation);
    return ok;
}

static struct bench_figure *find_figure(const struct bench *bench, struct bench_figure *figures,
                                        enum bench_phase phase, uint32_t length) {
    for (size_t i = 0; i < bench->figure_count; i++)
        if (figures[i].phase == phase && figures[i].length == length)
            return &figures[i];
    return NULL;
}

static void add_seconds(const struct bench *bench, struct bench_figure *figures, uint32_t length,
                        bool peer_side, const double seconds[BENCH_PHASES]) {
    for (int phase = 0; phase < BENCH_PHASES; phase++) {
        struct bench_figure *figure = find_figure(bench, figures, (enum bench_phase)phase, length);
        if (figure != NULL)
            samples_add(peer_side ? &figure->peer : &figure->seconds, seconds[phase]);
    }
}

bool bench_round(struct bench *bench, struct calla_model *model, struct calla_session *session,
                 uint32_t length, struct bench_figure *figures, bool warm_up, bool peer_side,
                 struct calla_error *error) {
    struct bench_figure *decoded = find_figure(bench, figures, BENCH_DECODE, length);
    double seconds[BENCH_PHASES] = {0};
    bool filled = decoded != NULL && decoded->filled;
    struct memory_readings memory = {0};
    bool ok = filled ? calla_session_reset(session, error) &&
                           (length == 1 ||
                            calla_session_fill(session, bench->prompt, length - 1, bench->seed, error))
                     : read_prompt(bench, session, length, &seconds[BENCH_PREFILL], error);
    ok = ok &&
         (decoded == NULL || decode(bench, model, session, length, &seconds[BENCH_DECODE], &memory, error));
    if (ok && !warm_up) {
        add_seconds(bench, figures, length, peer_side, seconds);
        if (memory.seconds > 0 && !peer_side)
            samples_add(&decoded->memory, memory.bytes / memory.seconds);
    }
    return ok;
}

static bool peer_round(struct bench *bench, uint32_t length, bool warm_up, struct calla_error *error) {
    double seconds[BENCH_PHASES] = {0};
    bool decoded = lengths_contain(&bench->lengths[BENCH_DECODE], length);
    if (!bench_peer_round(bench, length, decoded ? (uint32_t)bench->tokens : 0, seconds, error))
        return false;
    if (!warm_up)
        add_seconds(bench, bench->figures, length, true, seconds);
    return true;
}

static bool measure_length(struct bench *bench, struct calla_model *model, uint32_t length,
                           struct calla_error *error) {
    struct calla_session_options options = {.context = bench_context(bench, length)};
    struct calla_session *session = calla_session_open(model, &options, error);
    bool ok = session != NULL;
    char what[64], text[16];
    length_print(length, text);
    snprintf(what, sizeof what, "measuring at %s", text);
    for (uint64_t i = 0; ok && i < bench->warm_up + bench->repeat; i++) {
        bool warm_up = i < bench->warm_up;
        progress_line_draw(&bench->line, what, i, bench->warm_up + bench->repeat);
        ok = !(interrupted() && stopped(error)) &&
             bench_round(bench, model, session, length, bench->figures, warm_up, false, error) &&
             (bench->peer == NULL || peer_round(bench, length, warm_up, error));
    }
    calla_session_close(session);
    return ok;
}

bool bench_measure(struct bench *bench, struct calla_error *error) {
    struct lengths lengths = bench->lengths[BENCH_PREFILL];
    struct bench_contestant contestant = {.flags = bench->model};
    if (!lengths_merge(&lengths, &bench->lengths[BENCH_DECODE]))
        return error_set(error, CALLA_BAD_INPUT, "--prefill and --decode together name more than %d lengths.",
                         BENCH_MOST_LENGTHS);
    bench->figures = bench_figures_new(bench, &bench->figure_count, error);
    bool ok = bench->figures != NULL && bench_contestant_open(bench, &contestant, error) &&
              (bench->peer == NULL || bench_peer_load(bench, error));
    progress_line_start(&bench->line, bench->model.quiet);
    for (size_t i = 0; ok && i < lengths.count; i++)
        ok = measure_length(bench, contestant.model, lengths.values[i], error);
    progress_line_end(&bench->line);
    bench_contestant_close(&contestant);
    return ok;
}
