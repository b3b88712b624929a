/* Reading a tokenizer from its files. Whatever would change the ids and is not done here is refused by name:
 * a tokenizer that loads gives the ids that Hugging Face's would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer_internal.h"

#define FILE_LIMIT ((size_t)256 << 20)

static bool unsupported(const struct vocabulary *vocabulary, const char *what, const json_t *value,
                        struct calla_error *error) {
    char *shown =
        value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    error_set(error, CALLA_UNSUPPORTED, "%s: %s %.200s is not supported.", vocabulary->name, what,
              value == NULL   ? "(missing)"
              : shown == NULL ? "?"
                              : shown);
    free(shown);
    return false;
}

static bool malformed(const struct vocabulary *vocabulary, const char *what, const char *expected,
                      struct calla_error *error) {
    error_set(error, CALLA_BAD_INPUT, "%s: %s is not %s.", vocabulary->name, what, expected);
    return false;
}

static bool is_string(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static bool absent(const json_t *value) {
    return value == NULL || json_is_null(value);
}

/* The members of `object` that must be off: absent, null, false, 0 or "". */
static bool all_off(const struct vocabulary *vocabulary, const json_t *object, const char *where,
                    const char *const names[], size_t count, struct calla_error *error) {
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, names[i]);
        bool off = absent(value) || json_is_false(value) || is_string(value, "") ||
                   (json_is_number(value) && json_number_value(value) == 0);
        if (!off) {
            char what[256];
            snprintf(what, sizeof what, "%s with \"%s\"", where, names[i]);
            return unsupported(vocabulary, what, value, error);
        }
    }
    return true;
}

/* --- the pipeline around the model --- */

static bool read_normalizer(const struct vocabulary *vocabulary, const json_t *value,
                            struct calla_error *error) {
    if (!absent(value) && !is_string(json_object_get(value, "type"), "NFC"))
        return unsupported(vocabulary, "the normalizer", value, error);
    vocabulary->tokenizer->normalize = !absent(value);
    return true;
}

static bool use_pattern(const struct vocabulary *vocabulary, const json_t *pattern,
                        struct calla_error *error) {
    bool marks_are_letters;
    if (!json_is_string(pattern) ||
        !tokenizer_pattern(json_string_value(pattern), json_string_length(pattern), &marks_are_letters))
        return unsupported(vocabulary, "the split pattern", pattern, error);
    if (!tokenizer_classes(vocabulary->tokenizer, marks_are_letters))
        return error_memory(error, "the table of characters", CODE_POINTS);
    return true;
}

/* A Split by the known pattern, then ByteLevel without a pattern of its own. */
static bool read_pre_tokenizer(const struct vocabulary *vocabulary, const json_t *value,
                               struct calla_error *error) {
    const json_t *steps = json_object_get(value, "pretokenizers");
    const json_t *split = json_array_get(steps, 0), *bytes = json_array_get(steps, 1);
    if (!is_string(json_object_get(value, "type"), "Sequence") || json_array_size(steps) != 2 ||
        !is_string(json_object_get(split, "type"), "Split") ||
        !is_string(json_object_get(split, "behavior"), "Isolated") ||
        !is_string(json_object_get(bytes, "type"), "ByteLevel") ||
        !json_is_false(json_object_get(bytes, "use_regex")))
        return unsupported(vocabulary, "the pre_tokenizer", value, error);
    static const char *const split_flags[] = {"invert"}, *const byte_flags[] = {"add_prefix_space"};
    return all_off(vocabulary, split, "the pre_tokenizer Split", split_flags, 1, error) &&
           all_off(vocabulary, bytes, "the pre_tokenizer ByteLevel", byte_flags, 1, error) &&
           use_pattern(vocabulary, json_object_get(json_object_get(split, "pattern"), "Regex"), error);
}

/* Steps after the model that may only be ByteLevel, which changes no ids and is how bytes come back. */
static bool check_byte_level(const struct vocabulary *vocabulary, const json_t *root, const char *name,
                             struct calla_error *error) {
    const json_t *value = json_object_get(root, name);
    if (absent(value) || is_string(json_object_get(value, "type"), "ByteLevel"))
        return true;
    char what[64];
    snprintf(what, sizeof what, "the %s", name);
    return unsupported(vocabulary, what, value, error);
}

/* --- tokens and merges --- */

static bool read_vocabulary(struct vocabulary *vocabulary, const json_t *tokens, struct calla_error *error) {
    const char *text;
    const json_t *id;
    for (void *at = json_object_iter((json_t *)(uintptr_t)tokens); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)tokens, at)) {
        text = json_object_iter_key(at);
        id = json_object_iter_value(at);
        if (!json_is_integer(id))
            return malformed(vocabulary, "the id of a token", "an integer", error);
        if (!vocabulary_add(vocabulary, text, json_object_iter_key_len(at), json_integer_value(id), error))
            return false;
    }
    return true;
}

