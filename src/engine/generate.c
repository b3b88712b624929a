/* Generation: prompt in, reply out, as events while it comes and as a whole at the end. */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/system.h"
#include "text/reply_parser.h"

void calla_reply_free(struct calla_reply *reply) {
    free(reply->reasoning);
    free(reply->content);
    free(reply->tool_calls);
    calla_tokens_free(&reply->tokens);
    memset(reply, 0, sizeof *reply);
}

/* The state of one reply under way. */
struct generation {
    struct calla_session *session;
    const struct calla_generate_options *options;
    struct calla_reply *reply;
    struct reply_parser *parser;
    struct detokenizer detokenizer;
    struct buffer text;
    size_t limit, token_capacity;
    bool cancelled;
};

static bool forward_event(void *user, const struct calla_event *event) {
    struct generation *generation = user;
    const struct calla_generate_options *options = generation->options;
    if (options->event != NULL && !options->event(options->user, event))
        generation->cancelled = true;
    return true;
}

static bool keep_token(struct generation *generation, int32_t token, struct calla_error *error) {
    struct calla_tokens *tokens = &generation->reply->tokens;
    if (tokens->count == generation->token_capacity) {
        size_t capacity = generation->token_capacity * 2 + 64;
        int32_t *ids = realloc(tokens->ids, capacity * sizeof *ids);
        if (ids == NULL)
            return error_memory(error, "the reply", capacity * sizeof *ids);
        tokens->ids = ids;
        generation->token_capacity = capacity;
    }
    tokens->ids[tokens->count++] = token;
    return true;
}

/* Takes a token's text apart. */
static bool feed(struct generation *generation, int32_t token, struct calla_error *error) {
    buffer_clear(&generation->text);
    if (!detokenizer_add(&generation->detokenizer, token, &generation->text))
        return error_memory(error, "the reply", generation->text.size);
    return reply_parser_feed(generation->parser, generation->text.data, generation->text.size, error);
}

/* An end token inside the think block ends the thinking, not the reply: "</think>" takes its place, and the
 * answer follows. */
static int32_t redirect_end(const struct generation *generation, int32_t token) {
    const struct calla_model *model = generation->session->model;
    bool inside = model_is_end_token(model, token) && reply_parser_thinking(generation->parser);
    return inside && model->think_end >= 0 ? model->think_end : token;
}

static bool generate_tokens(struct generation *generation, struct calla_error *error) {
    struct calla_session *session = generation->session;
    struct calla_reply *reply = generation->reply;
    int32_t token;
    if (!session_sample(session, &token, error))
        return false;
    for (;;) {
        token = redirect_end(generation, token);
        if (!keep_token(generation, token, error))
            return false;
        if (model_is_end_token(session->model, token)) {
            reply->finish = CALLA_FINISH_STOP;
            return true;
        }
        if (!feed(generation, token, error))
            return false;
        if (generation->cancelled || reply->tokens.count >= generation->limit) {
            reply->finish = generation->cancelled ? CALLA_FINISH_CANCELLED : CALLA_FINISH_LENGTH;
            return true;
        }
        if (!session_step(session, token, &token, error))
            return false;
    }
}

/* Flushes what detokenizer and parser hold, and fills the reply. */
static bool finish(struct generation *generation, struct calla_error *error) {
    struct calla_reply *reply = generation->reply;
    buffer_clear(&generation->text);
    if (!detokenizer_finish(&generation->detokenizer, &generation->text))
        return error_memory(error, "the reply", generation->text.size);
    if (!reply_parser_feed(generation->parser, generation->text.data, generation->text.size, error) ||
        !reply_parser_finish(generation->parser, reply->finish != CALLA_FINISH_STOP, error))
        return false;
    size_t size;
    const char *reasoning = reply_parser_reasoning(generation->parser, &size);
    reply->reasoning = strndup(reasoning == NULL ? "" : reasoning, size);
    const char *content = reply_parser_content(generation->parser, &size);
    reply->content = strndup(content == NULL ? "" : content, size);
    const json_t *calls = reply_parser_calls(generation->parser);
    if (json_array_size(calls) > 0) {
        reply->tool_calls = json_dumps(calls, JSON_COMPACT);
        if (reply->finish == CALLA_FINISH_STOP)
            reply->finish = CALLA_FINISH_TOOL_CALLS;
    }
    reply->reply_tokens = reply->tokens.count;
    if (reply->reasoning == NULL || reply->content == NULL ||
        (json_array_size(calls) > 0 && reply->tool_calls == NULL))
        return error_memory(error, "the reply", size);
    return true;
}

static bool open_parser(struct generation *generation, const struct calla_prompt *prompt,
                        struct calla_error *error) {
    json_t *tools = NULL;
    if (prompt->tools != NULL && (tools = json_parse(prompt->tools, strlen(prompt->tools),
                                                     "The prompt's list of tools", error)) == NULL)
        return false;
    /* Ids of calls must differ from turn to turn: a conversation's prompts grow, so their sizes tell turns
     * apart even where the seed is the same, and the same call twice gives the same ids. */
    uint64_t turn = generation->options->sampling.seed + prompt->tokens.count * UINT64_C(0x9e3779b97f4a7c15);
    char call_prefix[32];
    snprintf(call_prefix, sizeof call_prefix, "call_%016" PRIx64 "_", turn);
    generation->parser =
        reply_parser_new(prompt->thinking, tools, call_prefix, forward_event, generation, error);
    json_decref(tools);
    detokenizer_start(&generation->detokenizer, generation->session->model->tokenizer);
    return generation->parser != NULL;
}

bool calla_generate(struct calla_session *session, const struct calla_prompt *prompt,
                    const struct calla_generate_options *options, struct calla_reply *reply,
                    struct calla_error *error) {
    memset(reply, 0, sizeof *reply);
    struct generation generation = {.session = session, .options = options, .reply = reply};
    if (!sampling_check(session->model, &options->sampling, error))
        return false;
    size_t count = prompt->tokens.count;
    double start = system_seconds();
    if (!calla_session_read(session, prompt->tokens.ids, count, &reply->computed_tokens, &options->progress,
                            error))
        return false;
    reply->prompt_tokens = count;
    reply->prompt_seconds = system_seconds() - start;
    /* The last token of a reply is not read, so the context holds one more than it has places for. */
    generation.limit = session->context - count + 1;
    if (options->max_tokens > 0 && options->max_tokens < generation.limit)
        generation.limit = options->max_tokens;
    start = system_seconds();
    bool ok = open_parser(&generation, prompt, error) &&
              session_start_sampling(session, &options->sampling, prompt->tokens.ids, count, error) &&
              generate_tokens(&generation, error) && finish(&generation, error);
    reply->reply_seconds = system_seconds() - start;
    reply_parser_free(generation.parser);
    buffer_free(&generation.text);
    if (!ok)
        calla_reply_free(reply);
    return ok;
}
