/* Pieces of text and what Python's strings do with them: the chat template is written in its terms. */
#ifndef CALLA_TEXT_SLICE_H
#define CALLA_TEXT_SLICE_H

#include <stdbool.h>
#include <stddef.h>

/* A borrowed piece of UTF-8; `text` is not NULL. */
struct slice {
    const char *text;
    size_t size;
};

/* str.strip(): without the white space (all of Unicode's) at both ends. */
struct slice slice_trim(struct slice slice);

/* str.lstrip("\n") and str.rstrip("\n"). */
struct slice slice_trim_newlines(struct slice slice, bool left, bool right);

/* Where `tag` begins for the first or the last time; NULL if it does not occur. */
const char *slice_find_first(struct slice slice, const char *tag);
const char *slice_find_last(struct slice slice, const char *tag);

bool slice_begins_with(struct slice slice, const char *start);
bool slice_ends_with(struct slice slice, const char *end);

#endif
