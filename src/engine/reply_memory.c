#include "engine/reply_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"

#define MOST_REPLIES 4096
#define MOST_BYTES ((size_t)64 << 20)
#define BUCKETS 4096
/* As much as is remembered, and as much again before the file begins anew. */
#define MOST_FILE (2 * MOST_BYTES)

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
    int file;          /* records are appended to it; -1: none */
    size_t file_bytes; /* its size, if nobody else writes into it */
};

struct reply_memory *reply_memory_new(void) {
    struct reply_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return NULL;
    memory->file = -1;
    pthread_mutex_init(&memory->lock, NULL);
    return memory;
}

void reply_memory_free(struct reply_memory *memory) {
    if (memory == NULL)
        return;
    for (size_t i = 0; i < MOST_REPLIES; i++)
        free(memory->entries[i].tokens);
    if (memory->file >= 0)
        close(memory->file);
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

/* With the lock held. Takes the tokens over. */
static void put(struct reply_memory *memory, const unsigned char key[32],
                const unsigned char reasoning[REPLY_DIGEST], int32_t *copy, size_t count) {
    size_t bytes = count * sizeof *copy;
    while (memory->newest - memory->oldest == MOST_REPLIES || memory->bytes + bytes > MOST_BYTES)
        drop_oldest(memory);
    size_t place = memory->newest++ % MOST_REPLIES;
    struct entry *entry = &memory->entries[place];
    *entry = (struct entry){.count = count};
    entry->tokens = copy;
    memcpy(entry->key, key, sizeof entry->key);
    memcpy(entry->reasoning, reasoning, sizeof entry->reasoning);
    uint32_t *bucket = bucket_of(memory, entry->key);
    entry->next = *bucket;
    *bucket = (uint32_t)place + 1;
    memory->bytes += bytes;
}

/* A record: its size in tokens, key, reasoning, tokens, and a digest of all this. */
enum { RECORD_HEAD = 4 + 32 + REPLY_DIGEST, RECORD_END = 32 };

static size_t record_bytes(size_t count) {
    return RECORD_HEAD + count * sizeof(int32_t) + RECORD_END;
}

static void digest_record(const unsigned char *record, size_t count, unsigned char digest[32]) {
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, record, RECORD_HEAD + count * sizeof(int32_t));
    sha256_finish(&hash, digest);
}

/* With the lock held. One write, so that records of several processes do not mix. */
static void write_record(struct reply_memory *memory, const unsigned char key[32],
                         const unsigned char reasoning[REPLY_DIGEST], const int32_t *tokens, size_t count) {
    size_t size = record_bytes(count);
    unsigned char *record = memory->file < 0 ? NULL : malloc(size);
    if (record == NULL)
        return;
    uint32_t stored = (uint32_t)count;
    memcpy(record, &stored, sizeof stored);
    memcpy(record + 4, key, 32);
    memcpy(record + 36, reasoning, REPLY_DIGEST);
    memcpy(record + RECORD_HEAD, tokens, count * sizeof *tokens);
    digest_record(record, count, record + size - RECORD_END);
    ssize_t written;
    do
        written = write(memory->file, record, size);
    while (written < 0 && errno == EINTR);
    struct stat status;
    /* What cannot be written is forgotten; a part of it would hide all that comes after. */
    if (written > 0 && (size_t)written < size && fstat(memory->file, &status) == 0 &&
        status.st_size >= written && ftruncate(memory->file, status.st_size - written) == 0)
        written = 0;
    memory->file_bytes += written > 0 ? (size_t)written : 0;
    free(record);
}

static void write_entry(struct reply_memory *memory, size_t index) {
    const struct entry *entry = &memory->entries[index % MOST_REPLIES];
    write_record(memory, entry->key, entry->reasoning, entry->tokens, entry->count);
}

/* With the lock held. Begins the file anew with what is still remembered once it has grown too large. */
static void keep_file_small(struct reply_memory *memory) {
    if (memory->file < 0 || memory->file_bytes <= MOST_FILE)
        return;
    if (ftruncate(memory->file, 0) != 0)
        return;
    memory->file_bytes = 0;
    for (size_t i = memory->oldest; i < memory->newest; i++)
        write_entry(memory, i);
}

void reply_memory_add(struct reply_memory *memory, const struct remembered *reply, const int32_t *tokens,
                      size_t count) {
    size_t bytes = count * sizeof *tokens;
    int32_t *copy = count == 0 || bytes > MOST_BYTES ? NULL : malloc(bytes);
    if (copy == NULL)
        return;
    memcpy(copy, tokens, bytes);
    unsigned char key[32];
    make_key(reply, key);
    pthread_mutex_lock(&memory->lock);
    write_record(memory, key, reply->reasoning, tokens, count);
    put(memory, key, reply->reasoning, copy, count);
    keep_file_small(memory);
    pthread_mutex_unlock(&memory->lock);
}

/* With the lock held. Takes in one record of at most `left` bytes; 0 if it is not sound, otherwise its size.
 */
static size_t recall(struct reply_memory *memory, const unsigned char *record, size_t left, uint32_t tokens) {
    uint32_t count;
    unsigned char digest[32];
    if (left < record_bytes(1))
        return 0;
    memcpy(&count, record, sizeof count);
    if (count == 0 || count > MOST_BYTES / sizeof(int32_t) || record_bytes(count) > left)
        return 0;
    digest_record(record, count, digest);
    if (memcmp(digest, record + record_bytes(count) - RECORD_END, sizeof digest) != 0)
        return 0;
    int32_t *copy = malloc(count * sizeof *copy);
    if (copy == NULL)
        return 0;
    memcpy(copy, record + RECORD_HEAD, count * sizeof *copy);
    bool known = true;
    for (uint32_t i = 0; i < count; i++)
        known = known && copy[i] >= 0 && (uint32_t)copy[i] < tokens;
    if (known)
        put(memory, record + 4, record + 36, copy, count);
    else
        free(copy);
    return record_bytes(count);
}

bool reply_memory_use_file(struct reply_memory *memory, const char *path, uint32_t tokens) {
    struct buffer bytes = {0};
    size_t sound = 0, size = 0;
    pthread_mutex_lock(&memory->lock);
    size_t before = memory->newest; /* what was added so far is in no file yet */
    if (file_kind(path) == FILE_REGULAR && file_read(path, MOST_FILE + MOST_BYTES, &bytes, NULL)) {
        const unsigned char *data = (const unsigned char *)bytes.data;
        for (size_t step = 1; step > 0; sound += step)
            step = recall(memory, data + sound, bytes.size - sound, tokens);
        size = bytes.size;
    }
    buffer_free(&bytes);
    /* What follows a record that is not sound is cut off. */
    memory->file = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat status;
    bool large = fstat(memory->file, &status) == 0 && status.st_size > (off_t)MOST_FILE;
    bool ok = memory->file >= 0 && (large || sound == size || ftruncate(memory->file, (off_t)sound) == 0);
    memory->file_bytes = large ? (size_t)status.st_size : sound;
    for (size_t i = memory->oldest; ok && i < before; i++)
        write_entry(memory, i);
    keep_file_small(memory);
    pthread_mutex_unlock(&memory->lock);
    return ok;
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
