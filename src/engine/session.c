/* A session: the buffers of one conversation, what has been read into them, and the plans that read more.
 *
 * A prompt is read in chunks of a fixed number of rows and a shorter last one, so that scratch memory is
 * bounded; each shape's plan is compiled once and kept. The recurrent state cannot be rewound: a text that
 * does not continue what was read starts over from position 0. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/prefix_cache.h"

/* Without a wish, a session may grow to half of the memory that the weights leave. */
static uint32_t default_context(const struct calla_model *model) {
    struct calla_model_info info;
    calla_model_info(model, &info);
    if (info.memory_bytes == 0 || info.bytes_per_position == 0)
        return info.context_limit;
    uint64_t left = info.memory_bytes > info.weight_bytes ? info.memory_bytes - info.weight_bytes : 0;
    if (model->class->free_memory != NULL)
        left = model->class->free_memory(model->backend);
    uint64_t fits = left / 2 / info.bytes_per_position;
    if (fits < 4096)
        fits = 4096;
    return fits < info.context_limit ? (uint32_t)fits : info.context_limit;
}

static struct program *find_program(struct calla_session *session, const struct forward_options *options,
                                    struct calla_error *error) {
    struct session_program *place = &session->programs[0];
    for (size_t i = 0; i < SESSION_PROGRAMS; i++) {
        struct session_program *kept = &session->programs[i];
        if (kept->program != NULL && kept->options.rows == options->rows &&
            kept->options.logits == options->logits && kept->options.sample == options->sample) {
            kept->used = ++session->program_clock;
            return kept->program;
        }
        if (kept->used < place->used)
            place = kept;
    }
    const struct calla_model *model = session->model;
    struct plan plan = {0};
    struct program *program = NULL;
    if (forward_plan(&plan, &model->config, &model->weights.table, &model->policy, session->context, options,
                     error))
        program = model->class->compile(session->device, &plan, error);
    plan_free(&plan);
    if (program == NULL)
        return NULL;
    if (place->program != NULL)
        model->class->program_free(place->program);
    *place =
        (struct session_program){.options = *options, .program = program, .used = ++session->program_clock};
    return program;
}

static bool run_for(struct calla_session *session, const struct forward_options *options, double seconds,
                    bool *finished, struct calla_error *error) {
    struct program *program = find_program(session, options, error);
    return program != NULL && session->model->class->run(session->device, program, seconds, finished, error);
}

bool session_run(struct calla_session *session, const struct forward_options *options,
                 struct calla_error *error) {
    bool finished = false;
    return run_for(session, options, INFINITY, &finished, error);
}

struct calla_session *calla_session_open(struct calla_model *model,
                                         const struct calla_session_options *options,
                                         struct calla_error *error) {
    if (model->backend == NULL) {
        error_set(error, CALLA_BAD_INPUT,
                  "%s was opened for its tokenizer only; a session needs its weights.", model->name);
        return NULL;
    }
    uint32_t limit = model->config.context_limit, context = options == NULL ? 0 : options->context;
    if (context > limit) {
        error_set(error, CALLA_BAD_INPUT, "A context of %u tokens is more than %s was made for: at most %u.",
                  context, model->name, limit);
        return NULL;
    }
    struct calla_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        error_memory(error, "a session", sizeof *session);
        return NULL;
    }
    session->model = model;
    session->context = context > 0 ? context : default_context(model);
    session->sampled = -1;
    session->record = (struct step_record){.top_p = 1, .repetition_penalty = 1};
    session->tokens = calloc(session->context, sizeof *session->tokens);
    session->logits = calloc(model->config.vocabulary, sizeof *session->logits);
    struct forward_options step = {.rows = 1, .logits = LOGITS_LAST, .sample = true};
    bool ok = session->tokens != NULL && session->logits != NULL;
    if (!ok)
        error_memory(error, "a session", session->context * sizeof *session->tokens);
    ok = ok && forward_layout(&session->layout, &model->config, &model->policy, session->context, error);
    session->chunk_rows = ok ? session->layout.step[STEP_TOKENS].columns : 0;
    ok =
        ok && (session->device = model->class->session_open(model->backend, &session->layout, error)) != NULL;
    /* The step's plan is compiled here, so that a first answer does not wait for it. */
    if (ok && find_program(session, &step, error) != NULL)
        return session;
    calla_session_close(session);
    return NULL;
}

