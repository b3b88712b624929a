/* Calla: one model family (Qwen3.6-35B-A3B and its shapes), 4-bit weights, one machine.
 *
 * The public C API. A *model* is the weights, the tokenizer and the backend that holds them; a *session* is
 * the state of one conversation. One thread uses a model and its sessions at a time.
 *
 * A function that can fail returns false or NULL and fills the calla_error it was given: a status and one
 * sentence that names what is wrong and what to do. Nothing here prints, exits or aborts. `_open` and
 * `_close`, `_new` and `_free` come in pairs; const pointers that come back are borrowed from the object they
 * came from. */
#ifndef CALLA_H
#define CALLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors */

enum calla_status {
    CALLA_OK,
    CALLA_BAD_INPUT,   /* a file, prompt or option is not what it must be */
    CALLA_NOT_FOUND,   /* a file or folder is missing */
    CALLA_UNSUPPORTED, /* valid, but not something this program does */
    CALLA_OUT_OF_MEMORY,
    CALLA_IO,           /* reading or writing failed */
    CALLA_CONTEXT_FULL, /* the context limit is reached */
    CALLA_NUMERIC,      /* the computation gave NaN */
    CALLA_DEVICE,       /* the backend's device failed */
    CALLA_CANCELLED     /* a callback asked to stop */
};

struct calla_error {
    enum calla_status status;
    char message[1024];
};

const char *calla_version(void);

/* Long work reports through this: `what` is a short phrase ("reading weights"), done of total in any unit.
 * Returning false cancels the work, which then fails with CALLA_CANCELLED. */
struct calla_progress {
    bool (*report)(void *user, const char *what, uint64_t done, uint64_t total);
    void *user;
};

/* Model */

struct calla_model;

struct calla_model_options {
    const char *path;            /* folder with config.json, *.safetensors and the tokenizer */
    const char *backend;         /* "auto", "cpu", "cuda", "metal", "reference"; NULL is "auto" */
    int threads;                 /* 0: one per physical core */
    bool tokenizer_only;         /* no weights: tokenising and templates work, sessions do not */
    const char *const *policies; /* "NAME=VALUE" each */
    size_t policy_count;
    /* Bytes for snapshots of what the model's sessions have read, which whoever reads a text with the same
     * beginning goes on from; 0: none are kept. */
    uint64_t cache_memory;
    const char *cache_dir; /* a folder where they outlive the program, or NULL; made if it is not there */
    uint64_t cache_disk;   /* bytes in it at most */
    void (*cache_log)(void *user, const char *sentence); /* hears what is wrong with the folder's files, from
                                                            any thread; may be NULL */
    void *cache_user;
    struct calla_progress progress;
};

#define CALLA_CACHE_DEFAULT UINT64_MAX /* of cache_memory: a share of what the weights leave */

struct calla_model *calla_model_open(const struct calla_model_options *options, struct calla_error *error);
void calla_model_close(struct calla_model *model);

/* What the opening noticed that is no error ("the checkpoint's chat template differs ..."); NULL past the
 * last. */
const char *calla_model_warning(const struct calla_model *model, size_t index);

struct calla_model_info {
    const char *name;    /* the folder's last part */
    const char *backend; /* the backend that was chosen */
    int threads;
    const char *device;    /* what computes: the processor's or the GPU's name */
    uint64_t memory_bytes; /* that weights and sessions share: the machine's or the GPU's; 0: unknown */
    uint32_t vocabulary;   /* rows of the head, padding included */
    uint32_t tokens;       /* ids that the tokenizer defines: [0, tokens) */
    uint32_t layers, hidden_size;
    uint32_t context_limit;      /* positions that the model was made for */
    uint64_t weight_bytes;       /* of the text model */
    uint64_t skipped_tensors;    /* vision and mtp tensors that were passed over */
    uint64_t session_bytes;      /* recurrent and convolution state of a session */
    uint64_t bytes_per_position; /* KV cache a token */
    uint64_t cache_memory;       /* that the model's cache may grow to; 0: there is none */
};

void calla_model_info(const struct calla_model *model, struct calla_model_info *info);

/* What the model's cache holds and has done. All 0 without one. */
struct calla_cache_info {
    uint64_t memory_limit, memory, memory_peak; /* bytes; of them ... */
    uint64_t logits;                            /* ... in logits */
    uint64_t snapshots;                         /* in memory now ... */
    uint64_t taken, evicted;                    /* ... taken and given up so far */
    uint64_t disk_limit, disk, files;           /* bytes of files that it may have, and has */
    uint64_t written, loaded, failed;           /* files; failed: that could not be written or used */
    uint64_t requests, hits; /* texts that were to be read, and of them those whose beginning was known */
};

void calla_cache_info(const struct calla_model *model, struct calla_cache_info *info);

