/* calla info: what a model is, what it needs, whether it fits this machine, and with which choices it would
 * run.
 *
 * Only headers are read, so it answers at once for a model of any size. Everything is gathered into one JSON
 * object; the text for people is printed from it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/system.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/model_path.h"
#include "cli/processor.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "model/forward.h"

static json_t *describe_architecture(const struct config *config, const struct weights *weights) {
    uint32_t attention = 0;
    for (uint32_t i = 0; i < config->layers; i++)
        attention += config->attention_layer[i];
    uint64_t parameters = 0, bytes[DTYPE_COUNT] = {0};
    const struct weight_table *table = &weights->table;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct weight *weight = &table->weights[i];
        parameters += (uint64_t)weight->matrices * weight->rows * weight->columns;
        bytes[weight->dtype] += weight_bytes(weight);
    }
    json_t *by_type = json_object();
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        if (bytes[dtype] > 0)
            json_object_set_new(by_type, dtype_name((enum dtype)dtype),
                                json_integer((json_int_t)bytes[dtype]));
    return json_pack("{s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:o}",
                     "parameters", (json_int_t)parameters, "layers", config->layers, "attention_layers",
                     attention, "hidden_size", config->hidden_size, "heads", config->heads, "kv_heads",
                     config->kv_heads, "head_size", config->head_size, "delta_key_heads", config->key_heads,
                     "delta_value_heads", config->value_heads, "experts", config->experts,
                     "experts_per_token", config->experts_per_token, "expert_width", config->expert_width,
                     "shared_expert_width", config->shared_width, "vocabulary", config->vocabulary,
                     "context_limit", config->context_limit, "skipped_tensors", (json_int_t)weights->skipped,
                     "weight_bytes_by_type", by_type);
}

/* Bytes at context sizes up to `limit`, or at the one that --context asks for (0: none). */
static json_t *describe_contexts(const struct calla_model_info *info, uint32_t asked, uint64_t fixed,
                                 uint64_t memory) {
    static const uint32_t sizes[] = {4096, 32768, 131072, UINT32_MAX};
    uint32_t limit = asked != 0 ? asked : info->context_limit;
    json_t *contexts = json_array();
    uint32_t before = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t context = asked == 0 && sizes[i] < limit ? sizes[i] : limit;
        if (context == before)
            break;
        before = context;
        uint64_t cache = info->bytes_per_position * context, total = fixed + cache;
        json_array_append_new(contexts,
                              json_pack("{s:I, s:I, s:I, s:o}", "context", (json_int_t)context,
                                        "kv_cache_bytes", (json_int_t)cache, "total_bytes", (json_int_t)total,
                                        "fits", memory == 0 ? json_null() : json_boolean(total <= memory)));
    }
    return contexts;
}

/* Bytes of the buffers that are filled anew by every chunk of a prompt; a step needs less. */
static bool scratch_bytes(uint64_t *bytes, const struct config *config, const struct weights *weights,
                          const struct policy *policy, uint32_t limit, struct calla_error *error) {
    struct session_layout layout = {0};
    struct plan plan = {0};
    uint32_t rows = policy->chunk_rows < limit ? policy->chunk_rows : limit;
    struct forward_options options = {.rows = rows, .logits = LOGITS_LAST};
    bool ok = forward_layout(&layout, config, policy, limit, error) &&
              forward_plan(&plan, config, &weights->table, policy, limit, &options, error);
    *bytes = 0;
    for (uint32_t i = 0; ok && i < plan.scratch_count; i++)
        *bytes += buffer_shape_bytes(&plan.scratch[i]);
    for (uint32_t i = 0; ok && i < STEP_BUFFER_COUNT; i++)
        *bytes += buffer_shape_bytes(&layout.step[i]);
    plan_free(&plan);
    session_layout_free(&layout);
    return ok;
}