void calla_session_close(struct calla_session *session) {
    if (session == NULL)
        return;
    session_read_end(session);
    for (size_t i = 0; i < SESSION_PROGRAMS; i++)
        if (session->programs[i].program != NULL)
            session->model->class->program_free(session->programs[i].program);
    if (session->device != NULL)
        session->model->class->session_close(session->device);
    session_layout_free(&session->layout);
    free(session->reading.stops);
    free(session->tokens);
    free(session->logits);
    free(session);
}

uint32_t calla_session_position(const struct calla_session *session) {
    return session->position;
}

uint32_t calla_session_context(const struct calla_session *session) {
    return session->context;
}

bool session_clear(struct calla_session *session, struct calla_error *error) {
    session->position = 0;
    session->origin = 0;
    session->chunk = 0;
    session->have_logits = false;
    session->sampled = -1;
    return session->model->class->reset(session->device, error);
}

bool calla_session_reset(struct calla_session *session, struct calla_error *error) {
    session_read_end(session);
    return session_clear(session, error);
}

void session_stands(struct calla_session *session, const int32_t *tokens, uint32_t count, bool have_logits) {
    memmove(session->tokens, tokens, count * sizeof *tokens);
    session->position = count;
    session->chunk = 0;
    session->have_logits = have_logits;
    session->sampled = -1;
}

/* Moves the session to `position` for a plan of `rows` rows; the host's record is the truth. */
static bool write_record(struct calla_session *session, uint32_t rows, struct calla_error *error) {
    session->record.position = session->position;
    session->record.rows = rows;
    session->record.draws = session->draws;
    session->sampled = -1;
    return session->model->class->write(session->device, SPACE_STEP, STEP_RECORD, 0, &session->record,
                                        sizeof session->record, error);
}

/* Reads one chunk at the session's position, for about `seconds`: to be called again, with the same tokens,
 * while session->chunk is not 0. */
static bool read_chunk(struct calla_session *session, const int32_t *tokens, uint32_t rows,
                       enum forward_logits logits, double seconds, struct calla_error *error) {
    struct forward_options options = {.rows = rows, .logits = logits};
    if (session->chunk == 0 && (!write_record(session, rows, error) ||
                                !session->model->class->write(session->device, SPACE_STEP, STEP_TOKENS, 0,
                                                              tokens, (uint64_t)rows * 4, error)))
        return false;
    session->chunk = rows;
    session->have_logits = false;
    bool finished = false;
    if (!run_for(session, &options, seconds, &finished, error))
        return false;
    if (!finished)
        return true;
    session->chunk = 0;
    memcpy(session->tokens + session->position, tokens, rows * sizeof *tokens);
    session->position += rows;
    session->computed += rows;
    session->have_logits = logits == LOGITS_LAST;
    return true;
}

bool session_check_tokens(const struct calla_session *session, const int32_t *tokens, size_t count,
                          struct calla_error *error) {
    if (count == 0)
        return error_set(error, CALLA_BAD_INPUT, "There is nothing to read: the prompt has no tokens.");
    if (count > session->context)
        return error_set(
            error, CALLA_CONTEXT_FULL,
            "The prompt has %zu tokens, but the context holds %u; shorten it or ask for a larger context.",
            count, session->context);
    uint32_t known = tokenizer_count(session->model->tokenizer);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= known)
            return error_set(error, CALLA_BAD_INPUT, "Token %zu is %ld; this model's ids are 0 to %u.", i,
                             (long)tokens[i], known - 1);
    return true;
}

