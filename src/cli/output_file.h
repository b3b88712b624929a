/* A file that appears complete or not at all: it is written under a name of its own beside it, and takes its
 * name when it is finished. */
#ifndef CALLA_CLI_OUTPUT_FILE_H
#define CALLA_CLI_OUTPUT_FILE_H

#include <stdio.h>

#include "base/error.h"

struct output_file {
    FILE *file; /* write here */
    char *path, *temporary;
};

/* Starts the file; `private` makes it readable by its owner only. What exists under the name stays until the
 * new file is finished. Only a regular file is replaced. */
bool output_file_open(struct output_file *output, const char *path, bool private, struct calla_error *error);

/* Gives the file its name. Also tells of any write that failed since it was opened. */
bool output_file_finish(struct output_file *output, struct calla_error *error);

/* After finishing, or to give up. A zeroed output file is closed harmlessly. */
void output_file_close(struct output_file *output);

#endif
