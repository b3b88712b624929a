#include "text/reply_digest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

/* With its length, so that nothing that follows can be taken for a part of it. */
static void add(struct sha256 *hash, const void *bytes, size_t size) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)size >> 8 * i);
    sha256_add(hash, length, sizeof length);
    sha256_add(hash, bytes, size);
}

/* Above this a double stands for more than one whole number. */
#define LARGEST_WHOLE 9007199254740992.0

/* A whole number in the form of one, or NULL for what is none or is one already: programs that know one kind
 * of number only send 1.0 back as 1, and 1e3 as 1000. */
static json_t *as_whole(const json_t *value) {
    double number = json_real_value(value);
    bool whole = json_is_real(value) && trunc(number) == number && fabs(number) <= LARGEST_WHOLE;
    return whole ? json_integer((json_int_t)number) : NULL;
}

static void make_numbers_whole(json_t *value) {
    const char *key;
    size_t index;
    json_t *member, *whole;
    json_object_foreach(value, key, member) {
        make_numbers_whole(member);
        if ((whole = as_whole(member)) != NULL)
            json_object_iter_set_new(value, json_object_key_to_iter(key), whole);
    }
    json_array_foreach(value, index, member) {
        make_numbers_whole(member);
        if ((whole = as_whole(member)) != NULL)
            json_array_set_new(value, index, whole);
    }
}

/* By value. Takes it over; NULL is no memory. */
static bool add_json(struct sha256 *hash, json_t *value) {
    make_numbers_whole(value);
    json_t *whole = as_whole(value);
    char *text = json_dumps(whole != NULL ? whole : value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    json_decref(whole);
    json_decref(value);
    if (text == NULL)
        return false;
    add(hash, text, strlen(text));
    free(text);
    return true;
}

/* Arguments as the values that they are; what is no JSON as the text that it is, and none as an empty object.
 */
static bool add_arguments(struct sha256 *hash, const json_t *arguments) {
    if (arguments == NULL || json_is_null(arguments)) {
        add(hash, "{}", 2);
        return true;
    }
    if (!json_is_string(arguments))
        return add_json(hash, json_deep_copy(arguments));
    struct slice text =
        slice_trim((struct slice){json_string_value(arguments), json_string_length(arguments)});
    json_t *parsed = text.size == 0
                         ? json_object()
                         : json_loadb(text.text, text.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (parsed == NULL) {
        add(hash, text.text, text.size);
        return true;
    }
    return add_json(hash, parsed);
}

bool reply_digest(struct slice content, const json_t *calls, unsigned char digest[REPLY_DIGEST]) {
    struct sha256 hash;
    sha256_start(&hash);
    content = slice_trim(content);
    add(&hash, content.text, content.size);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        function = function == NULL ? call : function;
        const json_t *name = json_object_get(function, "name");
        add(&hash, json_is_string(name) ? json_string_value(name) : "", json_string_length(name));
        if (!add_arguments(&hash, json_object_get(function, "arguments")))
            return false;
    }
    sha256_finish(&hash, digest);
    return true;
}

void reasoning_digest(struct slice reasoning, unsigned char digest[REPLY_DIGEST]) {
    reasoning = slice_trim(reasoning);
    memset(digest, 0, REPLY_DIGEST);
    if (reasoning.size == 0)
        return;
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, reasoning.text, reasoning.size);
    sha256_finish(&hash, digest);
}