static bool report(const struct calla_progress *progress, const char *what, uint64_t done, uint64_t total,
                   struct calla_error *error) {
    if (progress == NULL || progress->report == NULL || progress->report(progress->user, what, done, total))
        return true;
    return error_set(error, CALLA_CANCELLED, "Stopped while %s, after %llu of %llu tokens.", what,
                     (unsigned long long)done, (unsigned long long)total);
}

/* A failed read leaves state that belongs to no known text. */
static bool fail_reset(struct calla_session *session) {
    calla_session_reset(session, NULL);
    return false;
}

size_t calla_session_common(const struct calla_session *session, const int32_t *tokens, size_t count) {
    size_t position = session->position;
    if (session->chunk > 0 || position > count || (position == count && !session->have_logits))
        return 0;
    return memcmp(session->tokens, tokens, position * sizeof *tokens) == 0 ? position : 0;
}

bool session_read_start(struct calla_session *session, const int32_t *tokens, size_t count,
                        struct calla_error *error) {
    if (!session_check_tokens(session, tokens, count, error))
        return false;
    struct prefix_cache *cache = session->model->cache;
    size_t own = calla_session_common(session, tokens, count);
    session->computed = 0;
    /* What stands in the session is of no use for these tokens, but a snapshot replaces it as it is. */
    if (own == 0)
        session->position = 0;
    bool stands = cache == NULL || prefix_cache_begin(cache, session, tokens, count, own);
    return (stands && session->position > 0) || session_clear(session, error);
}

void session_read_end(struct calla_session *session) {
    if (session->model->cache != NULL)
        prefix_cache_end(session->model->cache, session);
}

/* Others may wait for the model, and nobody can be told to stop within a piece of work. */
#define PIECE_SECONDS 0.25

bool session_read_more(struct calla_session *session, const int32_t *tokens, size_t count,
                       struct calla_error *error) {
    struct prefix_cache *cache = session->model->cache;
    if (cache != NULL)
        prefix_cache_catch_up(cache, session);
    size_t left = (cache == NULL ? count : prefix_cache_stop(session)) - session->position;
    uint32_t rows = left > session->chunk_rows ? session->chunk_rows : (uint32_t)left;
    if (session->chunk > 0)
        rows = session->chunk;
    enum forward_logits logits = session->position + rows == count ? LOGITS_LAST : LOGITS_NONE;
    if (rows > 0 && !read_chunk(session, tokens + session->position, rows, logits, PIECE_SECONDS, error))
        return fail_reset(session);
    if (cache != NULL && session->chunk == 0)
        prefix_cache_stopped(cache, session);
    return true;
}

bool calla_session_read(struct calla_session *session, const int32_t *tokens, size_t count, size_t *computed,
                        const struct calla_progress *progress, struct calla_error *error) {
    if (computed != NULL)
        *computed = 0;
    if (!session_read_start(session, tokens, count, error))
        return false;
    size_t start = session->position;
    while (session->position < count)
        if (!report(progress, "reading the prompt", session->position - start, count - start, error) ||
            !session_read_more(session, tokens, count, error))
            return fail_reset(session);
    session_read_end(session);
    if (computed != NULL)
        *computed = session->computed;
    return report(progress, "reading the prompt", count - start, count - start, error) || fail_reset(session);
}

/* Copies row `row` of the step's logits into session->logits; NaN is an error. */
static bool fetch_logits(struct calla_session *session, uint32_t row, struct calla_error *error) {
    size_t vocabulary = session->model->config.vocabulary, bytes = vocabulary * sizeof *session->logits;
    if (!session->model->class->read(session->device, SPACE_STEP, STEP_LOGITS, row * (uint64_t)bytes,
                                     session->logits, bytes, error))
        return false;
    for (size_t i = 0; i < vocabulary; i++)
        if (isnan(session->logits[i]))
            return error_set(error, CALLA_NUMERIC,
                             "The model computed NaN after %u tokens; its weights may be damaged.",
                             session->position);
    return true;
}

