/* What a chat-completions request says beyond its messages: how to sample and how long. */
#ifndef CALLA_CLI_REQUEST_H
#define CALLA_CLI_REQUEST_H

#include <jansson.h>

#include "base/error.h"

/* Overrides the sampling and the number of tokens at most by what the request names; null is the same as
 * absent. What cannot be honoured ("stop", "n" above 1, a "response_format" other than text, ...) is an error
 * that names it, "tool_choice" "none" takes the tools out;
 * what does not concern generation ("model", "stream", "user") is passed over. The biases are
 * on the heap: free *biases after the last use of the options. */
bool request_apply(json_t *request, struct calla_generate_options *options, struct calla_logit_bias **biases,
                   struct calla_error *error);

/* Asks for an answer without thinking, whatever the request says. */
bool request_disable_thinking(json_t *request, struct calla_error *error);

/* Gives the conversation this system message, in place of the one it begins with if it does. */
bool request_set_system(json_t *request, const char *text, struct calla_error *error);

#endif
