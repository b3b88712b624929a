/* A plan as JSON. */
#include <stdlib.h>

#include "base/json.h"
#include "plan/plan_print.h"

/* A missing value or key is noticed by the caller of the outermost function, which gets NULL from it. */
static json_t *put(json_t *object, const char *key, json_t *value) {
    if (object == NULL || value == NULL || json_object_set_new(object, key, value) != 0) {
        if (object == NULL)
            json_decref(value);
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *add(json_t *array, json_t *value) {
    if (array == NULL || value == NULL || json_array_append_new(array, value) != 0) {
        if (array == NULL)
            json_decref(value);
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *integer(uint64_t value) {
    return json_integer((json_int_t)value);
}

/* Text from outside, such as a path, need not be UTF-8. */
static json_t *text_or_null(const char *text) {
    json_t *string = json_string(text);
    return string != NULL ? string : json_null();
}

static json_t *known_or_null(double value) {
    return value > 0 ? json_real(value) : json_null();
}

static json_t *bytes_json(const struct cost *cost) {
    json_t *bytes = json_object();
    bytes = put(bytes, "weights", integer(cost->weight_bytes));
    bytes = put(bytes, "state", integer(cost->state_bytes));
    bytes = put(bytes, "kv", integer(cost->kv_bytes));
    bytes = put(bytes, "scratch", integer(cost->scratch_bytes));
    return put(bytes, "total", integer(cost_bytes(cost)));
}

static json_t *kinds_json(const struct plan_report *report, const struct plan_totals *totals) {
    json_t *kinds = json_array();
    for (int i = 0; i < OP_KIND_COUNT; i++) {
        const struct kind_total *total = &totals->kinds[i];
        if (total->ops == 0)
            continue;
        json_t *kind = json_object();
        kind = put(kind, "kind", json_string(op_name((enum op_kind)i)));
        kind = put(kind, "ops", integer(total->ops));
        kind = put(kind, "bytes", bytes_json(&total->cost));
        kind = put(kind, "flops", integer(total->cost.flops));
        if (report->bandwidth > 0 || report->rate > 0)
            kind = put(kind, "least_seconds", json_real(total->seconds));
        kinds = add(kinds, kind);
    }
    return kinds;
}

static json_t *shapes_json(const struct buffer_shape *shapes, uint32_t count) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *shape = json_object();
        shape = put(shape, "name", json_string(shapes[i].name));
        shape = put(shape, "dtype", json_string(dtype_name(shapes[i].dtype)));
        shape = put(shape, "rows", integer(shapes[i].rows));
        shape = put(shape, "columns", integer(shapes[i].columns));
        shape = put(shape, "bytes", integer(buffer_shape_bytes(&shapes[i])));
        array = add(array, shape);
    }
    return array;
}

static json_t *operand_json(const struct plan_report *report, const struct operand *view) {
    static const char *const access[] = {"", "r", "w", "rw"};
    json_t *operand = json_object();
    operand = put(operand, "access", json_string(access[view->access & 3]));
    operand = put(operand, "space", json_string(space_name((enum space)view->space)));
    operand = put(operand, "buffer", integer(view->buffer));
    operand = put(operand, "name", text_or_null(plan_buffer_name(report, view)));
    operand = put(operand, "dtype", json_string(dtype_name((enum dtype)view->dtype)));
    operand = put(operand, "rows", integer(view->rows));
    operand = put(operand, "columns", integer(view->columns));
    operand = put(operand, "stride", integer(view->stride));
    return put(operand, "offset", integer(view->offset));
}

static json_t *ops_json(const struct plan_report *report) {
    json_t *ops = json_array();
    for (uint32_t i = 0; i < report->plan->op_count; i++) {
        const struct op *planned = &report->plan->ops[i];
        struct cost cost = op_cost(planned, report->position);
        json_t *operands = json_array();
        for (uint32_t j = 0; j < planned->operand_count; j++)
            operands = add(operands, operand_json(report, &planned->operands[j]));
        json_t *op = json_object();
        op = put(op, "kind", json_string(op_name(planned->kind)));
        op = put(op, "layer", planned->layer < 0 ? json_null() : json_integer(planned->layer));
        op = put(op, "phase", integer(planned->phase));
        op = put(op, "bytes", bytes_json(&cost));
        op = put(op, "flops", integer(cost.flops));
        op = put(op, "operands", operands);
        ops = add(ops, op);
    }
    return ops;
}

static json_t *policy_json(const struct plan_report *report) {
    json_t *policy = json_object();
    const char *name;
    char value[32];
    bool applies;
    for (size_t i = 0; policy_describe(report->policy, report->backend, i, &name, value, &applies); i++)
        policy = put(policy, name, json_string(value));
    return policy;
}

static json_t *predictions_json(const struct plan_report *report) {
    json_t *predictions = json_array();
    for (size_t i = 0; i < APPLE_CHIP_COUNT; i++) {
        const struct apple_chip *chip = &apple_chips[i];
        struct apple_prediction time = apple_predict(chip, report->plan, report->position, report->kernels,
                                                     report->kernel_phases, report->policy);
        json_t *prediction = json_object();
        prediction = put(prediction, "chip", json_string(chip->name));
        prediction = put(prediction, "gpu_cores", integer(chip->gpu_cores));
        prediction = put(prediction, "bandwidth", json_real(chip->bandwidth));
        prediction = put(prediction, "flops_per_second", json_real(apple_rate(chip, report->policy)));
        prediction = put(prediction, "least_seconds", json_real(time.least));
        prediction = put(prediction, "predicted_seconds", json_real(time.predicted));
        prediction =
            put(prediction, "predicted_tokens_per_second", json_real(report->plan->rows / time.predicted));
        predictions = add(predictions, prediction);
    }
    return predictions;
}

static json_t *report_json(const struct plan_report *report) {
    const struct plan *plan = report->plan;
    struct plan_totals totals;
    plan_totals(report, &totals);
    json_t *json = json_object();
    json = put(json, "model", text_or_null(report->model));
    json = put(json, "phase", json_string(report->phase));
    json = put(json, "backend", json_string(report->backend));
    json = put(json, "policy", policy_json(report));
    json = put(json, "rows", integer(plan->rows));
    json = put(json, "position", integer(report->position));
    json = put(json, "ops", integer(plan->op_count));
    json = put(json, "phases", integer(plan->phase_count));
    if (report->kernels > 0) {
        json = put(json, "kernels", integer(report->kernels));
        json = put(json, "kernel_phases", integer(report->kernel_phases));
        json = put(json, "predictions", predictions_json(report));
    }
    if (plan_like_article(report)) {
        json_t *article = put(json_object(), "ops", json_integer(ARTICLE_DECODE_KERNELS));
        json = put(json, "article", put(article, "phases", json_integer(ARTICLE_DECODE_PHASES)));
    }
    json = put(json, "bytes", bytes_json(&totals.all.cost));
    json = put(json, "bytes_per_token", json_real((double)cost_bytes(&totals.all.cost) / plan->rows));
    json = put(json, "flops", integer(totals.all.cost.flops));
    json = put(json, "bandwidth", known_or_null(report->bandwidth));
    json = put(json, "flops_per_second", known_or_null(report->rate));
    double seconds = totals.all.seconds;
    json = put(json, "least_seconds", known_or_null(seconds));
    json = put(json, "tokens_per_second", known_or_null(seconds > 0 ? plan->rows / seconds : 0));
    json = put(json, "kinds", kinds_json(report, &totals));
    json = put(json, "scratch_bytes", integer(totals.scratch_memory));
    json = put(json, "scratch", shapes_json(plan->scratch, plan->scratch_count));
    json = put(json, "state", shapes_json(report->layout->state, report->layout->state_count));
    json = put(json, "kv", shapes_json(report->layout->kv, report->layout->kv_count));
    json = put(json, "step", shapes_json(report->layout->step, STEP_BUFFER_COUNT));
    return put(json, "list", ops_json(report));
}

static int append_text(const char *text, size_t size, void *buffer) {
    return buffer_append(buffer, text, size) ? 0 : -1;
}

bool plan_print_json(const struct plan_report *report, struct buffer *out, struct calla_error *error) {
    json_t *json = report_json(report);
    bool ok = json != NULL && json_dump_callback(json, append_text, out, JSON_INDENT(1)) == 0 &&
              buffer_append_byte(out, '\n');
    json_decref(json);
    return ok || error_memory(error, "the plan as JSON", out->size);
}