static json_t *describe_memory(const struct calla_model_info *info, const struct weights *weights,
                               uint32_t asked, uint64_t scratch) {
    uint64_t memory = info->memory_bytes;
    uint64_t fixed = weights->bytes + info->session_bytes + scratch;
    uint64_t least = fixed + info->bytes_per_position * (asked == 0 ? 1 : asked);
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "weight_bytes", (json_int_t)weights->bytes,
                     "session_state_bytes", (json_int_t)info->session_bytes, "kv_cache_bytes_per_token",
                     (json_int_t)info->bytes_per_position, "scratch_bytes", (json_int_t)scratch,
                     "machine_bytes", memory == 0 ? json_null() : json_integer((json_int_t)memory), "fits",
                     memory == 0 ? json_null() : json_boolean(least <= memory), "contexts",
                     describe_contexts(info, asked, fixed, memory));
}

/* Asked of the device itself, where it is one that may have matrix units. */
static json_t *describe_tensor_operations(const char *name, const struct policy *policy) {
    const struct backend_class *class = backend_find(name, NULL);
    if (class->tensor_operations == NULL)
        return json_null();
    struct calla_error error = {0};
    struct backend *backend = class->open(&(struct backend_options){.policy = policy}, &error);
    json_t *line = backend == NULL ? json_sprintf("not known: %s", error.message)
                                   : json_string(class->tensor_operations(backend, &(bool){false}));
    if (backend != NULL)
        class->close(backend);
    return line;
}

static json_t *describe_backend(const struct calla_model_info *info, const struct policy *policy) {
    json_t *features = json_array();
    const char *feature;
    for (size_t i = 0; (feature = processor_feature(i)) != NULL; i++)
        json_array_append_new(features, json_string(feature));
    return json_pack("{s:s, s:s, s:o, s:i, s:o}", "name", info->backend, "device", info->device,
                     "tensor_operations", describe_tensor_operations(info->backend, policy), "processors",
                     system_processors(), "processor_features", features);
}

static json_t *describe_policies(const struct policy *policy, const char *backend) {
    json_t *policies = json_object();
    const char *name;
    char value[32];
    bool applies;
    for (size_t i = 0; policy_describe(policy, backend, i, &name, value, &applies); i++)
        json_object_set_new(policies, name, applies ? json_string(value) : json_null());
    return policies;
}

static json_t *describe_tokenizer(const struct calla_model *model, const struct calla_model_info *info,
                                  const struct config *config) {
    json_t *ends = json_array();
    for (uint32_t i = 0; i < config->end_token_count; i++) {
        char *text = calla_detokenize(model, &config->end_tokens[i], 1, NULL, NULL);
        json_array_append_new(ends, json_pack("{s:i, s:s*}", "id", config->end_tokens[i], "text", text));
        free(text);
    }
    return json_pack("{s:i, s:o}", "tokens", info->tokens, "end_tokens", ends);
}

static json_t *describe_sampling(const struct calla_model *model) {
    struct calla_sampling sampling;
    calla_sampling_defaults(model, &sampling);
    return json_pack("{s:f, s:f, s:i, s:f, s:f, s:f, s:f}", "temperature", (double)sampling.temperature,
                     "top_p", (double)sampling.top_p, "top_k", sampling.top_k, "min_p",
                     (double)sampling.min_p, "presence_penalty", (double)sampling.presence_penalty,
                     "frequency_penalty", (double)sampling.frequency_penalty, "repetition_penalty",
                     (double)sampling.repetition_penalty);
}

/* What is described, read from the model's folder. */
struct subject {
    struct config config;
    struct weights weights;
    bool have_weights;
    struct calla_model *model;
    struct calla_model_info info;
    struct policy policy;
    uint64_t scratch;
};

static void subject_close(struct subject *subject) {
    calla_model_close(subject->model);
    if (subject->have_weights)
        weights_close(&subject->weights);
    config_free(&subject->config);
}

