/* A state machine over `pending`, the bytes that were fed and not yet decided. A state looks for the next '<'
 * that may begin one of its tags, hands on the text before it, and waits when the bytes end before the tag or
 * what must follow it. What was looked at is remembered, so that every byte is looked at a bounded number of
 * times however the text is split: the work is linear in the text.
 *
 * A call inside the reasoning is believed only when it is complete. Until then it is *on trial*: the states
 * run as usual without a word to the caller, and then either the text is read again as a call, or it was
 * reasoning. */
#include "text/reply_parser.h"

#include <stdlib.h>
#include <string.h>

#include "text/reply_call.h"
#include "text/reply_tag.h"
#include "text/utf8.h"

enum state {
    REASONING,
    CONTENT,
    PARAMETERS, /* in a call, before a parameter or the end of the function */
    VALUE,
    AFTER_FUNCTION /* before the end of the call's block */
};

enum verdict { NO, YES, WAIT };

struct reply_parser {
    reply_event_function event;
    void *user;
    json_t *tools; /* NULL without any */
    char *call_prefix;

    struct buffer pending;
    size_t begin;         /* pending[begin, size) is undecided */
    size_t scan;          /* pending[begin, scan) holds no tag */
    size_t spaces[2];     /* how far the white space after the tags of the candidate at `scan` was skipped */
    struct buffer broken; /* the start of a character whose other bytes are still to come */

    enum state state;
    bool on_trial;
    size_t trial;       /* where in pending the call on trial begins */
    bool truncated;     /* known at the end */
    bool ended;         /* no more bytes will come */
    bool after_call;    /* a call was the last that was read */
    bool implied_end;   /* a call ended the reasoning: a "</think>" may still follow */
    bool value_began;   /* the line end after the parameter's tag is past */
    bool value_empty;   /* nothing of the value has been handed on */
    bool had_reasoning; /* there was a think block */

    struct buffer space; /* white space that counts only if text follows */
    struct buffer reasoning, content;
    struct reply_call call;
    size_t sent; /* bytes of the call's arguments that the caller has had */
    json_t *calls;

    bool stopped; /* by the caller */
    bool failed;  /* out of memory */
};

/* Events */

static void send_event(struct reply_parser *parser, enum calla_event_kind kind, const char *text,
                       size_t size) {
    if (parser->stopped || parser->failed || parser->event == NULL || (size == 0 && kind != CALLA_EVENT_CALL))
        return;
    struct calla_event event = {kind, text, size, (uint32_t)json_array_size(parser->calls)};
    parser->stopped = !parser->event(parser->user, &event);
}

