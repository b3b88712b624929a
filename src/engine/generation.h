/* A reply under way, for the files that make it: generation.c (reading, drawing, ending) and steering.c
 * (tokens that are not left to chance: closing a think block, opening a tool call). */
#ifndef CALLA_ENGINE_GENERATION_H
#define CALLA_ENGINE_GENERATION_H

#include "engine/engine.h"
#include "text/reply_parser.h"
#include "text/stop_matcher.h"

/* A call that was required: its opening is forced, its name drawn among the tools' names or forced too, then
 * a parameter or the end must follow, and the rest is free. */
enum call_stage { CALL_NONE, CALL_OPENED, CALL_NAMING, CALL_NAMED, CALL_BODY, CALL_FREE };

struct calla_generation {
    struct calla_session *session;
    const struct calla_prompt *prompt;
    struct calla_generate_options options;
    struct calla_reply reply;
    struct reply_parser *parser;
    struct detokenizer detokenizer;
    struct stop_matcher stop;
    struct buffer text;    /* what the last token completed */
    struct buffer passed;  /* content that the stop matcher let through, one event's worth */
    struct buffer content; /* all of it */
    json_t *tools;         /* NULL without */
    enum { GENERATION_READING, GENERATION_REPLYING, GENERATION_DONE } phase;
    size_t limit; /* tokens of the reply at most */
    size_t token_capacity;
    int32_t last;               /* the token of the reply that has not been read yet, or -1 */
    struct calla_tokens forced; /* come next, whatever would be drawn; [forced_used, count) are left */
    size_t forced_used;
    size_t thinking_tokens;
    bool thinking_closed; /* the budget, or an end token, closed the think block */
    enum call_stage call_stage;
    struct buffer call_text; /* of a required call, what was drawn of its name or of what follows it */
    bool cancelled;
};

/* Makes the tokens of `text` (control tokens count) come next, after those already forced. */
bool generation_force(struct calla_generation *generation, const char *text, struct calla_error *error);

/* Called with each token that was drawn, before it counts: what takes its place. An end token inside the
 * think block closes the block instead, and the answer follows. */
bool generation_redirect(struct calla_generation *generation, int32_t *token, struct calla_error *error);

/* Called before the first token (with -1) and after each that was taken apart: enforces the reasoning budget
 * and the choice of tools. */
bool generation_steer(struct calla_generation *generation, int32_t token, struct calla_error *error);

#endif
