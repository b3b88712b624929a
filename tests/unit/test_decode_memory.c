/* Once a session is warm, a step of decoding allocates nothing: memory stays flat however long a reply is. */
/* wrap: malloc calloc realloc posix_memalign mmap */
#include "unit.h"

#include <sys/mman.h>

#include "checkpoint_fixture.h"
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
    struct calla_model *model = cpu_model(MODEL, (uint64_t)64 << 20);
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

static bool take_event(void *user, const struct calla_event *event) {
    *(size_t *)user += event->size;
    return true;
}

/* The reply itself grows, by half each time: its tokens, and its text in three places. From 60 tokens to 360
 * that is at most five times. */
#define MOST_GROWTH (4 * 5)

/* A reply as the server makes it: sampled with penalties and a bias, parsed, handed out in events. */
static void replies_allocate_what_they_say(void **state) {
    (void)state;
    struct calla_model *model = cpu_model(MODEL, (uint64_t)64 << 20);
    struct calla_session *session = calla_session_open(model, NULL, NULL);
    assert_non_null(session);
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Count on.\"}],"
                                  "\"enable_thinking\":false}";
    struct calla_prompt prompt;
    assert_true(calla_render(model, request, strlen(request), &prompt, NULL));
    struct calla_logit_bias no_end[8];
    size_t bias_count = 0, said = 0;
    for (uint32_t i = 0; i < model->end_token_count; i++)
        no_end[bias_count++] = (struct calla_logit_bias){model->end_tokens[i], -100};
    struct calla_generate_options generate = {.max_tokens = 400, .event = take_event, .user = &said};
    calla_sampling_defaults(model, &generate.sampling);
    generate.sampling.seed = 1;
    generate.sampling.presence_penalty = 0.5f;
    generate.sampling.biases = no_end;
    generate.sampling.bias_count = bias_count;
    struct calla_generation *generation = calla_generation_new(session, &prompt, &generate, NULL);
    assert_non_null(generation);
    bool done = false;
    size_t read, made = 0;
    while (made < 60) {
        assert_true(calla_generation_step(generation, &done, NULL));
        calla_generation_progress(generation, &read, &made);
        assert_false(done);
    }
    allocations = 0;
    size_t before = said;
    for (int i = 0; i < 300; i++) {
        assert_true(calla_generation_step(generation, &done, NULL));
        assert_false(done);
    }
    print_message("%zu allocations for %zu bytes of text\n", allocations, said - before);
    assert_true(said > before);
    assert_true(allocations <= MOST_GROWTH);
    calla_generation_free(generation);
    calla_prompt_free(&prompt);
    calla_session_close(session);
    calla_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_allocate_nothing),
                                       cmocka_unit_test(replies_allocate_what_they_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
