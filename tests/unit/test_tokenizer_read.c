/* Reading tokenizers that are written in another form, and refusing by name those that are broken or that
 * would give other ids than they ask for. */
#include "unit.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "small_tokenizer.h"
#include "text/tokenizer.h"

static struct tokenizer *parse(const json_t *root, struct calla_error *error) {
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    struct tokenizer *tokenizer = tokenizer_parse(text, strlen(text), "tokenizer.json", error);
    free(text);
    return tokenizer;
}

/* The member that a path of keys and array indices leads to, as "model/merges/0". */
static json_t *follow(json_t *value, const char *path, size_t size) {
    for (const char *end = path + size; path < end;) {
        const char *slash = memchr(path, '/', (size_t)(end - path));
        size_t length = (size_t)((slash == NULL ? end : slash) - path);
        char key[64];
        assert_true(length < sizeof key);
        memcpy(key, path, length);
        key[length] = 0;
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key)) : json_object_get(value, key);
        path += length + 1;
    }
    return value;
}

/* Sets the member at `path` of a small tokenizer to a JSON value (NULL removes it). */
static json_t *changed(const char *path, const char *value) {
    json_t *root = small_tokenizer();
    const char *slash = strrchr(path, '/');
    json_t *parent = slash == NULL ? root : follow(root, path, (size_t)(slash - path));
    const char *key = slash == NULL ? path : slash + 1;
    json_t *new_value = value == NULL ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
    assert_true(parent != NULL && (value == NULL || new_value != NULL));
    if (value == NULL)
        json_object_del(parent, key);
    else if (json_is_array(parent) && (size_t)atoi(key) == json_array_size(parent))
        json_array_append_new(parent, new_value);
    else if (json_is_array(parent))
        json_array_set_new(parent, (size_t)atoi(key), new_value);
    else
        json_object_set_new(parent, key, new_value);
    return root;
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } cases[] = {
        {"model", NULL, "\"model\" is not an object"},
        {"model", "7", "\"model\" is not an object"},
        {"model/type", "\"Unigram\"", "model type \"Unigram\" is not supported"},
        {"model/vocab", NULL, "\"vocab\""},
        {"model/vocab", "[]", "\"vocab\""},
        {"model/vocab/a", "\"x\"", "id of a token is not an integer"},
        {"model/vocab/a", "1.5", "id of a token is not an integer"},
        {"model/vocab/a", "-1", "the id -1"},
        {"model/vocab/a", "98", "the id 98"},
        {"model/vocab/a", "1048576", "the id 1048576"},
        {"model/vocab/a", "9223372036854775807", "the id 9223372036854775807"},
        {"model/vocab/a", NULL, "(\"a\" with \"a\")"},
        {"model/vocab/z", NULL, "no token for the byte 0x7a"},
        {"model/merges", NULL, "\"merges\""},
        {"model/merges", "{}", "\"merges\""},
        {"model/merges/0", "7", "a merge is not"},
        {"model/merges/0", "[\"h\"]", "a merge is not"},
        {"model/merges/0", "[\"h\",\"e\",\"l\"]", "a merge is not"},
        {"model/merges/0", "[\"h\",7]", "a merge is not"},
        {"model/merges/0", "\"he\"", "merge 0 is not two tokens"},
        {"model/merges/0", "\"h e l\"", "merge 0 is not two tokens"},
        {"model/merges/0", "\"h \"", "merge 0"},
        {"model/merges/0", "[\"\",\"h\"]", "merge 0"},
        {"model/merges/0", "\"e h\"", "not in the vocabulary"},
        {"model/merges/0", "\"h \\u2603\"", "not in the vocabulary"},
        {"model/dropout", "0.1", "\"dropout\" 0.1"},
        {"model/byte_fallback", "true", "\"byte_fallback\" true"},
        {"model/ignore_merges", "true", "\"ignore_merges\" true"},
        {"model/continuing_subword_prefix", "\"##\"", "\"continuing_subword_prefix\" \"##\""},
        {"model/end_of_word_suffix", "\"</w>\"", "\"end_of_word_suffix\" \"</w>\""},
        {"normalizer", "{\"type\":\"NFKC\"}", "normalizer {\"type\":\"NFKC\"} is not supported"},
        {"normalizer", "\"NFC\"", "normalizer"},
        {"pre_tokenizer", NULL, "pre_tokenizer (missing) is not supported"},
        {"pre_tokenizer/type", "\"Whitespace\"", "pre_tokenizer"},
        {"pre_tokenizer/pretokenizers/2", "{}", "pre_tokenizer"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "pre_tokenizer"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", "\"invert\" true"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\":\"\\\\w+\"}", "split pattern \"\\\\w+\""},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\":\" \"}", "split pattern (missing)"},
        {"pre_tokenizer/pretokenizers/1/use_regex", "true", "pre_tokenizer"},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "\"add_prefix_space\" true"},
        {"post_processor", "{\"type\":\"TemplateProcessing\"}", "post_processor"},
        {"decoder", "{\"type\":\"Metaspace\"}", "decoder"},
        {"added_tokens", "{}", "\"added_tokens\" is not an array"},
        {"added_tokens/0", "[]", "content of an added token"},
        {"added_tokens/0/content", "7", "content of an added token"},
        {"added_tokens/0/content", "\"\"", "without text"},
        {"added_tokens/0/content", "\"<|im_end|>\"", "<|im_end|>"},
        {"added_tokens/0/content", "\"hello\"", "the vocabulary has it as 259"},
        {"added_tokens/0/id", "\"263\"", "id of an added token"},
        {"added_tokens/0/id", "259", "the id 259"},
        {"added_tokens/0/id", "-1", "the id -1"},
        {"added_tokens/0/id", "2000000", "the id 2000000"},
        {"added_tokens/0/lstrip", "true", "\"lstrip\" true"},
        {"added_tokens/0/rstrip", "true", "\"rstrip\" true"},
        {"added_tokens/0/single_word", "true", "\"single_word\" true"},
        {"added_tokens/0/normalized", "true", "\"normalized\" true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = changed(cases[i].path, cases[i].value);
        struct calla_error error = {0};
        struct tokenizer *tokenizer = parse(root, &error);
        if (tokenizer != NULL || strstr(error.message, cases[i].message) == NULL ||
            strncmp(error.message, "tokenizer.json", 14) != 0)
            fail_msg("%s = %s: \"%s\" does not say \"%s\"", cases[i].path,
                     cases[i].value == NULL ? "(removed)" : cases[i].value, error.message, cases[i].message);
        json_decref(root);
    }
}

