/* What the weights are, in 32 bytes: every byte of every tensor counts, the files that they lie in do not, so
 * a copy of a checkpoint is the same one. */
#ifndef CALLA_MODEL_WEIGHTS_DIGEST_H
#define CALLA_MODEL_WEIGHTS_DIGEST_H

#include "model/weights.h"

#define WEIGHTS_DIGEST 32

/* Reads all weights, once: what was found is written down in `folder` (NULL: nowhere; made if it is not
 * there), for these files as long as they are not written to: device, number, size and times of each.
 * Progress in bytes. */
bool weights_digest(const struct weights *weights, const char *folder, const struct calla_progress *progress,
                    unsigned char digest[WEIGHTS_DIGEST], struct calla_error *error);

#endif
