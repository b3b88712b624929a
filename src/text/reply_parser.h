/* What the model writes, taken apart as it comes: reasoning, content, tool calls. The rules are written down
 * in docs/reply-format.md. */
#ifndef CALLA_TEXT_REPLY_PARSER_H
#define CALLA_TEXT_REPLY_PARSER_H

#include <jansson.h>

#include "base/buffer.h"

struct reply_parser;

/* Called for each piece; the text is whole, valid UTF-8. False stops: feed and finish then fail. */
typedef bool (*reply_event_function)(void *user, const struct calla_event *event);

/* `thinking`: the reply begins inside a think block. `tools` (may be NULL, is copied by reference count): the
 * request's tools, whose schemas type the arguments; without any, no text is a call. A call's id is
 * `call_prefix` and its index in the reply, so that ids differ where prefixes do; NULL is "call_". `event`
 * may be NULL. */
struct reply_parser *reply_parser_new(bool thinking, json_t *tools, const char *call_prefix,
                                      reply_event_function event, void *user, struct calla_error *error);
void reply_parser_free(struct reply_parser *parser);

/* Bytes in any split give the same events once joined. Bytes that are not UTF-8 become U+FFFD. */
bool reply_parser_feed(struct reply_parser *parser, const char *bytes, size_t size,
                       struct calla_error *error);
/* The end of the reply. `truncated`: it was cut by a limit. Flushes what is held back; no text is lost, and a
 * call that was announced ends as valid JSON. */
bool reply_parser_finish(struct reply_parser *parser, bool truncated, struct calla_error *error);

/* The whole reply after finish: borrowed strings; calls in the OpenAI form (borrowed array, empty without
 * calls). */
const char *reply_parser_reasoning(const struct reply_parser *parser, size_t *size);
const char *reply_parser_content(const struct reply_parser *parser, size_t *size);
const json_t *reply_parser_calls(const struct reply_parser *parser);

/* Whether the text so far ends inside the think block. */
bool reply_parser_thinking(const struct reply_parser *parser);

#endif
