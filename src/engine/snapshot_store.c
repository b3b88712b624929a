#include "engine/snapshot_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"
#include "engine/snapshot_file.h"

#define QUEUE 8
#define CLOSE_SECONDS 10.0
static const char ending[] = ".snapshot";

/* A snapshot on its way into a file. */
struct write {
    struct prefix_node *node;
    struct stored_snapshot *parent;
    struct snapshot_writing writing;
    int32_t *tokens;
    uint64_t reserved, bytes;
    bool done, ok, orphan; /* orphan: its parent's file is gone */
    struct calla_error error;
};

struct snapshot_store {
    struct calla_model *model;
    char *folder;
    struct snapshot_store_options options;
    struct stored_snapshot *all;
    struct snapshot_store_info info;
    uint64_t reserved; /* bytes of files that are being written */
    bool disk_short;   /* told, and nothing was written since */
    int lock_file;     /* -1: another process writes here */
    bool started;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing;
    double close_until;
    struct write *queue[QUEUE]; /* the oldest first; those that are done wait to be collected */
    size_t queued;
};

static void say(const struct snapshot_store *store, const char *format, ...) PRINTF_LIKE(2, 3);

static void say(const struct snapshot_store *store, const char *format, ...) {
    char sentence[1400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (store->options.say != NULL)
        store->options.say(store->options.user, sentence);
}

/* The folder */

static char *path_of(const struct snapshot_store *store, const struct stored_snapshot *stored) {
    struct buffer path = {0};
    if (stored->name != NULL)
        buffer_printf(&path, "%s/%s", store->folder, stored->name);
    else
        buffer_printf(&path, "%s/%016" PRIx64 "%s", store->folder, stored->id, ending);
    return buffer_take(&path, NULL);
}

static void stored_free(struct stored_snapshot *stored) {
    free(stored->name);
    free(stored);
}

/* Whether a snapshot that is on its way needs this one. */
static bool is_parent_of_a_write(struct snapshot_store *store, const struct stored_snapshot *stored) {
    bool found = false;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->queued; i++)
        found = found || store->queue[i]->parent == stored;
    pthread_mutex_unlock(&store->lock);
    return found;
}

/* A file that is being written and grows from this one will lack what it needs. */
static void orphan_writes(struct snapshot_store *store, const struct stored_snapshot *stored) {
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->queued; i++)
        if (store->queue[i]->parent == stored) {
            store->queue[i]->parent = NULL;
            store->queue[i]->orphan = true;
        }
    pthread_mutex_unlock(&store->lock);
}

static void forget(struct snapshot_store *store, struct stored_snapshot *stored) {
    orphan_writes(store, stored);
    struct stored_snapshot **link = &store->all;
    while (*link != stored)
        link = &(*link)->next;
    *link = stored->next;
    if (stored->parent != NULL)
        stored->parent->children--;
    store->info.bytes -= stored->bytes;
    store->info.files--;
    if (stored->node != NULL) {
        stored->node->stored = NULL;
        prefix_tree_prune(stored->node);
    }
    stored_free(stored);
}

/* Takes a file away, and before it those that need it. */
static void drop(struct snapshot_store *store, struct stored_snapshot *stored) {
    while (stored->children > 0) {
        struct stored_snapshot *child = store->all;
        while (child->parent != stored)
            child = child->next;
        while (child->children > 0) { /* to a leaf, without recursion */
            struct stored_snapshot *below = store->all;
            while (below->parent != child)
                below = below->next;
            child = below;
        }
        drop(store, child);
    }
    char *path = store->lock_file < 0 ? NULL : path_of(store, stored);
    if (path != NULL)
        unlink(path);
    free(path);
    forget(store, stored);
}

/* What the files may take in all: less than the limit where the disk is short of it. */
static uint64_t disk_limit(const struct snapshot_store *store) {
    struct statvfs status;
    if (statvfs(store->folder, &status) != 0)
        return store->options.limit;
    uint64_t free_bytes = (uint64_t)status.f_bavail * status.f_frsize;
    uint64_t share =
        free_bytes > UINT64_MAX - store->info.bytes ? UINT64_MAX : store->info.bytes + free_bytes;
    share -= share / 10; /* a cache must not fill a disk to the brim */
    return share < store->options.limit ? share : store->options.limit;
}

