/* The printed plan: its figures, as a table and as JSON. */
#include "model_fixture.h"

#include <jansson.h>
#include <math.h>

#include "plan/plan_print.h"

struct printed {
    struct model_fixture model;
    struct plan plan;
    struct session_layout layout;
    const char **names;
    struct plan_report report;
};

static void printed_open(struct printed *printed, uint32_t layers, uint32_t rows, uint32_t position) {
    struct model_fixture *model = &printed->model;
    fixture_open(model, "cpu", layers);
    fixture_plan(model, &printed->plan, 65536, rows, LOGITS_LAST, true);
    struct calla_error error;
    assert_true(forward_layout(&printed->layout, &model->config, &model->policy, 65536, &error));
    printed->names = calloc(model->table.count, sizeof *printed->names);
    for (uint32_t i = 0; i < model->table.count; i++)
        printed->names[i] = model->table.weights[i].module;
    printed->report = (struct plan_report){.plan = &printed->plan,
                                           .layout = &printed->layout,
                                           .weight_names = printed->names,
                                           .model = "config.json",
                                           .phase = rows == 1 ? "decode" : "prefill",
                                           .backend = "cpu",
                                           .policy = &model->policy,
                                           .layers = model->config.layers,
                                           .position = position};
}

static void printed_close(struct printed *printed) {
    free(printed->names);
    session_layout_free(&printed->layout);
    plan_free(&printed->plan);
    fixture_close(&printed->model);
}

static void expect(const struct buffer *text, const char *part) {
    if (strstr(text->data, part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text->data);
}

static void the_table_of_a_decode_step(void **state) {
    (void)state;
    struct printed printed;
    printed_open(&printed, 0, 1, 4095);
    printed.report.bandwidth = 100e9;
    struct buffer text = {0};
    struct calla_error error;
    assert_true(plan_print_table(&printed.report, false, &text, &error));
    expect(&text, "decode of 1 row at position 4095");
    expect(&text, "253 (the article: 795)");
    expect(&text, "253 (the article: 555)");
    expect(&text, "of which weights 1.670 GB");
    expect(&text, "83.89 MB"); /* 4096 positions of 20,480 bytes */
    expect(&text, "129.8 MB"); /* the recurrent state, read and written; three rows of convolution and one */
    expect(&text, "tokens/s at 100.0 GB/s\n");
    expect(&text, "fuse_delta_norm=on");
    expect(&text, "kv_coalesced=n/a");
    assert_null(strstr(text.data, "language_model"));
    buffer_clear(&text);
    assert_true(plan_print_table(&printed.report, true, &text, &error));
    expect(&text, "language_model.model.layers.39.self_attn.o_proj affine 4-bit [2048, 4096]");
    expect(&text, "rw state");
    expect(&text, "stride 512 offset 1024 B"); /* the gate beside its query */
    buffer_free(&text);
    printed_close(&printed);
}

/* A prediction is the least time and one wait a phase, or one a kernel when they run one after the other. */
static void what_apples_chips_would_take(void **state) {
    (void)state;
    struct printed printed;
    printed_open(&printed, 0, 1, 4095);
    const struct apple_chip *chip = &apple_chips[APPLE_CHIP_COUNT - 1];
    assert_string_equal(chip->name, "M5 Max");
    struct cost cost = plan_cost(&printed.plan, 4095);
    struct policy policy = *printed.report.policy;
    policy.concurrent = policy.tensor_operations = true;
    struct apple_prediction concurrent = apple_predict(chip, &printed.plan, 4095, 300, 200, &policy);
    policy.concurrent = false;
    struct apple_prediction serial = apple_predict(chip, &printed.plan, 4095, 300, 200, &policy);
    assert_true(apple_rate(chip, &policy) == chip->rate);
    policy.tensor_operations = false;
    assert_true(apple_rate(chip, &policy) == chip->rate / 4);
    assert_true(apple_rate(&apple_chips[0], &policy) == apple_chips[0].rate);
    assert_true(concurrent.least == serial.least);
    assert_true(concurrent.least >= (double)cost_bytes(&cost) / 614e9 * (1 - 1e-9));
    assert_true(concurrent.least < 1.1 * (double)cost_bytes(&cost) / 614e9);
    assert_true(fabs(concurrent.predicted - concurrent.least - 200 * 4.2e-6) < 1e-9);
    assert_true(fabs(serial.predicted - serial.least - 300 * 3.7e-6) < 1e-9);

    struct buffer text = {0};
    struct calla_error error;
    assert_true(plan_print_table(&printed.report, false, &text, &error));
    assert_null(strstr(text.data, "Predicted"));
    buffer_clear(&text);
    printed.report.kernels = 300;
    printed.report.kernel_phases = 200;
    assert_true(plan_print_table(&printed.report, false, &text, &error));
    expect(&text, "\nops             253\n");
    expect(&text, "\nkernels         300 (the article: 795)\n");
    expect(&text, "\nkernel phases   200 (the article: 555)\n");
    expect(&text, "with 4.2 us for every phase; nothing was measured");
    for (size_t i = 0; i < APPLE_CHIP_COUNT; i++)
        expect(&text, apple_chips[i].name);
    buffer_free(&text);
    printed_close(&printed);
}

static void the_article_is_about_the_full_model(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct printed printed;
        printed_open(&printed, i == 0 ? 4 : 0, i == 0 ? 1 : 16, 0);
        struct buffer text = {0};
        struct calla_error error;
        assert_true(plan_print_table(&printed.report, false, &text, &error));
        assert_null(strstr(text.data, "article"));
        buffer_free(&text);
        printed_close(&printed);
    }
}

