/* Sessions that fork, are saved and loaded go on as the session that they came from, to the bit. */
#include "unit.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "calla.h"
#include "scratch.h"

#define MODEL "models/calla-tiny"
#define LENGTH 1300
#define STEPS 12

struct fixture {
    struct calla_model *model, *other; /* the other one has another numeric policy */
    char *folder, *path;
    uint32_t vocabulary;
    int32_t tokens[LENGTH + STEPS];
};

static struct calla_model *open_model(const char *policy) {
    struct calla_model_options options = {
        .path = MODEL, .backend = "cpu", .threads = 2, .policies = &policy, .policy_count = policy != NULL};
    return calla_model_open(&options, NULL);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    if (fixture == NULL)
        return -1;
    *state = fixture;
    fixture->model = open_model(NULL);
    fixture->other = open_model("kv_dtype=f32");
    fixture->folder = scratch_new();
    if (fixture->model == NULL || fixture->other == NULL || fixture->folder == NULL)
        return -1;
    fixture->path = scratch_path(fixture->folder, "session");
    struct calla_model_info info;
    calla_model_info(fixture->model, &info);
    fixture->vocabulary = info.vocabulary;
    for (int i = 0; i < LENGTH + STEPS; i++)
        fixture->tokens[i] = (int32_t)(((uint32_t)i * 2654435761u >> 8) % info.tokens);
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    calla_model_close(fixture->model);
    calla_model_close(fixture->other);
    scratch_remove(fixture->folder);
    free(fixture->path);
    free(fixture);
    return 0;
}

static struct calla_session *session_of(struct calla_model *model) {
    struct calla_session *session = calla_session_open(model, NULL, NULL);
    assert_non_null(session);
    return session;
}

/* Reads one token more at a time and keeps the logits of all. */
static float *follow(const struct fixture *fixture, struct calla_session *session, size_t *computed) {
    float *logits = calloc((size_t)STEPS * fixture->vocabulary, sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < STEPS; i++) {
        size_t count = (size_t)LENGTH + i + 1;
        assert_true(
            calla_session_read(session, fixture->tokens, count, i == 0 ? computed : NULL, NULL, NULL));
        memcpy(logits + (size_t)i * fixture->vocabulary, calla_session_logits(session, NULL),
               fixture->vocabulary * sizeof *logits);
    }
    return logits;
}

static void forks_and_files_go_on_alike(void **state) {
    struct fixture *fixture = *state;
    struct calla_error error = {0};
    struct calla_session *session = session_of(fixture->model), *loaded = session_of(fixture->model);
    assert_true(calla_session_read(session, fixture->tokens, LENGTH, NULL, NULL, NULL));
    assert_true(calla_session_save(session, fixture->path, &error));
    struct calla_session *fork = calla_session_fork(session, &error);
    assert_non_null(fork);
    assert_true(calla_session_load(loaded, fixture->path, &error));
    assert_int_equal(calla_session_position(fork), LENGTH);
    assert_int_equal(calla_session_position(loaded), LENGTH);
    size_t bytes = fixture->vocabulary * sizeof(float);
    assert_memory_equal(calla_session_logits(session, NULL), calla_session_logits(fork, NULL), bytes);
    assert_memory_equal(calla_session_logits(session, NULL), calla_session_logits(loaded, NULL), bytes);
    size_t computed = 0;
    float *expected = follow(fixture, session, NULL);
    float *forked = follow(fixture, fork, &computed);
    assert_int_equal(computed, 1);
    float *read = follow(fixture, loaded, &computed);
    assert_int_equal(computed, 1);
    assert_memory_equal(expected, forked, bytes * STEPS);
    assert_memory_equal(expected, read, bytes * STEPS);
    /* A fork outlives its origin. */
    calla_session_close(session);
    assert_true(calla_session_read(fork, fixture->tokens, LENGTH + STEPS, &computed, NULL, NULL));
    assert_int_equal(computed, 0);
    calla_session_close(fork);
    calla_session_close(loaded);
    free(expected);
    free(forked);
    free(read);
    struct stat status;
    assert_int_equal(stat(fixture->path, &status), 0);
    assert_int_equal(status.st_mode & 077, 0);
}

