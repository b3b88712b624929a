/* A line that some clients put before the system prompt, x-anthropic-billing-header, has another value in
 * each request and says nothing to a model; with it no two prompts begin alike. */
#ifndef CALLA_SERVER_BILLING_HEADER_H
#define CALLA_SERVER_BILLING_HEADER_H

#include <jansson.h>

/* The messages, a new reference, without that line at the beginning of the first one's text if it is the
 * system's; NULL when memory is short. */
json_t *without_billing_header(json_t *messages);

#endif
