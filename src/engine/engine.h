/* What the files of the engine share: the model and the session. Nothing outside src/engine includes this. */
#ifndef CALLA_ENGINE_ENGINE_H
#define CALLA_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "engine/reading.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"
#include "text/tokenizer.h"

#define MODEL_MAX_WARNINGS 8

struct calla_model {
    char *name;
    struct config config;
    struct tokenizer *tokenizer;
    struct weights weights;
    struct policy policy;
    const struct backend_class *class;
    struct device_facts device;
    struct backend *backend; /* NULL: opened for its tokenizer only */
    int32_t end_tokens[CONFIG_MAX_END_TOKENS + 1];
    uint32_t end_token_count;
    int32_t think_end; /* the token "</think>", or -1 */
    char *warnings[MODEL_MAX_WARNINGS];
    size_t warning_count;
    unsigned char key[32]; /* what files of sessions are bound to, if it is known yet */
    bool have_key;
    struct prefix_cache *cache; /* NULL: none */
    uint64_t cache_memory;      /* that it may take */
    struct reply_memory *replies;
};

/* A plan made ready for one session, kept for its shape. */
struct session_program {
    struct forward_options options;
    struct program *program; /* NULL: a free place */
    uint64_t used;           /* for choosing the one to drop */
};

#define SESSION_PROGRAMS 8

struct calla_session {
    struct calla_model *model;
    struct session_layout layout;
    struct device_session *device;
    uint32_t context, chunk_rows;
    int32_t *tokens; /* [context]: what has been read, as far as `position` */
    uint32_t position;
    uint32_t draws;   /* samples drawn since sampling began */
    bool have_logits; /* row 0 of STEP_LOGITS belongs to the last token read */
    int32_t sampled;  /* the id that lies in STEP_TOKENS[0] with the record ready for it, or -1 */
    float *logits;    /* [vocabulary]: a copy for the caller */
    struct step_record record;
    struct reading reading;
    uint64_t origin; /* see struct snapshot */
    size_t computed; /* rows that were computed since reading began */
    uint32_t chunk;  /* rows of the chunk of a prompt that is being read and not yet part of what was read */
    struct session_program programs[SESSION_PROGRAMS];
    uint64_t program_clock;
};

/* Makes ready to read these tokens (checked; they stay where they are until reading ends), beginning with
 * what the session or the model's cache knows of them; then each call of session_read_more works on them for
 * a quarter of a second or a little longer, until the session's position, which moves on by whole chunks, is
 * `count`. session_read_end comes last, however it went; session->computed then tells how many were computed.
 */
bool session_read_start(struct calla_session *session, const int32_t *tokens, size_t count,
                        struct calla_error *error);
bool session_read_more(struct calla_session *session, const int32_t *tokens, size_t count,
                       struct calla_error *error);
void session_read_end(struct calla_session *session);

/* Position 0; a text that is being read goes on from there. */
bool session_clear(struct calla_session *session, struct calla_error *error);

/* Whether the session can read these; an error otherwise. */
bool session_check_tokens(const struct calla_session *session, const int32_t *tokens, size_t count,
                          struct calla_error *error);

/* The session's buffers hold what follows from reading these tokens: it stands there. */
void session_stands(struct calla_session *session, const int32_t *tokens, uint32_t count, bool have_logits);

/* Runs the plan of `options` for the rows whose ids and record are in the step buffers. */
bool session_run(struct calla_session *session, const struct forward_options *options,
                 struct calla_error *error);

/* Sets up the step buffers for a new reply: sampling parameters, biases, and counts (of `tokens`, the
 * prompt). */
bool session_start_sampling(struct calla_session *session, const struct calla_sampling *sampling,
                            const int32_t *tokens, size_t count, struct calla_error *error);

/* Lays the biases into the step buffers: the caller's, and -infinity for ids without a token and, where
 * `allowed` is not NULL, for those that it refuses. */
bool session_bias(struct calla_session *session, const struct calla_sampling *sampling,
                  bool (*allowed)(const void *user, int32_t token), const void *user,
                  struct calla_error *error);

/* Draws a token from the logits of the last token read; it is not read itself. */
bool session_sample(struct calla_session *session, int32_t *token, struct calla_error *error);

/* Reads one token and, with `next`, draws the one after it. `more`: that will likely be read next, by another
 * such step, which may begin before anybody has seen it. */
bool session_step(struct calla_session *session, int32_t token, int32_t *next, bool more,
                  struct calla_error *error);

/* Checks sampling parameters; the error names the parameter, what was found and what is expected. */
bool sampling_check(const struct calla_model *model, const struct calla_sampling *sampling,
                    struct calla_error *error);

/* The tokens of replies that were made belong to the cache's folder too. The model has its key. */
void model_use_replies(struct calla_model *model, const char *folder);

bool model_is_end_token(const struct calla_model *model, int32_t token);

#endif
