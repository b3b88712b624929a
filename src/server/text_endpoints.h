/* The endpoints that need the tokenizer and no session: the body of a request in, the body of the answer out.
 * They may run on any thread, several at once. */
#ifndef CALLA_SERVER_TEXT_ENDPOINTS_H
#define CALLA_SERVER_TEXT_ENDPOINTS_H

#include "server/exchange.h"

/* Each appends one JSON object to *out, or fills the refusal and returns false. */
bool tokenize_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                     struct refusal *refusal);
bool detokenize_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                       struct refusal *refusal);
bool apply_template_answer(const struct calla_model *model, const char *body, size_t size, struct buffer *out,
                           struct refusal *refusal);

#endif
