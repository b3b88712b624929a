#include "unit.h"

#include <math.h>

#include "checkpoint_fixture.h"

#define LENGTH 150

static void bits_depend_on_neither_chunks_nor_threads(void **state) {
    int32_t tokens[LENGTH];
    some_tokens(tokens, LENGTH, 1);
    float first[FIXTURE_VOCABULARY];
    static const char *const chunks[] = {"chunk_rows=512", "chunk_rows=64", "chunk_rows=7", "chunk_rows=1"};
    for (int threads = 1; threads <= 3; threads++)
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            struct calla_model *model = checkpoint_model(state, "cpu", threads, chunks[c]);
            struct calla_session *session = checkpoint_session(model);
            const float *logits = read_all(session, tokens, LENGTH, NULL);
            if (threads == 1 && c == 0)
                memcpy(first, logits, sizeof first);
            assert_memory_equal(first, logits, sizeof first);
            calla_session_close(session);
            calla_model_close(model);
        }
    float spread = 0;
    for (int i = 1; i < FIXTURE_VOCABULARY; i++)
        spread += fabsf(first[i] - first[0]);
    assert_true(spread > 0.1f);
}

static void reading_on_equals_reading_afresh(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, "chunk_rows=32");
    struct calla_session *session = checkpoint_session(model);
    int32_t tokens[LENGTH], other[LENGTH];
    some_tokens(tokens, LENGTH, 2);
    some_tokens(other, LENGTH, 3);
    float fresh[FIXTURE_VOCABULARY];
    size_t computed;
    memcpy(fresh, read_all(session, tokens, LENGTH, &computed), sizeof fresh);
    assert_int_equal(computed, LENGTH);
    /* The same again: nothing to compute. */
    assert_memory_equal(fresh, read_all(session, tokens, LENGTH, &computed), sizeof fresh);
    assert_int_equal(computed, 0);
    /* Another text starts over; a prefix cannot be rewound to; its continuation is only continued. */
    read_all(session, other, LENGTH, &computed);
    assert_int_equal(computed, LENGTH);
    read_all(session, tokens, 40, &computed);
    assert_int_equal(computed, 40);
    assert_memory_equal(fresh, read_all(session, tokens, LENGTH, &computed), sizeof fresh);
    assert_int_equal(computed, LENGTH - 40);
    read_all(session, tokens, 40, &computed);
    assert_int_equal(computed, 40);
    assert_int_equal(calla_session_position(session), 40);
    calla_session_close(session);
    calla_model_close(model);
}

struct rows {
    float last[FIXTURE_VOCABULARY];
    float middle[FIXTURE_VOCABULARY];
    size_t count;
};

static bool keep_rows(void *user, size_t index, const float *logits) {
    struct rows *rows = user;
    assert_int_equal(index, rows->count);
    rows->count++;
    if (index == 40)
        memcpy(rows->middle, logits, sizeof rows->middle);
    memcpy(rows->last, logits, sizeof rows->last);
    return true;
}

static void evaluation_gives_every_position(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 2, NULL);
    struct calla_session *session = checkpoint_session(model);
    int32_t tokens[LENGTH];
    some_tokens(tokens, LENGTH, 4);
    static struct rows rows;
    memset(&rows, 0, sizeof rows);
    assert_true(calla_session_evaluate(session, tokens, LENGTH, keep_rows, &rows, NULL));
    assert_int_equal(rows.count, LENGTH);
    assert_memory_equal(rows.last, read_all(session, tokens, LENGTH, NULL), sizeof rows.last);
    assert_memory_equal(rows.middle, read_all(session, tokens, 41, NULL), sizeof rows.middle);
    calla_session_close(session);
    calla_model_close(model);
}

static void limits_and_bad_tokens_are_errors(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 1, NULL);
    struct calla_error error = {0};
    struct calla_session_options options = {.context = 513};
    assert_null(calla_session_open(model, &options, &error));
    assert_non_null(strstr(error.message, "513"));
    assert_non_null(strstr(error.message, "512"));
    options.context = 16;
    struct calla_session *session = calla_session_open(model, &options, &error);
    assert_non_null(session);
    int32_t tokens[17];
    some_tokens(tokens, 17, 5);
    assert_false(calla_session_read(session, tokens, 17, NULL, NULL, &error));
    assert_int_equal(error.status, CALLA_CONTEXT_FULL);
    assert_non_null(strstr(error.message, "17"));
    assert_non_null(strstr(error.message, "16"));
    assert_false(calla_session_read(session, tokens, 0, NULL, NULL, &error));
    static const int32_t bad[] = {-1, 265, FIXTURE_VOCABULARY, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tokens[3] = bad[i];
        assert_false(calla_session_read(session, tokens, 8, NULL, NULL, &error));
        assert_int_equal(error.status, CALLA_BAD_INPUT);
    }
    assert_null(calla_session_logits(session, &error));
    calla_session_close(session);
    calla_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_depend_on_neither_chunks_nor_threads),
        cmocka_unit_test(reading_on_equals_reading_afresh),
        cmocka_unit_test(evaluation_gives_every_position),
        cmocka_unit_test(limits_and_bad_tokens_are_errors),
    };
    return cmocka_run_group_tests(tests, checkpoint_setup, checkpoint_teardown);
}
