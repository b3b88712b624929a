#include "text/stop_matcher.h"

#include <string.h>

/* Whether a stop begins at text[at]: wholly inside, or up to the text's end. */
enum match { MATCH_NONE, MATCH_PART, MATCH_WHOLE };

static enum match match_at(const struct stop_matcher *matcher, const char *text, size_t size) {
    enum match best = MATCH_NONE;
    for (size_t i = 0; i < matcher->count; i++) {
        size_t length = strlen(matcher->stops[i]);
        if (length <= size && memcmp(text, matcher->stops[i], length) == 0)
            return MATCH_WHOLE;
        if (length > size && memcmp(text, matcher->stops[i], size) == 0)
            best = MATCH_PART;
    }
    return best;
}

/* Lets through what comes before a stop; at the text's end a part of one is none. */
static bool advance(struct stop_matcher *matcher, bool ended, struct buffer *out) {
    const char *held = matcher->held.data;
    size_t size = matcher->held.size, passed = 0;
    enum match match = MATCH_NONE;
    for (; passed < size; passed++) {
        match = match_at(matcher, held + passed, size - passed);
        if (match == MATCH_WHOLE || (match == MATCH_PART && !ended))
            break;
    }
    bool ok = buffer_append(out, held, passed);
    matcher->matched = passed < size && match == MATCH_WHOLE;
    size_t left = matcher->matched ? 0 : size - passed;
    memmove(matcher->held.data, held + passed, left);
    matcher->held.size = left;
    matcher->held.data[left] = 0;
    return ok;
}

bool stop_matcher_feed(struct stop_matcher *matcher, const char *text, size_t size, struct buffer *out) {
    if (matcher->matched)
        return true;
    return buffer_append(&matcher->held, text, size) && advance(matcher, false, out);
}

bool stop_matcher_finish(struct stop_matcher *matcher, struct buffer *out) {
    return matcher->held.size == 0 || advance(matcher, true, out);
}

void stop_matcher_free(struct stop_matcher *matcher) {
    buffer_free(&matcher->held);
}