static void send_arguments(struct reply_parser *parser) {
    struct buffer *arguments = &parser->call.arguments;
    parser->failed = parser->failed || arguments->failed;
    if (parser->on_trial || parser->failed || arguments->size == parser->sent)
        return;
    send_event(parser, CALLA_EVENT_ARGUMENTS, arguments->data + parser->sent, arguments->size - parser->sent);
    parser->sent = arguments->size;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Text of the reasoning or the content. White space at its start may be dropped, and at its end is held back
 * until more text shows that it was not the end. */
static void send_text(struct reply_parser *parser, size_t begin, size_t end) {
    bool reasoning = parser->state == REASONING;
    struct buffer *whole = reasoning ? &parser->reasoning : &parser->content;
    const char *text = parser->pending.data + begin;
    size_t size = end - begin;
    bool first = whole->size == 0;
    bool drop_lines = first && parser->space.size == 0 && (parser->had_reasoning || parser->after_call);
    while (first && size > 0 &&
           (reasoning ? is_space(*text) : drop_lines && (*text == '\n' || *text == '\r'))) {
        text++;
        size--;
    }
    size_t solid = size;
    while (solid > 0 && is_space(text[solid - 1]))
        solid--;
    if (solid > 0) {
        buffer_append(&parser->space, text, solid);
        buffer_append(whole, parser->space.data, parser->space.size);
        parser->failed = parser->failed || parser->space.failed || whole->failed;
        send_event(parser, reasoning ? CALLA_EVENT_REASONING : CALLA_EVENT_CONTENT, parser->space.data,
                   parser->space.size);
        buffer_clear(&parser->space);
        parser->after_call = false;
    }
    buffer_append(&parser->space, text + solid, size - solid);
    parser->failed = parser->failed || parser->space.failed;
}

/* The position after the white space at `from`; `which` of the candidate's two stretches remembers it. */
static size_t skip_space(struct reply_parser *parser, size_t from, unsigned which) {
    size_t at = parser->spaces[which] > from ? parser->spaces[which] : from;
    while (at < parser->pending.size && is_space(parser->pending.data[at]))
        at++;
    return parser->spaces[which] = at;
}

/* Decides the candidate at `scan` and moves on to `next`. */
static void pass(struct reply_parser *parser, size_t next) {
    parser->scan = next;
    parser->spaces[0] = parser->spaces[1] = 0;
}

static void consume(struct reply_parser *parser, size_t end) {
    parser->begin = end;
    pass(parser, end);
}

/* Calls */

static void begin_call(struct reply_parser *parser, struct reply_tag function, size_t body) {
    const char *name = parser->pending.data + function.name_begin;
    size_t size = function.name_end - function.name_begin;
    reply_call_begin(&parser->call, parser->tools, name, size);
    parser->sent = 0;
    parser->failed = parser->failed || parser->call.arguments.failed;
    if (!parser->on_trial)
        send_event(parser, CALLA_EVENT_CALL, name, size);
    parser->state = PARAMETERS;
    consume(parser, body);
}

static void end_call(struct reply_parser *parser) {
    struct reply_call *call = &parser->call;
    reply_call_end(call);
    send_arguments(parser);
    if (!parser->on_trial && !parser->failed) {
        json_t *item = json_pack("{s:o, s:s, s:{s:s%, s:s%}}", "id",
                                 json_sprintf("%s%zu", parser->call_prefix, json_array_size(parser->calls)),
                                 "type", "function", "function", "name", call->name.data, call->name.size,
                                 "arguments", call->arguments.data, call->arguments.size);
        parser->failed = json_array_append_new(parser->calls, item) != 0;
        parser->after_call = true;
    }
    reply_call_clear(call);
}

/* A call on trial is complete: it is read once more, as a call that ends the reasoning. */
static void believe_trial(struct reply_parser *parser) {
    parser->on_trial = false;
    parser->implied_end = true;
    parser->state = CONTENT;
    buffer_clear(&parser->space);
    consume(parser, parser->trial);
}

/* What was on trial up to `end` is reasoning after all. */
static void reject_trial(struct reply_parser *parser, size_t end) {
    parser->on_trial = false;
    parser->state = REASONING;
    reply_call_clear(&parser->call);
    send_text(parser, parser->trial, end);
    consume(parser, end);
}

/* Whether a call begins with this tag: <tool_call> and <function=NAME>, or <function=NAME> alone where
 * that is a line's start and a declared name; then a parameter or the end. */
static enum verdict look_for_call(struct reply_parser *parser, struct reply_tag tag,
                                  struct reply_tag *function, size_t *body) {
    bool bare = tag.kind == TAG_FUNCTION;
    *function = bare ? tag : reply_tag_read(&parser->pending, skip_space(parser, tag.end, 0), TAG_FUNCTION);
    if (function->kind != TAG_FUNCTION)
        return function->kind == TAG_UNDECIDED && !parser->ended ? WAIT : NO;
    bool declared = reply_call_function(parser->tools, parser->pending.data + function->name_begin,
                                        function->name_end - function->name_begin) != NULL;
    if (!declared && (bare || parser->state == REASONING))
        return NO;
    *body = skip_space(parser, function->end, 1);
    struct reply_tag next =
        reply_tag_read(&parser->pending, *body, TAG_PARAMETER | TAG_FUNCTION_END | (bare ? 0 : TAG_CALL_END));
    if (next.kind == TAG_UNDECIDED) {
        if (!parser->ended)
            return WAIT;
        /* A model that stopped here called a function without arguments; one that was cut did not yet. */
        return *body == parser->pending.size && !parser->truncated ? YES : NO;
    }
    return next.kind == TAG_NONE ? NO : YES;
}

/* States: each returns whether it got on, and waits for more bytes otherwise. */

/* Whether what comes next begins a line of the content: only white space lies between. */
static bool at_line_start(const struct reply_parser *parser) {
    return parser->content.size == 0 || parser->after_call ||
           (parser->space.size > 0 && memchr(parser->space.data, '\n', parser->space.size) != NULL);
}

static bool step_text(struct reply_parser *parser) {
    bool reasoning = parser->state == REASONING;
    unsigned wanted = parser->tools == NULL ? 0 : reasoning ? TAG_CALL : TAG_CALL | TAG_FUNCTION;
    if (reasoning || parser->implied_end)
        wanted |= TAG_THINK_END;
    if (reasoning || !parser->had_reasoning)
        wanted |= TAG_THINK;
    struct reply_tag tag = {TAG_NONE, 0, 0, 0};
    while (parser->scan < parser->pending.size) {
        const char *from = parser->pending.data + parser->scan;
        const char *found = memchr(from, '<', parser->pending.size - parser->scan);
        parser->scan = found == NULL ? parser->pending.size : (size_t)(found - parser->pending.data);
        if (found == NULL)
            break;
        tag = reply_tag_read(&parser->pending, parser->scan, wanted);
        if (tag.kind != TAG_NONE)
            break;
        parser->scan++;
    }
    size_t at = parser->scan;
    send_text(parser, parser->begin, at);
    parser->begin = at;
    if (at == parser->pending.size)
        return false;

    bool first = (reasoning ? parser->reasoning.size : parser->content.size) == 0 && !parser->after_call;
    struct reply_tag function;
    size_t body;
    enum verdict verdict = NO;
    if (tag.kind == TAG_UNDECIDED)
        verdict = parser->ended ? NO : WAIT;
    else if (tag.kind == TAG_CALL || (tag.kind == TAG_FUNCTION && at_line_start(parser)))
        verdict = look_for_call(parser, tag, &function, &body);
    else if (tag.kind == TAG_THINK_END || (tag.kind == TAG_THINK && first))
        verdict = YES;

    if (verdict == WAIT)
        return false;
    if (verdict == NO) {
        send_text(parser, at, at + 1);
        consume(parser, at + 1);
    } else if (tag.kind == TAG_THINK || tag.kind == TAG_THINK_END) {
        parser->state = tag.kind == TAG_THINK ? REASONING : CONTENT;
        parser->had_reasoning = true;
        parser->implied_end = false;
        if (!parser->after_call)
            buffer_clear(&parser->space);
        consume(parser, tag.end);
    } else {
        parser->on_trial = reasoning;
        parser->trial = at;
        begin_call(parser, function, body);
    }
    return true;
}

/* What ended a value, or the tag that announced the call, has made sure that one of these tags follows. */
static bool step_parameters(struct reply_parser *parser) {
    size_t at = skip_space(parser, parser->begin, 0);
    struct reply_tag tag =
        reply_tag_read(&parser->pending, at, TAG_PARAMETER | TAG_FUNCTION_END | TAG_CALL_END);
    if (tag.kind == TAG_PARAMETER) {
        reply_call_key(&parser->call, parser->pending.data + tag.name_begin, tag.name_end - tag.name_begin);
        parser->state = VALUE;
        parser->value_began = false;
        parser->value_empty = true;
        consume(parser, tag.end);
        return true;
    }
    if (tag.kind == TAG_UNDECIDED)
        return false;
    end_call(parser);
    if (tag.kind == TAG_CALL_END && parser->on_trial) {
        believe_trial(parser);
        return true;
    }
    parser->state = tag.kind == TAG_FUNCTION_END ? AFTER_FUNCTION : CONTENT;
    consume(parser, tag.kind == TAG_NONE ? at : tag.end);
    return true;
}

/* Whether the value ends before this tag: only if the grammar can go on after it. */
static enum verdict look_for_value_end(struct reply_parser *parser, struct reply_tag tag) {
    unsigned next = 0;
    switch (tag.kind) {
    case TAG_UNDECIDED:
        return !parser->ended ? WAIT : parser->truncated ? YES : NO;
    case TAG_PARAMETER:
        return reply_call_expects(&parser->call, parser->pending.data + tag.name_begin,
                                  tag.name_end - tag.name_begin)
                   ? YES
                   : NO;
    case TAG_PARAMETER_END:
        next = TAG_PARAMETER | TAG_FUNCTION_END | TAG_CALL_END;
        break;
    case TAG_FUNCTION_END:
        next = TAG_CALL_END | TAG_FUNCTION | TAG_CALL;
        break;
    default:
        next = TAG_CALL;
        break;
    }
    struct reply_tag following = reply_tag_read(&parser->pending, skip_space(parser, tag.end, 0), next);
    if (following.kind == TAG_UNDECIDED)
        return parser->ended ? YES : WAIT;
    return following.kind == TAG_NONE ? NO : YES;
}

static void send_value(struct reply_parser *parser, size_t end) {
    if (end <= parser->begin)
        return;
    reply_call_value(&parser->call, parser->pending.data + parser->begin, end - parser->begin);
    send_arguments(parser);
    parser->value_empty = false;
    parser->begin = end;
}

static void end_value(struct reply_parser *parser, bool whole) {
    reply_call_value_end(&parser->call, whole);
    send_arguments(parser);
    parser->state = PARAMETERS;
}

static bool step_value(struct reply_parser *parser) {
    const char *text = parser->pending.data;
    if (!parser->value_began && parser->begin < parser->pending.size) {
        parser->value_began = true;
        if (text[parser->begin] == '\n')
            consume(parser, parser->begin + 1);
    }
    while (parser->scan < parser->pending.size) {
        const char *found = memchr(text + parser->scan, '<', parser->pending.size - parser->scan);
        size_t at = found == NULL ? parser->pending.size : (size_t)(found - text);
        parser->scan = at;
        if (found == NULL)
            break;
        bool line_end = at > parser->begin && text[at - 1] == '\n';
        bool line_start = line_end || (at == parser->begin && parser->value_empty);
        struct reply_tag tag = reply_tag_read(
            &parser->pending, at,
            TAG_PARAMETER_END | (line_start ? TAG_PARAMETER | TAG_FUNCTION_END | TAG_CALL_END : 0) |
                (parser->on_trial ? TAG_CALL | TAG_THINK_END : 0));
        if (tag.kind == TAG_CALL || tag.kind == TAG_THINK_END) {
            reject_trial(parser, at);
            return true;
        }
        enum verdict verdict = tag.kind == TAG_NONE ? NO : look_for_value_end(parser, tag);
        if (verdict == NO) {
            pass(parser, at + 1);
            continue;
        }
        send_value(parser, line_end ? at - 1 : at);
        if (verdict == WAIT)
            return false;
        end_value(parser, tag.kind != TAG_UNDECIDED);
        consume(parser, tag.kind == TAG_PARAMETER_END ? tag.end
                        : tag.kind == TAG_UNDECIDED   ? parser->pending.size
                                                      : at);
        return true;
    }
    size_t end = parser->pending.size;
    send_value(parser, end > parser->begin && text[end - 1] == '\n' ? end - 1 : end);
    return false;
}

static bool step_after_function(struct reply_parser *parser) {
    struct reply_tag tag =
        reply_tag_read(&parser->pending, skip_space(parser, parser->begin, 0), TAG_CALL_END);
    if (tag.kind == TAG_UNDECIDED && !parser->ended)
        return false;
    if (parser->on_trial) {
        if (tag.kind == TAG_CALL_END)
            believe_trial(parser);
        else
            reject_trial(parser, parser->begin);
        return true;
    }
    /* The start of a tag at the end of the reply is that of the tag that was missing. */
    bool closed = tag.kind == TAG_CALL_END || tag.kind == TAG_UNDECIDED;
    parser->state = CONTENT;
    consume(parser, closed ? tag.end : parser->begin);
    return true;
}

static bool step(struct reply_parser *parser) {
    switch (parser->state) {
    case REASONING:
    case CONTENT:
        return step_text(parser);
    case PARAMETERS:
        return step_parameters(parser);
    case VALUE:
        return step_value(parser);
    case AFTER_FUNCTION:
        return step_after_function(parser);
    }
    return false;
}

static bool run(struct reply_parser *parser, struct calla_error *error) {
    parser->failed = parser->failed || parser->pending.failed || parser->broken.failed;
    while (!parser->failed && !parser->stopped && parser->begin < parser->pending.size && step(parser))
        continue;
    if (parser->failed)
        return error_memory(error, "the reply", parser->pending.size);
    if (parser->stopped)
        return error_set(error, CALLA_CANCELLED, "The reply was stopped by its receiver.");
    return true;
}

/* Moves what is still needed to the front once most of the buffer is past. */
static void forget_past(struct reply_parser *parser) {
    size_t past = parser->on_trial ? parser->trial : parser->begin;
    if (past < 4096 || past < parser->pending.size / 2)
        return;
    parser->pending.size -= past;
    memmove(parser->pending.data, parser->pending.data + past, parser->pending.size + 1);
    parser->begin -= past;
    parser->scan -= past;
    parser->trial -= parser->on_trial ? past : parser->trial;
    for (unsigned i = 0; i < 2; i++)
        parser->spaces[i] = parser->spaces[i] > past ? parser->spaces[i] - past : 0;
}

/* Appends the characters that are complete; the end of the reply makes the last one so. */
static void append_characters(struct reply_parser *parser, const char *bytes, size_t size) {
    buffer_append(&parser->broken, bytes, size);
    const char *text = parser->broken.data;
    size_t left = parser->broken.failed ? 0 : parser->broken.size;
    while (left > 0) {
        struct utf8_character character = utf8_read(text, left);
        if (character.kind == UTF8_INCOMPLETE && !parser->ended)
            break;
        if (character.kind == UTF8_VALID)
            buffer_append(&parser->pending, text, character.size);
        else
            buffer_append_string(&parser->pending, UTF8_REPLACEMENT);
        text += character.size;
        left -= character.size;
    }
    if (left > 0)
        memmove(parser->broken.data, text, left);
    parser->broken.size = left;
    if (parser->broken.data != NULL)
        parser->broken.data[left] = 0;
}

bool reply_parser_feed(struct reply_parser *parser, const char *bytes, size_t size,
                       struct calla_error *error) {
    forget_past(parser);
    append_characters(parser, bytes, size);
    return run(parser, error);
}

bool reply_parser_finish(struct reply_parser *parser, bool truncated, struct calla_error *error) {
    parser->ended = true;
    parser->truncated = truncated;
    append_characters(parser, "", 0);
    if (!run(parser, error))
        return false;
    if (parser->on_trial) {
        reject_trial(parser, parser->pending.size);
    } else if (parser->state == VALUE || parser->state == PARAMETERS) {
        if (parser->state == VALUE)
            end_value(parser, !truncated);
        end_call(parser);
        parser->state = CONTENT;
    }
    consume(parser, parser->pending.size);
    if (parser->state == CONTENT && json_array_size(parser->calls) == 0) {
        send_event(parser, CALLA_EVENT_CONTENT, parser->space.data, parser->space.size);
        buffer_append(&parser->content, parser->space.data, parser->space.size);
        parser->failed = parser->failed || parser->content.failed;
    }
    buffer_clear(&parser->space);
    return run(parser, error);
}

struct reply_parser *reply_parser_new(bool thinking, json_t *tools, const char *call_prefix,
                                      reply_event_function event, void *user, struct calla_error *error) {
    struct reply_parser *parser = calloc(1, sizeof *parser);
    if (parser != NULL) {
        parser->event = event;
        parser->user = user;
        parser->tools = json_array_size(tools) > 0 ? json_incref(tools) : NULL;
        parser->state = thinking ? REASONING : CONTENT;
        parser->had_reasoning = thinking;
        parser->calls = json_array();
        parser->call_prefix = strdup(call_prefix == NULL ? "call_" : call_prefix);
    }
    if (parser == NULL || parser->calls == NULL || parser->call_prefix == NULL) {
        error_memory(error, "the reply parser", sizeof *parser);
        reply_parser_free(parser);
        return NULL;
    }
    return parser;
}

void reply_parser_free(struct reply_parser *parser) {
    if (parser == NULL)
        return;
    json_decref(parser->tools);
    json_decref(parser->calls);
    free(parser->call_prefix);
    buffer_free(&parser->pending);
    buffer_free(&parser->broken);
    buffer_free(&parser->space);
    buffer_free(&parser->reasoning);
    buffer_free(&parser->content);
    reply_call_clear(&parser->call);
    free(parser);
}

static const char *text_of(const struct buffer *buffer, size_t *size) {
    if (size != NULL)
        *size = buffer->size;
    return buffer->data == NULL ? "" : buffer->data;
}

const char *reply_parser_reasoning(const struct reply_parser *parser, size_t *size) {
    return text_of(&parser->reasoning, size);
}

const char *reply_parser_content(const struct reply_parser *parser, size_t *size) {
    return text_of(&parser->content, size);
}

const json_t *reply_parser_calls(const struct reply_parser *parser) {
    return parser->calls;
}

bool reply_parser_thinking(const struct reply_parser *parser) {
    return parser->state == REASONING || parser->on_trial;
}
