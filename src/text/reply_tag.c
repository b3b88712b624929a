#include "text/reply_tag.h"

#include <string.h>

#define NAME_LIMIT 256

static const struct {
    enum reply_tag_kind kind;
    const char *text;
} tags[] = {{TAG_THINK, "<think>"},         {TAG_THINK_END, "</think>"},
            {TAG_CALL, "<tool_call>"},      {TAG_CALL_END, "</tool_call>"},
            {TAG_FUNCTION, "<function="},   {TAG_FUNCTION_END, "</function>"},
            {TAG_PARAMETER, "<parameter="}, {TAG_PARAMETER_END, "</parameter>"}};

static void read_name(const struct buffer *text, struct reply_tag *tag) {
    size_t begin = tag->end, at = begin;
    while (at < text->size && at - begin < NAME_LIMIT && strchr("<>\n", text->data[at]) == NULL)
        at++;
    tag->name_begin = begin;
    tag->name_end = at;
    if (at == text->size) {
        tag->kind = TAG_UNDECIDED;
    } else if (text->data[at] == '>' && at > begin) {
        tag->end = at + 1;
    } else {
        tag->kind = TAG_NONE;
    }
}

struct reply_tag reply_tag_read(const struct buffer *text, size_t at, unsigned wanted) {
    struct reply_tag tag = {TAG_NONE, at, at, at};
    size_t left = text->size - at;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        size_t size = strlen(tags[i].text);
        if ((wanted & tags[i].kind) == 0)
            continue;
        if (left > 0 && memcmp(text->data + at, tags[i].text, left < size ? left : size) != 0)
            continue;
        tag.kind = left < size ? TAG_UNDECIDED : tags[i].kind;
        tag.end = left < size ? text->size : at + size;
        if (tag.kind == TAG_FUNCTION || tag.kind == TAG_PARAMETER)
            read_name(text, &tag);
        break;
    }
    return tag;
}
