/* The file of remembered replies: bounded, and sound after a disk was full. */
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/reply_memory.h"
#include "scratch.h"

static struct remembered reply_number(const int32_t *number) {
    return (struct remembered){.said = {1}, .before = number, .before_count = 1};
}

static bool knows(const char *path, int32_t number) {
    struct reply_memory *memory = reply_memory_new();
    assert_non_null(memory);
    assert_true(reply_memory_use_file(memory, path, 1000000));
    struct calla_tokens tokens = {0};
    struct remembered reply = reply_number(&number);
    bool found = reply_memory_find(memory, &reply, &tokens);
    calla_tokens_free(&tokens);
    reply_memory_free(memory);
    return found;
}

static off_t size_of(const char *path) {
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return status.st_size;
}

static void the_file_does_not_grow_for_ever(void **state) {
    (void)state;
    enum { COUNT = 1 << 18, REPLIES = 140 }; /* of a megabyte each */
    char *folder = scratch_new(), *path = scratch_path(folder, "replies");
    struct reply_memory *memory = reply_memory_new();
    int32_t *tokens = calloc(COUNT, sizeof *tokens);
    assert_true(memory != NULL && tokens != NULL);
    assert_true(reply_memory_use_file(memory, path, 1000000));
    for (int32_t i = 0; i < REPLIES; i++) {
        struct remembered reply = reply_number(&i);
        reply_memory_add(memory, &reply, tokens, COUNT);
    }
    reply_memory_free(memory);
    free(tokens);
    assert_in_range(size_of(path), 1, (off_t)128 << 20);
    /* What is remembered outlives the program, what was forgotten does not. */
    assert_true(knows(path, REPLIES - 1) && knows(path, REPLIES - 60));
    assert_false(knows(path, 1));
    scratch_remove(folder);
    free(path);
}

/* A file that is opened late gets what was added before, and gives what it has. */
static void a_file_may_come_late(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "replies");
    int32_t tokens[10] = {0};
    for (int32_t number = 1; number <= 2; number++) {
        struct reply_memory *memory = reply_memory_new();
        struct remembered reply = reply_number(&number);
        reply_memory_add(memory, &reply, tokens, 10);
        assert_true(reply_memory_use_file(memory, path, 1000000));
        reply_memory_free(memory);
    }
    assert_true(knows(path, 1) && knows(path, 2));
    scratch_remove(folder);
    free(path);
}

static void a_full_disk_hides_nothing(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "replies");
    struct reply_memory *memory = reply_memory_new();
    assert_true(reply_memory_use_file(memory, path, 1000000));
    int32_t tokens[100] = {0}, number = 1;
    struct remembered reply = reply_number(&number);
    reply_memory_add(memory, &reply, tokens, 100);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)size_of(path) + 50;
    setrlimit(RLIMIT_FSIZE, &limit);
    number = 2;
    reply_memory_add(memory, &reply, tokens, 100);
    setrlimit(RLIMIT_FSIZE, &before);
    number = 3;
    reply_memory_add(memory, &reply, tokens, 100);
    reply_memory_free(memory);
    assert_true(knows(path, 1) && knows(path, 3));
    scratch_remove(folder);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_file_does_not_grow_for_ever),
                                       cmocka_unit_test(a_file_may_come_late),
                                       cmocka_unit_test(a_full_disk_hides_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
