#include "engine/prefix_tree.h"

#include <stdlib.h>
#include <string.h>

static struct prefix_node **child_link(struct prefix_node *node, int32_t token) {
    struct prefix_node **link = &node->child;
    while (*link != NULL && (*link)->edge[0] != token)
        link = &(*link)->sibling;
    return link;
}

static size_t agreement(const int32_t *a, const int32_t *b, size_t count) {
    size_t same = 0;
    while (same < count && a[same] == b[same])
        same++;
    return same;
}

/* Goes down as far as whole edges agree. *below is how many tokens of the next edge do, *next that edge's
 * node or NULL. */
static struct prefix_node *descend(struct prefix_node *node, const int32_t *tokens, size_t count,
                                   struct prefix_node **next, uint32_t *below) {
    *next = NULL;
    *below = 0;
    while (node->depth < count) {
        struct prefix_node *child = *child_link(node, tokens[node->depth]);
        if (child == NULL)
            return node;
        size_t left = count - node->depth, most = left < child->edge_count ? left : child->edge_count;
        size_t same = agreement(child->edge, tokens + node->depth, most);
        if (same < child->edge_count) {
            *next = child;
            *below = (uint32_t)same;
            return node;
        }
        node = child;
    }
    return node;
}

struct prefix_node *prefix_tree_find(struct prefix_node *root, const int32_t *tokens, size_t count,
                                     size_t *common) {
    struct prefix_node *next;
    uint32_t below;
    struct prefix_node *node = descend(root, tokens, count, &next, &below);
    *common = (size_t)node->depth + below;
    return node;
}

static void node_free(struct prefix_node *node) {
    free(node->edge);
    free(node);
}

static struct prefix_node *node_new(const int32_t *edge, size_t count, struct prefix_node *parent,
                                    uint32_t depth) {
    struct prefix_node *node = calloc(1, sizeof *node);
    int32_t *copy = calloc(count, sizeof *copy);
    if (node == NULL || copy == NULL) {
        free(node);
        free(copy);
        return NULL;
    }
    memcpy(copy, edge, count * sizeof *copy);
    node->edge = copy;
    node->edge_count = (uint32_t)count;
    node->parent = parent;
    node->depth = depth;
    return node;
}

/* Puts a node into the edge above `child`, `above` tokens from its beginning. */
static struct prefix_node *split(struct prefix_node *child, uint32_t above) {
    struct prefix_node *parent = child->parent;
    struct prefix_node *node = node_new(child->edge, above, parent, parent->depth + above);
    if (node == NULL)
        return NULL;
    struct prefix_node **link = child_link(parent, child->edge[0]);
    node->sibling = child->sibling;
    *link = node;
    node->child = child;
    child->parent = node;
    child->sibling = NULL;
    child->edge_count -= above;
    memmove(child->edge, child->edge + above, child->edge_count * sizeof *child->edge);
    return node;
}

struct prefix_node *prefix_tree_insert(struct prefix_node *root, const int32_t *tokens, size_t count) {
    struct prefix_node *next;
    uint32_t below;
    struct prefix_node *node = descend(root, tokens, count, &next, &below);
    if (next != NULL && (node = split(next, below)) == NULL)
        return NULL;
    if (node->depth == count)
        return node;
    struct prefix_node *leaf = node_new(tokens + node->depth, count - node->depth, node, (uint32_t)count);
    if (leaf == NULL) {
        prefix_tree_prune(node);
        return NULL;
    }
    leaf->sibling = node->child;
    node->child = leaf;
    return leaf;
}

static bool holds_nothing(const struct prefix_node *node) {
    return node->snapshot == NULL && node->stored == NULL;
}

/* Lets a node that is no fork go up into its only child's edge. When memory is short it stays; it does no
 * harm.
 */
static void join(struct prefix_node *node) {
    struct prefix_node *child = node->child;
    size_t count = (size_t)node->edge_count + child->edge_count;
    int32_t *edge = malloc(count * sizeof *edge);
    if (edge == NULL)
        return;
    memcpy(edge, node->edge, node->edge_count * sizeof *edge);
    memcpy(edge + node->edge_count, child->edge, child->edge_count * sizeof *edge);
    *child_link(node->parent, node->edge[0]) = child;
    free(child->edge);
    child->edge = edge;
    child->edge_count = (uint32_t)count;
    child->parent = node->parent;
    child->sibling = node->sibling;
    node_free(node);
}

void prefix_tree_prune(struct prefix_node *node) {
    while (node->parent != NULL && holds_nothing(node) && node->child == NULL) {
        struct prefix_node *parent = node->parent;
        *child_link(parent, node->edge[0]) = node->sibling;
        node_free(node);
        node = parent;
    }
    if (node->parent != NULL && holds_nothing(node) && node->child->sibling == NULL)
        join(node);
}

void prefix_tree_tokens(const struct prefix_node *node, int32_t *tokens) {
    for (; node->parent != NULL; node = node->parent)
        memcpy(tokens + node->parent->depth, node->edge, node->edge_count * sizeof *tokens);
}

void prefix_tree_free(struct prefix_node *root) {
    struct prefix_node *node = root;
    while (node->child != NULL || node != root) {
        if (node->child != NULL) {
            node = node->child;
            continue;
        }
        struct prefix_node *parent = node->parent;
        parent->child = node->sibling;
        node_free(node);
        node = parent;
    }
}