static void broken_json_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "", "{", "[]", "null", "{\"model\":{}}", "{\"model\":{},\"model\":{}}", "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct calla_error error = {0};
        assert_null(tokenizer_parse(texts[i], strlen(texts[i]), "tokenizer.json", &error));
        assert_int_equal(error.status, CALLA_BAD_INPUT);
        assert_non_null(strstr(error.message, "tokenizer.json"));
    }
}

/* Whether text gives these ids, with every added token recognised. */
static void gives(const struct tokenizer *tokenizer, const char *text, const int32_t *ids, size_t count) {
    struct calla_tokens tokens = {0};
    struct calla_error error;
    size_t size = strlen(text);
    assert_true(tokenizer_encode(tokenizer, text, size, &(struct text_span){0, size}, 1, &tokens, &error));
    assert_int_equal(tokens.count, count);
    assert_memory_equal(tokens.ids, ids, count * sizeof *ids);
    free(tokens.ids);
}

static void other_spellings_give_the_same_ids(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
    } same[] = {
        {"model/merges", "[[\"h\",\"e\"],[\"l\",\"l\"],[\"he\",\"ll\"],[\"hell\",\"o\"],\"a a\",\"aa aa\"]"},
        {"model/type", NULL},
        {"model/dropout", "null"},
        {"model/unk_token", "\"<|im_end|>\""},
        {"model/continuing_subword_prefix", "\"\""},
        {"model/byte_fallback", "false"},
        {"decoder", NULL},
        {"post_processor", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}"},
        {"truncation", "null"},
        {"added_tokens/0/special", "true"},
        {"normalizer", "null"},
        {"model/vocab/<|im_end|>", "264"}, /* listed twice, as one token */
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *root = changed(same[i].path, same[i].value);
        struct calla_error error;
        struct tokenizer *tokenizer = parse(root, &error);
        if (tokenizer == NULL)
            fail_msg("%s: %s", same[i].path, error.message);
        gives(tokenizer, "hello aaaa<|im_end|>", (int32_t[]){259, ' ', 261, 264}, 4);
        tokenizer_close(tokenizer);
        json_decref(root);
    }
}

static void without_a_normalizer_text_stays_as_it_is(void **state) {
    (void)state;
    struct calla_error error;
    json_t *root = changed("normalizer", "null");
    struct tokenizer *tokenizer = parse(root, &error);
    assert_non_null(tokenizer);
    gives(tokenizer, "e\xcc\x81", (int32_t[]){'e', 0xcc, 0x81}, 3);
    gives(tokenizer, "\xff", (int32_t[]){0xef, 0xbf, 0xbd}, 3);
    tokenizer_close(tokenizer);
    json_decref(root);
    root = small_tokenizer();
    tokenizer = parse(root, &error);
    assert_non_null(tokenizer);
    gives(tokenizer, "e\xcc\x81", (int32_t[]){0xc3, 0xa9}, 2);
    tokenizer_close(tokenizer);
    json_decref(root);
}

