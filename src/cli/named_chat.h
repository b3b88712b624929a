/* A conversation that has a name: a folder under $XDG_DATA_HOME/calla/chats (without it
 * ~/.local/share/calla/chats) with the messages and what the model has read of them, so that a later chat
 * goes on where this one ended. */
#ifndef CALLA_CLI_NAMED_CHAT_H
#define CALLA_CLI_NAMED_CHAT_H

#include "cli/conversation.h"

struct named_chat {
    char *folder; /* NULL: the conversation has no name */
    char *file;   /* of the messages */
};

/* Bytes that what was read may take, a conversation. */
#define NAMED_CHAT_DISK ((uint64_t)4 << 30)

/* Makes the folder if it is not there, and loads the messages if there are any. */
bool named_chat_open(struct named_chat *chat, const char *name, struct conversation *conversation,
                     struct calla_error *error);
/* Writes the messages down. Does nothing without a name. */
bool named_chat_save(const struct named_chat *chat, const struct conversation *conversation,
                     struct calla_error *error);
void named_chat_close(struct named_chat *chat);

#endif
