/* The results for programs: one JSON object with every single measurement. */
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "cli/bench.h"
#include "cli/processor.h"

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* Text from outside, such as a path, need not be UTF-8. */
static json_t *text_or_null(const char *text) {
    json_t *string = json_string(text);
    return string != NULL ? string : json_null();
}

static json_t *known_or_null(double value) {
    return value > 0 ? json_real(value) : json_null();
}

static json_t *machine_json(const struct bench *bench) {
    char processor[128], system[128];
    system_processor(processor, sizeof processor);
    system_name(system, sizeof system);
    json_t *features = json_array();
    const char *feature;
    for (size_t i = 0; (feature = processor_feature(i)) != NULL; i++)
        json_array_append_new(features, json_string(feature));
    return json_pack("{s:s, s:I, s:o, s:i, s:i, s:o, s:I, s:o}", "device", bench->device.name,
                     "device_memory_bytes", (json_int_t)bench->device.memory, "processor",
                     text_or_null(processor), "cores", system_cores(), "processors", system_processors(),
                     "processor_features", features, "memory_bytes", (json_int_t)system_memory(), "system",
                     text_or_null(system));
}

static json_t *policy_json(const struct bench *bench) {
    json_t *policy = json_object();
    const char *name;
    char value[32];
    bool applies;
    for (size_t i = 0; policy_describe(&bench->policy, bench->class->name, i, &name, value, &applies); i++)
        json_object_set_new(policy, name, applies ? json_string(value) : json_null());
    return policy;
}

static json_t *samples_json(const struct samples *samples) {
    json_t *array = json_array();
    for (size_t i = 0; i < samples->count; i++)
        json_array_append_new(array, json_real(samples->values[i]));
    return array;
}

static json_t *spread_json(const struct samples *samples) {
    struct spread spread = samples_spread(samples);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "median", spread.median, "low_quartile",
                     spread.low_quartile, "high_quartile", spread.high_quartile, "least", spread.least,
                     "most", spread.most, "count", (json_int_t)spread.count);
}

/* One side's seconds and speeds. */
static json_t *side_json(const struct bench_figure *figure, const struct samples *seconds) {
    struct samples rates = samples_inverse(figure->tokens, seconds);
    return json_pack("{s:o, s:o}", "seconds", samples_json(seconds), "tokens_per_second",
                     spread_json(&rates));
}

static json_t *ratio_json(const struct bench_figure *figure) {
    /* Speeds divided are times divided the other way round. */
    struct samples ratios = samples_ratio(&figure->peer, &figure->seconds);
    return spread_json(&ratios);
}

static json_t *figure_json(const struct bench *bench, const struct bench_figure *figure) {
    json_t *json = side_json(figure, &figure->seconds);
    struct samples rates = samples_inverse(figure->tokens, &figure->seconds);
    double seconds = figure->tokens / samples_spread(&rates).median, least = figure->cost.least_seconds;
    /* Without the compute rate a prompt has no limit worth the name. */
    if (figure->phase == BENCH_PREFILL && bench->rate <= 0)
        least = 0;
    json_object_set_new(json, "length", json_integer(figure->length));
    json_object_set_new(json, "tokens", json_integer(figure->tokens));
    if (figure->phase == BENCH_DECODE)
        json_object_set_new(json, "context", json_string(figure->filled ? "filled" : "read"));
    json_object_set_new(json, "bytes", json_real(figure->cost.bytes));
    json_object_set_new(json, "flops", json_real(figure->cost.flops));
    json_object_set_new(json, "bytes_per_second", json_real(figure->cost.bytes / seconds));
    json_object_set_new(json, "flops_per_second", json_real(figure->cost.flops / seconds));
    json_object_set_new(json, "memory_bytes_per_second",
                        figure->memory.count > 0 ? spread_json(&figure->memory) : json_null());
    json_object_set_new(json, "limit_tokens_per_second",
                        known_or_null(least > 0 ? figure->tokens / least : 0));
    json_object_set_new(json, "share_of_limit", known_or_null(least / seconds));
    if (figure->peer.count > 0) {
        json_object_set_new(json, "mlx_lm", side_json(figure, &figure->peer));
        json_object_set_new(json, "ratio", ratio_json(figure));
    }
    return json;
}

