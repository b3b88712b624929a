/* Where the program's own files are: the bundled model, and the tools that a command needs. */
#ifndef CALLA_CLI_MODEL_PATH_H
#define CALLA_CLI_MODEL_PATH_H

#include "base/error.h"

/* The folder of the model, on the heap: `named` (from -m) if not NULL, else the environment's CALLA_MODEL,
 * else the bundled calla-tiny, which *bundled then says. */
char *model_path(const char *named, bool *bundled, struct calla_error *error);

/* The path of a file of tools/, in the source tree or an installation, on the heap. */
char *find_tool(const char *name, struct calla_error *error);

#endif
