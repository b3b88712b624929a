#include "server/billing_header.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

static const char header[] = "x-anthropic-billing-header:";

/* What follows the line; NULL if the text does not begin with it. */
static const char *after_header(const json_t *text) {
    const char *at = json_string_value(text);
    if (at == NULL)
        return NULL;
    at += strspn(at, " \t\r\n");
    if (strncasecmp(at, header, sizeof header - 1) != 0)
        return NULL;
    at += strcspn(at, "\n");
    return *at == 0 ? at : at + 1;
}

static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

/* The first part's text without the line, in copies of the part and the list. */
static json_t *strip_parts(const json_t *parts) {
    const json_t *part = json_array_get(parts, 0);
    const char *rest = after_header(json_object_get(part, "text"));
    if (rest == NULL)
        return NULL;
    json_t *list = json_copy((json_t *)(uintptr_t)parts), *copy = json_copy((json_t *)(uintptr_t)part);
    if (list == NULL || copy == NULL || json_object_set_new(copy, "text", json_string(rest)) != 0 ||
        json_array_set(list, 0, copy) != 0) {
        json_decref(list);
        list = NULL;
    }
    json_decref(copy);
    return list;
}

json_t *without_billing_header(json_t *messages) {
    json_t *first = json_array_get(messages, 0);
    const json_t *content = json_object_get(first, "content");
    const char *rest = json_is_string(content) ? after_header(content) : NULL;
    bool in_parts =
        json_is_array(content) && after_header(json_object_get(json_array_get(content, 0), "text")) != NULL;
    if (!is_system(first) || (rest == NULL && !in_parts))
        return json_incref(messages);
    json_t *list = json_copy(messages), *copy = json_copy(first);
    json_t *stripped = rest != NULL ? json_string(rest) : strip_parts(content);
    bool ok = list != NULL && copy != NULL && stripped != NULL &&
              json_object_set(copy, "content", stripped) == 0 && json_array_set(list, 0, copy) == 0;
    json_decref(stripped);
    json_decref(copy);
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}
