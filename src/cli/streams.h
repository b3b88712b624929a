/* Whole inputs and outputs: standard input, files, JSON. */
#ifndef CALLA_CLI_STREAMS_H
#define CALLA_CLI_STREAMS_H

#include <jansson.h>
#include <stdio.h>

#include "base/buffer.h"

/* More text than this is taken for a mistake. */
#define STREAM_LIMIT ((size_t)256 << 20)

/* Appends all of standard input, at most STREAM_LIMIT bytes. */
bool read_standard_input(struct buffer *out, struct calla_error *error);

/* Appends a whole file, or standard input for "-". */
bool read_input(const char *path, struct buffer *out, struct calla_error *error);

/* Replaces the file by these bytes, readable by its owner only, or leaves it as it was. */
bool write_file(const char *path, const char *bytes, size_t size, struct calla_error *error);

/* Tells, before long work, what would keep its result from being written. */
bool standard_output_check(struct calla_error *error);

/* Whether whoever read standard output has gone away, as `head` does when it has enough. */
bool standard_output_abandoned(void);

/* Writes a JSON value and a newline to standard output. */
bool print_json(const json_t *value, struct calla_error *error);

/* Appends `text` with U+FFFD for each piece that is not UTF-8 and each zero byte; *replaced tells how many
 * there were. */
bool append_utf8(struct buffer *out, const char *text, size_t size, size_t *replaced);

#endif
