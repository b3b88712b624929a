/* The messages of a chat, and their file: {"messages": [...]}, which `calla run --request` takes as well. */
#ifndef CALLA_CLI_CONVERSATION_H
#define CALLA_CLI_CONVERSATION_H

#include <jansson.h>

#include "base/error.h"

struct conversation {
    json_t *messages; /* a system message at most at the beginning */
};

bool conversation_open(struct conversation *conversation, struct calla_error *error);
void conversation_close(struct conversation *conversation);

/* The system message, or NULL. */
const char *conversation_system(const struct conversation *conversation);
/* Sets it; NULL takes it away. The text must be UTF-8. */
bool conversation_set_system(struct conversation *conversation, const char *text, struct calla_error *error);

bool conversation_add_user(struct conversation *conversation, const char *text, size_t size,
                           struct calla_error *error);
bool conversation_add_reply(struct conversation *conversation, const struct calla_reply *reply,
                            struct calla_error *error);
void conversation_drop_last(struct conversation *conversation);

/* Forgets everything but the system message. */
void conversation_reset(struct conversation *conversation);

bool conversation_save(const struct conversation *conversation, const char *path, struct calla_error *error);

/* Replaces the conversation by a saved one, or by any list of messages; each message is checked. On failure
 * the conversation stays. */
bool conversation_load(struct conversation *conversation, const char *path, struct calla_error *error);

/* The body of the request for the next reply (free with free()). The thinking of earlier turns is kept in it:
 * what the model has read stays a prefix of what it reads next, so that only the new message is computed. */
char *conversation_request(const struct conversation *conversation, bool thinking, struct calla_error *error);

#endif
