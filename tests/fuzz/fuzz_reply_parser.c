/* Any bytes as a reply. The first byte chooses: bit 0 thinking, bit 1 cut, bit 2 no tools; the second and
 * third where the reply is split. Whole and split must say the same, and arguments must be JSON objects. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const char tool_list[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{"
                                "\"type\":\"string\"},\"i\":{\"type\":"
                                "\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},\"a\":"
                                "{\"type\":\"array\"},\"o\":{\"anyOf\":"
                                "[{\"type\":\"object\"},{\"type\":\"null\"},{\"type\":\"string\"}]},\"x\":{},"
                                "\"r\":{\"$ref\":\"#/d\"}},\"d\":"
                                "{\"anyOf\":[{\"$ref\":\"#/d\"},{\"$ref\":\"#\"}]}}}},{\"name\":\"g\"}]";

struct said {
    struct buffer texts[4]; /* of each kind of event */
};

static bool keep(void *user, const struct calla_event *event) {
    struct buffer *text = &((struct said *)user)->texts[event->kind];
    /* Where a call begins and ends is part of what was said. */
    if (event->kind == CALLA_EVENT_CALL)
        buffer_printf(text, "|%u:", (unsigned)event->call);
    return buffer_append(text, event->text, event->size);
}

static char *parse(const uint8_t *bytes, size_t size, size_t cut, unsigned flags, struct said *said) {
    struct calla_error error;
    json_t *tools = flags & 4 ? NULL : json_loads(tool_list, 0, NULL);
    struct reply_parser *parser = reply_parser_new(flags & 1, tools, NULL, keep, said, &error);
    json_decref(tools);
    const char *text = (const char *)bytes;
    if (parser == NULL || !reply_parser_feed(parser, text, cut, &error) ||
        !reply_parser_feed(parser, text + cut, size - cut, &error) ||
        !reply_parser_finish(parser, flags & 2, &error))
        abort();
    size_t index;
    json_t *call;
    json_array_foreach(reply_parser_calls(parser), index, call) {
        const json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
        json_error_t failure;
        json_t *object =
            json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, &failure);
        /* What jansson does not read though it is JSON: numbers too large for it, and zeros in keys. */
        if (object == NULL && strstr(failure.text, "too big") == NULL &&
            strstr(failure.text, "overflow") == NULL && strstr(failure.text, "NUL") == NULL)
            abort();
        if (object != NULL && !json_is_object(object))
            abort();
        json_decref(object);
    }
    char *calls = json_dumps(reply_parser_calls(parser), JSON_COMPACT);
    if (calls == NULL)
        abort();
    size_t content = said->texts[CALLA_EVENT_CONTENT].size, found;
    const char *whole = reply_parser_content(parser, &found);
    if (found != content || (content > 0 && memcmp(whole, said->texts[CALLA_EVENT_CONTENT].data, found) != 0))
        abort();
    reply_parser_free(parser);
    return calls;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (size < 3)
        return 0;
    unsigned flags = bytes[0];
    size_t cut = (size_t)bytes[1] | (size_t)bytes[2] << 8;
    bytes += 3;
    size -= 3;
    struct said one = {0}, two = {0};
    char *whole = parse(bytes, size, size, flags, &one),
         *split = parse(bytes, size, cut % (size + 1), flags, &two);
    if (strcmp(whole, split) != 0)
        abort();
    for (unsigned i = 0; i < 4; i++) {
        if (one.texts[i].size != two.texts[i].size ||
            (one.texts[i].size > 0 && memcmp(one.texts[i].data, two.texts[i].data, one.texts[i].size) != 0))
            abort();
        buffer_free(&one.texts[i]);
        buffer_free(&two.texts[i]);
    }
    free(whole);
    free(split);
    return 0;
}