static bool subject_open(struct subject *subject, const struct model_flags *flags, const char *path,
                         struct calla_error *error) {
    memset(subject, 0, sizeof *subject);
    if (!config_read(&subject->config, path, error) ||
        !(subject->have_weights = weights_open(&subject->weights, &subject->config, path, error)) ||
        (subject->model = open_model(flags, true, error)) == NULL)
        return false;
    calla_model_info(subject->model, &subject->info);
    policy_defaults(&subject->policy, subject->info.backend);
    for (size_t i = 0; i < flags->policies.count; i++)
        if (!policy_set(&subject->policy, subject->info.backend, flags->policies.values[i], error))
            return false;
    uint32_t asked = (uint32_t)flags->context, limit = subject->info.context_limit;
    if (asked > limit)
        return error_set(error, CALLA_BAD_INPUT,
                         "A context of %u tokens is more than %s was made for: at most %u.", asked,
                         subject->info.name, limit);
    return scratch_bytes(&subject->scratch, &subject->config, &subject->weights, &subject->policy,
                         asked == 0 ? limit : asked, error);
}

static json_t *describe(const struct model_flags *flags, const char *path, struct calla_error *error) {
    struct subject subject;
    json_t *description = NULL;
    if (subject_open(&subject, flags, path, error)) {
        const struct calla_model_info *info = &subject.info;
        description =
            json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "name", info->name, "path", path,
                      "architecture", describe_architecture(&subject.config, &subject.weights), "memory",
                      describe_memory(info, &subject.weights, (uint32_t)flags->context, subject.scratch),
                      "tokenizer", describe_tokenizer(subject.model, info, &subject.config), "sampling",
                      describe_sampling(subject.model), "backend", describe_backend(info, &subject.policy),
                      "policies", describe_policies(&subject.policy, info->backend));
        if (description == NULL)
            error_set(error, CALLA_BAD_INPUT, "%s cannot be described: a name in it is not UTF-8.", path);
    }
    subject_close(&subject);
    return description;
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static long long number_of(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* "1.4 GiB", in the unit that leaves a readable number. */
static const char *bytes_text(char text[32], long long bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double amount = (double)bytes;
    size_t unit = 0;
    for (; amount >= 1024 && unit < 4; unit++)
        amount /= 1024;
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.2f %s", amount, units[unit]);
    return text;
}

static void print_memory(const json_t *memory) {
    char text[32];
    printf("\nMemory\n");
    printf("  weights           %s\n", bytes_text(text, number_of(memory, "weight_bytes")));
    printf("  session state     %s\n", bytes_text(text, number_of(memory, "session_state_bytes")));
    printf("  scratch           %s\n", bytes_text(text, number_of(memory, "scratch_bytes")));
    printf("  KV cache          %s a token\n",
           bytes_text(text, number_of(memory, "kv_cache_bytes_per_token")));
    bool known = json_is_integer(json_object_get(memory, "machine_bytes"));
    printf("  of the device     %s\n",
           known ? bytes_text(text, number_of(memory, "machine_bytes")) : "unknown");
    size_t index;
    json_t *entry;
    json_array_foreach(json_object_get(memory, "contexts"), index, entry) {
        const char *verdict = !known                                         ? ""
                              : json_is_true(json_object_get(entry, "fits")) ? "  fits"
                                                                             : "  does not fit";
        printf("  context %-9lld %s in all%s\n", number_of(entry, "context"),
               bytes_text(text, number_of(entry, "total_bytes")), verdict);
    }
}

static void print_architecture(const json_t *architecture) {
    char text[32];
    long long layers = number_of(architecture, "layers"),
              attention = number_of(architecture, "attention_layers");
    printf("  parameters        %lld\n", number_of(architecture, "parameters"));
    printf("  layers            %lld gated delta, %lld attention; hidden size %lld\n", layers - attention,
           attention, number_of(architecture, "hidden_size"));
    printf("  attention         %lld heads, %lld of keys and values, size %lld\n",
           number_of(architecture, "heads"), number_of(architecture, "kv_heads"),
           number_of(architecture, "head_size"));
    printf("  gated delta       %lld key heads, %lld value heads\n",
           number_of(architecture, "delta_key_heads"), number_of(architecture, "delta_value_heads"));
    printf("  experts           %lld, %lld a token, width %lld; a shared one of width %lld\n",
           number_of(architecture, "experts"), number_of(architecture, "experts_per_token"),
           number_of(architecture, "expert_width"), number_of(architecture, "shared_expert_width"));
    printf("  context           %lld tokens at most\n", number_of(architecture, "context_limit"));
    printf("  weights           ");
    const char *type, *separator = "";
    json_t *bytes;
    json_object_foreach(json_object_get(architecture, "weight_bytes_by_type"), type, bytes) {
        printf("%s%s %s", separator, type, bytes_text(text, json_integer_value(bytes)));
        separator = ", ";
    }
    long long skipped = number_of(architecture, "skipped_tensors");
    if (skipped > 0)
        printf("; %lld tensors of the vision tower and the draft head are passed over", skipped);
    putchar('\n');
}

static void print_description(json_t *description) {
    size_t index;
    json_t *entry;
    const char *key;
    printf("%s (%s)\n", text_of(description, "name"), text_of(description, "path"));
    print_architecture(json_object_get(description, "architecture"));
    print_memory(json_object_get(description, "memory"));

    const json_t *tokenizer = json_object_get(description, "tokenizer");
    printf("\nTokenizer\n  tokens            %lld\n  end tokens       ", number_of(tokenizer, "tokens"));
    json_array_foreach(json_object_get(tokenizer, "end_tokens"), index, entry) {
        const json_t *text = json_object_get(entry, "text");
        printf(" %lld ", number_of(entry, "id"));
        terminal_write(stdout, json_is_string(text) ? json_string_value(text) : "", json_string_length(text));
    }
    printf("\n\nSampling, unless asked otherwise\n");
    json_object_foreach(json_object_get(description, "sampling"), key, entry)
        printf("  %-18s %g\n", key, json_number_value(entry));

    const json_t *backend = json_object_get(description, "backend");
    printf("\nBackend\n  name              %s\n  device            %s\n", text_of(backend, "name"),
           text_of(backend, "device"));
    if (text_of(backend, "tensor_operations") != NULL)
        printf("  tensor operations %s\n", text_of(backend, "tensor_operations"));
    printf("  processors        %lld\n  features         ", number_of(backend, "processors"));
    json_array_foreach(json_object_get(backend, "processor_features"), index, entry)
        printf(" %s", json_string_value(entry));
    printf("\n\nPolicies (--policy NAME=VALUE)\n");
    json_object_foreach(json_object_get(description, "policies"), key, entry)
        printf("  %-20s %s\n", key, json_is_null(entry) ? "n/a" : json_string_value(entry));
}

int command_info(int argc, char **argv) {
    struct model_flags flags = {0};
    bool json = false;
    struct option rows[MODEL_OPTIONS];
    model_options(rows, &flags);
    const struct option own[] = {{.name = "json", .help = "print it as JSON", .flag = &json}};
    const struct option_group groups[] = {{"Output", own, 1}, {"Model", rows, MODEL_OPTIONS}};
    const struct command_usage usage = {
        .name = "info",
        .synopsis = "[-m DIR] [--json]",
        .about =
            "Prints what the model is, the memory that it needs at several lengths of context (or at that "
            "of --context),\n"
            "whether that fits this machine, how it samples and with which backend and policies it would "
            "run.",
        .groups = groups,
        .group_count = 2,
        .argument_hint = "name the model's folder with -m"};
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    if (!model_flags_check(&flags, &error))
        return command_end(&usage, false, EXIT_WRONG_USAGE, &error);
    bool bundled;
    char *path = model_path(flags.model, &bundled, &error);
    json_t *description = path == NULL ? NULL : describe(&flags, path, &error);
    bool ok = description != NULL;
    if (ok && json)
        ok = print_json(description, &error);
    else if (ok)
        print_description(description);
    json_decref(description);
    free(path);
    return command_end(&usage, ok, EXIT_WORK_FAILED, &error);
}
