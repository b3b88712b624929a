/* The tokenizer's ids and text. tests/data/tokenizer/ holds what Hugging Face `tokenizers` made of the same
 * texts (tools/oracle/tokenizer_fixture.py). */
#include "unit.h"

#include <time.h>

#include "base/json.h"
#include "small_tokenizer.h"
#include "text/tokenizer.h"

static struct tokenizer *small_open(void) {
    struct calla_error error;
    json_t *root = small_tokenizer();
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    struct tokenizer *tokenizer = tokenizer_parse(text, strlen(text), "small", &error);
    if (tokenizer == NULL)
        fail_msg("%s", error.message);
    free(text);
    json_decref(root);
    return tokenizer;
}

static void expect(const struct tokenizer *tokenizer, const char *text, size_t size,
                   const struct text_span *controls, size_t control_count, const int32_t *ids, size_t count) {
    struct calla_tokens tokens = {0};
    struct calla_error error;
    /* A copy without a byte to spare, so that a sanitizer sees any read beyond the text. */
    char *copy = malloc(size + (size == 0));
    assert_non_null(copy);
    if (size > 0)
        memcpy(copy, text, size);
    assert_true(tokenizer_encode(tokenizer, copy, size, controls, control_count, &tokens, &error));
    free(copy);
    assert_int_equal(tokens.count, count);
    for (size_t i = 0; i < count; i++)
        if (tokens.ids[i] != ids[i])
            fail_msg("\"%.*s\": id %zu is %d and not %d", (int)size, text, i, tokens.ids[i], ids[i]);
    free(tokens.ids);
}

