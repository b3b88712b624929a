/* The fields that chat and text completions share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange_state.h"

/* More than any context holds: a larger number is a mistake, not a wish. */
#define MAX_TOKENS (1 << 20)
/* Of one stop string. What may be the start of one is held back and looked at again with each token. */
#define MAX_STOP_BYTES 1024

/* Wishes that change the reply and cannot be met must not be passed over in silence. */
static bool check_unsupported(struct request_object request, struct refusal *refusal) {
    static const char *const constraints[] = {"grammar",           "json_schema",   "guided_json",
                                              "guided_regex",      "guided_choice", "guided_grammar",
                                              "structured_outputs"};
    for (size_t i = 0; i < sizeof constraints / sizeof *constraints; i++)
        if (request_value(request, constraints[i]) != NULL)
            return refuse(refusal, constraints[i],
                          "\"%s\" is not supported: the form of a reply cannot be constrained; leave it out.",
                          constraints[i]);
    struct request_object format;
    const char *type = "text";
    if (!request_inner(request, "response_format", "response_format.", &format, refusal) ||
        !request_string(format, "type", &type, refusal))
        return false;
    if (format.json != NULL && (strcmp(type, "text") != 0 || request_value(format, "type") == NULL))
        return refuse(refusal, "response_format",
                      "\"response_format\" must be {\"type\": \"text\"}: other formats are not supported.");
    int64_t n = 1;
    if (!request_whole(request, "n", 1, 128, &n, refusal))
        return false;
    return n == 1 || refuse(refusal, "n", "\"n\" must be 1: one reply is made for a request.");
}

static bool read_model(struct request_object request, const struct exchange_context *context,
                       struct refusal *refusal) {
    const char *model = context->model_name;
    if (!request_string(request, "model", &model, refusal))
        return false;
    if (!context->only_model_name || strcmp(model, context->model_name) == 0)
        return true;
    refuse(refusal, "model", "The model \"%.200s\" does not exist; this server has \"%.200s\".", model,
           context->model_name);
    refusal->status = 404;
    refusal->code = "model_not_found";
    return false;
}

static bool read_bias(struct exchange *exchange, const char *key, const json_t *value, uint32_t tokens,
                      struct refusal *refusal) {
    bool digits = *key != 0 && strlen(key) < 10 && key[strspn(key, "0123456789")] == 0;
    long token = digits ? strtol(key, NULL, 10) : -1;
    if (token < 0 || token >= (long)tokens)
        return refuse(refusal, "logit_bias",
                      "\"logit_bias\" must name tokens by their ids, 0 to %u, not \"%.60s\".", tokens - 1,
                      key);
    double bias = json_number_value(value);
    if (!json_is_number(value) || !(fabs(bias) <= 100))
        return refuse(
            refusal, "logit_bias",
            "\"logit_bias\" must give each token a number from -100 to 100; that of token %ld is %s.", token,
            json_is_number(value) ? "out of range" : request_kind(value));
    struct calla_sampling *sampling = &exchange->options.sampling;
    exchange->biases[sampling->bias_count++] = (struct calla_logit_bias){(int32_t)token, (float)bias};
    return true;
}

static bool read_biases(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    struct request_object map;
    struct calla_model_info info;
    if (!request_inner(request, "logit_bias", "logit_bias.", &map, refusal))
        return false;
    if (map.json == NULL)
        return true;
    exchange->biases = calloc(json_object_size(map.json) + 1, sizeof *exchange->biases);
    if (exchange->biases == NULL)
        return refuse_memory(refusal);
    calla_model_info(exchange->model, &info);
    exchange->options.sampling.biases = exchange->biases;
    const char *key;
    json_t *value;
    json_object_foreach(map.json, key, value) {
        if (!read_bias(exchange, key, value, info.tokens, refusal))
            return false;
    }
    return true;
}