/* Makes room for `bytes`: files of other models go first, then those that were not of use for longest. */
static bool make_room(struct snapshot_store *store, uint64_t bytes, const struct stored_snapshot *keep) {
    for (uint64_t limit; limit = disk_limit(store), store->info.bytes + store->reserved + bytes > limit;) {
        struct stored_snapshot *oldest = NULL;
        for (struct stored_snapshot *stored = store->all; stored != NULL; stored = stored->next)
            if (stored->children == 0 && stored != keep &&
                (oldest == NULL || (stored->node == NULL && oldest->node != NULL) ||
                 ((stored->node == NULL) == (oldest->node == NULL) && stored->used < oldest->used)) &&
                !is_parent_of_a_write(store, stored))
                oldest = stored;
        if (oldest == NULL)
            return false;
        drop(store, oldest);
    }
    return true;
}

/* Reading the folder */

static size_t hex_digits(const char *name) {
    return strspn(name, "0123456789abcdef");
}

/* Whether a file is one of the cache's: "0123456789abcdef.snapshot". The folder may have others' files too,
 * sessions that their owner saved among them. */
static bool is_snapshot_name(const char *name) {
    return hex_digits(name) == 16 && strcmp(name + 16, ending) == 0;
}

/* And one that was being written: the same with 16 more digits and ".partial". */
static bool is_partial_name(const char *name) {
    size_t size = 16 + sizeof ending - 1;
    return hex_digits(name) == 16 && strncmp(name + 16, ending, sizeof ending - 1) == 0 &&
           name[size] == '.' && hex_digits(name + size + 1) == 16 &&
           strcmp(name + size + 17, ".partial") == 0;
}

static struct stored_snapshot *add(struct snapshot_store *store, const char *name,
                                   const struct stat *status) {
    struct stored_snapshot *stored = calloc(1, sizeof *stored);
    if (stored == NULL || (stored->name = strdup(name)) == NULL) {
        free(stored);
        return NULL;
    }
    stored->bytes = (uint64_t)status->st_size;
    stored->used = (int64_t)status->st_mtime;
    stored->next = store->all;
    store->all = stored;
    store->info.files++;
    store->info.bytes += stored->bytes;
    return stored;
}

/* Takes down what a file says of itself. A file that is no use here stays as one that takes up room. */
static void look_at(struct snapshot_store *store, const char *name) {
    struct stat status;
    char *path = path_join(store->folder, name);
    struct stored_snapshot *stored = path == NULL || lstat(path, &status) != 0 || !S_ISREG(status.st_mode)
                                         ? NULL
                                         : add(store, name, &status);
    struct snapshot_file file;
    struct calla_error error;
    if (stored != NULL && snapshot_file_open(&file, path, store->model, &error)) {
        const struct snapshot_header *header = &file.header;
        stored->id = header->id;
        stored->base = header->base;
        stored->position = header->position;
        stored->has_logits = header->bytes[SECTION_LOGITS] > 0;
        memcpy(stored->tokens, header->digests[SECTION_TOKENS], sizeof stored->tokens);
        snapshot_file_close(&file);
    } else if (stored != NULL) {
        say(store, "Not used for the cache: %s", error.message);
    }
    free(path);
}

static struct stored_snapshot *find(const struct snapshot_store *store, uint64_t id) {
    struct stored_snapshot *stored = store->all;
    while (stored != NULL && (stored->id != id || stored->node == NULL))
        stored = stored->next;
    return stored;
}

static bool is_above(const struct prefix_node *above, const struct prefix_node *node) {
    while (node != NULL && node != above)
        node = node->parent;
    return node != NULL;
}

