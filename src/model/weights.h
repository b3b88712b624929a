/* Weights: what the model must have (the table, from the config alone) and where it lies (the checkpoint's
 * files).
 *
 * Plans refer to a weight by its index in the table, so a plan can be made and printed without any weights.
 * The layout of the files is described in docs/weights.md.
 */
#ifndef CALLA_MODEL_WEIGHTS_H
#define CALLA_MODEL_WEIGHTS_H

#include "base/file.h"
#include "model/config.h"

/* One tensor of a checkpoint: bytes in a file. */
struct weight_part {
    char *name; /* "language_model.model.layers.0.mlp.gate.scales" */
    enum dtype dtype;
    uint32_t rank;
    uint64_t shape[4];
    uint64_t bytes;
    uint32_t file; /* filled by weights_open */
    uint64_t offset;
};

/* A matrix or vector: [matrices, rows, columns]. Affine weights have three parts (codes, scales, biases),
 * others one. Vectors are [1, 1, n]; the convolution's taps are [1, channels, taps]. `dtype` is AFFINE4,
 * AFFINE8, or that of the values (BF16, F16 or F32): BF16 in a fresh table, as found in the file after
 * weights_open. Scales and biases of a matrix have one dtype, parts[1].dtype, by the same rule. */
struct weight {
    char *module;
    enum dtype dtype;
    uint32_t matrices, rows, columns;
    uint32_t part_count;
    struct weight_part parts[3];
};

/* Indices into the table. Those of the other kind of layer are WEIGHT_NONE. */
#define WEIGHT_NONE UINT32_MAX
struct layer_weights {
    uint32_t input_norm, post_norm;
    uint32_t qkv, z, b, a, conv, A_log, dt_bias, delta_norm, delta_out; /* gated delta layers */
    uint32_t q, k, v, q_norm, k_norm, o;                                /* attention layers */
    uint32_t router, shared_expert_gate;
    uint32_t shared_gate, shared_up, shared_down;
    uint32_t expert_gate, expert_up, expert_down;
};

struct weight_table {
    struct weight *weights;
    uint32_t count;
    uint32_t embed, final_norm, head; /* head == embed when the embeddings are tied */
    struct layer_weights *layers;
    uint32_t layer_count;
};

/* Lists every weight that a model of this config has, with names, dtypes and shapes. Fails when an override
 * quantises a matrix whose columns are no multiple of the group size. A failed call leaves a zeroed table. */
bool weight_table_new(struct weight_table *table, const struct config *config, struct calla_error *error);
void weight_table_free(struct weight_table *table);
uint64_t weight_bytes(const struct weight *weight);
uint64_t weight_table_bytes(const struct weight_table *table);
uint32_t weight_table_tensors(const struct weight_table *table); /* parts of all weights */

/* The opened checkpoint: the table with every part's file and offset, all checked against the files' headers.
 */
struct weights {
    struct weight_table table;
    struct file *files;
    const uint8_t **maps; /* of the files; NULL before weights_map, and of a file without text tensors */
    uint32_t file_count;
    uint64_t skipped; /* vision and mtp tensors passed over */
    uint64_t unused;  /* bytes of data that belong to no tensor */
    uint64_t bytes;   /* of all weights in the table */
};

/* Opens config.json's weights in `folder`: reads the headers only, and checks that every tensor of the table
 * is there once, with its shape and a dtype that serves, in a file long enough. A tensor that is neither in
 * the table nor of the vision tower or the mtp head is an error: it means another architecture. Tensor names
 * may start with "language_model." or not. A failed call leaves a zeroed struct. */
bool weights_open(struct weights *weights, const struct config *config, const char *folder,
                  struct calla_error *error);
void weights_close(struct weights *weights);

/* Maps the files in place, read only, and (if the machine's memory holds them) reads the weights in, with
 * progress in bytes. A file must not be shortened while it is mapped: its length is checked here, and a page
 * that goes missing later raises SIGBUS. */
bool weights_map(struct weights *weights, const struct calla_progress *progress, struct calla_error *error);

/* The bytes of a part after weights_map: parts[part].bytes of them, at any alignment. */
const void *weights_part(const struct weights *weights, uint32_t weight, uint32_t part);

/* Copies `size` bytes from byte `offset` of a part, mapped or not. May be called from several threads. */
bool weights_read_part(const struct weights *weights, uint32_t weight, uint32_t part, uint64_t offset,
                       void *out, uint64_t size, struct calla_error *error);

#endif
