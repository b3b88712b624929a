/* A model answers while its weights are still being hashed for the cache's folder; what is to go into files
 * waits for that. */
/* wrap: weights_digest key_search_look */
#include "unit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/system.h"
#include "checkpoint_fixture.h"
#include "engine/key_search.h"
#include "model/weights_digest.h"
#include "scratch.h"

#define MODEL "tests/data/forward"
#define COUNT 600

bool __real_weights_digest(const struct weights *weights, const char *folder,
                           const struct calla_progress *progress, unsigned char digest[WEIGHTS_DIGEST],
                           struct calla_error *error);
bool __wrap_weights_digest(const struct weights *weights, const char *folder,
                           const struct calla_progress *progress, unsigned char digest[WEIGHTS_DIGEST],
                           struct calla_error *error);

static enum { AT_ONCE, HELD, FAILS } mode;
static atomic_bool released, was_cancelled;
static char *folder;
static atomic_int sentences;

bool __wrap_weights_digest(const struct weights *weights, const char *where,
                           const struct calla_progress *progress, unsigned char digest[WEIGHTS_DIGEST],
                           struct calla_error *error) {
    while (mode != AT_ONCE && !released) {
        if (!progress->report(progress->user, "hashing weights", 1, 2)) {
            was_cancelled = true;
            return error_set(error, CALLA_CANCELLED, "Stopped.");
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (mode == FAILS)
        return error_set(error, CALLA_IO, "The weights cannot be read.");
    return __real_weights_digest(weights, where, progress, digest, error);
}

/* As with a large model. */
enum key_state __real_key_search_look(struct key_search *search, struct calla_model *model, double seconds,
                                      struct calla_error *error);
enum key_state __wrap_key_search_look(struct key_search *search, struct calla_model *model, double seconds,
                                      struct calla_error *error);
enum key_state __wrap_key_search_look(struct key_search *search, struct calla_model *model, double seconds,
                                      struct calla_error *error) {
    return __real_key_search_look(search, model, mode == AT_ONCE ? seconds : 0, error);
}

static void hear(void *user, const char *sentence) {
    (void)user;
    (void)sentence;
    sentences++;
}

static struct calla_model *open_model(void) {
    struct calla_error error = {0};
    const struct calla_model_options options = {.path = MODEL,
                                                .backend = "cpu",
                                                .threads = 1,
                                                .cache_memory = (uint64_t)1 << 30,
                                                .cache_dir = folder,
                                                .cache_disk = (uint64_t)1 << 30,
                                                .cache_log = hear};
    struct calla_model *model = calla_model_open(&options, &error);
    if (model == NULL)
        fail_msg("%s", error.message);
    return model;
}

/* Tokens that had to be computed. */
static size_t read_text(struct calla_model *model) {
    struct calla_session *session = checkpoint_session(model);
    struct calla_error error = {0};
    int32_t text[COUNT];
    size_t computed = SIZE_MAX;
    for (int32_t i = 0; i < COUNT; i++)
        text[i] = i * 7 % 251;
    if (!calla_session_read(session, text, COUNT, &computed, NULL, &error))
        fail_msg("%s", error.message);
    calla_session_close(session);
    return computed;
}

static int set_up(void **state) {
    (void)state;
    folder = scratch_new();
    released = was_cancelled = false;
    sentences = 0;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_remove(folder);
    return 0;
}

static void files_come_after_the_search(void **state) {
    (void)state;
    struct calla_cache_info info;
    mode = HELD;
    struct calla_model *model = open_model();
    assert_int_equal(read_text(model), COUNT);
    assert_int_equal(read_text(model), 0); /* from memory, without any file */
    calla_cache_info(model, &info);
    assert_int_equal(info.files, 0);
    released = true;
    calla_model_close(model); /* waits for the search, since something is to be written */
    assert_false(was_cancelled);
    mode = AT_ONCE;
    model = open_model();
    calla_cache_info(model, &info);
    assert_true(info.files > 0);
    assert_int_equal(read_text(model), 0);
    calla_cache_info(model, &info);
    assert_int_equal(info.loaded, 1);
    calla_model_close(model);
    /* What is in the folder is found in the middle of things too. */
    released = false;
    mode = HELD;
    model = open_model();
    released = true;
    double until = system_seconds() + 30;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        read_text(model);
        calla_cache_info(model, &info);
    } while (info.files == 0 && system_seconds() < until);
    assert_true(info.files > 0);
    calla_model_close(model);
    assert_int_equal(sentences, 0);
}

static void a_search_for_nothing_is_given_up(void **state) {
    (void)state;
    mode = HELD;
    struct calla_model *model = open_model();
    double start = system_seconds();
    calla_model_close(model);
    assert_true(was_cancelled);
    assert_true(system_seconds() - start < 5);
}

static void a_search_that_fails_is_told(void **state) {
    (void)state;
    mode = FAILS;
    struct calla_model *model = open_model();
    assert_int_equal(read_text(model), COUNT);
    released = true;
    for (double until = system_seconds() + 30; sentences == 0 && system_seconds() < until;) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        assert_int_equal(read_text(model), 0);
    }
    assert_int_equal(sentences, 1);
    assert_int_equal(read_text(model), 0);
    calla_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_come_after_the_search, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_search_for_nothing_is_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_search_that_fails_is_told, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
