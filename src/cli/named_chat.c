#include "cli/named_chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define LONGEST_NAME 100

static bool check_name(const char *name, struct calla_error *error) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t size = strlen(name);
    if (size > 0 && size <= LONGEST_NAME && name[0] != '.' && strspn(name, allowed) == size)
        return true;
    return error_set(
        error, CALLA_BAD_INPUT,
        "A conversation's name has 1 to %d letters of a to z, digits, '-', '_' and '.', and begins with "
        "another than '.'; \"%.120s\" is none.",
        LONGEST_NAME, name);
}

static char *folder_of(const char *name, struct calla_error *error) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    struct buffer path = {0};
    if (data != NULL && data[0] == '/')
        buffer_printf(&path, "%s/calla/chats/%s", data, name);
    else if (home != NULL && home[0] == '/')
        buffer_printf(&path, "%s/.local/share/calla/chats/%s", home, name);
    else {
        error_set(error, CALLA_NOT_FOUND,
                  "There is no place for conversations: neither HOME nor XDG_DATA_HOME names a folder.");
        return NULL;
    }
    char *folder = buffer_take(&path, NULL);
    if (folder == NULL)
        error_memory(error, "a file name", strlen(name));
    return folder;
}

bool named_chat_open(struct named_chat *chat, const char *name, struct conversation *conversation,
                     struct calla_error *error) {
    if (!check_name(name, error) || (chat->folder = folder_of(name, error)) == NULL ||
        !folder_make(chat->folder, error))
        return false;
    chat->file = path_join(chat->folder, "conversation.json");
    if (chat->file == NULL)
        return error_memory(error, "a file name", strlen(chat->folder));
    return file_kind(chat->file) == FILE_MISSING || conversation_load(conversation, chat->file, error);
}

bool named_chat_save(const struct named_chat *chat, const struct conversation *conversation,
                     struct calla_error *error) {
    return chat->file == NULL || conversation_save(conversation, chat->file, error);
}

void named_chat_close(struct named_chat *chat) {
    free(chat->folder);
    free(chat->file);
    memset(chat, 0, sizeof *chat);
}