static bool read_sampling(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    struct calla_sampling *sampling = &exchange->options.sampling;
    calla_sampling_defaults(exchange->model, sampling);
    int64_t top_k = sampling->top_k, seed = 0;
    if (!request_number(request, "temperature", 0, 2, &sampling->temperature, refusal) ||
        !request_number(request, "top_p", 0, 1, &sampling->top_p, refusal) ||
        !request_number(request, "min_p", 0, 1, &sampling->min_p, refusal) ||
        !request_number(request, "presence_penalty", -2, 2, &sampling->presence_penalty, refusal) ||
        !request_number(request, "frequency_penalty", -2, 2, &sampling->frequency_penalty, refusal) ||
        !request_number(request, "repetition_penalty", 0.01, 100, &sampling->repetition_penalty, refusal) ||
        !request_whole(request, "top_k", -1, INT32_MAX, &top_k, refusal) ||
        !request_whole(request, "seed", INT64_MIN, INT64_MAX, &seed, refusal) ||
        !read_biases(exchange, request, refusal))
        return false;
    sampling->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* -1 is a common way to say "off" */
    if (request_value(request, "seed") != NULL)
        sampling->seed = (uint64_t)seed;
    return true;
}

static bool read_stop(struct exchange *exchange, const json_t *stop, const char *name,
                      struct refusal *refusal) {
    if (!json_is_string(stop))
        return refuse(refusal, name, "\"%s\" must be a string, not %s.", name, request_kind(stop));
    if (json_string_length(stop) == 0 || json_string_length(stop) > MAX_STOP_BYTES)
        return refuse(refusal, name, "\"%s\" must have 1 to %d bytes, not %zu.", name, MAX_STOP_BYTES,
                      json_string_length(stop));
    char *copy = strdup(json_string_value(stop));
    if (copy == NULL)
        return refuse_memory(refusal);
    exchange->stops[exchange->options.stop_count++] = copy;
    return true;
}

static bool read_stops(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    const json_t *stop = request_value(request, "stop");
    exchange->options.stops = (const char *const *)exchange->stops;
    if (stop == NULL)
        return true;
    if (json_is_string(stop))
        return read_stop(exchange, stop, "stop", refusal);
    if (!json_is_array(stop) || json_array_size(stop) > EXCHANGE_MAX_STOPS)
        return refuse(refusal, "stop", "\"stop\" must be a string or a list of up to %d strings, not %s.",
                      EXCHANGE_MAX_STOPS, json_is_array(stop) ? "a longer list" : request_kind(stop));
    for (size_t i = 0; i < json_array_size(stop); i++) {
        char name[32];
        snprintf(name, sizeof name, "stop[%zu]", i);
        if (!read_stop(exchange, json_array_get(stop, i), name, refusal))
            return false;
    }
    return true;
}

static bool read_stream(struct exchange *exchange, struct request_object request, struct refusal *refusal) {
    struct request_object options;
    exchange->include_progress = true;
    if (!request_boolean(request, "stream", &exchange->streams, refusal) ||
        !request_inner(request, "stream_options", "stream_options.", &options, refusal) ||
        !request_boolean(options, "include_usage", &exchange->include_usage, refusal) ||
        !request_boolean(options, "include_progress", &exchange->include_progress, refusal))
        return false;
    exchange->include_usage = exchange->include_usage && exchange->streams;
    return true;
}

bool generation_request_read(struct exchange *exchange, const struct exchange_context *context,
                             json_t *request, struct refusal *refusal) {
    struct request_object object = {request, ""};
    int64_t max_tokens = 0;
    if (!read_model(object, context, refusal) || !check_unsupported(object, refusal) ||
        !request_whole(object, "max_tokens", 1, MAX_TOKENS, &max_tokens, refusal) ||
        !request_whole(object, "max_completion_tokens", 1, MAX_TOKENS, &max_tokens, refusal) ||
        !read_sampling(exchange, object, refusal) || !read_stops(exchange, object, refusal) ||
        !read_stream(exchange, object, refusal))
        return false;
    exchange->options.max_tokens = (uint32_t)max_tokens;
    return true;
}
