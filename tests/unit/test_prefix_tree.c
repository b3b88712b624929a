/* The tree against a plain list of texts, on random texts of few tokens, so that they share a lot. */
#include "unit.h"

#include "engine/prefix_tree.h"

#define TEXTS 60
#define LONGEST 12

struct text {
    int32_t tokens[LONGEST];
    size_t count;
    struct prefix_node *node; /* NULL: not in the tree */
};

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % below;
}

static size_t agreement(const struct text *a, const struct text *b) {
    size_t same = 0;
    while (same < a->count && same < b->count && a->tokens[same] == b->tokens[same])
        same++;
    return same;
}

/* Every node but the root holds something or is a fork, and edges add up. */
static size_t check_shape(const struct prefix_node *node) {
    size_t nodes = 1;
    if (node->parent != NULL) {
        assert_int_equal(node->depth, node->parent->depth + node->edge_count);
        assert_true(node->edge_count > 0);
        assert_true(node->snapshot != NULL || (node->child != NULL && node->child->sibling != NULL));
    }
    for (const struct prefix_node *child = node->child; child != NULL; child = child->sibling) {
        assert_ptr_equal(child->parent, node);
        for (const struct prefix_node *other = child->sibling; other != NULL; other = other->sibling)
            assert_int_not_equal(child->edge[0], other->edge[0]);
        nodes += check_shape(child);
    }
    return nodes;
}

static void check_find(struct prefix_node *root, const struct text *texts, const struct text *text) {
    size_t common, most = 0, deepest = 0;
    struct prefix_node *node = prefix_tree_find(root, text->tokens, text->count, &common);
    for (size_t i = 0; i < TEXTS; i++) {
        if (texts[i].node == NULL)
            continue;
        size_t same = agreement(&texts[i], text);
        most = same > most ? same : most;
        if (same == texts[i].count && same > deepest)
            deepest = same;
    }
    assert_int_equal(common, most);
    while (node->parent != NULL && node->snapshot == NULL)
        node = node->parent;
    assert_int_equal(node->depth, deepest);
}

static void random_texts(void **state) {
    (void)state;
    static struct text texts[TEXTS];
    struct prefix_node root = {0};
    struct snapshot mark = {0}; /* stands for a snapshot: the tree does not look at it */
    uint64_t random = 7;
    for (size_t round = 0; round < 20000; round++) {
        struct text *text = &texts[draw(&random, TEXTS)];
        if (text->node != NULL) {
            int32_t tokens[LONGEST];
            assert_int_equal(text->node->depth, text->count);
            prefix_tree_tokens(text->node, tokens);
            assert_memory_equal(tokens, text->tokens, text->count * sizeof *tokens);
            text->node->snapshot = NULL;
            prefix_tree_prune(text->node);
            text->node = NULL;
        } else {
            text->count = 1 + draw(&random, LONGEST);
            for (size_t i = 0; i < text->count; i++)
                text->tokens[i] = (int32_t)draw(&random, 3);
            struct prefix_node *node = prefix_tree_insert(&root, text->tokens, text->count);
            assert_non_null(node);
            if (node->snapshot == NULL) { /* else another text is the same */
                node->snapshot = &mark;
                text->node = node;
            }
        }
        check_find(&root, texts, text);
        if (round % 100 == 0)
            check_shape(&root);
    }
    assert_true(check_shape(&root) > TEXTS / 4);
    for (size_t i = 0; i < TEXTS; i++)
        if (texts[i].node != NULL)
            texts[i].node->snapshot = NULL;
    prefix_tree_free(&root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
