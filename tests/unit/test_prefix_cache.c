/* What was read before is not computed again, what is said does not depend on it, and its memory has a bound.
 */
#include "unit.h"

#include "checkpoint_fixture.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"

/* A small model, since some ten thousand tokens are read; test_snapshots has the bundled one. */
#define MODEL "tests/data/forward"
#define LONGEST 4000

static int32_t texts[8][LONGEST];

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % below;
}

static int make_texts(void **state) {
    (void)state;
    uint64_t random = 3;
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < LONGEST; j++)
            texts[i][j] = (int32_t)draw(&random, 256); /* no control tokens */
    return 0;
}

static size_t read_some(struct calla_session *session, const int32_t *tokens, size_t count) {
    size_t computed = SIZE_MAX;
    struct calla_error error = {0};
    if (!calla_session_read(session, tokens, count, &computed, NULL, &error))
        fail_msg("%s", error.message);
    return computed;
}

/* Another session of the model continues, repeats, edits and branches. */
static void nothing_is_read_twice(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, (uint64_t)1 << 30);
    struct calla_session *first = checkpoint_session(model), *second = checkpoint_session(model);
    int32_t *text = texts[0];
    assert_int_equal(read_some(first, text, 3000), 3000);
    /* The same once more; one token more; and a rewind to within an interval. */
    assert_int_equal(read_some(second, text, 3000), 0);
    assert_int_equal(read_some(first, text, 3001), 1);
    size_t computed = read_some(second, text, 2500);
    assert_true(computed <= CACHE_INTERVAL);
    /* The last token changed. */
    int32_t last = text[2999];
    text[2999] = (last + 1) % 256;
    assert_true(read_some(second, text, 3000) <= CACHE_INTERVAL);
    text[2999] = last;
    /* A third text that parts where the second one did is computed from there on only. */
    memcpy(texts[1], text, 1500 * sizeof *text);
    memcpy(texts[2], text, 1500 * sizeof *text);
    computed = read_some(first, texts[1], 1600);
    assert_true(computed <= CACHE_INTERVAL + 100);
    assert_int_equal(read_some(second, texts[2], 1600), 100);
    struct calla_cache_info info;
    calla_cache_info(model, &info);
    assert_true(info.snapshots > 4 && info.hits >= 6 && info.memory > 0 && info.evicted == 0);
    calla_session_close(first);
    calla_session_close(second);
    calla_model_close(model);
}

static void turns_are_stops(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, (uint64_t)1 << 30);
    struct calla_session *session = checkpoint_session(model);
    int32_t turn = tokenizer_added(model->tokenizer, "<|im_start|>");
    assert_true(turn >= 0);
    /* A system prompt of 300 tokens, a question of 50, the opening of a reply. */
    int32_t prompt[400], other[400];
    memcpy(prompt, texts[3], sizeof prompt);
    prompt[0] = prompt[300] = prompt[350] = turn;
    memcpy(other, prompt, sizeof other);
    for (size_t i = 303; i < 400; i++)
        other[i] = texts[4][i];
    other[360] = turn;
    assert_int_equal(read_some(session, prompt, 354), 354);
    /* The same question with another reply before it went on: from where the reply began. */
    int32_t next[400];
    memcpy(next, prompt, sizeof next);
    memcpy(next + 351, texts[5], 40 * sizeof *next);
    assert_int_equal(read_some(session, next, 391), 41);
    /* Another user under the same system prompt. */
    assert_int_equal(read_some(session, other, 364), 64);
    calla_session_close(session);
    calla_model_close(model);
}

/* What was changed near the end of a long question costs little more than the end; a short one is read in one
 * piece. */
static void a_retry_computes_little(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, (uint64_t)1 << 30);
    struct calla_session *session = checkpoint_session(model);
    int32_t turn = tokenizer_added(model->tokenizer, "<|im_start|>");
    const size_t question = 2500, count = question + 4;
    static int32_t prompt[LONGEST];
    memcpy(prompt, texts[7], sizeof prompt);
    prompt[0] = prompt[question] = turn;
    assert_int_equal(read_some(session, prompt, count), count);
    static const struct {
        uint32_t before, most;
    } edits[] = {{2, 32}, {2, 32}, {200, 256}, {1, 32}, {900, 900 + CACHE_INTERVAL}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        int32_t *edited = &prompt[question - edits[i].before];
        *edited = (*edited + 1) % 256;
        assert_true(read_some(session, prompt, count) <= edits[i].most + 4);
    }
    struct calla_cache_info before, after;
    calla_cache_info(model, &before);
    prompt[0] = 7;
    prompt[100] = turn;
    assert_int_equal(read_some(session, prompt, 104), 104);
    calla_cache_info(model, &after);
    assert_int_equal(after.taken - before.taken, 1);
    calla_session_close(session);
    calla_model_close(model);
}