/* Text and tokens */

struct calla_tokens {
    int32_t *ids; /* free with calla_tokens_free */
    size_t count;
};

void calla_tokens_free(struct calla_tokens *tokens);

/* UTF-8 (or any bytes) -> ids. With `special` the text of a control token ("<|im_end|>") becomes that token;
 * without, text never does. */
bool calla_tokenize(const struct calla_model *model, const char *text, size_t size, bool special,
                    struct calla_tokens *tokens, struct calla_error *error);

/* ids -> bytes on the heap (free with free()), zero-terminated; *size may be NULL. Fails on an id outside the
 * tokenizer. */
char *calla_detokenize(const struct calla_model *model, const int32_t *ids, size_t count, size_t *size,
                       struct calla_error *error);

/* A rendered conversation. */
struct calla_prompt {
    char *text; /* as the model sees it, zero-terminated */
    size_t size;
    struct calla_tokens tokens; /* template literals and message text tokenised apart */
    size_t reply_start;         /* tokens before the reply and its think block; 0: no reply is asked for */
    bool thinking;              /* the reply starts inside a think block */
    char *tools; /* JSON array of the request's tools, NULL without: the reply's calls are typed by it */
};

void calla_prompt_free(struct calla_prompt *prompt);

/* Renders the body of a chat-completions request (a JSON object with "messages", "tools",
 * "chat_template_kwargs", "enable_thinking", ...) with the model's chat template. Where the template shows an
 * assistant's turn with its reasoning, and this model made that reply after just these tokens, the prompt has
 * the tokens that were sampled, even if the message came back without its reasoning, trimmed, or with its
 * calls' arguments written another way. */
bool calla_render(const struct calla_model *model, const char *request, size_t size,
                  struct calla_prompt *prompt, struct calla_error *error);

/* Sessions */

struct calla_session;

struct calla_session_options {
    uint32_t context; /* positions at most; 0: the model's limit, or what memory allows if that is less */
};

struct calla_session *calla_session_open(struct calla_model *model,
                                         const struct calla_session_options *options,
                                         struct calla_error *error);
void calla_session_close(struct calla_session *session);

uint32_t calla_session_position(const struct calla_session *session); /* tokens read so far */
uint32_t calla_session_context(const struct calla_session *session);  /* positions at most */

/* Forgets everything: position 0. */
bool calla_session_reset(struct calla_session *session, struct calla_error *error);

/* Brings the session to exactly these tokens. What it has read, or what the model's cache has, is not
 * computed again if it is a prefix of them. *computed (may be NULL) is the number of tokens computed, 0 when
 * all were known. A cancelled or failed call leaves the session reset. */
bool calla_session_read(struct calla_session *session, const int32_t *tokens, size_t count, size_t *computed,
                        const struct calla_progress *progress, struct calla_error *error);

/* How many of these tokens a read would find read already: the session's position if it continues what was
 * read, or 0. */
size_t calla_session_common(const struct calla_session *session, const int32_t *tokens, size_t count);

/* A new session of the same model that stands where this one does. Both go on as they would have alone; keys
 * and values that they have in common are in memory once (but with Metal, where they are copied). Not in the
 * middle of a calla_generation's prompt. */
struct calla_session *calla_session_fork(struct calla_session *session, struct calla_error *error);

/* Writes the session to a file, which appears whole or not at all. It holds the text that was read, so only
 * its owner may read it. */
bool calla_session_save(struct calla_session *session, const char *path, struct calla_error *error);

/* Brings the session to where a saved one stood: what follows is, to the bit, what it would have said. The
 * file must come from the same model, backend, kind of processor and version of this library; it is checked
 * whole, and a damaged one is an error, which leaves the session reset or as it was. */
bool calla_session_load(struct calla_session *session, const char *path, struct calla_error *error);

/* For measurements of speed: makes the session look as if it had read these tokens without computing. The
 * recurrent state and the KV cache of every position get random values of plausible size, always the same for
 * a seed, so that what follows costs what it would cost after a real prompt; what it says means nothing. */
bool calla_session_fill(struct calla_session *session, const int32_t *tokens, size_t count, uint64_t seed,
                        struct calla_error *error);

/* Logits after the last token read: float32 [vocabulary], padding rows included; valid until the session's
 * next call. */
const float *calla_session_logits(struct calla_session *session, struct calla_error *error);

/* Reads the tokens from position 0 and hands the logits of every position to `row` (index, float32
 * [vocabulary]). */
bool calla_session_evaluate(struct calla_session *session, const int32_t *tokens, size_t count,
                            bool (*row)(void *user, size_t index, const float *logits), void *user,
                            struct calla_error *error);

/* Generation */

struct calla_logit_bias {
    int32_t token;
    float bias;
};