static int64_t number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void json_adds_up(void **state) {
    (void)state;
    static const char *const spaces[] = {"weights", "state", "kv", "scratch", "total"};
    for (uint32_t rows = 1; rows <= 512; rows += 511) {
        struct printed printed;
        printed_open(&printed, 0, rows, 1000);
        printed.report.bandwidth = 100e9;
        printed.report.rate = 10e12;
        struct buffer text = {0};
        struct calla_error error;
        assert_true(plan_print_json(&printed.report, &text, &error));
        json_t *json = json_loadb(text.data, text.size, 0, NULL);
        assert_non_null(json);
        buffer_free(&text);
        const json_t *bytes = json_object_get(json, "bytes"), *list = json_object_get(json, "list"), *op;
        int64_t ops = 0, flops = 0, last_phase = 0, sums[5] = {0};
        double least = 0;
        size_t i;
        json_array_foreach(json_object_get(json, "kinds"), i, op) {
            ops += number(op, "ops");
            flops += number(op, "flops");
            least += json_real_value(json_object_get(op, "least_seconds"));
            for (int j = 0; j < 5; j++)
                sums[j] += number(json_object_get(op, "bytes"), spaces[j]);
        }
        assert_int_equal(ops, number(json, "ops"));
        assert_int_equal(flops, number(json, "flops"));
        for (int j = 0; j < 5; j++)
            assert_int_equal(sums[j], number(bytes, spaces[j]));
        assert_int_equal(sums[0] + sums[1] + sums[2] + sums[3], sums[4]);
        if (rows == 1)
            assert_int_equal(sums[0], 1669561728 + 40 * 4096); /* the experts' norms are read twice */
        assert_true(fabs(least - json_real_value(json_object_get(json, "least_seconds"))) < 1e-9);
        assert_true(fabs(least * json_real_value(json_object_get(json, "tokens_per_second")) - rows) < 1e-6);
        assert_true(least >= (double)sums[4] / 100e9 && least >= (double)flops / 10e12);
        assert_int_equal(json_array_size(list), ops);
        json_array_foreach(list, i, op) {
            assert_in_range(number(op, "phase"), last_phase, last_phase + 1);
            last_phase = number(op, "phase");
        }
        assert_int_equal(last_phase + 1, number(json, "phases"));
        assert_int_equal(json_object_get(json, "article") != NULL, rows == 1);
        assert_string_equal(json_string_value(json_object_get(json_object_get(json, "policy"), "gqa_pack")),
                            "n/a");
        json_decref(json);
        printed_close(&printed);
    }
}

static void a_path_that_is_not_utf8(void **state) {
    (void)state;
    struct printed printed;
    printed_open(&printed, 4, 1, 0);
    printed.report.model = "models/\xff\xfe";
    struct buffer text = {0};
    struct calla_error error;
    assert_true(plan_print_json(&printed.report, &text, &error));
    expect(&text, "\"model\": null");
    buffer_free(&text);
    printed_close(&printed);
}

static long allocations_left;

static void *limited_malloc(size_t size) {
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* Whatever allocation of the JSON fails, the printing says so and leaks nothing (the sanitizers look). */
static void memory_may_be_short(void **state) {
    (void)state;
    struct printed printed;
    printed_open(&printed, 1, 1, 0);
    printed.report.kernels = printed.report.kernel_phases = 9;
    json_set_alloc_funcs(limited_malloc, free);
    struct buffer text = {0};
    struct calla_error error;
    bool ok = false;
    long limit = 0;
    for (; !ok && limit < 100000; limit += 1 + limit / 50) {
        allocations_left = limit;
        error.status = CALLA_OK;
        buffer_clear(&text);
        ok = plan_print_json(&printed.report, &text, &error);
        assert_true(ok || error.status == CALLA_OUT_OF_MEMORY);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(ok && limit > 100);
    buffer_free(&text);
    printed_close(&printed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_a_decode_step),
        cmocka_unit_test(what_apples_chips_would_take),
        cmocka_unit_test(the_article_is_about_the_full_model),
        cmocka_unit_test(json_adds_up),
        cmocka_unit_test(a_path_that_is_not_utf8),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
