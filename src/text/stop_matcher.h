/* Stop strings, found in text that comes in pieces: a match may span pieces, and nothing that may turn out to
 * be the start of one is let through before it is known not to be. */
#ifndef CALLA_TEXT_STOP_MATCHER_H
#define CALLA_TEXT_STOP_MATCHER_H

#include "base/buffer.h"

struct stop_matcher {
    const char *const *stops; /* borrowed; none is empty */
    size_t count;
    struct buffer held; /* the end of the text so far that may begin a stop */
    bool matched;
};

/* Takes the next piece and appends to *out what is certain to come before any stop. After a match (the
 * earliest one; among those that begin at one place any) `matched` is set and later pieces are swallowed.
 * Linear in the text times the stops' lengths. False when memory is short. */
bool stop_matcher_feed(struct stop_matcher *matcher, const char *text, size_t size, struct buffer *out);

/* The end of the text: what was held back is let through, up to a stop that lies wholly in it. */
bool stop_matcher_finish(struct stop_matcher *matcher, struct buffer *out);
void stop_matcher_free(struct stop_matcher *matcher);

#endif
