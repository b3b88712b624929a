/* Files of snapshots where the disk is slow, short of room, or loses some of them. */
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "engine/snapshot_store.h"
#include "scratch.h"

#define FIRST 400
#define SECOND 900

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* Stands for the system's: while a test holds the gate, writing takes as long. */
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the system's are reserved words */
int fsync(int descriptor) {
    (void)descriptor;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return 0;
}

/* And this too: a disk of `disk_size` bytes with nothing else on it; 0: an endless one. */
static uint64_t disk_size;
static bool disk_taken; /* by files of others, all that is free */
static const struct snapshot_store *on_disk;

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the system's are reserved words */
int statvfs(const char *path, struct statvfs *status) {
    (void)path;
    struct snapshot_store_info info = {0};
    if (disk_size > 0)
        snapshot_store_info(on_disk, &info);
    *status = (struct statvfs){.f_frsize = 1,
                               .f_bavail = disk_taken      ? 0
                                           : disk_size > 0 ? disk_size - info.bytes
                                                           : 1 << 30};
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

static int sentences;

static void count_sentence(void *user, const char *sentence) {
    (void)user;
    (void)sentence;
    sentences++;
}

struct fixture {
    struct calla_model *model;
    struct calla_session *session;
    struct snapshot_store *store;
    struct prefix_node root;
    char *folder;
};

/* The tree's root must stay where the store knows it, which is only while it opens an empty folder. */
static struct fixture open_all(void) {
    struct calla_model_options options = {.path = "models/calla-tiny", .backend = "cpu", .threads = 2};
    struct fixture fixture = {.folder = scratch_new(), .model = calla_model_open(&options, NULL)};
    assert_non_null(fixture.model);
    fixture.session = calla_session_open(fixture.model, NULL, NULL);
    struct snapshot_store_options where = {
        .folder = fixture.folder, .limit = (uint64_t)1 << 30, .say = count_sentence};
    sentences = 0;
    fixture.store = snapshot_store_open(fixture.model, &where, &fixture.root, NULL);
    assert_non_null(fixture.store);
    return fixture;
}

static void close_all(struct fixture *fixture) {
    snapshot_store_close(fixture->store);
    prefix_tree_free(&fixture->root);
    calla_session_close(fixture->session);
    calla_model_close(fixture->model);
    scratch_remove(fixture->folder);
}

static void a_parent_is_lost_while_its_child_is_written(void **state) {
    (void)state;
    struct fixture fixture = open_all();
    struct calla_session *session = fixture.session;
    struct snapshot_store *store = fixture.store;
    char *folder = fixture.folder;
    static int32_t tokens[SECOND];
    for (int i = 0; i < SECOND; i++)
        tokens[i] = i * 7 % 256;

    struct prefix_node *first = node_of(&fixture.root, session, tokens, FIRST);
    assert_true(snapshot_store_offer(store, first, NULL));
    collect_all(store);
    assert_non_null(first->stored);
    struct prefix_node *second = node_of(&fixture.root, session, tokens, SECOND);
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
    close_all(&fixture);
}

/* The oldest goes where the disk, and not the limit, has no room. */
static void a_short_disk_makes_room(void **state) {
    (void)state;
    struct fixture fixture = open_all();
    static int32_t tokens[FIRST];
    struct prefix_node *nodes[3];
    struct snapshot_store_info info;
    for (int i = 0; i < 3; i++) {
        tokens[0] = i + 1;
        nodes[i] = node_of(&fixture.root, fixture.session, tokens, FIRST);
        assert_true(snapshot_store_offer(fixture.store, nodes[i], NULL));
        collect_all(fixture.store);
        snapshot_store_info(fixture.store, &info);
        on_disk = fixture.store;
        disk_size = info.bytes / info.files * 5 / 2; /* room for two */
        if (nodes[i]->stored != NULL)
            nodes[i]->stored->used = i + 1;
    }
    assert_null(nodes[0]->stored);
    assert_non_null(nodes[2]->stored);
    assert_int_equal(info.files, 2);
    assert_int_equal(sentences, 0);
    /* With room for none it is said, once. */
    disk_taken = true;
    for (int i = 0; i < 2; i++)
        assert_false(snapshot_store_offer(fixture.store, nodes[0], NULL));
    assert_int_equal(sentences, 1);
    disk_taken = false;
    disk_size = 0;
    assert_true(snapshot_store_offer(fixture.store, nodes[0], NULL));
    collect_all(fixture.store);
    assert_non_null(nodes[0]->stored);
    for (int i = 0; i < 3; i++)
        forget(nodes[i]);
    close_all(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_parent_is_lost_while_its_child_is_written),
                                       cmocka_unit_test(a_short_disk_makes_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
