/* Opening a checkpoint: the table says what must be there, the headers say what is; here the two are brought
 * together. */
#include "model/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/folder.h"

static const char prefix[] = "language_model.";

/* The original checkpoint stacks the experts' gate and up matrices and keeps the convolution's channels
 * apart; MLX's conversion renames and reshapes both. */
static bool huggingface_layout(const struct checkpoint *checkpoint) {
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct safetensors_entry *entry = checkpoint->tensors[i].entry;
        if (config_skips(entry->name))
            continue;
        if (strncmp(entry->name, "model.language_model.", 21) == 0 ||
            name_ends_with(entry->name, ".mlp.experts.gate_up_proj") ||
            (name_ends_with(entry->name, ".linear_attn.conv1d.weight") && entry->rank == 3 &&
             entry->shape[2] != 1))
            return true;
    }
    return false;
}

/* Tensors that may lie beside those of the table and change nothing. */
static bool harmless(const char *name, const struct config *config) {
    const char *rest = strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
    return config_skips(name) || name_ends_with(name, ".rotary_emb.inv_freq") ||
           (config->tied_embeddings && strncmp(rest, "lm_head.", 8) == 0);
}

static bool is_float(enum dtype dtype) {
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F32;
}

static bool same_shape(const struct weight_part *part, const struct safetensors_entry *entry) {
    return part->rank == entry->rank &&
           memcmp(part->shape, entry->shape, part->rank * sizeof *part->shape) == 0;
}

static bool check_part(const struct weight *weight, const struct weight_part *part,
                       const struct safetensors_entry *entry, const char *file, struct calla_error *error) {
    bool codes = part->dtype == DTYPE_U32;
    if (codes && is_float(entry->dtype))
        return error_set(error, CALLA_BAD_INPUT,
                         "%s: tensor %s is %s, not quantised; config.json asks for %s (U32).", file,
                         entry->name, entry->dtype_name, dtype_name(weight->dtype));
    if (codes ? entry->dtype != DTYPE_U32 : !is_float(entry->dtype))
        return error_set(error, CALLA_BAD_INPUT, "%s: tensor %s has dtype %s; %s is expected.", file,
                         entry->name, entry->dtype_name, codes ? "U32" : "BF16, F16 or F32");
    if (!same_shape(part, entry)) {
        char found[256], expected[256];
        return error_set(error, CALLA_BAD_INPUT, "%s: tensor %s has shape %s; config.json makes it %s%s.",
                         file, entry->name, shape_describe(entry->shape, entry->rank, found, sizeof found),
                         shape_describe(part->shape, part->rank, expected, sizeof expected),
                         codes ? " (packed codes)" : "");
    }
    return true;
}

/* Finds every part of the table, marking in `used` the tensors that were found. */
static bool bind_parts(struct weights *weights, const struct checkpoint *checkpoint, bool *used,
                       const char *folder, struct calla_error *error) {
    bool prefixed = checkpoint_find(checkpoint, "model.norm.weight") == NULL;
    for (uint32_t i = 0; i < weights->table.count; i++) {
        struct weight *weight = &weights->table.weights[i];
        for (uint32_t j = 0; j < weight->part_count; j++) {
            struct weight_part *part = &weight->parts[j];
            if (!prefixed)
                memmove(part->name, part->name + sizeof prefix - 1, strlen(part->name) - sizeof prefix + 2);
            const struct checkpoint_tensor *found = checkpoint_find(checkpoint, part->name);
            if (found == NULL)
                return error_set(
                    error, CALLA_BAD_INPUT,
                    "%s: none of its %u weight files has the tensor %s, which config.json asks for.", folder,
                    checkpoint->file_count, part->name);
            const struct safetensors_entry *entry = found->entry;
            if (!check_part(weight, part, entry, checkpoint->files[found->file].path, error))
                return false;
            used[found - checkpoint->tensors] = true;
            part->dtype = entry->dtype;
            part->bytes = entry->bytes;
            part->file = found->file;
            part->offset = entry->offset;
            weights->bytes += part->bytes;
        }
        if (weight->part_count == 1)
            weight->dtype = weight->parts[0].dtype;
        else if (weight->parts[1].dtype != weight->parts[2].dtype)
            return error_set(error, CALLA_BAD_INPUT,
                             "%s: %s is %s, but %s is %s; the same dtype is expected.", folder,
                             weight->parts[1].name, dtype_name(weight->parts[1].dtype), weight->parts[2].name,
                             dtype_name(weight->parts[2].dtype));
    }
    return true;
}

