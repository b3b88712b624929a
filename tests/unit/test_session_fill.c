/* A session that was filled instead of read: it stands where it should, goes on without NaN, and is no empty
 * one in disguise. */
#include "unit.h"

#include <math.h>

#include "checkpoint_fixture.h"

#define LENGTH 100

static const float *logits_after_fill(struct calla_session *session, const int32_t *tokens, uint64_t seed) {
    struct calla_error error = {0};
    if (!calla_session_fill(session, tokens, LENGTH - 1, seed, &error))
        fail_msg("%s", error.message);
    assert_int_equal(calla_session_position(session), LENGTH - 1);
    assert_int_equal(calla_session_common(session, tokens, LENGTH), LENGTH - 1);
    size_t computed;
    const float *logits = read_all(session, tokens, LENGTH, &computed);
    assert_int_equal(computed, 1);
    return logits;
}

static void filled_sessions_go_on(void **state) {
    static const char *const backends[] = {"cpu", "reference"}, *const caches[] = {"kv_dtype=bf16",
                                                                                   "kv_dtype=f32"};
    int32_t tokens[LENGTH];
    some_tokens(tokens, LENGTH, 5);
    for (int i = 0; i < 4; i++) {
        struct calla_model *model = checkpoint_model(state, backends[i / 2], 2, caches[i % 2]);
        struct calla_session *session = checkpoint_session(model);
        float first[FIXTURE_VOCABULARY], real[FIXTURE_VOCABULARY];
        memcpy(first, logits_after_fill(session, tokens, 1), sizeof first);
        for (int j = 0; j < FIXTURE_VOCABULARY; j++)
            assert_true(isfinite(first[j]));
        /* The same seed gives the same, another one does not; a session that really reads is not disturbed.
         */
        assert_memory_equal(first, logits_after_fill(session, tokens, 1), sizeof first);
        assert_memory_not_equal(first, logits_after_fill(session, tokens, 2), sizeof first);
        assert_true(calla_session_reset(session, NULL));
        memcpy(real, read_all(session, tokens, LENGTH, NULL), sizeof real);
        assert_memory_not_equal(first, real, sizeof first);
        struct calla_session *fresh = checkpoint_session(model);
        assert_memory_equal(real, read_all(fresh, tokens, LENGTH, NULL), sizeof real);
        calla_session_close(fresh);
        calla_session_close(session);
        calla_model_close(model);
    }
}

static void wrong_tokens_are_refused(void **state) {
    struct calla_model *model = checkpoint_model(state, "cpu", 1, NULL);
    struct calla_session *session = checkpoint_session(model);
    struct calla_error error;
    int32_t tokens[LENGTH];
    some_tokens(tokens, LENGTH, 5);
    assert_false(calla_session_fill(session, tokens, 0, 1, &error));
    assert_false(calla_session_fill(session, tokens, calla_session_context(session) + (size_t)1, 1, &error));
    assert_int_equal(error.status, CALLA_CONTEXT_FULL);
    tokens[3] = -1;
    assert_false(calla_session_fill(session, tokens, LENGTH, 1, &error));
    assert_int_equal(calla_session_position(session), 0);
    calla_session_close(session);
    calla_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filled_sessions_go_on),
        cmocka_unit_test(wrong_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, checkpoint_setup, checkpoint_teardown);
}
