/* A snapshot as a file: a header that says what it is and vouches for the rest by digests, then tokens,
 * logits, state, keys and values.
 *
 * Keys and values are those of the positions from `base` on. What lies before is in the file of the snapshot
 * that this one grew from, its parent; a file with base 0 stands alone. Numbers are little-endian. */
#ifndef CALLA_ENGINE_SNAPSHOT_FILE_H
#define CALLA_ENGINE_SNAPSHOT_FILE_H

#include "base/file.h"
#include "engine/snapshots.h"

#define SNAPSHOT_DIGEST 32
#define SNAPSHOT_HEADER_BYTES 264

enum snapshot_section { SECTION_TOKENS, SECTION_LOGITS, SECTION_STATE, SECTION_KV, SECTION_COUNT };

struct snapshot_header {
    unsigned char key[SNAPSHOT_DIGEST]; /* model_key */
    uint64_t id, parent;                /* parent 0: none */
    uint32_t base, position;
    uint64_t bytes[SECTION_COUNT]; /* of each section; they follow the header in this order */
    unsigned char digests[SECTION_COUNT][SNAPSHOT_DIGEST];
};

/* Takes a header apart: its own digest, version and arithmetic are checked. `name` is used in errors. */
bool snapshot_header_parse(struct snapshot_header *header, const unsigned char bytes[SNAPSHOT_HEADER_BYTES],
                           const char *name, struct calla_error *error);
uint64_t snapshot_file_bytes(const struct snapshot_header *header);

/* Writes a file beside `path` and then gives it that name: whoever looks sees a whole file or none. `tokens`
 * are the snapshot's. `stop` (may be NULL) is asked now and then whether to give up. */
struct snapshot_writing {
    const struct snapshot *snapshot;
    const int32_t *tokens;
    uint64_t id, parent;
    uint32_t base;
    bool (*stop)(void *user);
    void *user;
};

bool snapshot_file_write(const char *path, const struct snapshot_writing *writing, uint64_t *bytes,
                         struct calla_error *error);

struct snapshot_file {
    struct file file;
    struct snapshot_header header;
};

/* Opens a file and checks that it belongs to the model, is as long as it says and fits the model's layout. */
bool snapshot_file_open(struct snapshot_file *file, const char *path, struct calla_model *model,
                        struct calla_error *error);
void snapshot_file_close(struct snapshot_file *file);

/* The snapshot's tokens, on the heap. */
int32_t *snapshot_file_tokens(const struct snapshot_file *file, struct calla_error *error);
/* Write what the file has into the session's buffers. What a failed call leaves there is not to be used. */
bool snapshot_file_read_kv(const struct snapshot_file *file, struct calla_session *session,
                           struct calla_error *error);
bool snapshot_file_read_state(const struct snapshot_file *file, struct calla_session *session,
                              struct calla_error *error);

/* The digest that a file has of its tokens. */
void snapshot_tokens_digest(const int32_t *tokens, size_t count, unsigned char digest[SNAPSHOT_DIGEST]);

/* The digest that binds a file to the model's weights, the layout of its sessions, the backend and all that
 * decides on its numbers. Computed once, which reads all weights. */
bool model_key(struct calla_model *model, struct calla_error *error);
/* The same where the weights' digest is known. */
bool model_key_of(struct calla_model *model, const unsigned char weights[32], struct calla_error *error);

#endif