/* "left right": a merge as a string. */
static bool add_merge_line(struct vocabulary *vocabulary, const char *line, size_t size, uint32_t rank,
                           struct calla_error *error) {
    const char *space = memchr(line, ' ', size);
    if (space == NULL || memchr(space + 1, ' ', (size_t)(line + size - space - 1)) != NULL)
        return error_set(error, CALLA_BAD_INPUT, "%s: merge %u is not two tokens with a space between them.",
                         vocabulary->name, rank);
    return vocabulary_merge(vocabulary, line, (size_t)(space - line), space + 1,
                            (size_t)(line + size - space - 1), rank, error);
}

static bool read_merges(struct vocabulary *vocabulary, const json_t *merges, struct calla_error *error) {
    size_t count = json_array_size(merges);
    for (size_t i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_is_string(merge)) {
            if (!add_merge_line(vocabulary, json_string_value(merge), json_string_length(merge), (uint32_t)i,
                                error))
                return false;
        } else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right)) {
            if (!vocabulary_merge(vocabulary, json_string_value(left), json_string_length(left),
                                  json_string_value(right), json_string_length(right), (uint32_t)i, error))
                return false;
        } else {
            return malformed(vocabulary, "a merge", "a string \"a b\" or an array [\"a\", \"b\"]", error);
        }
    }
    return true;
}

/* `id` is the key of an added_tokens_decoder, or NULL when the token itself has it. */
static bool read_added_token(struct vocabulary *vocabulary, const json_t *token, const char *id,
                             struct calla_error *error) {
    const json_t *content = json_object_get(token, "content");
    const json_t *number = json_object_get(token, "id");
    if (!json_is_string(content))
        return malformed(vocabulary, "the content of an added token", "a string", error);
    long long value = json_integer_value(number);
    bool is_number = json_is_integer(number);
    if (id != NULL) {
        char *end;
        value = strtoll(id, &end, 10);
        is_number = *id >= '0' && *id <= '9' && *end == 0;
    }
    if (!is_number)
        return malformed(vocabulary, "the id of an added token", "an integer", error);
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    char where[192];
    snprintf(where, sizeof where, "the added token %lld (\"%.100s\")", value, json_string_value(content));
    return all_off(vocabulary, token, where, flags, sizeof flags / sizeof *flags, error) &&
           vocabulary_add_special(vocabulary, json_string_value(content), json_string_length(content), value,
                                  error);
}

/* Of a tokenizer_config.json. */
static bool read_added_tokens_decoder(struct vocabulary *vocabulary, json_t *config,
                                      struct calla_error *error) {
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    if (!absent(decoder) && !json_is_object(decoder))
        return malformed(vocabulary, "\"added_tokens_decoder\"", "an object", error);
    const char *id;
    json_t *token;
    json_object_foreach(decoder, id, token) {
        if (!read_added_token(vocabulary, token, id, error))
            return false;
    }
    return true;
}

/* --- tokenizer.json --- */

static bool read_model(struct vocabulary *vocabulary, const char *name, const json_t *model,
                       struct calla_error *error) {
    vocabulary->name = name;
    if (!json_is_object(model))
        return malformed(vocabulary, "\"model\"", "an object", error);
    const json_t *type = json_object_get(model, "type");
    const json_t *tokens = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!absent(type) && !is_string(type, "BPE"))
        return unsupported(vocabulary, "the model type", type, error);
    if (!json_is_object(tokens))
        return malformed(vocabulary, "\"vocab\" of the model", "an object", error);
    if (!json_is_array(merges))
        return malformed(vocabulary, "\"merges\" of the model", "an array", error);
    static const char *const flags[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                        "byte_fallback", "ignore_merges"};
    return vocabulary_start(vocabulary, name, json_object_size(tokens), json_array_size(merges), error) &&
           all_off(vocabulary, model, "the model", flags, sizeof flags / sizeof *flags, error) &&
           read_vocabulary(vocabulary, tokens, error) && read_merges(vocabulary, merges, error);
}

static bool read_tokenizer(struct vocabulary *vocabulary, const char *name, const json_t *root,
                           struct calla_error *error) {
    const json_t *added = json_object_get(root, "added_tokens");
    if (!read_model(vocabulary, name, json_object_get(root, "model"), error) ||
        !read_normalizer(vocabulary, json_object_get(root, "normalizer"), error) ||
        !read_pre_tokenizer(vocabulary, json_object_get(root, "pre_tokenizer"), error) ||
        !check_byte_level(vocabulary, root, "post_processor", error) ||
        !check_byte_level(vocabulary, root, "decoder", error))
        return false;
    if (!absent(added) && !json_is_array(added))
        return malformed(vocabulary, "\"added_tokens\"", "an array", error);
    for (size_t i = 0; i < json_array_size(added); i++)
        if (!read_added_token(vocabulary, json_array_get(added, i), NULL, error))
            return false;
    return true;
}