/* Hangs a file into the tree, below its parent, which must be there already. */
static void hang(struct snapshot_store *store, struct stored_snapshot *stored, struct prefix_node *root) {
    char *path = path_of(store, stored);
    struct snapshot_file file;
    struct calla_error error = {0};
    if (path == NULL || !snapshot_file_open(&file, path, store->model, &error)) {
        free(path);
        return;
    }
    int32_t *tokens = snapshot_file_tokens(&file, &error);
    struct stored_snapshot *parent = file.header.parent == 0 ? NULL : find(store, file.header.parent);
    bool fits = file.header.position == stored->position && /* another file may have taken its place */
                (file.header.parent == 0 || (parent != NULL && parent->position == file.header.base));
    if (tokens == NULL)
        say(store, "Not used for the cache: %s", error.message);
    struct prefix_node *node =
        tokens == NULL || !fits ? NULL : prefix_tree_insert(root, tokens, stored->position);
    if (node != NULL && node->stored == NULL && (parent == NULL || is_above(parent->node, node))) {
        node->stored = stored;
        stored->node = node;
        stored->parent = parent;
        if (parent != NULL)
            parent->children++;
    } else if (node != NULL) {
        prefix_tree_prune(node);
    }
    free(tokens);
    snapshot_file_close(&file);
    free(path);
}

/* Parents before children. */
static void hang_all(struct snapshot_store *store, struct prefix_node *root) {
    for (uint32_t done = 0;;) {
        uint32_t next = UINT32_MAX;
        for (const struct stored_snapshot *stored = store->all; stored != NULL; stored = stored->next)
            if (stored->position > done && stored->position < next)
                next = stored->position;
        if (next == UINT32_MAX)
            return;
        for (struct stored_snapshot *stored = store->all; stored != NULL; stored = stored->next)
            if (stored->position == next && stored->node == NULL)
                hang(store, stored, root);
        done = next;
    }
}

static bool read_folder(struct snapshot_store *store, struct prefix_node *root, struct calla_error *error) {
    DIR *stream = opendir(store->folder);
    if (stream == NULL)
        return error_set(error, CALLA_IO, "The cache's folder %s cannot be read: %s.", store->folder,
                         strerror(errno));
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char *path = path_join(store->folder, entry->d_name);
        if (is_partial_name(entry->d_name) && path != NULL && store->lock_file >= 0)
            unlink(path); /* of a process that was ended */
        else if (is_snapshot_name(entry->d_name))
            look_at(store, entry->d_name);
        free(path);
    }
    closedir(stream);
    hang_all(store, root);
    /* What is in no tree is of another model, damaged, or has lost its parent. */
    make_room(store, 0, NULL);
    return true;
}

/* Writing */

static bool must_stop(void *user) {
    struct snapshot_store *store = user;
    pthread_mutex_lock(&store->lock);
    bool stop = store->closing && system_seconds() > store->close_until;
    pthread_mutex_unlock(&store->lock);
    return stop;
}

/* With the lock held. */
static struct write *next_write(const struct snapshot_store *store) {
    for (size_t i = 0; i < store->queued; i++)
        if (!store->queue[i]->done)
            return store->queue[i];
    return NULL;
}

static void write_one(struct snapshot_store *store, struct write *write) {
    struct buffer path = {0};
    buffer_printf(&path, "%s/%016" PRIx64 "%s", store->folder, write->writing.id, ending);
    write->ok = path.failed ? error_memory(&write->error, "a file name", strlen(store->folder))
                            : snapshot_file_write(path.data, &write->writing, &write->bytes, &write->error);
    buffer_free(&path);
}

