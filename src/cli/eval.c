/* calla eval: how well the model predicts a text, and how its logits compare with another implementation's.
 *
 * The text's tokens are read from position 0; the logits after token i are held against token i + 1.
 * Perplexity is exp of the mean of -log softmax(logits[i])[token[i + 1]] over all positions but the last.
 * Logits can be written out, and compared row by row with a file of the same shape. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/system.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_flags.h"
#include "cli/npy.h"
#include "cli/streams.h"
#include "cli/terminal.h"

struct comparison {
    size_t rows, same_top;
    double divergence_sum, divergence_most; /* Kullback-Leibler of reference against ours, in nats */
    double distance_sum, distance_most;     /* ||ours - reference|| / ||reference|| */
};

struct evaluation {
    struct model_flags model;
    const char *text_path, *tokens_path, *positions_path, *logits_path, *reference_path;
    bool json;

    int32_t *tokens, *positions;
    size_t token_count, position_count; /* positions: NULL is all of them */
    uint32_t vocabulary;
    struct npy_writer writer;
    struct npy_reader reference;
    float *reference_row;
    struct progress_line line;
    struct comparison comparison;
    double loss;     /* sum of -log probability, in nats */
    size_t next_row; /* index into the positions, or the position */
    double seconds;
    struct calla_error row_error; /* why a row stopped the work */
};

/* log of the sum of exp(values), and the index of the largest. */
static double log_sum_exp(const float *values, size_t count, size_t *largest) {
    size_t top = 0;
    for (size_t i = 1; i < count; i++)
        if (values[i] > values[top])
            top = i;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)values[i] - (double)values[top]);
    if (largest != NULL)
        *largest = top;
    return log(sum) + (double)values[top];
}

static bool compare_row(struct evaluation *evaluation, size_t row, const float *logits, double our_log_sum,
                        size_t our_top, struct calla_error *error) {
    const float *reference = evaluation->reference_row;
    size_t count = evaluation->vocabulary, top;
    if (!npy_reader_row(&evaluation->reference, row, evaluation->reference_row, error))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(reference[i]))
            return error_set(error, CALLA_BAD_INPUT, "%s: row %zu, column %zu is no finite number.",
                             evaluation->reference_path, row, i);
    double log_sum = log_sum_exp(reference, count, &top), divergence = 0, difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        double theirs = (double)reference[i] - log_sum, ours = (double)logits[i] - our_log_sum;
        double gap = (double)logits[i] - (double)reference[i];
        divergence += exp(theirs) * (theirs - ours);
        difference += gap * gap;
        norm += (double)reference[i] * (double)reference[i];
    }
    double distance = difference == 0 ? 0 : sqrt(difference / norm);
    divergence = fmax(divergence, 0); /* rounding can make a zero slightly negative */
    struct comparison *comparison = &evaluation->comparison;
    comparison->rows++;
    comparison->same_top += top == our_top;
    comparison->divergence_sum += divergence;
    comparison->divergence_most = fmax(comparison->divergence_most, divergence);
    comparison->distance_sum += distance;
    comparison->distance_most = fmax(comparison->distance_most, distance);
    return true;
}

static bool handle_row(struct evaluation *evaluation, size_t index, const float *logits,
                       struct calla_error *error) {
    size_t top;
    double log_sum = log_sum_exp(logits, evaluation->vocabulary, &top);
    if (index + 1 < evaluation->token_count)
        evaluation->loss += log_sum - (double)logits[evaluation->tokens[index + 1]];
    bool all = evaluation->positions == NULL;
    size_t row = evaluation->next_row;
    if (!all && (row == evaluation->position_count || (size_t)evaluation->positions[row] != index))
        return true;
    evaluation->next_row++;
    return (evaluation->logits_path == NULL || npy_writer_row(&evaluation->writer, logits, error)) &&
           (evaluation->reference_path == NULL || compare_row(evaluation, row, logits, log_sum, top, error));
}

static bool take_row(void *user, size_t index, const float *logits) {
    struct evaluation *evaluation = user;
    progress_line_draw(&evaluation->line, "evaluating", index, evaluation->token_count);
    return !interrupted() && handle_row(evaluation, index, logits, &evaluation->row_error);
}

static bool read_tokens(struct evaluation *evaluation, const struct calla_model *model,
                        struct calla_error *error) {
    const char *path = evaluation->tokens_path;
    if (path != NULL) {
        evaluation->tokens = npy_read_integers(path, &evaluation->token_count, error);
        if (evaluation->tokens == NULL)
            return false;
    } else {
        struct buffer text = {0};
        struct calla_tokens tokens = {0};
        path = strcmp(evaluation->text_path, "-") == 0 ? "Standard input" : evaluation->text_path;
        bool ok = read_input(evaluation->text_path, &text, error) &&
                  calla_tokenize(model, text.size == 0 ? "" : text.data, text.size, false, &tokens, error);
        buffer_free(&text);
        if (!ok)
            return false;
        evaluation->tokens = tokens.ids;
        evaluation->token_count = tokens.count;
    }
    if (evaluation->token_count < 2)
        return error_set(error, CALLA_BAD_INPUT, "%s has %zu tokens; at least 2 are needed to predict one.",
                         path, evaluation->token_count);
    struct calla_model_info info;
    calla_model_info(model, &info);
    for (size_t i = 0; i < evaluation->token_count; i++)
        if (evaluation->tokens[i] < 0 || (uint32_t)evaluation->tokens[i] >= info.tokens)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: element %zu is %ld; this model's token ids are 0 to %u.", path, i,
                             (long)evaluation->tokens[i], info.tokens - 1);
    return true;
}