/* Every kind of damage is an error that leaves a session which can be used. */
static void damaged_files_are_errors(void **state) {
    struct fixture *fixture = *state;
    struct calla_session *session = session_of(fixture->model);
    assert_true(calla_session_read(session, fixture->tokens, 40, NULL, NULL, NULL));
    assert_true(calla_session_save(session, fixture->path, NULL));
    FILE *file = fopen(fixture->path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, size, file), size);
    fclose(file);
    struct calla_error error;
    for (size_t step = 0; step < 300; step++) {
        /* All of the header, then places everywhere. */
        size_t at = step < 264 ? step : 264 + (size - 265) / 35 * (step - 264);
        bytes[at] ^= (unsigned char)(1u << step % 8);
        scratch_write(fixture->folder, "session", bytes, size);
        bytes[at] ^= (unsigned char)(1u << step % 8);
        error = (struct calla_error){0};
        assert_false(calla_session_load(session, fixture->path, &error));
        assert_non_null(strstr(error.message, "session"));
    }
    static const size_t lengths[] = {0, 1, 8, 263, 264, 265, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths + 1; i++) {
        scratch_write(fixture->folder, "session", bytes, i == 7 ? size - 1 : lengths[i]);
        assert_false(calla_session_load(session, fixture->path, &error));
    }
    scratch_write(fixture->folder, "session", bytes, size);
    assert_true(calla_session_load(session, fixture->path, &error));
    size_t computed;
    assert_true(calla_session_read(session, fixture->tokens, 41, &computed, NULL, NULL));
    assert_int_equal(computed, 1);
    /* Another numeric policy is another model. */
    struct calla_session *other = session_of(fixture->other);
    assert_false(calla_session_load(other, fixture->path, &error));
    assert_non_null(strstr(error.message, "another"));
    /* A file with more positions than the session. */
    struct calla_session_options options = {.context = 39};
    struct calla_session *small = calla_session_open(fixture->model, &options, NULL);
    assert_false(calla_session_load(small, fixture->path, &error));
    assert_int_equal(error.status, CALLA_CONTEXT_FULL);
    calla_session_close(small);
    calla_session_close(other);
    calla_session_close(session);
    free(bytes);
}

static int count_files(const char *folder) {
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(stream);
    return count;
}

static void what_cannot_be_saved_is_an_error(void **state) {
    struct fixture *fixture = *state;
    struct calla_error error = {0};
    struct calla_session *session = session_of(fixture->model);
    assert_false(calla_session_save(session, fixture->path, &error));
    assert_non_null(strstr(error.message, "nothing"));
    assert_true(calla_session_read(session, fixture->tokens, 10, NULL, NULL, NULL));
    assert_false(calla_session_save(session, "/nonexistent/folder/session", &error));
    assert_int_equal(error.status, CALLA_IO);
    assert_false(calla_session_load(session, "/nonexistent/folder/session", &error));
    assert_int_equal(calla_session_position(session), 10);
    /* A file that cannot grow, as on a full disk: the old one stays, and there is no rest of the new one. */
    assert_true(calla_session_save(session, fixture->path, &error));
    struct rlimit old, limit = {.rlim_cur = 10000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_true(calla_session_read(session, fixture->tokens, 20, NULL, NULL, NULL));
    assert_false(calla_session_save(session, fixture->path, &error));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(error.status, CALLA_IO);
    assert_int_equal(count_files(fixture->folder), 1);
    assert_true(calla_session_load(session, fixture->path, &error));
    assert_int_equal(calla_session_position(session), 10);
    calla_session_close(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_and_files_go_on_alike),
        cmocka_unit_test(damaged_files_are_errors),
        cmocka_unit_test(what_cannot_be_saved_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
