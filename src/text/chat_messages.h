/* The messages of a chat request, read and checked: roles known, contents joined to one text each. */
#ifndef CALLA_TEXT_CHAT_MESSAGES_H
#define CALLA_TEXT_CHAT_MESSAGES_H

#include <jansson.h>

#include "base/error.h"
#include "text/slice.h"

enum chat_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };

struct chat_message {
    const json_t *json;
    const char *role_name;
    enum chat_role role;
    struct slice content; /* trimmed */
    char *joined;         /* owned: the text parts of a content list, where there is one */
};

struct chat_messages {
    struct chat_message *messages;
    size_t count;
    size_t leading; /* system messages before the first of another role */
    size_t turn;    /* messages from here on belong to the current turn: their reasoning is shown */
};

/* Reads the "messages" of a request, which must outlive the result. Free it whether or not this succeeds. */
bool chat_messages_read(struct chat_messages *conversation, const json_t *messages,
                        struct calla_error *error);
void chat_messages_free(struct chat_messages *conversation);

/* A JSON string's text; empty for what is no string. */
struct slice chat_string(const json_t *string);

/* A value as an error may quote it: a string short and cut between characters, else what kind it is. */
struct chat_quoted {
    char text[72];
};

struct chat_quoted chat_quote(const json_t *value);

/* An error about a message: its index, its role, what is wrong and what was found. Returns false. */
bool chat_bad_message(struct calla_error *error, size_t index, const struct chat_message *message,
                      const char *what, const char *found);

#endif
