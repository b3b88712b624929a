/* The tags of a reply: think blocks and the XML of tool calls. */
#ifndef CALLA_TEXT_REPLY_TAG_H
#define CALLA_TEXT_REPLY_TAG_H

#include "base/buffer.h"

enum reply_tag_kind {
    TAG_NONE = 0,
    TAG_THINK = 1,           /* <think> */
    TAG_THINK_END = 2,       /* </think> */
    TAG_CALL = 4,            /* <tool_call> */
    TAG_CALL_END = 8,        /* </tool_call> */
    TAG_FUNCTION = 16,       /* <function=NAME> */
    TAG_FUNCTION_END = 32,   /* </function> */
    TAG_PARAMETER = 64,      /* <parameter=NAME> */
    TAG_PARAMETER_END = 128, /* </parameter> */
    TAG_UNDECIDED = 256      /* the text ends before the tag does */
};

struct reply_tag {
    enum reply_tag_kind kind;
    size_t end;                  /* the position after it */
    size_t name_begin, name_end; /* of a function or parameter */
};

/* The tag of one of the `wanted` kinds (a set of them) that begins at position `at` <= text->size. A name is
 * 1 to 256 bytes without "<", ">", line ends and zeros, so that what must be looked at is bounded. */
struct reply_tag reply_tag_read(const struct buffer *text, size_t at, unsigned wanted);

#endif