static void a_gap_between_ids_has_no_bytes(void **state) {
    (void)state;
    struct calla_error error;
    json_t *root = changed("added_tokens/2/id", "300");
    struct tokenizer *tokenizer = parse(root, &error);
    assert_non_null(tokenizer);
    size_t size = 7;
    assert_int_equal(tokenizer_count(tokenizer), 301);
    assert_null(tokenizer_bytes(tokenizer, 299, &size));
    assert_int_equal(size, 0);
    tokenizer_close(tokenizer);
    json_decref(root);
}

/* --- folders --- */

static char folder[64];

static void write_file(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void write_json(const char *name, const json_t *value) {
    char *text = json_dumps(value, 0);
    assert_non_null(text);
    write_file(name, text);
    free(text);
}

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/test_tokenizer_read.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

#define CONFIG                                                                                               \
    "{\"added_tokens_decoder\":{\"263\":{\"content\":\"<|im_start|>\"},\"264\":{\"content\":\"<|im_end|>\"," \
    "\"lstrip\":false},\"300\":{\"content\":\"<tts_pad>\",\"special\":true}}}"

static void the_configuration_adds_what_the_tokenizer_lacks(void **state) {
    (void)state;
    struct calla_error error;
    json_t *root = small_tokenizer();
    write_json("tokenizer.json", root);
    write_file("tokenizer_config.json", CONFIG);
    struct tokenizer *tokenizer = tokenizer_open(folder, &error);
    if (tokenizer == NULL)
        fail_msg("%s", error.message);
    gives(tokenizer, "<tts_pad><|im_end|>>", (int32_t[]){300, 265}, 2);
    tokenizer_close(tokenizer);
    static const char *const wrong[] = {
        "{\"added_tokens_decoder\":[]}",
        "{\"added_tokens_decoder\":{\"263\":{\"content\":\"<|im_end|>\"}}}",
        "{\"added_tokens_decoder\":{\"26x\":{\"content\":\"x\"}}}",
        "{\"added_tokens_decoder\":{\"\":{\"content\":\"x\"}}}",
        "{\"added_tokens_decoder\":{\"400\":{\"content\":\"x\",\"lstrip\":true}}}",
        "{",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_file("tokenizer_config.json", wrong[i]);
        assert_null(tokenizer_open(folder, &error));
        assert_non_null(strstr(error.message, "tokenizer_config.json"));
    }
    json_decref(root);
}

static void vocabulary_and_merges_files_do_as_well(void **state) {
    (void)state;
    struct calla_error error;
    json_t *root = small_tokenizer();
    write_json("vocab.json", json_object_get(json_object_get(root, "model"), "vocab"));
    assert_null(tokenizer_open(folder, &error));
    assert_int_equal(error.status, CALLA_NOT_FOUND);
    write_file("merges.txt", "#version: 0.2\nh e\r\nl l\nhe ll\nhell o\na a\naa aa\n\xc4\xa0 h\n");
    struct tokenizer *tokenizer = tokenizer_open(folder, &error);
    if (tokenizer == NULL)
        fail_msg("%s", error.message);
    gives(tokenizer, "hello he\xcc\x81<|", (int32_t[]){259, 262, 0xc3, 0xa9, '<', '|'}, 6);
    tokenizer_close(tokenizer);
    write_file("tokenizer_config.json", CONFIG);
    tokenizer = tokenizer_open(folder, &error);
    assert_non_null(tokenizer);
    gives(tokenizer, "hello<|im_end|>", (int32_t[]){259, 264}, 2);
    tokenizer_close(tokenizer);
    write_file("tokenizer_config.json", "{\"pretokenize_regex\": \"x\"}");
    assert_null(tokenizer_open(folder, &error));
    assert_non_null(strstr(error.message, "split pattern"));
    write_file("tokenizer_config.json", "{}");
    write_file("merges.txt", "h e\n\nl l\n");
    assert_null(tokenizer_open(folder, &error));
    assert_non_null(strstr(error.message, "merges.txt: merge 1"));
    write_file("vocab.json", "[]");
    assert_null(tokenizer_open(folder, &error));
    assert_non_null(strstr(error.message, "vocab.json"));
    json_decref(root);
}

static void an_empty_folder_is_told_so(void **state) {
    (void)state;
    struct calla_error error;
    assert_null(tokenizer_open(folder, &error));
    assert_int_equal(error.status, CALLA_NOT_FOUND);
    assert_non_null(strstr(error.message, folder));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(broken_json_is_refused),
        cmocka_unit_test(other_spellings_give_the_same_ids),
        cmocka_unit_test(without_a_normalizer_text_stays_as_it_is),
        cmocka_unit_test(a_gap_between_ids_has_no_bytes),
        cmocka_unit_test_setup_teardown(the_configuration_adds_what_the_tokenizer_lacks, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(vocabulary_and_merges_files_do_as_well, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_empty_folder_is_told_so, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