static bool read_positions(struct evaluation *evaluation, struct calla_error *error) {
    const char *path = evaluation->positions_path;
    if (path == NULL)
        return true;
    evaluation->positions = npy_read_integers(path, &evaluation->position_count, error);
    if (evaluation->positions == NULL)
        return false;
    int32_t before = -1;
    for (size_t i = 0; i < evaluation->position_count; i++) {
        int32_t position = evaluation->positions[i];
        if (position <= before || (size_t)position >= evaluation->token_count)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: element %zu is %ld; positions must ascend and lie between 0 and %zu.", path,
                             i, (long)position, evaluation->token_count - 1);
        before = position;
    }
    return true;
}

static size_t row_count(const struct evaluation *evaluation) {
    return evaluation->positions == NULL ? evaluation->token_count : evaluation->position_count;
}

static bool open_reference(struct evaluation *evaluation, struct calla_error *error) {
    if (evaluation->reference_path == NULL)
        return true;
    if (!npy_reader_open(&evaluation->reference, evaluation->reference_path, error)) {
        evaluation->reference_path = NULL;
        return false;
    }
    const uint64_t *shape = evaluation->reference.header.shape;
    if (shape[0] != row_count(evaluation) || shape[1] != evaluation->vocabulary)
        return error_set(error, CALLA_BAD_INPUT, "%s has the shape [%llu, %llu]; [%zu, %u] is expected.",
                         evaluation->reference_path, (unsigned long long)shape[0],
                         (unsigned long long)shape[1], row_count(evaluation), evaluation->vocabulary);
    evaluation->reference_row = malloc(evaluation->vocabulary * sizeof(float));
    return evaluation->reference_row != NULL ||
           error_memory(error, "a row of logits", evaluation->vocabulary * sizeof(float));
}

static bool evaluate(struct evaluation *evaluation, struct calla_session *session,
                     struct calla_error *error) {
    double start = system_seconds();
    progress_line_start(&evaluation->line, evaluation->model.quiet);
    bool ok = calla_session_evaluate(session, evaluation->tokens, evaluation->token_count, take_row,
                                     evaluation, error);
    progress_line_end(&evaluation->line);
    evaluation->seconds = system_seconds() - start;
    if (!ok && evaluation->row_error.status != CALLA_OK)
        *error = evaluation->row_error;
    return ok;
}

/* The session is as long as the text, unless --context says otherwise. */
static struct calla_session *open_fitting_session(struct evaluation *evaluation, struct calla_model *model,
                                                  struct calla_error *error) {
    struct calla_model_info info;
    calla_model_info(model, &info);
    uint64_t context = evaluation->model.context;
    if (context == 0)
        context = info.context_limit;
    if (!check_room(model, "The text", evaluation->token_count, context, error))
        return NULL;
    struct calla_session_options options = {.context = (uint32_t)evaluation->token_count};
    return calla_session_open(model, &options, error);
}

static double perplexity(const struct evaluation *evaluation) {
    return exp(evaluation->loss / (double)(evaluation->token_count - 1));
}

static bool print_results_json(const struct evaluation *evaluation, struct calla_error *error) {
    const struct comparison *comparison = &evaluation->comparison;
    double rows = comparison->rows == 0 ? 1 : (double)comparison->rows;
    json_t *results =
        json_pack("{s:I, s:I, s:f, s:f, s:f}", "tokens", (json_int_t)evaluation->token_count, "predicted",
                  (json_int_t)(evaluation->token_count - 1), "perplexity", perplexity(evaluation), "loss",
                  evaluation->loss / (double)(evaluation->token_count - 1), "seconds", evaluation->seconds);
    if (results != NULL && evaluation->reference_path != NULL)
        json_object_set_new(
            results, "reference",
            json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "rows", (json_int_t)comparison->rows, "same_top",
                      (json_int_t)comparison->same_top, "top1_agreement", (double)comparison->same_top / rows,
                      "kl_mean", comparison->divergence_sum / rows, "kl_max", comparison->divergence_most,
                      "relative_l2_mean", comparison->distance_sum / rows, "relative_l2_max",
                      comparison->distance_most));
    bool ok = results != NULL ? print_json(results, error)
                              : error_set(error, CALLA_NUMERIC, "The results are no finite numbers.");
    json_decref(results);
    return ok;
}

