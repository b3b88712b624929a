/* Snapshots in a folder, which outlive the program: written in the background by a thread of its own, read
 * when a text begins like one of them. A file that grew from another has only the keys and values that came
 * after it, so files form trees as texts do; who goes takes along who needs him, and those that nobody needs
 * go first.
 *
 * Nothing in the folder is trusted. What is damaged, of another model or unreadable is told in a line of the
 * log and counts as not there. One process at a time writes into a folder; others read. */
#ifndef CALLA_ENGINE_SNAPSHOT_STORE_H
#define CALLA_ENGINE_SNAPSHOT_STORE_H

#include "engine/prefix_tree.h"

struct snapshot_store;

struct stored_snapshot {
    struct stored_snapshot *next;   /* of all in the folder */
    struct stored_snapshot *parent; /* what it grew from, or NULL */
    struct prefix_node *node;       /* NULL: not of this model; it only takes up room */
    char *name;                     /* of the file, where that does not follow from the id */
    uint64_t id, bytes;
    uint32_t base, position, children;
    bool has_logits;
    int64_t used;             /* seconds since 1970 */
    unsigned char tokens[32]; /* digest */
};

struct snapshot_store_options {
    const char *folder;                            /* made if it is not there */
    uint64_t limit;                                /* bytes */
    void (*say)(void *user, const char *sentence); /* from any thread; may be NULL */
    void *user;
};

/* Opens the folder and hangs what is in it into the tree. */
struct snapshot_store *snapshot_store_open(struct calla_model *model,
                                           const struct snapshot_store_options *options,
                                           struct prefix_node *root, struct calla_error *error);
/* Finishes writing what waits, for some seconds at most. */
void snapshot_store_close(struct snapshot_store *store);

/* Whether another snapshot can be offered: the folder can be written to and few wait. */
bool snapshot_store_ready(struct snapshot_store *store);

/* Has the node's snapshot written, if there is room in the folder and in the queue. `parent` is the node's
 * nearest stored ancestor whose state the snapshot's came from, or NULL. The snapshot must stay until it is
 * collected; node->writing tells. False if nothing came of it. */
bool snapshot_store_offer(struct snapshot_store *store, struct prefix_node *node,
                          struct stored_snapshot *parent);
/* Takes note of what has been written since. */
void snapshot_store_collect(struct snapshot_store *store);

/* Brings a session, which is reset, to a stored snapshot. False if that is not possible: then the session
 * must be reset again, and the snapshot is not stored any more. */
bool snapshot_store_load(struct snapshot_store *store, struct stored_snapshot *stored,
                         struct calla_session *session, const int32_t *tokens);

/* Whether nothing waits to be written or collected. */
bool snapshot_store_idle(struct snapshot_store *store);

struct snapshot_store_info {
    uint64_t limit, bytes, files, written, loaded, failed;
};

void snapshot_store_info(const struct snapshot_store *store, struct snapshot_store_info *info);

#endif
