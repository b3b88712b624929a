/* A tree of texts in tokens: each node stands for the text on the way to it from the root, and texts share
 * the part that they begin with. A node may hold a snapshot of a session that has read just that text, in
 * memory, in a file, or both. */
#ifndef CALLA_ENGINE_PREFIX_TREE_H
#define CALLA_ENGINE_PREFIX_TREE_H

#include "engine/snapshots.h"

struct stored_snapshot; /* one in a file */

struct prefix_node {
    struct prefix_node *parent, *child, *sibling;
    int32_t *edge; /* the tokens from the parent to here */
    uint32_t edge_count;
    uint32_t depth; /* tokens from the root to here */
    struct snapshot *snapshot;
    struct stored_snapshot *stored;
    bool wanted, writing;              /* its snapshot is to be stored, is being stored */
    uint32_t uses;                     /* how often something went on from here */
    uint64_t used;                     /* when it last was of use, by the cache's clock */
    struct prefix_node *newer, *older; /* among the nodes with a snapshot in memory */
};

/* A zeroed node is the root of an empty tree; frees all nodes below, which hold nothing any more. */
void prefix_tree_free(struct prefix_node *root);

/* The deepest node whose whole text the tokens begin with. *common is how far they agree with any text of the
 * tree, which may be into an edge below that node. */
struct prefix_node *prefix_tree_find(struct prefix_node *root, const int32_t *tokens, size_t count,
                                     size_t *common);

/* The node of exactly this text (count > 0), new if need be; NULL when memory is short. */
struct prefix_node *prefix_tree_insert(struct prefix_node *root, const int32_t *tokens, size_t count);

/* Takes nodes out that hold nothing and are no fork any more, from this one up. */
void prefix_tree_prune(struct prefix_node *node);

/* Writes the node's text, `depth` tokens. */
void prefix_tree_tokens(const struct prefix_node *node, int32_t *tokens);

#endif
