/* The options of every command that opens a model, and the opening itself. */
#ifndef CALLA_CLI_MODEL_FLAGS_H
#define CALLA_CLI_MODEL_FLAGS_H

#include "cli/options.h"

struct model_flags {
    const char *model;
    bool quiet;
    const char *backend;
    uint64_t threads, context;
    struct option_values policies;
    /* No options: what a command wants. */
    uint64_t cache_memory, cache_disk;
    const char *cache_dir;
};

/* The rows: the first MODEL_OPTIONS_OF_TOKENIZER are for commands that need no weights. */
#define MODEL_OPTIONS 6
#define MODEL_OPTIONS_OF_TOKENIZER 2
void model_options(struct option rows[MODEL_OPTIONS], struct model_flags *flags);

/* Whether the --policy values are right for the backend that was asked for; the error names the flag. */
bool model_flags_check(const struct model_flags *flags, struct calla_error *error);

/* Opens the model, with progress on a terminal. Says on standard error, unless --quiet, that the bundled
 * model is used, and what the opening warned of. Close with calla_model_close. */
struct calla_model *open_model(const struct model_flags *flags, bool tokenizer_only,
                               struct calla_error *error);

/* Opens a session of --context positions, or as many as the model and the memory allow. */
struct calla_session *open_session(struct calla_model *model, const struct model_flags *flags,
                                   struct calla_error *error);

/* Whether `tokens` tokens of `what` ("The prompt") have room in a context of `context`. */
bool check_room(const struct calla_model *model, const char *what, size_t tokens, uint64_t context,
                struct calla_error *error);

#endif