static bool print_results(const struct evaluation *evaluation, struct calla_error *error) {
    if (evaluation->json)
        return print_results_json(evaluation, error);
    printf("tokens              %zu\n", evaluation->token_count);
    printf("perplexity          %.6g\n", perplexity(evaluation));
    const struct comparison *comparison = &evaluation->comparison;
    double rows = comparison->rows == 0 ? 1 : (double)comparison->rows;
    if (evaluation->reference_path != NULL) {
        printf("compared rows       %zu\n", comparison->rows);
        printf("top-1 agreement     %.4f %% (%zu rows)\n", 100 * (double)comparison->same_top / rows,
               comparison->same_top);
        printf("KL divergence       mean %.3g, most %.3g nats\n", comparison->divergence_sum / rows,
               comparison->divergence_most);
        printf("relative L2 error   mean %.3g, most %.3g\n", comparison->distance_sum / rows,
               comparison->distance_most);
    }
    if (!evaluation->model.quiet)
        fprintf(stderr, "%zu tokens in %.2f s (%.1f tokens/s)\n", evaluation->token_count,
                evaluation->seconds, (double)evaluation->token_count / evaluation->seconds);
    return true;
}

static bool run_evaluation(struct evaluation *evaluation, struct calla_error *error) {
    struct calla_model_info info;
    struct calla_session *session = NULL;
    struct calla_model *model = open_model(&evaluation->model, false, error);
    if (model == NULL)
        return false;
    calla_model_info(model, &info);
    evaluation->vocabulary = info.vocabulary;
    bool ok =
        read_tokens(evaluation, model, error) && read_positions(evaluation, error) &&
        open_reference(evaluation, error) &&
        (evaluation->logits_path == NULL || npy_writer_open(&evaluation->writer, evaluation->logits_path,
                                                            row_count(evaluation), info.vocabulary, error)) &&
        (session = open_fitting_session(evaluation, model, error)) != NULL &&
        evaluate(evaluation, session, error) &&
        (evaluation->logits_path == NULL || npy_writer_finish(&evaluation->writer, error)) &&
        print_results(evaluation, error);
    calla_session_close(session);
    calla_model_close(model);
    return ok;
}

static bool check_usage(const struct evaluation *evaluation, struct calla_error *error) {
    if ((evaluation->text_path == NULL) == (evaluation->tokens_path == NULL))
        return error_set(error, CALLA_BAD_INPUT,
                         "Give the text to evaluate: either --text FILE or --tokens FILE.npy.");
    if (evaluation->positions_path != NULL && evaluation->logits_path == NULL &&
        evaluation->reference_path == NULL)
        return error_set(error, CALLA_BAD_INPUT,
                         "--positions chooses rows of logits; it needs --logits or --reference beside it.");
    return model_flags_check(&evaluation->model, error);
}

int command_eval(int argc, char **argv) {
    struct evaluation evaluation = {.reference.file.descriptor = -1};
    struct option model_rows[MODEL_OPTIONS];
    model_options(model_rows, &evaluation.model);
    const struct option own[] = {
        {.name = "text", .value = "FILE|-", .help = "the text", .text = &evaluation.text_path},
        {.name = "tokens",
         .value = "FILE.npy",
         .help = "its tokens instead: int32 [T]",
         .text = &evaluation.tokens_path},
        {.name = "logits",
         .value = "OUT.npy",
         .help = "write the logits: float32 [T, vocabulary]",
         .text = &evaluation.logits_path},
        {.name = "reference",
         .value = "REF.npy",
         .help = "compare with these logits, of the same shape",
         .text = &evaluation.reference_path},
        {.name = "positions",
         .value = "FILE.npy",
         .help = "write and compare only these positions: int32, ascending",
         .text = &evaluation.positions_path},
        {.name = "json", .help = "print the results as JSON", .flag = &evaluation.json},
    };
    const struct option_group groups[] = {
        {"Evaluation", own, sizeof own / sizeof *own},
        {"Model", model_rows, MODEL_OPTIONS},
    };
    const struct command_usage usage = {
        .name = "eval",
        .synopsis = "[-m DIR] (--text FILE | --tokens FILE.npy) [--logits OUT.npy] [--reference REF.npy]",
        .about = "Prints the perplexity of a text, and with --reference how the logits agree with another\n"
                 "implementation's: the share of rows with the same likeliest token, the Kullback-Leibler "
                 "divergence\n"
                 "from the reference, and the relative L2 error. Nothing is added to the text.",
        .groups = groups,
        .group_count = 2,
        .argument_hint = "name the text's file with --text"};
    struct option_values arguments;
    int exit_code;
    if (!command_begin(&usage, argc, argv, &arguments, &exit_code))
        return exit_code;
    struct calla_error error = {0};
    exit_code = EXIT_WRONG_USAGE;
    bool ok = check_usage(&evaluation, &error);
    if (ok) {
        exit_code = EXIT_WORK_FAILED;
        interrupt_arm();
        ok = run_evaluation(&evaluation, &error);
    }
    npy_writer_close(&evaluation.writer);
    npy_reader_close(&evaluation.reference);
    free(evaluation.reference_row);
    free(evaluation.tokens);
    free(evaluation.positions);
    return command_end(&usage, ok, exit_code, &error);
}
