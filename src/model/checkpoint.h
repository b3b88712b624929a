/* Which safetensors files make up a checkpoint: those that the index names, or those that lie in the folder.
 */
#ifndef CALLA_MODEL_CHECKPOINT_H
#define CALLA_MODEL_CHECKPOINT_H

#include "model/safetensors.h"

/* A tensor of any file of the checkpoint. */
struct checkpoint_tensor {
    const struct safetensors_entry *entry; /* borrowed from headers[file] */
    uint32_t file;
};

struct checkpoint {
    struct file *files;
    struct safetensors *headers;
    uint32_t file_count;
    struct checkpoint_tensor *tensors; /* of all files, sorted by name */
    size_t tensor_count;
};

/* Finds the files, opens them and reads their headers. Names in the index are checked: plain file names, all
 * there, each tensor in the file that the index names. */
bool checkpoint_open(struct checkpoint *checkpoint, const char *folder, struct calla_error *error);
void checkpoint_close(struct checkpoint *checkpoint);
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

#endif
