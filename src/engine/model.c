/* A model: configuration, tokenizer, weights and the backend that holds them, opened in that order so that
 * what is cheap to check fails first. */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/system.h"
#include "engine/prefix_cache.h"
#include "engine/reply_memory.h"
#include "engine/serving.h"
#include "engine/snapshot_file.h"
#include "text/chat_template.h"

#define TEMPLATE_LIMIT ((size_t)4 << 20)

const char *calla_version(void) {
    return CALLA_VERSION;
}

static void warn(struct calla_model *model, const char *sentence) {
    if (model->warning_count == MODEL_MAX_WARNINGS)
        return;
    char *copy = strdup(sentence);
    if (copy != NULL)
        model->warnings[model->warning_count++] = copy;
}

const char *calla_model_warning(const struct calla_model *model, size_t index) {
    return index < model->warning_count ? model->warnings[index] : NULL;
}

/* The folder's last part, for people. */
static char *folder_name(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return strndup(path + begin, end - begin);
}

/* The checkpoint's own chat template, from chat_template.jinja or tokenizer_config.json. True with nothing
 * appended when it has none. */
static bool read_template(const char *folder, struct buffer *out, struct calla_error *error) {
    char *path = path_join(folder, "chat_template.jinja");
    if (path == NULL)
        return error_memory(error, "a file name", strlen(folder));
    bool ok = true;
    bool found = file_kind(path) != FILE_MISSING;
    if (found)
        ok = file_read(path, TEMPLATE_LIMIT, out, error);
    free(path);
    if (found)
        return ok;
    path = path_join(folder, "tokenizer_config.json");
    if (path == NULL)
        return error_memory(error, "a file name", strlen(folder));
    if (file_kind(path) != FILE_MISSING) {
        json_t *config = json_parse_file(path, TEMPLATE_LIMIT, error);
        const json_t *template = json_object_get(config, "chat_template");
        ok = config != NULL;
        if (json_is_string(template))
            buffer_append(out, json_string_value(template), json_string_length(template));
        json_decref(config);
    }
    free(path);
    return ok;
}

static bool check_template(struct calla_model *model, const char *folder, struct calla_error *error) {
    struct buffer bytes = {0};
    bool ok = read_template(folder, &bytes, error);
    if (ok && bytes.failed)
        ok = error_memory(error, "the chat template", bytes.size);
    if (ok && bytes.size == 0)
        warn(model, "The checkpoint has no chat template; the one of Qwen3.6 is used.");
    else if (ok && !chat_template_known(bytes.data, bytes.size))
        warn(model, "The checkpoint's chat template differs from the one of Qwen3.6, which is used instead; "
                    "prompts may not look as this checkpoint expects.");
    buffer_free(&bytes);
    return ok;
}

/* Every token that ends a reply: those of the configuration, and the one that opens a turn, which a reply
 * never holds. */
static bool find_end_tokens(struct calla_model *model, struct calla_error *error) {
    uint32_t known = 0;
    for (uint32_t i = 0; i < model->config.end_token_count; i++) {
        model->end_tokens[model->end_token_count++] = model->config.end_tokens[i];
        known += (uint32_t)model->config.end_tokens[i] < tokenizer_count(model->tokenizer);
    }
    if (known == 0 && model->end_token_count > 0)
        warn(model,
             "The tokenizer has none of the end tokens that the configuration names; replies may go on "
             "until their limit.");
    int32_t opening = tokenizer_added(model->tokenizer, "<|im_start|>");
    if (opening >= 0 && !model_is_end_token(model, opening))
        model->end_tokens[model->end_token_count++] = opening;
    if (model->end_token_count == 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s names no end token: config.json or generation_config.json needs eos_token_id.",
                         model->name);
    model->think_end = tokenizer_added(model->tokenizer, "</think>");
    if (tokenizer_count(model->tokenizer) > model->config.vocabulary)
        return error_set(
            error, CALLA_BAD_INPUT,
            "%s does not fit together: the tokenizer has %u tokens, but config.json says vocab_size %u.",
            model->name, tokenizer_count(model->tokenizer), model->config.vocabulary);
    return true;
}

bool model_is_end_token(const struct calla_model *model, int32_t token) {
    for (uint32_t i = 0; i < model->end_token_count; i++)
        if (model->end_tokens[i] == token)
            return true;
    return false;
}

/* A quarter of the memory that the weights leave, and not more than serves one person. */
#define MOST_DEFAULT_CACHE ((uint64_t)8 << 30)

static uint64_t cache_memory(const struct calla_model *model, const struct calla_model_options *options) {
    uint64_t memory = model->device.memory;
    if (options->cache_memory != CALLA_CACHE_DEFAULT)
        return options->cache_memory;
    uint64_t quarter = memory > model->weights.bytes ? (memory - model->weights.bytes) / 4 : 0;
    return quarter < MOST_DEFAULT_CACHE ? quarter : MOST_DEFAULT_CACHE;
}

void model_use_replies(struct calla_model *model, const char *folder) {
    char hex[65];
    struct buffer path = {0};
    sha256_hex(model->key, hex);
    buffer_printf(&path, "%s/%.16s.replies", folder, hex);
    if (!path.failed)
        reply_memory_use_file(model->replies, path.data, tokenizer_count(model->tokenizer));
    buffer_free(&path);
}

/* Before the weights are read. */
static bool check_cache_folder(const char *folder, struct calla_error *error) {
    if (folder == NULL)
        return true;
    if (folder[0] == 0)
        return error_set(error, CALLA_BAD_INPUT, "The name of the cache's folder is empty; give one.");
    return folder_make(folder, error) &&
           (file_kind(folder) == FILE_FOLDER ||
            error_set(error, CALLA_BAD_INPUT, "%s is no folder that the cache could use; name another.",
                      folder));
}

