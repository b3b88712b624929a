/* A cryptographic hash of 20 GB takes a minute and more. So pieces of a megabyte are first brought down to
 * 128 bytes, by sums that lose no single change and run at the speed of memory, and SHA-256 takes those. That
 * tells checkpoints apart which differ for any reason but one: that somebody made them to be taken for each
 * other. */
#include "model/weights_digest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"

#define PIECE ((uint64_t)1 << 20)
#define LANES 16

/* Each step is one to one in the lane and in the word, so two inputs that differ in one word of a lane end
 * with different lanes. */
static void reduce(const unsigned char *bytes, size_t size, uint64_t lanes[LANES]) {
    unsigned char rest[LANES * 8] = {0};
    size_t whole = size / sizeof rest * sizeof rest;
    memcpy(rest, bytes + whole, size - whole);
    for (size_t i = 0; i < LANES; i++)
        lanes[i] = size + i;
    for (size_t at = 0; at <= whole; at += sizeof rest) {
        const unsigned char *from = at < whole ? bytes + at : rest;
        for (size_t i = 0; i < LANES; i++) {
            uint64_t word;
            memcpy(&word, from + 8 * i, sizeof word);
            word ^= lanes[i];
            lanes[i] = (word << 29 | word >> 35) * UINT64_C(0x9e3779b97f4a7c15);
        }
    }
}

static bool add_part(struct sha256 *hash, const struct weights *weights, uint32_t weight, uint32_t part,
                     unsigned char *piece, struct calla_error *error) {
    const struct weight_part *described = &weights->table.weights[weight].parts[part];
    bool mapped = weights->maps != NULL && weights->maps[described->file] != NULL;
    for (uint64_t at = 0; at < described->bytes; at += PIECE) {
        uint64_t size = described->bytes - at < PIECE ? described->bytes - at : PIECE;
        const unsigned char *bytes = piece;
        if (mapped)
            bytes = (const unsigned char *)weights_part(weights, weight, part) + at;
        else if (!weights_read_part(weights, weight, part, at, piece, size, error))
            return false;
        uint64_t lanes[LANES];
        reduce(bytes, (size_t)size, lanes);
        sha256_add(hash, lanes, sizeof lanes);
    }
    return true;
}

static bool read_all(const struct weights *weights, const struct calla_progress *progress,
                     unsigned char digest[WEIGHTS_DIGEST], struct calla_error *error) {
    unsigned char *piece = malloc(PIECE);
    if (piece == NULL)
        return error_memory(error, "a digest of the weights", PIECE);
    struct sha256 hash;
    sha256_start(&hash);
    uint64_t done = 0;
    bool ok = true;
    for (uint32_t i = 0; ok && i < weights->table.count; i++)
        for (uint32_t part = 0; ok && part < weights->table.weights[i].part_count; part++) {
            const struct weight_part *described = &weights->table.weights[i].parts[part];
            uint64_t shape[] = {described->dtype, described->bytes};
            sha256_add(&hash, described->name, strlen(described->name) + 1);
            sha256_add(&hash, shape, sizeof shape);
            ok = add_part(&hash, weights, i, part, piece, error);
            done += described->bytes;
            if (ok && progress != NULL && progress->report != NULL &&
                !progress->report(progress->user, "hashing weights", done, weights->bytes))
                ok = error_set(error, CALLA_CANCELLED, "Stopped while hashing weights.");
        }
    sha256_finish(&hash, digest);
    free(piece);
    return ok;
}

/* What was found before */

/* What of the files changes when they do; false if that may have been too lately for their times to tell. */
static bool identify(const struct weights *weights, unsigned char identity[32]) {
    struct sha256 hash;
    time_t now = time(NULL);
    bool settled = true;
    sha256_start(&hash);
    for (uint32_t i = 0; i < weights->file_count; i++) {
        struct stat status;
        if (fstat(weights->files[i].descriptor, &status) != 0)
            return false;
#if defined(__APPLE__)
        struct timespec modified = status.st_mtimespec, changed = status.st_ctimespec;
#else
        struct timespec modified = status.st_mtim, changed = status.st_ctim;
#endif
        uint64_t facts[] = {(uint64_t)status.st_dev,   (uint64_t)status.st_ino,    (uint64_t)status.st_size,
                            (uint64_t)modified.tv_sec, (uint64_t)modified.tv_nsec, (uint64_t)changed.tv_sec,
                            (uint64_t)changed.tv_nsec};
        sha256_add(&hash, facts, sizeof facts);
        settled = settled && changed.tv_sec + 2 < now;
    }
    /* Which tensors of the files are meant. */
    for (uint32_t i = 0; i < weights->table.count; i++)
        for (uint32_t part = 0; part < weights->table.weights[i].part_count; part++) {
            const struct weight_part *described = &weights->table.weights[i].parts[part];
            uint64_t place[] = {described->file, described->offset, described->bytes, described->dtype};
            sha256_add(&hash, place, sizeof place);
        }
    sha256_finish(&hash, identity);
    return settled;
}

/* Identity, digest, and a digest of both. */
struct record {
    unsigned char identity[32], digest[WEIGHTS_DIGEST], check[32];
};

static void check_record(const struct record *record, unsigned char check[32]) {
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, record, offsetof(struct record, check));
    sha256_finish(&hash, check);
}

static char *record_path(const char *folder, const unsigned char identity[32]) {
    char hex[65];
    struct buffer path = {0};
    sha256_hex(identity, hex);
    buffer_printf(&path, "%s/%.16s.weights", folder, hex);
    return buffer_take(&path, NULL);
}

static bool recall(const char *path, const unsigned char identity[32], unsigned char digest[WEIGHTS_DIGEST]) {
    struct record record;
    struct buffer bytes = {0};
    unsigned char check[32];
    bool found = file_kind(path) == FILE_REGULAR && file_read(path, sizeof record, &bytes, NULL) &&
                 bytes.size == sizeof record;
    if (found) {
        memcpy(&record, bytes.data, sizeof record);
        check_record(&record, check);
        found = memcmp(check, record.check, sizeof check) == 0 &&
                memcmp(identity, record.identity, sizeof record.identity) == 0;
    }
    if (found)
        memcpy(digest, record.digest, WEIGHTS_DIGEST);
    buffer_free(&bytes);
    return found;
}

/* Where that fails they are read again the next time. */
static void write_down(const char *path, const unsigned char identity[32],
                       const unsigned char digest[WEIGHTS_DIGEST]) {
    struct record record;
    memcpy(record.identity, identity, sizeof record.identity);
    memcpy(record.digest, digest, WEIGHTS_DIGEST);
    check_record(&record, record.check);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file < 0)
        return;
    if (write(file, &record, sizeof record) != (ssize_t)sizeof record)
        unlink(path);
    close(file);
}

bool weights_digest(const struct weights *weights, const char *folder, const struct calla_progress *progress,
                    unsigned char digest[WEIGHTS_DIGEST], struct calla_error *error) {
    unsigned char identity[32], after[32];
    bool settled = identify(weights, identity);
    char *path = folder == NULL ? NULL : record_path(folder, identity);
    if (path != NULL && settled && recall(path, identity, digest)) {
        free(path);
        return true;
    }
    bool ok = read_all(weights, progress, digest, error);
    if (ok && path != NULL && settled && identify(weights, after) &&
        memcmp(identity, after, sizeof after) == 0 && folder_make(folder, NULL))
        write_down(path, identity, digest);
    free(path);
    return ok;
}