struct calla_sampling {
    float temperature;                         /* 0: greedy */
    uint32_t top_k;                            /* 0: off */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    float presence_penalty, frequency_penalty; /* 0: off; subtracted for tokens generated so far */
    float repetition_penalty; /* 1: off; divides positive and multiplies negative logits of tokens in prompt
                                 and reply */
    uint64_t seed;
    const struct calla_logit_bias *biases;
    size_t bias_count;
};

/* The model's own defaults (generation_config.json), and a fresh seed. */
void calla_sampling_defaults(const struct calla_model *model, struct calla_sampling *sampling);

enum calla_event_kind {
    CALLA_EVENT_REASONING, /* text of the think block */
    CALLA_EVENT_CONTENT,   /* text of the answer */
    CALLA_EVENT_CALL,      /* a tool call begins: text is its name, call its index */
    CALLA_EVENT_ARGUMENTS  /* a piece of that call's arguments, a JSON object in all */
};

struct calla_event {
    enum calla_event_kind kind;
    const char *text; /* whole UTF-8 characters, not zero-terminated */
    size_t size;
    uint32_t call;
};

enum calla_finish { CALLA_FINISH_STOP, CALLA_FINISH_LENGTH, CALLA_FINISH_TOOL_CALLS, CALLA_FINISH_CANCELLED };

/* A token of the reply, before the text that it completes. */
struct calla_token_event {
    int32_t token;
    bool thinking; /* it lies in the think block */
    float logprob; /* natural logarithm of its probability in the model's own distribution (no penalty,
                      temperature 1) */
    const struct calla_logprob *top; /* the likeliest ones, falling */
    uint32_t top_count;
};

struct calla_logprob {
    int32_t token;
    float logprob;
};

#define CALLA_MAX_TOP_LOGPROBS 20

struct calla_generate_options {
    struct calla_sampling sampling;
    uint32_t max_tokens;      /* 0: up to the context limit */
    const char *const *stops; /* strings that end the content; they sleep during thinking and in tool calls */
    size_t stop_count;
    uint32_t reasoning_budget; /* tokens of the think block at most; 0: no limit */
    bool tool_required;        /* the reply is a call of one of the prompt's tools ... */
    const char *tool_name;     /* ... or of just this one */
    bool one_call;             /* the reply ends with its first call */
    bool raw;                  /* no think block, no calls: all text is content */
    bool (*event)(void *user, const struct calla_event *event); /* false cancels; may be NULL */
    bool (*token)(void *user,
                  const struct calla_token_event *token); /* the same; costs time with logprobs only */
    bool logprobs; /* the token event has logprob, and top_logprobs of the likeliest */
    uint32_t top_logprobs;
    void *user;
    struct calla_progress progress; /* of reading the prompt */
};

struct calla_reply {
    enum calla_finish finish;
    char *reasoning, *content; /* zero-terminated UTF-8, "" without; a zero byte may be part of the text */
    size_t reasoning_size, content_size; /* in bytes */
    char *tool_calls;                    /* JSON array in the OpenAI form, NULL without */
    struct calla_tokens tokens;          /* as sampled, the end token included */
    size_t prompt_tokens, computed_tokens, reply_tokens;
    size_t reasoning_tokens; /* of the reply's, those of the think block with its closing tag */
    double prompt_seconds, reply_seconds;
};

void calla_reply_free(struct calla_reply *reply);

/* A reply under way, advanced in bounded pieces, so that one thread can serve several. Prompt, session and
 * everything the options point to must outlive it. */
struct calla_generation;

struct calla_generation *calla_generation_new(struct calla_session *session,
                                              const struct calla_prompt *prompt,
                                              const struct calla_generate_options *options,
                                              struct calla_error *error);
void calla_generation_free(struct calla_generation *generation);

/* Reads a chunk of the prompt, or makes a token. *done tells when the reply is whole. After a failure the
 * generation can only be freed. */
bool calla_generation_step(struct calla_generation *generation, bool *done, struct calla_error *error);

/* Tokens of the prompt that are read, and of the reply that are made, so far. */
void calla_generation_progress(const struct calla_generation *generation, size_t *read, size_t *made);

/* Ends the reply where it is (its finish is CALLA_FINISH_CANCELLED unless it was done) and hands it over. */
bool calla_generation_finish(struct calla_generation *generation, struct calla_reply *reply,
                             struct calla_error *error);

/* All of it at once. Reads the prompt (as calla_session_read), then generates until an end token, max_tokens
 * or the context limit. */
bool calla_generate(struct calla_session *session, const struct calla_prompt *prompt,
                    const struct calla_generate_options *options, struct calla_reply *reply,
                    struct calla_error *error);

#ifdef __cplusplus
}
#endif

#endif