static unsigned hex_digit(char c) {
    return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* The text of a vector, on the heap: "text", or "bytes" in hexadecimal where it is not UTF-8. */
static char *vector_text(const json_t *vector, size_t *size) {
    const json_t *text = json_object_get(vector, "text"), *bytes = json_object_get(vector, "bytes");
    const char *value = json_string_value(text != NULL ? text : bytes);
    size_t length = json_string_length(text != NULL ? text : bytes);
    char *out = malloc(length + 1);
    assert_non_null(out);
    *size = text != NULL ? length : length / 2;
    if (text != NULL)
        memcpy(out, value, length);
    else
        for (size_t i = 0; i < *size; i++)
            out[i] = (char)(hex_digit(value[2 * i]) << 4 | hex_digit(value[2 * i + 1]));
    return out;
}

static void ids_equal_hugging_face(void **state) {
    (void)state;
    struct calla_error error;
    struct tokenizer *tokenizer = tokenizer_open("tests/data/tokenizer", &error);
    if (tokenizer == NULL)
        fail_msg("%s", error.message);
    json_t *vectors = json_parse_file("tests/data/tokenizer/vectors.json", 1 << 20, &error);
    assert_non_null(vectors);
    assert_true(json_array_size(vectors) >= 500);
    for (size_t i = 0; i < json_array_size(vectors); i++) {
        const json_t *vector = json_array_get(vectors, i), *expected = json_object_get(vector, "ids");
        size_t size, count = json_array_size(expected);
        char *text = vector_text(vector, &size);
        int32_t *ids = malloc((count + 1) * sizeof *ids);
        assert_non_null(ids);
        for (size_t j = 0; j < count; j++)
            ids[j] = (int32_t)json_integer_value(json_array_get(expected, j));
        struct text_span all = {0, size};
        expect(tokenizer, text, size, &all, json_is_true(json_object_get(vector, "special")) ? 1 : 0, ids,
               count);
        free(ids);
        free(text);
    }
    json_decref(vectors);
    tokenizer_close(tokenizer);
}

static void added_tokens_count_only_inside_their_span(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    const char *text = "hello<|im_end|>>";
    const int32_t as_text[] = {259, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', '>'};
    const int32_t short_token[] = {259, 264, '>'}, long_token[] = {259, 265};
    expect(tokenizer, text, 16, NULL, 0, as_text, 12);
    expect(tokenizer, text, 16, &(struct text_span){0, 16}, 1, long_token, 2);
    expect(tokenizer, text, 16, &(struct text_span){5, 15}, 1, short_token, 3);
    expect(tokenizer, text, 16, &(struct text_span){6, 16}, 1, as_text, 12);
    expect(tokenizer, text, 16, &(struct text_span){5, 14}, 1, as_text, 12);
    /* Two spans that meet inside a token do not make one. */
    expect(tokenizer, text, 16, (struct text_span[]){{5, 10}, {10, 16}}, 2, as_text, 12);
    /* Ordinary text on both sides of a span's border is one text. */
    expect(tokenizer, "hello", 5, (struct text_span[]){{0, 2}, {3, 5}}, 2, (int32_t[]){259}, 1);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_start|>"), 263);
    assert_int_equal(tokenizer_added(tokenizer, "hello"), -1);
    tokenizer_close(tokenizer);
}

static void spans_out_of_order_are_refused(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    const struct text_span wrong[][2] = {
        {{3, 5}, {0, 2}}, {{0, 3}, {2, 5}}, {{2, 1}, {3, 4}}, {{0, 1}, {2, 6}}};
    for (size_t i = 0; i < 4; i++) {
        struct calla_tokens tokens = {0};
        struct calla_error error;
        assert_false(tokenizer_encode(tokenizer, "hello", 5, wrong[i], 2, &tokens, &error));
        assert_int_equal(error.status, CALLA_BAD_INPUT);
        assert_null(tokens.ids);
    }
    tokenizer_close(tokenizer);
}

static void ids_are_appended(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    struct calla_tokens tokens = {0};
    struct calla_error error;
    assert_true(tokenizer_encode(tokenizer, NULL, 0, NULL, 0, &tokens, &error));
    assert_int_equal(tokens.count, 0);
    assert_true(tokenizer_encode(tokenizer, "hello", 5, NULL, 0, &tokens, &error));
    assert_true(tokenizer_encode(tokenizer, "aaa h", 5, NULL, 0, &tokens, &error));
    assert_int_equal(tokens.count, 4);
    const int32_t ids[] = {259, 260, 'a', 262};
    assert_memory_equal(tokens.ids, ids, sizeof ids);
    free(tokens.ids);
    tokenizer_close(tokenizer);
}

static void ids_have_bytes(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    size_t size;
    assert_int_equal(tokenizer_count(tokenizer), 266);
    assert_memory_equal(tokenizer_bytes(tokenizer, 262, &size), " h", 2);
    assert_int_equal(size, 2);
    assert_memory_equal(tokenizer_bytes(tokenizer, 0xff, &size), "\xff", 1);
    assert_memory_equal(tokenizer_bytes(tokenizer, 264, &size), "<|im_end|>", 10);
    assert_null(tokenizer_bytes(tokenizer, -1, &size));
    assert_null(tokenizer_bytes(tokenizer, 266, &size));
    tokenizer_close(tokenizer);
}

/* Streams the bytes one token each and checks that all that ever comes out is whole characters. */
static void streams(const struct tokenizer *tokenizer, const char *bytes, size_t size, const char *expected) {
    struct buffer out = {0};
    struct detokenizer detokenizer;
    detokenizer_start(&detokenizer, tokenizer);
    for (size_t i = 0; i < size; i++) {
        size_t before = out.size;
        assert_true(detokenizer_add(&detokenizer, (unsigned char)bytes[i], &out));
        for (size_t at = before; at < out.size;) {
            struct utf8_character character = utf8_read(out.data + at, out.size - at);
            assert_int_equal(character.kind, UTF8_VALID);
            at += character.size;
        }
    }
    assert_true(detokenizer_finish(&detokenizer, &out));
    assert_int_equal(out.size, strlen(expected));
    assert_memory_equal(out.data, expected, out.size);
    buffer_free(&out);
}

static void the_stream_never_splits_a_character(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    const char *text = "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa6 \xc4\x8f\xc3\xa1 \xe4\xbd\xa0 x";
    streams(tokenizer, text, strlen(text), text);
    streams(tokenizer,
            "a\xff"
            "b",
            3,
            "a\xef\xbf\xbd"
            "b");
    streams(tokenizer, "\xf0\x9f\x91", 3, "\xef\xbf\xbd");
    streams(tokenizer, "\xf0\x9f\x91x", 4, "\xef\xbf\xbdx");
    streams(tokenizer, "\xe4\xbd\xe4\xbd\xa0", 5, "\xef\xbf\xbd\xe4\xbd\xa0");
    streams(tokenizer, "\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    /* An id without bytes adds nothing, and does not lose what is held. */
    struct buffer out = {0};
    struct detokenizer detokenizer;
    detokenizer_start(&detokenizer, tokenizer);
    assert_true(detokenizer_add(&detokenizer, 0xc3, &out) && detokenizer_add(&detokenizer, 100000, &out) &&
                detokenizer_add(&detokenizer, -5, &out));
    assert_int_equal(out.size, 0);
    assert_true(detokenizer_add(&detokenizer, 0xa9, &out));
    assert_string_equal(out.data, "\xc3\xa9");
    buffer_free(&out);
    tokenizer_close(tokenizer);
}

/* Seconds of processor time to encode `size` bytes of a repeated pattern. */
static double encode_seconds(const struct tokenizer *tokenizer, const char *pattern, size_t size) {
    size_t length = strlen(pattern);
    char *text = malloc(size);
    assert_non_null(text);
    for (size_t i = 0; i < size; i++)
        text[i] = pattern[i % length];
    struct calla_tokens tokens = {0};
    struct calla_error error;
    struct text_span all = {0, size};
    clock_t start = clock();
    assert_true(tokenizer_encode(tokenizer, text, size, &all, 1, &tokens, &error));
    clock_t end = clock();
    free(tokens.ids);
    free(text);
    return (double)(end - start) / CLOCKS_PER_SEC;
}

static void time_is_linear_on_any_text(void **state) {
    (void)state;
    struct tokenizer *tokenizer = small_open();
    static const char *const patterns[] = {
        "a",
        "hello",
        " ",
        "\n",
        "\n ",
        " a",
        "!",
        "! ",
        "'s",
        "<|im_end|>",
        "<|im_end|",
        "<",
        "\xcc\x81",         /* one mark */
        "\xcc\x81\xcc\xa7", /* marks in the wrong order: all must be sorted */
        "e\xcc\x81",
        "\xe1\x84\x80\xe1\x85\xa1",
        "\xff",
        "\xf0\x9f\x91\xa9\xe2\x80\x8d",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        /* Quadratic work on a megabyte takes minutes; linear takes under a tenth of a second. */
        double seconds = encode_seconds(tokenizer, patterns[i], 1 << 20);
        if (seconds > 5)
            fail_msg("1 MiB of \"%s\" took %.1f s", patterns[i], seconds);
    }
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_hugging_face),
        cmocka_unit_test(added_tokens_count_only_inside_their_span),
        cmocka_unit_test(spans_out_of_order_are_refused),
        cmocka_unit_test(ids_are_appended),
        cmocka_unit_test(ids_have_bytes),
        cmocka_unit_test(the_stream_never_splits_a_character),
        cmocka_unit_test(time_is_linear_on_any_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
