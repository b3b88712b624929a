/* Generation: prompt in, reply out, in pieces of bounded work: a chunk of the prompt, then a token at a time.
 * A token is drawn (or forced), kept, and its text taken apart into the events that the caller hears. */
#include "engine/generation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/system.h"
#include "engine/prefix_cache.h"
#include "engine/reply_memory.h"
#include "engine/serving.h"

void calla_reply_free(struct calla_reply *reply) {
    free(reply->reasoning);
    free(reply->content);
    free(reply->tool_calls);
    calla_tokens_free(&reply->tokens);
    memset(reply, 0, sizeof *reply);
}

/* Events */

static void send_event(struct calla_generation *generation, const struct calla_event *event) {
    const struct calla_generate_options *options = &generation->options;
    if (!generation->cancelled && options->event != NULL && !options->event(options->user, event))
        generation->cancelled = true;
}

/* Content that no stop string can take back any more. */
static bool send_passed(struct calla_generation *generation) {
    struct buffer *passed = &generation->passed;
    bool ok = !passed->failed && buffer_append(&generation->content, passed->data, passed->size);
    struct calla_event event = {CALLA_EVENT_CONTENT, passed->data, passed->size, 0};
    if (ok && passed->size > 0)
        send_event(generation, &event);
    buffer_clear(passed);
    return ok;
}

/* The parser's events: content goes through the stop matcher, and nothing overtakes what that holds back.
 * False when memory is short. */
static bool take_event(void *user, const struct calla_event *event) {
    struct calla_generation *generation = user;
    if (generation->stop.matched)
        return true;
    if (event->kind == CALLA_EVENT_CONTENT)
        return stop_matcher_feed(&generation->stop, event->text, event->size, &generation->passed) &&
               send_passed(generation);
    if (event->kind == CALLA_EVENT_CALL &&
        !(stop_matcher_finish(&generation->stop, &generation->passed) && send_passed(generation)))
        return false;
    if (!generation->stop.matched)
        send_event(generation, event);
    return true;
}

/* Tokens */

