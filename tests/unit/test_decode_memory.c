/* Once a session is warm, a step of decoding allocates nothing: memory stays flat however long a reply is. */
/* wrap: malloc calloc realloc posix_memalign mmap */
#include "unit.h"

#include <sys/mman.h>

#include "engine/engine.h"

#define MODEL "models/calla-tiny"
#define PROMPT 100
#define STEPS 300

static size_t allocations;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void *__real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t size) {
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    allocations++;
    return __real_realloc(memory, size);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    allocations++;
    return __real_posix_memalign(memory, alignment, size);
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
    allocations++;
    return __real_mmap(address, size, protection, flags, file, offset);
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    struct calla_model_options options = {
        .path = MODEL, .backend = "cpu", .threads = 2, .cache_memory = (uint64_t)64 << 20};
    struct calla_model *model = calla_model_open(&options, NULL);
    assert_non_null(model);
    struct calla_session *session = calla_session_open(model, NULL, NULL);
    assert_non_null(session);
    int32_t prompt[PROMPT], token = 5;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i % 200;
    assert_true(calla_session_read(session, prompt, PROMPT, NULL, NULL, NULL));
    struct calla_sampling sampling = {.top_p = 1, .repetition_penalty = 1};
    assert_true(session_start_sampling(session, &sampling, prompt, PROMPT, NULL));
    for (int i = 0; i < 5; i++)
        assert_true(session_step(session, token, &token, false, NULL));
    allocations = 0;
    for (int i = 0; i < STEPS; i++)
        assert_true(session_step(session, token, &token, false, NULL));
    assert_int_equal(allocations, 0);
    /* A block of the cache is mapped once in so many positions, a mapping a buffer. */
    for (int i = 0; i < STEPS; i++)
        assert_true(session_step(session, token, &token, false, NULL));
    assert_int_equal(allocations, 4);
    calla_session_close(session);
    calla_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
