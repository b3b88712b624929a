/* calla tokenize, detokenize and template: text, tokens and prompts, standard input to standard output,
 * without weights. */
#include <jansson.h>
#include <stdlib.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/streams.h"

/* What each does between the bytes that come in and standard output. */
typedef bool (*text_work)(const struct calla_model *model, const struct buffer *input, bool special,
                          struct calla_error *error);

static int text_command(struct command_usage usage, text_work work, bool has_special, int argc, char **argv) {
    struct model_flags flags = {0};
    bool special = false;
    struct option rows[MODEL_OPTIONS];
    model_options(rows, &flags);
    const struct option own[] = {
        {.name = "special",
         .help = "the text of a control token (\"<|im_end|>\") becomes that\ntoken; without, text stays text",
         .flag = &special},
    };
    const struct option_group groups[] = {
        {"Model", rows, MODEL_OPTIONS_OF_TOKENIZER},
        {"Text", own, 1},
    };
    usage.groups = groups;
    usage.group_count = has_special ? 2 : 1;
    usage.argument_hint = "the text is read from standard input";
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    struct buffer input = {0};
    struct calla_model *model = open_model(&flags, true, &error);
    bool ok = model != NULL && read_standard_input(&input, &error) && work(model, &input, special, &error);
    buffer_free(&input);
    calla_model_close(model);
    return command_end(&usage, ok, EXIT_WORK_FAILED, &error);
}

static bool tokenize(const struct calla_model *model, const struct buffer *input, bool special,
                     struct calla_error *error) {
    struct calla_tokens tokens;
    if (!calla_tokenize(model, input->size == 0 ? "" : input->data, input->size, special, &tokens, error))
        return false;
    putchar('[');
    for (size_t i = 0; i < tokens.count; i++)
        printf("%s%ld", i == 0 ? "" : ",", (long)tokens.ids[i]);
    puts("]");
    calla_tokens_free(&tokens);
    return true;
}

int command_tokenize(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "tokenize",
        .synopsis = "[-m DIR] [--special] < TEXT",
        .about = "Prints the token ids of the text on standard input, as a JSON array."};
    return text_command(usage, tokenize, true, argc, argv);
}

/* A JSON array of ids; whether the tokenizer has them is for the library to say. */
static int32_t *read_ids(const json_t *array, struct calla_error *error) {
    if (!json_is_array(array)) {
        error_set(error, CALLA_BAD_INPUT,
                  "Standard input must be a JSON array of token ids, such as [9707, 11].");
        return NULL;
    }
    int32_t *ids = calloc(json_array_size(array) + 1, sizeof *ids);
    if (ids == NULL)
        error_memory(error, "the token ids", json_array_size(array) * sizeof *ids);
    for (size_t i = 0; ids != NULL && i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > INT32_MAX) {
            error_set(
                error, CALLA_BAD_INPUT,
                "Element %zu of the array on standard input is not a token id (a whole number from 0 on).",
                i);
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    return ids;
}

static bool detokenize(const struct calla_model *model, const struct buffer *input, bool special,
                       struct calla_error *error) {
    (void)special;
    json_t *array = json_parse(input->data, input->size, "Standard input", error);
    int32_t *ids = array == NULL ? NULL : read_ids(array, error);
    size_t size = 0;
    char *text = ids == NULL ? NULL : calla_detokenize(model, ids, json_array_size(array), &size, error);
    if (text != NULL)
        fwrite(text, 1, size, stdout);
    bool ok = text != NULL;
    free(text);
    free(ids);
    json_decref(array);
    return ok;
}

int command_detokenize(int argc, char **argv) {
    const struct command_usage usage = {.name = "detokenize",
                                        .synopsis = "[-m DIR] < IDS",
                                        .about = "Prints the text of the token ids on standard input, a JSON "
                                                 "array: exactly its bytes, no newline added."};
    return text_command(usage, detokenize, false, argc, argv);
}

static bool render(const struct calla_model *model, const struct buffer *input, bool special,
                   struct calla_error *error) {
    (void)special;
    struct calla_prompt prompt;
    if (!calla_render(model, input->size == 0 ? "" : input->data, input->size, &prompt, error))
        return false;
    fwrite(prompt.text, 1, prompt.size, stdout);
    calla_prompt_free(&prompt);
    return true;
}

int command_template(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "template",
        .synopsis = "[-m DIR] < REQUEST",
        .about = "Prints the prompt that the model sees for the body of a chat-completions request on "
                 "standard input\n"
                 "(messages, tools, enable_thinking, ...): exactly its bytes, no newline added."};
    return text_command(usage, render, false, argc, argv);
}