static bool keep_token(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    struct calla_tokens *tokens = &generation->reply.tokens;
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

/* The `count` likeliest ids in falling order, the lower id first on a tie. */
static void find_top(const float *logits, uint32_t tokens, struct calla_logprob *top, uint32_t count) {
    uint32_t found = 0;
    for (uint32_t id = 0; id < tokens; id++) {
        if (found == count && !(logits[id] > top[found - 1].logprob))
            continue;
        uint32_t place = found < count ? found++ : found - 1;
        for (; place > 0 && logits[id] > top[place - 1].logprob; place--)
            top[place] = top[place - 1];
        top[place] = (struct calla_logprob){(int32_t)id, logits[id]};
    }
}

/* Tells the caller of a token, with its place in the distribution that it was drawn from: the logits are
 * still those before it. log p = logit - log(sum(exp(logits))), over the ids that have a token. */
static bool report_token(struct calla_generation *generation, int32_t token, struct calla_error *error) {
    const struct calla_generate_options *options = &generation->options;
    struct calla_logprob top[CALLA_MAX_TOP_LOGPROBS];
    struct calla_token_event event = {
        .token = token, .thinking = generation->parser != NULL && reply_parser_thinking(generation->parser)};
    if (options->token == NULL)
        return true;
    if (options->logprobs) {
        const float *logits = calla_session_logits(generation->session, error);
        uint32_t tokens = tokenizer_count(generation->session->model->tokenizer);
        if (logits == NULL)
            return false;
        float largest = -INFINITY;
        double sum = 0;
        for (uint32_t id = 0; id < tokens; id++)
            largest = logits[id] > largest ? logits[id] : largest;
        for (uint32_t id = 0; id < tokens; id++)
            sum += exp((double)(logits[id] - largest));
        float base = largest + (float)log(sum);
        event.logprob = logits[token] - base;
        event.top_count = options->top_logprobs < tokens ? options->top_logprobs : tokens;
        event.top = top;
        if (event.top_count > 0)
            find_top(logits, tokens, top, event.top_count);
        for (uint32_t i = 0; i < event.top_count; i++)
            top[i].logprob -= base;
    }
    if (!generation->cancelled && !options->token(options->user, &event))
        generation->cancelled = true;
    return true;
}

/* Takes a token's text apart. */
static bool feed(struct calla_generation *generation, struct calla_error *error) {
    struct buffer *text = &generation->text;
    if (generation->parser != NULL)
        return reply_parser_feed(generation->parser, text->data, text->size, error);
    struct calla_event event = {CALLA_EVENT_CONTENT, text->data, text->size, 0};
    return text->size == 0 || take_event(generation, &event) || error_memory(error, "the reply", text->size);
}

/* Whether the token after the next will be drawn too, unless the next one ends the reply, with nothing of the
 * session being looked at or changed in between. */
static bool draws_on(const struct calla_generation *generation) {
    return generation->forced_used == generation->forced.count && !generation->options.logprobs &&
           (generation->call_stage == CALL_NONE || generation->call_stage == CALL_FREE) &&
           generation->reply.tokens.count + 1 < generation->limit && !generation->cancelled;
}

/* The next token: forced, or drawn after reading the last one. */
static bool next_token(struct calla_generation *generation, int32_t *token, struct calla_error *error) {
    struct calla_session *session = generation->session;
    if (generation->forced_used < generation->forced.count) {
        *token = generation->forced.ids[generation->forced_used++];
        return generation->last < 0 || session_step(session, generation->last, NULL, false, error);
    }
    return generation->last < 0 ? session_sample(session, token, error)
                                : session_step(session, generation->last, token, draws_on(generation), error);
}

static bool ends_with_call(const struct calla_generation *generation) {
    return generation->options.one_call && generation->parser != NULL &&
           json_array_size(reply_parser_calls(generation->parser)) > 0;
}

static bool make_token(struct calla_generation *generation, struct calla_error *error) {
    struct calla_reply *reply = &generation->reply;
    int32_t token;
    if (!next_token(generation, &token, error) ||
        (generation->parser != NULL && !generation_redirect(generation, &token, error)) ||
        !report_token(generation, token, error) || !keep_token(generation, token, error))
        return false;
    reply->reasoning_tokens += generation->parser != NULL && reply_parser_thinking(generation->parser);
    generation->last = token;
    generation->phase = GENERATION_DONE;
    reply->finish = CALLA_FINISH_STOP;
    if (model_is_end_token(generation->session->model, token))
        return true;
    buffer_clear(&generation->text);
    if (!detokenizer_add(&generation->detokenizer, token, &generation->text))
        return error_memory(error, "the reply", generation->text.size);
    if (!feed(generation, error) || !generation_steer(generation, token, error))
        return false;
    if (generation->stop.matched || ends_with_call(generation))
        return true;
    reply->finish = generation->cancelled ? CALLA_FINISH_CANCELLED : CALLA_FINISH_LENGTH;
    if (!generation->cancelled && reply->tokens.count < generation->limit)
        generation->phase = GENERATION_REPLYING;
    return true;
}

/* Reading the prompt */

static bool read_prompt(struct calla_generation *generation, struct calla_error *error) {
    struct calla_session *session = generation->session;
    const struct calla_tokens *prompt = &generation->prompt->tokens;
    if (session->position < prompt->count && !session_read_more(session, prompt->ids, prompt->count, error))
        return false;
    /* More than there are if the session had to begin again. */
    generation->reply.computed_tokens =
        session->computed < session->position ? session->computed : session->position;
    if (session->position < prompt->count)
        return true;
    session_read_end(session);
    generation->phase = GENERATION_REPLYING;
    return session_start_sampling(session, &generation->options.sampling, prompt->ids, prompt->count,
                                  error) &&
           generation_steer(generation, -1, error);
}

bool calla_generation_step(struct calla_generation *generation, bool *done, struct calla_error *error) {
    double start = system_seconds();
    bool reading = generation->phase == GENERATION_READING, ok = true;
    if (reading)
        ok = read_prompt(generation, error);
    else if (generation->phase == GENERATION_REPLYING)
        ok = make_token(generation, error);
    *(reading ? &generation->reply.prompt_seconds : &generation->reply.reply_seconds) +=
        system_seconds() - start;
    *done = generation->phase == GENERATION_DONE;
    return ok;
}

void calla_generation_progress(const struct calla_generation *generation, size_t *read, size_t *made) {
    bool reading = generation->phase == GENERATION_READING;
    *read = reading ? generation->session->position : generation->prompt->tokens.count;
    *made = generation->reply.tokens.count;
}

size_t generation_computed(const struct calla_generation *generation) {
    return generation->reply.computed_tokens;
}

bool generation_waits(const struct calla_generation *generation) {
    const struct calla_session *session = generation->session;
    return generation->phase == GENERATION_READING && session->model->cache != NULL &&
           prefix_cache_waits(session->model->cache, session);
}

/* The beginning and the end */

static bool check_options(const struct calla_generation *generation, struct calla_error *error) {
    const struct calla_generate_options *options = &generation->options;
    if (!sampling_check(generation->session->model, &options->sampling, error))
        return false;
    if (options->top_logprobs > CALLA_MAX_TOP_LOGPROBS)
        return error_set(error, CALLA_BAD_INPUT, "top_logprobs is %u; at most %d are given.",
                         options->top_logprobs, CALLA_MAX_TOP_LOGPROBS);
    for (size_t i = 0; i < options->stop_count; i++)
        if (options->stops[i][0] == 0)
            return error_set(error, CALLA_BAD_INPUT, "Stop string %zu is empty.", i + 1);
    if (options->tool_required && (options->raw || generation->tools == NULL))
        return error_set(error, CALLA_BAD_INPUT, "A tool call is required, but there are no tools.");
    return true;
}

static bool open_parser(struct calla_generation *generation, struct calla_error *error) {
    const struct calla_prompt *prompt = generation->prompt;
    detokenizer_start(&generation->detokenizer, generation->session->model->tokenizer);
    if (generation->options.raw)
        return true;
    /* Ids of calls must differ from turn to turn: a conversation's prompts grow, so their sizes tell turns
     * apart even where the seed is the same, and the same call twice gives the same ids. */
    uint64_t turn = generation->options.sampling.seed + prompt->tokens.count * UINT64_C(0x9e3779b97f4a7c15);
    char call_prefix[32];
    snprintf(call_prefix, sizeof call_prefix, "call_%016" PRIx64 "_", turn);
    generation->parser =
        reply_parser_new(prompt->thinking, generation->tools, call_prefix, take_event, generation, error);
    return generation->parser != NULL;
}

static bool start(struct calla_generation *generation, struct calla_error *error) {
    const struct calla_prompt *prompt = generation->prompt;
    struct calla_session *session = generation->session;
    const char *tools = prompt->tools;
    if (tools != NULL &&
        (generation->tools = json_parse(tools, strlen(tools), "The prompt's list of tools", error)) == NULL)
        return false;
    if (!check_options(generation, error) || !open_parser(generation, error) ||
        !session_read_start(session, prompt->tokens.ids, prompt->tokens.count, error))
        return false;
    generation->reply.prompt_tokens = prompt->tokens.count;
    /* The last token of a reply is not read, so there is room for one more than the context has places. */
    generation->limit = session->context - prompt->tokens.count + 1;
    if (generation->options.max_tokens > 0 && generation->options.max_tokens < generation->limit)
        generation->limit = generation->options.max_tokens;
    return true;
}

struct calla_generation *calla_generation_new(struct calla_session *session,
                                              const struct calla_prompt *prompt,
                                              const struct calla_generate_options *options,
                                              struct calla_error *error) {
    struct calla_generation *generation = calloc(1, sizeof *generation);
    if (generation == NULL) {
        error_memory(error, "a reply", sizeof *generation);
        return NULL;
    }
    generation->session = session;
    generation->prompt = prompt;
    generation->options = *options;
    generation->stop = (struct stop_matcher){.stops = options->stops, .count = options->stop_count};
    generation->last = -1;
    generation->reply.finish = CALLA_FINISH_CANCELLED;
    if (start(generation, error))
        return generation;
    calla_generation_free(generation);
    return NULL;
}

void calla_generation_free(struct calla_generation *generation) {
    if (generation == NULL)
        return;
    /* Nobody will go on with a chunk of this prompt, so no work must be spent on it. What is whole may be of
     * use to the next request. */
    if (generation->session->chunk > 0)
        calla_session_reset(generation->session, NULL);
    else if (generation->session->model->cache != NULL)
        prefix_cache_keep(generation->session->model->cache, generation->session);
    session_read_end(generation->session);
    reply_parser_free(generation->parser);
    stop_matcher_free(&generation->stop);
    buffer_free(&generation->text);
    buffer_free(&generation->passed);
    buffer_free(&generation->content);
    buffer_free(&generation->call_text);
    calla_tokens_free(&generation->forced);
    json_decref(generation->tools);
    calla_reply_free(&generation->reply);
    free(generation);
}

/* Flushes what detokenizer, parser and stop matcher hold. */
static bool flush(struct calla_generation *generation, struct calla_error *error) {
    bool truncated = generation->reply.finish != CALLA_FINISH_STOP;
    buffer_clear(&generation->text);
    if (!detokenizer_finish(&generation->detokenizer, &generation->text))
        return error_memory(error, "the reply", generation->text.size);
    if (!feed(generation, error) ||
        (generation->parser != NULL && !reply_parser_finish(generation->parser, truncated, error)))
        return false;
    bool matched = generation->stop.matched;
    if (!matched && !(stop_matcher_finish(&generation->stop, &generation->passed) && send_passed(generation)))
        return error_memory(error, "the reply", generation->content.size);
    if (generation->stop.matched && !matched)
        generation->reply.finish = CALLA_FINISH_STOP;
    return true;
}

/* A reply that came to its own end is remembered with the think block that its prompt opened. */
static void remember(const struct calla_generation *generation, const json_t *calls) {
    const struct calla_model *model = generation->session->model;
    const struct calla_prompt *prompt = generation->prompt;
    const struct calla_reply *reply = &generation->reply;
    bool whole = (reply->finish == CALLA_FINISH_STOP || reply->finish == CALLA_FINISH_TOOL_CALLS) &&
                 generation->parser != NULL && !generation->stop.matched && reply->tokens.count > 0 &&
                 !reply_parser_thinking(generation->parser);
    if (!whole || prompt->reply_start == 0 || model->replies == NULL)
        return;
    size_t opening = prompt->tokens.count - prompt->reply_start, count = reply->tokens.count;
    if (model_is_end_token(model, reply->tokens.ids[count - 1]))
        count--;
    int32_t *tokens = malloc((opening + count + 1) * sizeof *tokens);
    if (tokens == NULL)
        return;
    memcpy(tokens, prompt->tokens.ids + prompt->reply_start, opening * sizeof *tokens);
    memcpy(tokens + opening, reply->tokens.ids, count * sizeof *tokens);
    struct remembered remembered = {.before = prompt->tokens.ids, .before_count = prompt->reply_start};
    reasoning_digest((struct slice){reply->reasoning, reply->reasoning_size}, remembered.reasoning);
    if (reply_digest((struct slice){reply->content, reply->content_size}, calls, remembered.said))
        reply_memory_add(model->replies, &remembered, tokens, opening + count);
    free(tokens);
}

bool calla_generation_finish(struct calla_generation *generation, struct calla_reply *reply,
                             struct calla_error *error) {
    memset(reply, 0, sizeof *reply);
    if (!flush(generation, error))
        return false;
    struct calla_reply *whole = &generation->reply;
    const json_t *calls = generation->parser == NULL ? NULL : reply_parser_calls(generation->parser);
    struct buffer reasoning = {0};
    if (generation->parser != NULL) {
        size_t size = 0;
        const char *text = reply_parser_reasoning(generation->parser, &size);
        buffer_append(&reasoning, text, size);
    }
    whole->reasoning = buffer_take(&reasoning, &whole->reasoning_size);
    whole->content = buffer_take(&generation->content, &whole->content_size);
    whole->reply_tokens = whole->tokens.count;
    if (json_array_size(calls) > 0) {
        whole->tool_calls = json_dumps(calls, JSON_COMPACT);
        if (whole->finish == CALLA_FINISH_STOP)
            whole->finish = CALLA_FINISH_TOOL_CALLS;
    }
    if (whole->reasoning == NULL || whole->content == NULL ||
        (json_array_size(calls) > 0 && whole->tool_calls == NULL))
        return error_memory(error, "the reply", whole->reply_tokens);
    remember(generation, calls);
    *reply = *whole;
    memset(whole, 0, sizeof *whole);
    return true;
}

static bool report_prompt(const struct calla_generation *generation, size_t start,
                          struct calla_error *error) {
    const struct calla_progress *progress = &generation->options.progress;
    size_t read, made, total = generation->prompt->tokens.count - start;
    calla_generation_progress(generation, &read, &made);
    if (made > 0 || progress->report == NULL ||
        progress->report(progress->user, "reading the prompt", read - start, total))
        return true;
    calla_session_reset(generation->session, NULL);
    return error_set(error, CALLA_CANCELLED, "Stopped while reading the prompt, after %zu of %zu tokens.",
                     read - start, total);
}

bool calla_generate(struct calla_session *session, const struct calla_prompt *prompt,
                    const struct calla_generate_options *options, struct calla_reply *reply,
                    struct calla_error *error) {
    memset(reply, 0, sizeof *reply);
    struct calla_generation *generation = calla_generation_new(session, prompt, options, error);
    if (generation == NULL)
        return false;
    size_t start = session->position;
    bool done = false, ok = report_prompt(generation, start, error);
    while (ok && !done)
        ok = calla_generation_step(generation, &done, error) && report_prompt(generation, start, error);
    ok = ok && calla_generation_finish(generation, reply, error);
    calla_generation_free(generation);
    return ok;
}
