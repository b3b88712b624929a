/* Changes to a chat-completions request before it is read. */
#ifndef CALLA_CLI_REQUEST_H
#define CALLA_CLI_REQUEST_H

#include <jansson.h>

#include "base/error.h"

/* Asks for an answer without thinking, whatever the request says. */
bool request_disable_thinking(json_t *request, struct calla_error *error);

/* Gives the conversation this system message, in place of the one it begins with if it does. */
bool request_set_system(json_t *request, const char *text, struct calla_error *error);

#endif
