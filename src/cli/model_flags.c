#include "cli/model_flags.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "cli/model_path.h"
#include "cli/terminal.h"
#include "plan/policy.h"

void model_options(struct option rows[MODEL_OPTIONS], struct model_flags *flags) {
    const struct option table[MODEL_OPTIONS] = {
        {.name = "model",
         .letter = 'm',
         .value = "DIR",
         .help = "the model's folder; without it $CALLA_MODEL,\nelse the small bundled model",
         .text = &flags->model},
        {.name = "quiet", .help = "nothing on standard error but errors", .flag = &flags->quiet},
        {.name = "backend",
         .value = "NAME",
         .help = "what computes: auto, cpu, cuda, metal or reference (auto)",
         .text = &flags->backend},
        {.name = "threads",
         .value = "N",
         .help = "CPU threads (0: one a physical core that may be used)",
         .count = &flags->threads,
         .most = 1024},
        {.name = "context",
         .value = "N",
         .help = "positions of the session at most (as many as the\nmodel and the memory allow)",
         .count = &flags->context,
         .least = 1,
         .most = INT32_MAX},
        {.name = "policy",
         .value = "NAME=VALUE",
         .help = "one choice of how to compute; may be repeated;\n\"calla info\" lists them",
         .values = &flags->policies},
    };
    memcpy(rows, table, sizeof table);
}

bool model_flags_check(const struct model_flags *flags, struct calla_error *error) {
    const struct backend_class *class = backend_find(flags->backend == NULL ? "auto" : flags->backend, error);
    if (class == NULL)
        return false;
    struct policy policy;
    policy_defaults(&policy, class->name);
    for (size_t i = 0; i < flags->policies.count; i++)
        if (!policy_set(&policy, class->name, flags->policies.values[i], error))
            return false;
    return true;
}

struct calla_model *open_model(const struct model_flags *flags, bool tokenizer_only,
                               struct calla_error *error) {
    bool bundled;
    char *path = model_path(flags->model, &bundled, error);
    if (path == NULL)
        return NULL;
    if (bundled && !flags->quiet)
        fputs("calla: No model is named: using the small bundled model, calla-tiny; -m DIR names another.\n",
              stderr);
    struct progress_line line;
    struct calla_model_options options = {.path = path,
                                          .backend = flags->backend,
                                          .threads = (int)flags->threads,
                                          .tokenizer_only = tokenizer_only,
                                          .policies = flags->policies.values,
                                          .policy_count = flags->policies.count,
                                          .cache_memory = flags->cache_memory,
                                          .cache_dir = flags->cache_dir,
                                          .cache_disk = flags->cache_disk,
                                          .progress = progress_line_start(&line, flags->quiet)};
    struct calla_model *model = calla_model_open(&options, error);
    progress_line_end(&line);
    free(path);
    const char *warning;
    for (size_t i = 0; model != NULL && !flags->quiet && (warning = calla_model_warning(model, i)) != NULL;
         i++)
        fprintf(stderr, "calla: %s\n", warning);
    return model;
}

struct calla_session *open_session(struct calla_model *model, const struct model_flags *flags,
                                   struct calla_error *error) {
    struct calla_session_options options = {.context = (uint32_t)flags->context};
    return calla_session_open(model, &options, error);
}

bool check_room(const struct calla_model *model, const char *what, size_t tokens, uint64_t context,
                struct calla_error *error) {
    struct calla_model_info info;
    calla_model_info(model, &info);
    if (tokens <= context)
        return true;
    if (context >= info.context_limit)
        return error_set(error, CALLA_CONTEXT_FULL,
                         "%s has %zu tokens, but this model was made for a context of %u; shorten it.", what,
                         tokens, info.context_limit);
    return error_set(error, CALLA_CONTEXT_FULL,
                     "%s has %zu tokens, but the context holds %llu; shorten it, or raise --context (this "
                     "model was made for %u).",
                     what, tokens, (unsigned long long)context, info.context_limit);
}