const float *calla_session_logits(struct calla_session *session, struct calla_error *error) {
    if (!session->have_logits) {
        error_set(error, CALLA_BAD_INPUT,
                  "There are no logits: nothing has been read since the session was reset.");
        return NULL;
    }
    return fetch_logits(session, 0, error) ? session->logits : NULL;
}

bool calla_session_evaluate(struct calla_session *session, const int32_t *tokens, size_t count,
                            bool (*row)(void *user, size_t index, const float *logits), void *user,
                            struct calla_error *error) {
    if (!session_check_tokens(session, tokens, count, error) || !calla_session_reset(session, error))
        return false;
    uint32_t most = session->layout.step[STEP_LOGITS].rows;
    if (most > session->chunk_rows)
        most = session->chunk_rows;
    for (size_t done = 0; done < count;) {
        uint32_t rows = count - done > most ? most : (uint32_t)(count - done);
        if (!read_chunk(session, tokens + done, rows, LOGITS_ALL, INFINITY, error))
            return fail_reset(session);
        for (uint32_t i = 0; i < rows; i++) {
            if (!fetch_logits(session, i, error))
                return fail_reset(session);
            if (!row(user, done + i, session->logits)) {
                error_set(error, CALLA_CANCELLED, "The evaluation was stopped at position %zu.", done + i);
                return fail_reset(session);
            }
        }
        done += rows;
    }
    return true;
}

/* Fetches what the sample op drew. */
static bool take_sample(struct calla_session *session, int32_t *token, struct calla_error *error) {
    session->draws++;
    if (!session->model->class->read(session->device, SPACE_STEP, STEP_TOKENS, 0, token, sizeof *token,
                                     error))
        return false;
    if (*token < 0 || (uint32_t)*token >= session->model->config.vocabulary)
        return error_set(
            error, CALLA_NUMERIC,
            "No token can be drawn after %u tokens: the model computed NaN, or every token is excluded.",
            session->position);
    session->sampled = *token;
    return true;
}

bool session_sample(struct calla_session *session, int32_t *token, struct calla_error *error) {
    if (!session->have_logits)
        return error_set(error, CALLA_BAD_INPUT, "There is nothing to sample from: no text has been read.");
    struct forward_options options = {.sample = true};
    return write_record(session, 0, error) && session_run(session, &options, error) &&
           take_sample(session, token, error);
}

static void step_ahead(struct calla_session *session, const struct forward_options *step) {
    const struct calla_model *model = session->model;
    struct program *program = model->class->run_ahead != NULL && model->policy.token_on_device &&
                                      session->position < session->context
                                  ? find_program(session, step, NULL)
                                  : NULL;
    if (program != NULL)
        model->class->run_ahead(session->device, program);
}

bool session_step(struct calla_session *session, int32_t token, int32_t *next, bool more,
                  struct calla_error *error) {
    if (session->position == session->context)
        return error_set(error, CALLA_CONTEXT_FULL, "The context of %u tokens is full.", session->context);
    if (next == NULL)
        return read_chunk(session, &token, 1, LOGITS_LAST, INFINITY, error) || fail_reset(session);
    /* Right after a sample the device already has the token and its position; otherwise, or if the policy
     * wants to know what that is worth, they are written. */
    bool is_there = session->sampled == token && session->model->policy.token_on_device;
    if (!is_there && (!write_record(session, 1, error) ||
                      !session->model->class->write(session->device, SPACE_STEP, STEP_TOKENS, 0, &token,
                                                    sizeof token, error)))
        return fail_reset(session);
    struct forward_options options = {.rows = 1, .logits = LOGITS_LAST, .sample = true};
    if (!session_run(session, &options, error))
        return fail_reset(session);
    session->tokens[session->position++] = token;
    session->have_logits = true;
    if (more)
        step_ahead(session, &options);
    return take_sample(session, next, error) || fail_reset(session);
}