static void *write_all(void *argument) {
    struct snapshot_store *store = argument;
    system_give_way();
    pthread_mutex_lock(&store->lock);
    for (;;) {
        struct write *write = next_write(store);
        if (write == NULL && store->closing)
            break;
        if (write == NULL) {
            pthread_cond_wait(&store->changed, &store->lock);
            continue;
        }
        pthread_mutex_unlock(&store->lock);
        write_one(store, write);
        pthread_mutex_lock(&store->lock);
        write->done = true;
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

static uint64_t file_bytes(const struct snapshot_store *store, const struct prefix_node *node,
                           uint32_t base) {
    struct calla_model_info info;
    calla_model_info(store->model, &info);
    return SNAPSHOT_HEADER_BYTES + (uint64_t)node->depth * sizeof(int32_t) + info.session_bytes +
           info.bytes_per_position * (node->depth - base) + snapshot_logits_bytes(node->snapshot);
}

bool snapshot_store_ready(struct snapshot_store *store) {
    pthread_mutex_lock(&store->lock);
    bool ready = store->started && !store->closing && store->queued < QUEUE;
    pthread_mutex_unlock(&store->lock);
    return ready;
}

bool snapshot_store_offer(struct snapshot_store *store, struct prefix_node *node,
                          struct stored_snapshot *parent) {
    uint32_t base = parent == NULL ? 0 : parent->position;
    uint64_t bytes = file_bytes(store, node, base);
    if (!snapshot_store_ready(store) || node->stored != NULL || node->writing || bytes > store->options.limit)
        return false;
    if (!make_room(store, bytes, parent)) {
        if (!store->disk_short && disk_limit(store) < store->options.limit) {
            say(store, "A snapshot was not written: the disk of %s has no room for it.", store->folder);
            store->disk_short = true;
        }
        return false;
    }
    struct write *write = calloc(1, sizeof *write);
    int32_t *tokens = malloc(node->depth * sizeof *tokens);
    if (write == NULL || tokens == NULL) {
        free(write);
        free(tokens);
        return false;
    }
    prefix_tree_tokens(node, tokens);
    *write = (struct write){.node = node, .parent = parent, .tokens = tokens, .reserved = bytes};
    write->writing = (struct snapshot_writing){.snapshot = node->snapshot,
                                               .tokens = tokens,
                                               .id = node->snapshot->id,
                                               .parent = parent == NULL ? 0 : parent->id,
                                               .base = base,
                                               .stop = must_stop,
                                               .user = store};
    node->writing = true;
    store->reserved += bytes;
    pthread_mutex_lock(&store->lock);
    store->queue[store->queued++] = write;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->lock);
    return true;
}

/* Keeps account of a file that has been written. */
static void take_down(struct snapshot_store *store, const struct write *write) {
    struct stored_snapshot *stored = calloc(1, sizeof *stored);
    if (stored == NULL)
        return; /* the next start will find it */
    *stored = (struct stored_snapshot){.next = store->all,
                                       .parent = write->parent,
                                       .node = write->node,
                                       .id = write->writing.id,
                                       .bytes = write->bytes,
                                       .base = write->writing.base,
                                       .position = write->node->depth,
                                       .has_logits = write->writing.snapshot->logits != NULL,
                                       .used = (int64_t)time(NULL)};
    snapshot_tokens_digest(write->tokens, write->node->depth, stored->tokens);
    store->all = stored;
    write->node->stored = stored;
    if (write->parent != NULL)
        write->parent->children++;
    store->info.files++;
    store->info.bytes += stored->bytes;
    store->info.written++;
    store->disk_short = false;
}

static void remove_written(const struct snapshot_store *store, const struct write *write) {
    struct stored_snapshot written = {.id = write->writing.id};
    char *path = path_of(store, &written);
    if (path != NULL)
        unlink(path);
    free(path);
}

void snapshot_store_collect(struct snapshot_store *store) {
    for (;;) {
        struct write *write = NULL;
        pthread_mutex_lock(&store->lock);
        for (size_t i = 0; i < store->queued && write == NULL; i++)
            if (store->queue[i]->done) {
                write = store->queue[i];
                store->queued--;
                memmove(&store->queue[i], &store->queue[i + 1], (store->queued - i) * sizeof *store->queue);
            }
        pthread_mutex_unlock(&store->lock);
        if (write == NULL)
            return;
        store->reserved -= write->reserved;
        write->node->writing = false;
        if (write->ok && write->orphan) {
            remove_written(store, write);
        } else if (write->ok) {
            take_down(store, write);
        } else {
            store->info.failed++;
            if (write->error.status != CALLA_CANCELLED)
                say(store, "A snapshot was not written: %s", write->error.message);
        }
        free(write->tokens);
        free(write);
    }
}

bool snapshot_store_idle(struct snapshot_store *store) {
    pthread_mutex_lock(&store->lock);
    bool idle = store->queued == 0;
    pthread_mutex_unlock(&store->lock);
    return idle;
}

/* Reading a snapshot */

/* One file of a chain: that of the snapshot itself gives its state too. */
static bool load_file(const struct snapshot_store *store, const struct stored_snapshot *stored, bool last,
                      struct calla_session *session, struct calla_error *error) {
    char *path = path_of(store, stored);
    struct snapshot_file file;
    if (path == NULL)
        return error_memory(error, "a file name", 0);
    bool ok = snapshot_file_open(&file, path, store->model, error);
    free(path);
    if (!ok)
        return false;
    const struct snapshot_header *header = &file.header;
    if (header->id != stored->id || header->base != stored->base || header->position != stored->position ||
        memcmp(header->digests[SECTION_TOKENS], stored->tokens, sizeof stored->tokens) != 0)
        ok = error_set(error, CALLA_BAD_INPUT, "%s is not the file that it was.", file.file.path);
    ok = ok && snapshot_file_read_kv(&file, session, error) &&
         (!last || snapshot_file_read_state(&file, session, error));
    snapshot_file_close(&file);
    return ok;
}

bool snapshot_store_load(struct snapshot_store *store, struct stored_snapshot *stored,
                         struct calla_session *session, const int32_t *tokens) {
    struct calla_error error = {0};
    struct stored_snapshot *at = stored;
    bool ok = true;
    /* From the end to the beginning: the order does not matter. */
    for (; ok && at != NULL; at = ok ? at->parent : at)
        ok = load_file(store, at, at == stored, session, &error);
    if (!ok) {
        store->info.failed++;
        say(store, "A snapshot was not used: %s", error.message);
        drop(store, at);
        return false;
    }
    session_stands(session, tokens, stored->position, stored->has_logits);
    store->info.loaded++;
    for (at = stored; at != NULL; at = at->parent) {
        char *path = store->lock_file < 0 ? NULL : path_of(store, at);
        at->used = (int64_t)time(NULL);
        if (path != NULL)
            utimensat(AT_FDCWD, path, NULL, 0);
        free(path);
    }
    return true;
}

/* The beginning and the end */

static void lock_folder(struct snapshot_store *store) {
    char *path = path_join(store->folder, "lock");
    store->lock_file = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (store->lock_file >= 0 && flock(store->lock_file, LOCK_EX | LOCK_NB) != 0) {
        close(store->lock_file);
        store->lock_file = -1;
    }
    if (store->lock_file < 0)
        say(store,
            "Another process writes into the cache's folder %s, or it cannot be written to; it is only read.",
            store->folder);
    free(path);
}

struct snapshot_store *snapshot_store_open(struct calla_model *model,
                                           const struct snapshot_store_options *options,
                                           struct prefix_node *root, struct calla_error *error) {
    if (!folder_make(options->folder, error) || !model_key(model, error))
        return NULL;
    struct snapshot_store *store = calloc(1, sizeof *store);
    if (store == NULL || (store->folder = strdup(options->folder)) == NULL) {
        free(store);
        error_memory(error, "the cache", sizeof *store);
        return NULL;
    }
    store->model = model;
    store->options = *options;
    store->info.limit = options->limit;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, NULL);
    lock_folder(store);
    bool ok = read_folder(store, root, error);
    if (ok && store->lock_file >= 0)
        store->started = pthread_create(&store->thread, NULL, write_all, store) == 0;
    if (ok)
        return store;
    snapshot_store_close(store);
    return NULL;
}

void snapshot_store_close(struct snapshot_store *store) {
    if (store == NULL)
        return;
    pthread_mutex_lock(&store->lock);
    store->closing = true;
    store->close_until = system_seconds() + CLOSE_SECONDS;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->lock);
    if (store->started)
        pthread_join(store->thread, NULL);
    snapshot_store_collect(store);
    while (store->all != NULL) {
        struct stored_snapshot *stored = store->all;
        store->all = stored->next;
        if (stored->node != NULL)
            stored->node->stored = NULL;
        stored_free(stored);
    }
    if (store->lock_file >= 0)
        close(store->lock_file);
    pthread_mutex_destroy(&store->lock);
    pthread_cond_destroy(&store->changed);
    free(store->folder);
    free(store);
}

void snapshot_store_info(const struct snapshot_store *store, struct snapshot_store_info *info) {
    *info = store->info;
}
