/* Every allocation fails once, while a tokenizer is read and while it encodes: each time there must be an
 * error that says so, and nothing leaked. */
/* wrap: malloc calloc realloc strdup free */
#include "unit.h"

#include "small_tokenizer.h"
#include "text/tokenizer.h"

/* Calls are numbered from 1 while counting; call number `failing` fails. */
static bool counting;
static uint64_t calls, failing;
static int64_t live_blocks;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
char *__real_strdup(const char *string);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
char *__wrap_strdup(const char *string);
void __wrap_free(void *block);

static bool fails(void) {
    return counting && ++calls == failing;
}

static void *count_block(void *block) {
    live_blocks += block != NULL;
    return block;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : count_block(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : count_block(__real_calloc(count, size));
}

void *__wrap_realloc(void *block, size_t size) {
    if (fails())
        return NULL;
    void *grown = __real_realloc(block, size);
    live_blocks += block == NULL && grown != NULL;
    return grown;
}

char *__wrap_strdup(const char *string) {
    return fails() ? NULL : count_block(__real_strdup(string));
}

void __wrap_free(void *block) {
    live_blocks -= block != NULL;
    __real_free(block);
}

/* Runs `work` until no allocation is left to fail; it must fail for want of memory each time, except that
 * giving back spare memory at the end may fail unnoticed, at most `harmless` times. */
static void every_allocation_fails(bool (*work)(struct calla_error *error), uint64_t harmless) {
    struct calla_error error;
    assert_true(work(&error)); /* what is set up once is set up now */
    uint64_t succeeded = 0;
    for (failing = 1;; failing++) {
        int64_t before = live_blocks;
        memset(&error, 0, sizeof error);
        calls = 0;
        counting = true;
        bool ok = work(&error);
        counting = false;
        assert_int_equal(live_blocks, before);
        if (calls < failing) {
            assert_true(ok);
            break;
        }
        succeeded += ok;
        if (!ok && error.status != CALLA_OUT_OF_MEMORY)
            fail_msg("allocation %llu: %s", (unsigned long long)failing, error.message);
    }
    assert_true(failing > 3);
    assert_true(succeeded <= harmless);
}

static char *small;
static struct tokenizer *tokenizer;

static bool parse(struct calla_error *error) {
    struct tokenizer *parsed = tokenizer_parse(small, strlen(small), "tokenizer.json", error);
    tokenizer_close(parsed);
    return parsed != NULL;
}

static bool open_folder(struct calla_error *error) {
    struct tokenizer *opened = tokenizer_open("tests/data/tokenizer", error);
    tokenizer_close(opened);
    return opened != NULL;
}

/* Text that needs every part: normalising, broken bytes, long pieces, added tokens, the memory of pieces. */
static bool encode(struct calla_error *error) {
    static char text[6000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "hello \xcc\x81\xcc\xa7 \xff<|im_end|>"[i % 22];
    memset(text + 3000, 'a', 2000);
    struct calla_tokens tokens = {0};
    bool ok = tokenizer_encode(tokenizer, text, sizeof text, &(struct text_span){0, sizeof text}, 1, &tokens,
                               error);
    assert_true(ok || (tokens.ids == NULL && tokens.count == 0));
    free(tokens.ids);
    return ok;
}

static void reading_survives_want_of_memory(void **state) {
    (void)state;
    every_allocation_fails(parse, 1);
}

static void encoding_survives_want_of_memory(void **state) {
    (void)state;
    every_allocation_fails(encode, 0);
}

static void opening_survives_want_of_memory(void **state) {
    (void)state;
    struct calla_error error;
    assert_true(open_folder(&error));
    /* Thousands of allocations, most of them alike. */
    for (failing = 1; failing < 40; failing++) {
        int64_t before = live_blocks;
        calls = 0;
        counting = true;
        bool ok = open_folder(&error);
        counting = false;
        assert_false(ok);
        assert_int_equal(live_blocks, before);
        assert_int_equal(error.status, CALLA_OUT_OF_MEMORY);
    }
}

static int set_up(void **state) {
    (void)state;
    struct calla_error error;
    json_t *root = small_tokenizer();
    small = json_dumps(root, 0);
    json_decref(root);
    tokenizer = small == NULL ? NULL : tokenizer_parse(small, strlen(small), "tokenizer.json", &error);
    return tokenizer == NULL;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_close(tokenizer);
    free(small);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_survives_want_of_memory),
        cmocka_unit_test(encoding_survives_want_of_memory),
        cmocka_unit_test(opening_survives_want_of_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