/* A limit that is smaller than any snapshot is likely meant in another unit. */
static void warn_of_limit(struct calla_model *model, const char *what, uint64_t limit) {
    struct calla_model_info info;
    char sentence[256];
    calla_model_info(model, &info);
    if (limit >= info.session_bytes)
        return;
    snprintf(sentence, sizeof sentence,
             "%s of %" PRIu64 " bytes has no room for a snapshot, which takes %" PRIu64
             " bytes and more; none will be kept there.",
             what, limit, info.session_bytes);
    warn(model, sentence);
}

static bool open_cache(struct calla_model *model, const struct calla_model_options *options,
                       struct calla_error *error) {
    if (model->backend == NULL)
        return true;
    model->replies = reply_memory_new();
    if (model->replies == NULL)
        return error_memory(error, "the memory of replies", 0);
    uint64_t memory = cache_memory(model, options);
    struct snapshot_store_options disk = {.folder = options->cache_dir,
                                          .limit = options->cache_disk,
                                          .say = options->cache_log,
                                          .user = options->cache_user};
    bool none = memory == 0 || model->class->snapshot_take == NULL;
    if (none)
        return true;
    warn_of_limit(model, "The cache's memory", memory);
    if (disk.folder != NULL)
        warn_of_limit(model, "The cache's folder", disk.limit);
    model->cache = prefix_cache_open(model, memory, &disk, error);
    model->cache_memory = memory; /* other threads ask for it, and may not look into the cache */
    return model->cache != NULL;
}

static void warn_of_tensor_operations(struct calla_model *model) {
    bool failed = false;
    if (model->class->tensor_operations == NULL)
        return;
    const char *line = model->class->tensor_operations(model->backend, &failed);
    char sentence[400];
    snprintf(sentence, sizeof sentence, "Tensor operations of this GPU: %s.", line);
    if (failed)
        warn(model, sentence);
}

static bool open_backend(struct calla_model *model, const struct calla_model_options *options,
                         struct calla_error *error) {
    model->class = backend_find(options->backend == NULL ? "auto" : options->backend, error);
    if (model->class == NULL)
        return false;
    backend_device(model->class, &model->device);
    policy_defaults(&model->policy, model->class->name);
    for (size_t i = 0; i < options->policy_count; i++)
        if (!policy_set(&model->policy, model->class->name, options->policies[i], error))
            return false;
    if (options->tokenizer_only)
        return true;
    if (!weights_open(&model->weights, &model->config, options->path, error))
        return false;
    struct backend_options backend_options = {.threads = options->threads, .policy = &model->policy};
    model->backend = model->class->open(&backend_options, error);
    if (model->backend == NULL)
        return false;
    warn_of_tensor_operations(model);
    return model->class->load(model->backend, &model->weights, &options->progress, error);
}

struct calla_model *calla_model_open(const struct calla_model_options *options, struct calla_error *error) {
    struct calla_model *model = calloc(1, sizeof *model);
    if (model == NULL || (model->name = folder_name(options->path)) == NULL) {
        error_memory(error, "the model", sizeof *model);
        free(model);
        return NULL;
    }
    if (check_cache_folder(options->cache_dir, error) && config_read(&model->config, options->path, error) &&
        (model->tokenizer = tokenizer_open(options->path, error)) != NULL && find_end_tokens(model, error) &&
        check_template(model, options->path, error) && open_backend(model, options, error) &&
        open_cache(model, options, error))
        return model;
    calla_model_close(model);
    return NULL;
}

void calla_model_close(struct calla_model *model) {
    if (model == NULL)
        return;
    prefix_cache_close(model->cache);
    reply_memory_free(model->replies);
    if (model->backend != NULL)
        model->class->close(model->backend);
    weights_close(&model->weights);
    tokenizer_close(model->tokenizer);
    config_free(&model->config);
    for (size_t i = 0; i < model->warning_count; i++)
        free(model->warnings[i]);
    free(model->name);
    free(model);
}

void calla_model_info(const struct calla_model *model, struct calla_model_info *info) {
    memset(info, 0, sizeof *info);
    info->name = model->name;
    info->backend = model->class->name;
    info->threads = model->backend == NULL ? 0 : model->class->threads(model->backend);
    info->device = model->device.name;
    info->memory_bytes = model->device.memory;
    info->vocabulary = model->config.vocabulary;
    info->tokens = tokenizer_count(model->tokenizer);
    info->layers = model->config.layers;
    info->hidden_size = model->config.hidden_size;
    info->context_limit = model->config.context_limit;
    info->weight_bytes = model->weights.bytes;
    info->skipped_tensors = model->weights.skipped;
    info->cache_memory = model->cache_memory;
    struct session_layout layout = {0};
    if (!forward_layout(&layout, &model->config, &model->policy, 1, NULL))
        return;
    for (uint32_t i = 0; i < layout.state_count; i++)
        info->session_bytes += buffer_shape_bytes(&layout.state[i]);
    for (uint32_t i = 0; i < layout.kv_count; i++)
        info->bytes_per_position += buffer_shape_bytes(&layout.kv[i]);
    session_layout_free(&layout);
}

bool cache_tend(struct calla_model *model) {
    return model->cache != NULL && prefix_cache_tend(model->cache);
}

void calla_cache_info(const struct calla_model *model, struct calla_cache_info *info) {
    memset(info, 0, sizeof *info);
    if (model->cache != NULL)
        prefix_cache_info(model->cache, info);
}