/* The budget is never exceeded, not even while a snapshot is taken, and what was used lately survives. */
static void memory_has_a_bound(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, 0);
    struct calla_model_info model_info;
    calla_model_info(model, &model_info);
    calla_model_close(model);
    uint64_t budget = 6 * (model_info.session_bytes + 1024 * model_info.bytes_per_position);
    model = cpu_model(MODEL, budget);
    struct calla_session *session = checkpoint_session(model);
    struct calla_cache_info info;
    for (size_t round = 0; round < 18; round++) {
        size_t which = round % 3 == 0 ? 0 : round % 8;
        texts[which][0] = which == 0 ? 0 : (int32_t)round + 1; /* unrelated to all before */
        read_some(session, texts[which], which == 0 ? 400 : 1300);
        calla_cache_info(model, &info);
        assert_true(info.memory <= budget && info.memory_peak <= budget);
    }
    assert_true(info.evicted > 5);
    /* The text that came again and again is still there. */
    assert_int_equal(read_some(session, texts[0], 400), 0);
    calla_session_close(session);
    calla_model_close(model);
    /* Too little for even one. */
    model = cpu_model(MODEL, 1000);
    session = checkpoint_session(model);
    assert_int_equal(read_some(session, texts[1], 1500), 1500);
    calla_cache_info(model, &info);
    assert_int_equal(info.memory_peak, 0);
    calla_session_close(session);
    calla_model_close(model);
}

/* Snapshots of one long text hold the same blocks: to forget one for the next gives back less than it took.
 */
static void what_is_shared_is_counted(void **state) {
    (void)state;
    const uint64_t budget = 6500000; /* one of 3,072 positions fits, one of 4,000 does not */
    struct calla_model *model = cpu_model("models/calla-tiny", budget);
    struct calla_session *session = checkpoint_session(model);
    assert_int_equal(read_some(session, texts[6], LONGEST), LONGEST);
    struct calla_cache_info info;
    calla_cache_info(model, &info);
    assert_true(info.memory_peak > budget / 2 && info.memory_peak <= budget);
    calla_session_close(session);
    calla_model_close(model);
}

/* A reading that is given up within a chunk keeps what came before. */
static bool stop_after(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)total;
    return done < *(uint64_t *)user;
}

static void a_cancelled_reading_is_not_lost(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, (uint64_t)1 << 30);
    struct calla_session *session = checkpoint_session(model);
    uint64_t most = 2000;
    struct calla_progress progress = {stop_after, &most};
    struct calla_error error = {0};
    assert_false(calla_session_read(session, texts[6], LONGEST, NULL, &progress, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    size_t computed = read_some(session, texts[6], LONGEST);
    assert_true(computed <= LONGEST - 2000 + CACHE_INTERVAL);
    calla_session_close(session);
    calla_model_close(model);
}

/* Random histories: continued, cut, edited, in two sessions at random. Logits are, to the bit, those of a
 * model without a cache, and no more is computed than what is new and an interval. */
static void random_histories(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int budget = 0; budget < 2; budget++) {
        struct calla_model *plain = cpu_model(MODEL, 0);
        struct calla_model_info info;
        calla_model_info(plain, &info);
        uint64_t tight = 2 * info.session_bytes + 700 * info.bytes_per_position;
        struct calla_model *cached = cpu_model(MODEL, budget == 0 ? tight : (uint64_t)1 << 30);
        struct calla_session *fresh = checkpoint_session(plain),
                             *sessions[2] = {checkpoint_session(cached), checkpoint_session(cached)};
        size_t bytes = plain->config.vocabulary * sizeof(float);
        int32_t turn = tokenizer_added(plain->tokenizer, "<|im_start|>");
        static int32_t text[LONGEST], known[24][LONGEST];
        size_t counts[24] = {0}, known_count = 0;
        size_t count = 0;
        for (int round = 0; round < 24; round++) {
            uint32_t what = draw(&random, 4);
            if (what == 0 && count > 0) /* back to some place */
                count = draw(&random, (uint32_t)count);
            else if (what == 1 && known_count > 0) { /* another conversation */
                uint32_t which = draw(&random, (uint32_t)known_count);
                count = counts[which];
                memcpy(text, known[which], count * sizeof *text);
            }
            size_t more = 1 + draw(&random, what == 2 ? 500 : 60);
            for (size_t i = 0; i < more && count < 1400; i++, count++)
                text[count] = draw(&random, 30) == 0 ? turn : (int32_t)draw(&random, 256);
            size_t common = 0;
            for (size_t i = 0; i < known_count; i++) {
                size_t same = 0;
                while (same < counts[i] && same < count && known[i][same] == text[same])
                    same++;
                common = same > common ? same : common;
            }
            size_t computed = read_some(sessions[draw(&random, 2)], text, count);
            if (budget == 1)
                assert_true(computed <= count - common + CACHE_INTERVAL);
            for (int i = 0; i < 2; i++)
                if (sessions[i]->position == count &&
                    memcmp(sessions[i]->tokens, text, count * sizeof *text) == 0) {
                    calla_session_reset(fresh, NULL);
                    read_some(fresh, text, count);
                    assert_memory_equal(calla_session_logits(fresh, NULL),
                                        calla_session_logits(sessions[i], NULL), bytes);
                }
            memcpy(known[known_count], text, count * sizeof *text);
            counts[known_count++] = count;
        }
        struct calla_cache_info cache;
        calla_cache_info(cached, &cache);
        assert_true(budget == 0 ? cache.evicted > 5 : cache.evicted == 0);
        calla_session_close(fresh);
        calla_session_close(sessions[0]);
        calla_session_close(sessions[1]);
        calla_model_close(plain);
        calla_model_close(cached);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_twice),     cmocka_unit_test(turns_are_stops),
        cmocka_unit_test(a_retry_computes_little),   cmocka_unit_test(memory_has_a_bound),
        cmocka_unit_test(what_is_shared_is_counted), cmocka_unit_test(a_cancelled_reading_is_not_lost),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, make_texts, NULL);
}
