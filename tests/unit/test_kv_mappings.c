/* Sessions that grow at the same time do not use up the mappings that a process may have, and what they say
 * does not depend on where their keys and values lie. */
#include "unit.h"

#include <stdio.h>

#include "backend/host.h"
#include "checkpoint_fixture.h"
#include "engine/engine.h"

#define MODEL "tests/data/forward"
#define SESSIONS 10
#define ROUNDS 5
#define PIECE 512

static int32_t texts[SESSIONS][ROUNDS * PIECE];

static int make_texts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SESSIONS; i++)
        some_tokens(texts[i], ROUNDS * PIECE, 5 + i);
    return 0;
}

static struct kv_store *store_of(const struct calla_model *model) {
    return &((struct host_backend *)model->backend)->blocks;
}

/* The mappings of keys and values that two stores count, and those that the system has, less those of whole
 * segments. */
static void expect_counted(const struct kv_store *first, const struct kv_store *second) {
    FILE *file = fopen("/proc/self/maps", "r");
    uint64_t count = 0;
    char line[1024];
    if (file == NULL)
        return; /* not on this system */
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "calla keys and values") != NULL;
    fclose(file);
    assert_int_equal(count, first->mappings + kv_store_segments(first) + second->mappings +
                                kv_store_segments(second));
}

static void expect_same(struct calla_session *session, struct calla_session *alone, const int32_t *text,
                        size_t count) {
    read_all(alone, text, count, NULL);
    assert_memory_equal(calla_session_logits(session, NULL), calla_session_logits(alone, NULL),
                        session->model->config.vocabulary * sizeof(float));
}

/* All read a piece in turn: they keep out of each other's way. */
static void growing_together(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, 0), *other = cpu_model(MODEL, 0);
    struct calla_session *sessions[SESSIONS], *alone = calla_session_open(other, NULL, NULL);
    const struct kv_store *store = store_of(model);
    for (size_t i = 0; i < SESSIONS; i++)
        assert_non_null(sessions[i] = calla_session_open(model, NULL, NULL));
    for (size_t round = 1; round <= ROUNDS; round++)
        for (size_t i = 0; i < SESSIONS; i++)
            read_all(sessions[i], texts[i], round * PIECE, NULL);
    uint64_t buffers = sessions[0]->device->kv_count;
    assert_int_equal(store->mappings, SESSIONS * buffers);
    expect_counted(store, store_of(other));
    for (size_t i = 0; i < SESSIONS; i++) {
        expect_same(sessions[i], alone, texts[i], ROUNDS * PIECE);
        calla_session_close(sessions[i]);
    }
    assert_int_equal(store->mappings, 0);
    calla_session_close(alone);
    calla_model_close(model);
    calla_model_close(other);
}

/* Three texts that part a little later each round, each in another session every time, with a fork of it that
 * goes on: their blocks lie scattered, and are shared. The most mappings that there were. */
static uint64_t branch(uint64_t most) {
    struct calla_model *model = cpu_model(MODEL, (uint64_t)1 << 30), *other = cpu_model(MODEL, 0);
    struct calla_session *alone = calla_session_open(other, NULL, NULL), *sessions[3];
    struct kv_store *store = store_of(model);
    uint64_t largest = 0;
    for (size_t i = 0; i < 3; i++)
        assert_non_null(sessions[i] = calla_session_open(model, NULL, NULL));
    store->most_mappings = most * sessions[0]->device->kv_count;
    for (size_t round = 1; round <= ROUNDS; round++)
        for (size_t i = 0; i < 3; i++) {
            memcpy(texts[i + 1], texts[0], (round * PIECE - 100) * sizeof(int32_t));
            struct calla_session *session = sessions[(i + round) % 3];
            read_all(session, texts[i + 1], round * PIECE, NULL);
            struct calla_session *fork = calla_session_fork(session, NULL);
            assert_non_null(fork);
            expect_counted(store, store_of(other));
            largest = store->mappings > largest ? store->mappings : largest;
            expect_same(fork, alone, texts[i + 1], round * PIECE);
            expect_same(session, alone, texts[i + 1], round * PIECE);
            calla_session_close(fork);
        }
    largest /= sessions[0]->device->kv_count;
    for (size_t i = 0; i < 3; i++)
        calla_session_close(sessions[i]);
    calla_session_close(alone);
    calla_model_close(model);
    calla_model_close(other);
    return largest;
}

static void scattered(void **state) {
    (void)state;
    uint64_t unbounded = branch(1000), bounded = branch(5);
    print_message("runs of blocks in four sessions: %d, bounded %d\n", (int)unbounded, (int)bounded);
    assert_true(unbounded > 9);
    assert_true(bounded <= 5 + 4); /* beyond the bound only what lies in one run each */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(growing_together), cmocka_unit_test(scattered)};
    return cmocka_run_group_tests(tests, make_texts, NULL);
}
