/* What happens to files that are being written when those that they grow from are lost. */
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "engine/snapshot_store.h"
#include "scratch.h"

#define FIRST 400
#define SECOND 900

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* Stands for the system's: while a test holds the gate, writing takes as long. */
int fsync(int descriptor) {
    (void)descriptor;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return 0;
}

static struct prefix_node *node_of(struct prefix_node *root, struct calla_session *session,
                                   const int32_t *tokens, size_t count) {
    assert_true(calla_session_read(session, tokens, count, NULL, NULL, NULL));
    struct prefix_node *node = prefix_tree_insert(root, tokens, count);
    assert_non_null(node);
    node->snapshot = snapshot_take(session, NULL);
    assert_non_null(node->snapshot);
    return node;
}

static void collect_all(struct snapshot_store *store) {
    for (int i = 0; i < 2000 && !snapshot_store_idle(store); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        snapshot_store_collect(store);
    }
    assert_true(snapshot_store_idle(store));
}

static void forget(struct prefix_node *node) {
    snapshot_free(node->snapshot);
    node->snapshot = NULL;
}

static void a_parent_is_lost_while_its_child_is_written(void **state) {
    (void)state;
    struct calla_model_options options = {.path = "models/calla-tiny", .backend = "cpu", .threads = 2};
    struct calla_model *model = calla_model_open(&options, NULL);
    assert_non_null(model);
    struct calla_session *session = calla_session_open(model, NULL, NULL);
    char *folder = scratch_new();
    struct prefix_node root = {0};
    struct snapshot_store_options where = {.folder = folder, .limit = (uint64_t)1 << 30};
    struct snapshot_store *store = snapshot_store_open(model, &where, &root, NULL);
    assert_non_null(store);
    static int32_t tokens[SECOND];
    for (int i = 0; i < SECOND; i++)
        tokens[i] = i * 7 % 256;

    struct prefix_node *first = node_of(&root, session, tokens, FIRST);
    assert_true(snapshot_store_offer(store, first, NULL));
    collect_all(store);
    assert_non_null(first->stored);
    struct prefix_node *second = node_of(&root, session, tokens, SECOND);
    pthread_mutex_lock(&gate);
    assert_true(snapshot_store_offer(store, second, first->stored));

    char name[40];
    snprintf(name, sizeof name, "%016llx.snapshot", (unsigned long long)first->stored->id);
    scratch_write_text(folder, name, "damaged");
    assert_true(calla_session_reset(session, NULL));
    assert_false(snapshot_store_load(store, first->stored, session, tokens));
    assert_null(first->stored);
    pthread_mutex_unlock(&gate);
    collect_all(store);
    /* A file that lacks what it grew from is of no use. */
    assert_null(second->stored);
    assert_false(second->writing);
    snprintf(name, sizeof name, "%016llx.snapshot", (unsigned long long)second->snapshot->id);
    char *path = scratch_path(folder, name);
    assert_int_not_equal(access(path, F_OK), 0);
    free(path);
    /* Alone it can be written again. */
    assert_true(snapshot_store_offer(store, second, NULL));
    collect_all(store);
    assert_non_null(second->stored);
    assert_true(calla_session_reset(session, NULL));
    assert_true(snapshot_store_load(store, second->stored, session, tokens));
    assert_int_equal(calla_session_position(session), SECOND);

    forget(first);
    forget(second);
    snapshot_store_close(store);
    prefix_tree_free(&root);
    calla_session_close(session);
    calla_model_close(model);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_parent_is_lost_while_its_child_is_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