struct tokenizer *tokenizer_parse(const char *json, size_t size, const char *name,
                                  struct calla_error *error) {
    struct vocabulary vocabulary = {0};
    struct tokenizer *tokenizer = NULL;
    json_t *root = json_parse(json, size, name, error);
    if (root != NULL && read_tokenizer(&vocabulary, name, root, error))
        tokenizer = vocabulary_finish(&vocabulary, error);
    vocabulary_free(&vocabulary);
    json_decref(root);
    return tokenizer;
}

/* --- folders --- */

/* merges.txt: a merge a line, most frequent first; lines that start with "#version" do not count. */
static bool read_merges_file(struct vocabulary *vocabulary, const struct buffer *lines,
                             struct calla_error *error) {
    uint32_t rank = 0;
    for (size_t begin = 0; begin < lines->size;) {
        const char *line = lines->data + begin, *newline = memchr(line, '\n', lines->size - begin);
        size_t size = newline == NULL ? lines->size - begin : (size_t)(newline - line);
        begin += size + 1;
        if (size > 0 && line[size - 1] == '\r')
            size--;
        bool version = size >= 8 && memcmp(line, "#version", 8) == 0;
        if (size == 0 && begin >= lines->size)
            break;
        if (!version && !add_merge_line(vocabulary, line, size, rank++, error))
            return false;
    }
    return true;
}

static size_t count_lines(const struct buffer *lines) {
    size_t count = 1;
    for (size_t i = 0; i < lines->size; i++)
        count += lines->data[i] == '\n';
    return count;
}

struct files {
    char *tokenizer, *vocabulary, *merges, *config; /* paths */
};

/* vocab.json + merges.txt, with NFC and the pattern of tokenizer_config.json or else Qwen3.6's. */
static bool read_vocabulary_files(struct vocabulary *vocabulary, const struct files *files,
                                  const json_t *config, struct calla_error *error) {
    struct buffer lines = {0};
    json_t *tokens = json_parse_file(files->vocabulary, FILE_LIMIT, error);
    bool ok = tokens != NULL && file_read(files->merges, FILE_LIMIT, &lines, error);
    if (ok && !json_is_object(tokens))
        ok = error_set(error, CALLA_BAD_INPUT, "%s is not a JSON object of tokens and ids.",
                       files->vocabulary);
    ok = ok &&
         vocabulary_start(vocabulary, files->vocabulary, json_object_size(tokens), count_lines(&lines),
                          error) &&
         read_vocabulary(vocabulary, tokens, error);
    if (ok) {
        vocabulary->name = files->merges;
        ok = read_merges_file(vocabulary, &lines, error);
    }
    if (ok) {
        vocabulary->name = files->config;
        vocabulary->tokenizer->normalize = true;
        const json_t *pattern = json_object_get(config, "pretokenize_regex");
        ok = absent(pattern) ? tokenizer_classes(vocabulary->tokenizer, true) ||
                                   error_memory(error, "the table of characters", CODE_POINTS)
                             : use_pattern(vocabulary, pattern, error);
    }
    buffer_free(&lines);
    json_decref(tokens);
    return ok;
}

static bool read_folder(struct vocabulary *vocabulary, const char *folder, const struct files *files,
                        struct calla_error *error) {
    json_t *config = NULL, *root = NULL;
    bool ok;
    if (file_kind(files->config) != FILE_MISSING &&
        (config = json_parse_file(files->config, FILE_LIMIT, error)) == NULL)
        return false;
    if (file_kind(files->tokenizer) != FILE_MISSING) {
        root = json_parse_file(files->tokenizer, FILE_LIMIT, error);
        ok = root != NULL && read_tokenizer(vocabulary, files->tokenizer, root, error);
    } else if (file_kind(files->vocabulary) != FILE_MISSING && file_kind(files->merges) != FILE_MISSING) {
        ok = read_vocabulary_files(vocabulary, files, config, error);
    } else {
        ok = error_set(error, CALLA_NOT_FOUND,
                       "%s has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt.", folder);
    }
    /* The original's tokenizer.json lacks added tokens that only this file has. */
    if (ok) {
        vocabulary->name = files->config;
        ok = read_added_tokens_decoder(vocabulary, config, error);
    }
    json_decref(root);
    json_decref(config);
    return ok;
}

struct tokenizer *tokenizer_open(const char *folder, struct calla_error *error) {
    struct vocabulary vocabulary = {0};
    struct tokenizer *tokenizer = NULL;
    struct files files = {path_join(folder, "tokenizer.json"), path_join(folder, "vocab.json"),
                          path_join(folder, "merges.txt"), path_join(folder, "tokenizer_config.json")};
    if (files.tokenizer == NULL || files.vocabulary == NULL || files.merges == NULL || files.config == NULL)
        error_memory(error, "a path", strlen(folder));
    else if (read_folder(&vocabulary, folder, &files, error))
        tokenizer = vocabulary_finish(&vocabulary, error);
    vocabulary_free(&vocabulary);
    free(files.tokenizer);
    free(files.vocabulary);
    free(files.merges);
    free(files.config);
    return tokenizer;
}