static json_t *figures_json(const struct bench *bench, enum bench_phase phase) {
    json_t *array = json_array();
    for (size_t i = 0; i < bench->figure_count; i++)
        if (bench->figures[i].phase == phase && bench->figures[i].seconds.count > 0)
            json_array_append_new(array, figure_json(bench, &bench->figures[i]));
    return array;
}

static json_t *ablation_figures_json(const struct bench *bench, const struct bench_ablation *ablation) {
    json_t *array = json_array();
    for (size_t i = 0; ablation->figures != NULL && i < bench->figure_count; i++) {
        const struct bench_figure *figure = &ablation->figures[i];
        if (figure->peer.count > 0)
            json_array_append_new(array,
                                  json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "phase",
                                            figure->phase == BENCH_PREFILL ? "prefill" : "decode", "length",
                                            (json_int_t)figure->length, "tokens", (json_int_t)figure->tokens,
                                            "value", side_json(figure, &figure->seconds), "alternative",
                                            side_json(figure, &figure->peer), "ratio", ratio_json(figure)));
    }
    return array;
}

static json_t *ablations_json(const struct bench *bench) {
    json_t *array = json_array();
    for (size_t i = 0; i < bench->ablation_count; i++) {
        const struct bench_ablation *ablation = &bench->ablations[i];
        bool compared = ablation->reason[0] == 0;
        json_array_append_new(array,
                              json_pack("{s:s, s:s, s:s, s:o, s:o}", "policy", ablation->name, "value",
                                        ablation->value, "alternative", ablation->alternative, "not_compared",
                                        compared ? json_null() : text_or_null(ablation->reason), "figures",
                                        compared ? ablation_figures_json(bench, ablation) : json_array()));
    }
    return array;
}

static json_t *peer_json(const struct bench *bench) {
    const struct bench_peer_info *info = &bench->peer_info;
    if (bench->against == NULL)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:f, s:I}", "version", text_or_null(info->version), "mlx",
                     text_or_null(info->library), "device", text_or_null(info->device), "load_seconds",
                     info->load_seconds, "peak_resident_bytes", (json_int_t)info->peak_resident);
}

json_t *bench_report(const struct bench *bench) {
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) == NULL || strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        date[0] = 0;
    json_t *model = json_pack("{s:o, s:o, s:I, s:i}", "name", text_or_null(bench->name), "path",
                              text_or_null(bench->path), "weight_bytes", (json_int_t)bench->info.weight_bytes,
                              "layers", bench->info.layers);
    json_t *method = json_pack("{s:I, s:I, s:I, s:I, s:b}", "repeat", (json_int_t)bench->repeat, "warm_up",
                               (json_int_t)bench->warm_up, "tokens", (json_int_t)bench->tokens, "seed",
                               (json_int_t)bench->seed, "real_context", bench->real_context);
    json_t *bandwidth = json_pack("{s:o, s:s}", "bytes_per_second", known_or_null(bench->bandwidth), "source",
                                  bench->bandwidth_given ? "given"
                                  : bench->bandwidth > 0 ? "measured"
                                                         : "unknown");
    return json_pack(
        "{s:{s:s, s:s}, s:s, s:o, s:o, s:s, s:i, s:o, s:o, s:o, s:o, s:f, s:I, s:b, s:o, s:o, s:o, s:o}",
        "calla", "version", CALLA_VERSION, "compiler", COMPILER, "date", date, "machine", machine_json(bench),
        "model", model, "backend", bench->class->name, "threads", bench->info.threads, "policy",
        policy_json(bench), "method", method, "bandwidth", bandwidth, "flops_per_second",
        known_or_null(bench->rate), "ready_seconds", bench->ready_seconds, "peak_resident_bytes",
        (json_int_t)bench->peak_resident, "complete", bench->complete, "prefill",
        bench->figures != NULL ? figures_json(bench, BENCH_PREFILL) : json_array(), "decode",
        bench->figures != NULL ? figures_json(bench, BENCH_DECODE) : json_array(), "ablation",
        ablations_json(bench), "mlx_lm", peer_json(bench));
}
