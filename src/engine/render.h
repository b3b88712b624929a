/* Rendering a request that is parsed already, for the server. */
#ifndef CALLA_ENGINE_RENDER_H
#define CALLA_ENGINE_RENDER_H

#include <jansson.h>

#include "base/error.h"

/* What calla_render does, from the request's JSON object. */
bool model_render(const struct calla_model *model, const json_t *request, struct calla_prompt *prompt,
                  struct calla_error *error);

#endif
