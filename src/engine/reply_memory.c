#include "engine/reply_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

#define MOST_REPLIES 4096
#define MOST_BYTES ((size_t)64 << 20)
#define BUCKETS 4096

struct entry {
    unsigned char key[32], reasoning[REPLY_DIGEST];
    int32_t *tokens; /* NULL: a free place */
    size_t count;
    uint32_t next; /* in its bucket, plus 1 */
};

/* A ring: the next reply takes the place of the oldest. */
struct reply_memory {
    pthread_mutex_t lock;
    struct entry entries[MOST_REPLIES];
    uint32_t buckets[BUCKETS]; /* the first entry, plus 1 */
    size_t oldest, newest;     /* [oldest, newest) are in use, counted on and on */
    size_t bytes;
};

struct reply_memory *reply_memory_new(void) {
    struct reply_memory *memory = calloc(1, sizeof *memory);
    if (memory != NULL)
        pthread_mutex_init(&memory->lock, NULL);
    return memory;
}

void reply_memory_free(struct reply_memory *memory) {
    if (memory == NULL)
        return;
    for (size_t i = 0; i < MOST_REPLIES; i++)
        free(memory->entries[i].tokens);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

/* The tokens are hashed as they lie in memory: keys never leave it. */
static void make_key(const struct remembered *reply, unsigned char key[32]) {
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, reply->said, sizeof reply->said);
    sha256_add(&hash, reply->before, reply->before_count * sizeof *reply->before);
    sha256_finish(&hash, key);
}

static uint32_t *bucket_of(struct reply_memory *memory, const unsigned char key[32]) {
    return &memory->buckets[(key[0] | (uint32_t)key[1] << 8) % BUCKETS];
}

static void drop_oldest(struct reply_memory *memory) {
    size_t place = memory->oldest++ % MOST_REPLIES;
    struct entry *entry = &memory->entries[place];
    uint32_t *link = bucket_of(memory, entry->key);
    while (*link != place + 1)
        link = &memory->entries[*link - 1].next;
    *link = entry->next;
    memory->bytes -= entry->count * sizeof *entry->tokens;
    free(entry->tokens);
    entry->tokens = NULL;
}

void reply_memory_add(struct reply_memory *memory, const struct remembered *reply, const int32_t *tokens,
                      size_t count) {
    size_t bytes = count * sizeof *tokens;
    int32_t *copy = count == 0 || bytes > MOST_BYTES ? NULL : malloc(bytes);
    if (copy == NULL)
        return;
    memcpy(copy, tokens, bytes);
    pthread_mutex_lock(&memory->lock);
    while (memory->newest - memory->oldest == MOST_REPLIES || memory->bytes + bytes > MOST_BYTES)
        drop_oldest(memory);
    size_t place = memory->newest++ % MOST_REPLIES;
    struct entry *entry = &memory->entries[place];
    *entry = (struct entry){.tokens = copy, .count = count};
    make_key(reply, entry->key);
    memcpy(entry->reasoning, reply->reasoning, sizeof entry->reasoning);
    uint32_t *bucket = bucket_of(memory, entry->key);
    entry->next = *bucket;
    *bucket = (uint32_t)place + 1;
    memory->bytes += bytes;
    pthread_mutex_unlock(&memory->lock);
}

static bool append(struct calla_tokens *tokens, const struct entry *entry) {
    int32_t *ids = realloc(tokens->ids, (tokens->count + entry->count) * sizeof *ids);
    if (ids == NULL)
        return false;
    memcpy(ids + tokens->count, entry->tokens, entry->count * sizeof *ids);
    tokens->ids = ids;
    tokens->count += entry->count;
    return true;
}

bool reply_memory_find(struct reply_memory *memory, const struct remembered *reply,
                       struct calla_tokens *tokens) {
    static const unsigned char none[REPLY_DIGEST];
    unsigned char key[32];
    make_key(reply, key);
    bool left_out = memcmp(reply->reasoning, none, sizeof none) == 0, found = false;
    pthread_mutex_lock(&memory->lock);
    for (uint32_t at = *bucket_of(memory, key); at != 0 && !found; at = memory->entries[at - 1].next) {
        const struct entry *entry = &memory->entries[at - 1];
        if (memcmp(entry->key, key, sizeof key) == 0 &&
            (left_out || memcmp(entry->reasoning, reply->reasoning, sizeof none) == 0))
            found = append(tokens, entry);
    }
    pthread_mutex_unlock(&memory->lock);
    return found;
}
