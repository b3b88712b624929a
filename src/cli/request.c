#include "cli/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const json_t *field(const json_t *request, const char *key) {
    const json_t *value = json_object_get(request, key);
    return json_is_null(value) ? NULL : value;
}

static bool number_field(const json_t *request, const char *key, double low, double high, float *target,
                         struct calla_error *error) {
    const json_t *value = field(request, key);
    if (value == NULL)
        return true;
    if (!json_is_number(value) || !(json_number_value(value) >= low && json_number_value(value) <= high))
        return error_set(error, CALLA_BAD_INPUT, "\"%s\" in the request must be a number from %g to %g.", key,
                         low, high);
    *target = (float)json_number_value(value);
    return true;
}

/* A number without fraction: 20 or 20.0. */
static bool whole_field(const json_t *request, const char *key, int64_t least, int64_t most, int64_t *target,
                        struct calla_error *error) {
    const json_t *value = field(request, key);
    if (value == NULL)
        return true;
    double real = json_number_value(value);
    bool whole = json_is_integer(value) || (json_is_real(value) && real == floor(real) && fabs(real) < 1e15);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : whole ? (int64_t)real : 0;
    if (!whole || number < least || number > most)
        return error_set(error, CALLA_BAD_INPUT,
                         "\"%s\" in the request must be a whole number from %lld to %lld.", key,
                         (long long)least, (long long)most);
    *target = number;
    return true;
}

static bool read_biases(const json_t *request, struct calla_sampling *sampling,
                        struct calla_logit_bias **biases, struct calla_error *error) {
    json_t *map = json_object_get(request, "logit_bias");
    if (map == NULL || json_is_null(map))
        return true;
    if (!json_is_object(map))
        return error_set(error, CALLA_BAD_INPUT,
                         "\"logit_bias\" in the request must be an object of token ids and numbers.");
    *biases = calloc(json_object_size(map) + 1, sizeof **biases);
    if (*biases == NULL)
        return error_memory(error, "logit_bias", json_object_size(map) * sizeof **biases);
    const char *key;
    json_t *value;
    sampling->bias_count = 0;
    json_object_foreach(map, key, value) {
        bool digits = *key != 0 && strlen(key) < 10 && key[strspn(key, "0123456789")] == 0;
        if (!digits || !json_is_number(value) || fabs(json_number_value(value)) > 100)
            return error_set(
                error, CALLA_BAD_INPUT,
                "\"logit_bias\" in the request must give each token id a number from -100 to 100; \"%s\" "
                "is wrong.",
                key);
        (*biases)[sampling->bias_count++] = (struct calla_logit_bias){
            .token = (int32_t)strtol(key, NULL, 10), .bias = (float)json_number_value(value)};
    }
    sampling->biases = *biases;
    return true;
}

/* Wishes that change the reply and cannot be met must not be passed over in silence. */
static bool check_unsupported(const json_t *request, struct calla_error *error) {
    const json_t *n = field(request, "n"), *stop = field(request, "stop");
    if (n != NULL && !(json_is_integer(n) && json_integer_value(n) == 1))
        return error_set(error, CALLA_UNSUPPORTED,
                         "\"n\" in the request must be 1: one reply is made at a time.");
    if (stop != NULL && !(json_is_array(stop) && json_array_size(stop) == 0))
        return error_set(error, CALLA_UNSUPPORTED,
                         "\"stop\" in the request is not supported here; leave it out.");
    if (json_is_true(field(request, "logprobs")) || field(request, "top_logprobs") != NULL)
        return error_set(error, CALLA_UNSUPPORTED,
                         "\"logprobs\" in the request is not supported here; leave it out.");
    const json_t *format = field(request, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format != NULL && (type == NULL || strcmp(type, "text") != 0))
        return error_set(
            error, CALLA_UNSUPPORTED,
            "\"response_format\" in the request is not supported here but for {\"type\": \"text\"}; "
            "leave it out.");
    const json_t *choice = field(request, "tool_choice");
    const char *word = json_string_value(choice);
    if (choice != NULL && (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0)))
        return error_set(error, CALLA_UNSUPPORTED,
                         "\"tool_choice\" in the request must be \"auto\" or \"none\"; other choices are not "
                         "supported here.");
    return true;
}

bool request_apply(json_t *request, struct calla_generate_options *options, struct calla_logit_bias **biases,
                   struct calla_error *error) {
    struct calla_sampling *sampling = &options->sampling;
    *biases = NULL;
    int64_t top_k = sampling->top_k, seed = -1, max_tokens = options->max_tokens;
    if (!check_unsupported(request, error) ||
        !number_field(request, "temperature", 0, 100, &sampling->temperature, error) ||
        !number_field(request, "top_p", 0, 1, &sampling->top_p, error) ||
        !number_field(request, "min_p", 0, 1, &sampling->min_p, error) ||
        !number_field(request, "presence_penalty", -2, 2, &sampling->presence_penalty, error) ||
        !number_field(request, "frequency_penalty", -2, 2, &sampling->frequency_penalty, error) ||
        !number_field(request, "repetition_penalty", 0.01, 100, &sampling->repetition_penalty, error) ||
        !whole_field(request, "top_k", -1, INT32_MAX, &top_k, error) ||
        !whole_field(request, "seed", INT64_MIN, INT64_MAX, &seed, error) ||
        !whole_field(request, "max_tokens", 1, INT32_MAX, &max_tokens, error) ||
        !whole_field(request, "max_completion_tokens", 1, INT32_MAX, &max_tokens, error) ||
        !read_biases(request, sampling, biases, error))
        return false;
    sampling->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* -1 is a common way to say "off" */
    if (field(request, "seed") != NULL)
        sampling->seed = (uint64_t)seed;
    const char *choice = json_string_value(field(request, "tool_choice"));
    if (choice != NULL && strcmp(choice, "none") == 0)
        json_object_del(request, "tools");
    options->max_tokens = (uint32_t)max_tokens;
    return true;
}

bool request_disable_thinking(json_t *request, struct calla_error *error) {
    json_t *arguments = json_object_get(request, "chat_template_kwargs");
    if (json_object_set_new(request, "enable_thinking", json_false()) != 0 ||
        (json_is_object(arguments) && json_object_set_new(arguments, "enable_thinking", json_false()) != 0))
        return error_memory(error, "the request", 0);
    return true;
}

bool request_set_system(json_t *request, const char *text, struct calla_error *error) {
    json_t *messages = json_object_get(request, "messages");
    if (!json_is_array(messages))
        return error_set(error, CALLA_BAD_INPUT, "The request needs \"messages\", a list.");
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    json_t *message = json_pack("{s:s, s:s}", "role", "system", "content", text);
    bool replace = role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    int failure = message == NULL ? -1
                  : replace       ? json_array_set_new(messages, 0, message)
                                  : json_array_insert_new(messages, 0, message);
    return failure == 0 || error_set(error, CALLA_BAD_INPUT, "The system message must be UTF-8 text.");
}