static bool check_rest(struct weights *weights, const struct config *config,
                       const struct checkpoint *checkpoint, const bool *used, struct calla_error *error) {
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        if (used[i])
            continue;
        const struct checkpoint_tensor *tensor = &checkpoint->tensors[i];
        if (!harmless(tensor->entry->name, config))
            return error_set(error, CALLA_UNSUPPORTED,
                             "%s: tensor %.200s (%s) has no place in the model that config.json describes.",
                             checkpoint->files[tensor->file].path, tensor->entry->name,
                             tensor->entry->dtype_name);
        weights->skipped++;
    }
    for (uint32_t i = 0; i < checkpoint->file_count; i++)
        weights->unused += checkpoint->headers[i].unused;
    return true;
}

bool weights_open(struct weights *weights, const struct config *config, const char *folder,
                  struct calla_error *error) {
    memset(weights, 0, sizeof *weights);
    struct checkpoint checkpoint;
    if (!folder_check(folder, error) || !checkpoint_open(&checkpoint, folder, error))
        return false;
    bool ok;
    bool *used = calloc(checkpoint.tensor_count, sizeof *used);
    if (used == NULL)
        ok = error_memory(error, "the list of tensors", checkpoint.tensor_count);
    else if (huggingface_layout(&checkpoint))
        ok = error_set(
            error, CALLA_UNSUPPORTED,
            "%s is the original checkpoint in Hugging Face's layout; use MLX's 4-bit conversion of it "
            "(mlx-community/Qwen3.6-35B-A3B-4bit, or mlx_lm.convert -q --q-bits 4 --q-group-size 64).",
            folder);
    else
        ok = weight_table_new(&weights->table, config, error) &&
             bind_parts(weights, &checkpoint, used, folder, error) &&
             check_rest(weights, config, &checkpoint, used, error);
    free(used);
    if (ok) {
        weights->files = checkpoint.files;
        weights->file_count = checkpoint.file_count;
        checkpoint.files = NULL;
        for (uint32_t i = 0; i < checkpoint.file_count; i++)
            safetensors_free(&checkpoint.headers[i]);
        checkpoint.file_count = 0;
    }
    checkpoint_close(&checkpoint);
    if (!ok)
        weights_close(weights);
    return ok;
}

void weights_close(struct weights *weights) {
    for (uint32_t i = 0; i < weights->file_count; i++) {
        if (weights->maps != NULL)
            file_unmap(weights->maps[i], weights->files[i].size);
        file_close(&weights->files[i]);
    }
    free(weights->files);
    free((void *)weights->maps);
    weight_table_free(&weights->table);
    memset(weights, 0, sizeof *weights);
}

const void *weights_part(const struct weights *weights, uint32_t weight, uint32_t part) {
    const struct weight_part *found = &weights->table.weights[weight].parts[part];
    return weights->maps[found->file] + found->offset;
}

bool weights_read_part(const struct weights *weights, uint32_t weight, uint32_t part, uint64_t offset,
                       void *out, uint64_t size, struct calla_error *error) {
    const struct weight_part *found = &weights->table.weights[weight].parts[part];
    if (offset > found->bytes || size > found->bytes - offset)
        return error_set(error, CALLA_BAD_INPUT,
                         "Bytes %" PRIu64 " to %" PRIu64 " of tensor %s were asked for; it has %" PRIu64 ".",
                         offset, offset + size, found->name, found->bytes);
    return file_read_at(&weights->files[found->file], found->offset + offset, out, (size_t)size, error);
}
