/* A section is written and read in pieces of a megabyte at most, none across the end of a buffer. Its digest
 * is the digest of its pieces' digests, so that pieces can be checked apart. */
#include "engine/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/system.h"

static const char magic[8] = {'C', 'A', 'L', 'L', 'A', 'S', 'N', 'P'};
#define VERSION 1
#define PIECE_BYTES ((uint64_t)1 << 20)

enum {
    AT_VERSION = 8,
    AT_KEY = 16,
    AT_ID = 48,
    AT_BASE = 64,
    AT_BYTES = 72,
    AT_DIGESTS = 104,
    AT_DIGEST = 232
};

/* The header */

static uint64_t get_number(const unsigned char *bytes, int size) {
    uint64_t number = 0;
    for (int i = size; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

static void put_number(unsigned char *bytes, int size, uint64_t number) {
    for (int i = 0; i < size; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
}

static void digest_header(const unsigned char *bytes, unsigned char digest[SNAPSHOT_DIGEST]) {
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, bytes, AT_DIGEST);
    sha256_finish(&hash, digest);
}

static void write_header(const struct snapshot_header *header, unsigned char bytes[SNAPSHOT_HEADER_BYTES]) {
    memset(bytes, 0, SNAPSHOT_HEADER_BYTES);
    memcpy(bytes, magic, sizeof magic);
    put_number(bytes + AT_VERSION, 4, VERSION);
    put_number(bytes + AT_VERSION + 4, 4, SNAPSHOT_HEADER_BYTES);
    memcpy(bytes + AT_KEY, header->key, SNAPSHOT_DIGEST);
    put_number(bytes + AT_ID, 8, header->id);
    put_number(bytes + AT_ID + 8, 8, header->parent);
    put_number(bytes + AT_BASE, 4, header->base);
    put_number(bytes + AT_BASE + 4, 4, header->position);
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        put_number(bytes + AT_BYTES + 8 * i, 8, header->bytes[i]);
        memcpy(bytes + AT_DIGESTS + SNAPSHOT_DIGEST * i, header->digests[i], SNAPSHOT_DIGEST);
    }
    digest_header(bytes, bytes + AT_DIGEST);
}

bool snapshot_header_parse(struct snapshot_header *header, const unsigned char bytes[SNAPSHOT_HEADER_BYTES],
                           const char *name, struct calla_error *error) {
    unsigned char digest[SNAPSHOT_DIGEST];
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return error_set(error, CALLA_BAD_INPUT, "%s is no snapshot of a session.", name);
    uint64_t version = get_number(bytes + AT_VERSION, 4);
    if (version != VERSION)
        return error_set(error, CALLA_UNSUPPORTED,
                         "%s has version %" PRIu64 " of the snapshot format; this program reads version %d.",
                         name, version, VERSION);
    digest_header(bytes, digest);
    if (memcmp(digest, bytes + AT_DIGEST, sizeof digest) != 0 ||
        get_number(bytes + AT_VERSION + 4, 4) != SNAPSHOT_HEADER_BYTES)
        return error_set(error, CALLA_BAD_INPUT, "%s is damaged: its header does not match its digest.",
                         name);
    memcpy(header->key, bytes + AT_KEY, SNAPSHOT_DIGEST);
    header->id = get_number(bytes + AT_ID, 8);
    header->parent = get_number(bytes + AT_ID + 8, 8);
    header->base = (uint32_t)get_number(bytes + AT_BASE, 4);
    header->position = (uint32_t)get_number(bytes + AT_BASE + 4, 4);
    uint64_t total = SNAPSHOT_HEADER_BYTES;
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        header->bytes[i] = get_number(bytes + AT_BYTES + 8 * i, 8);
        memcpy(header->digests[i], bytes + AT_DIGESTS + SNAPSHOT_DIGEST * i, SNAPSHOT_DIGEST);
        if (header->bytes[i] > INT64_MAX - total)
            return error_set(error, CALLA_BAD_INPUT, "%s is damaged: its parts are too large.", name);
        total += header->bytes[i];
    }
    bool sound = header->position > 0 && header->base < header->position && header->id != 0 &&
                 (header->base == 0) == (header->parent == 0) &&
                 header->bytes[SECTION_TOKENS] == (uint64_t)header->position * sizeof(int32_t);
    return sound || error_set(error, CALLA_BAD_INPUT, "%s is damaged: its header makes no sense.", name);
}

uint64_t snapshot_file_bytes(const struct snapshot_header *header) {
    uint64_t bytes = SNAPSHOT_HEADER_BYTES;
    for (size_t i = 0; i < SECTION_COUNT; i++)
        bytes += header->bytes[i];
    return bytes;
}

/* Pieces */

/* Goes through a section of state or of keys and values: `size` bytes at `offset` of a buffer, in the file's
 * order. */
struct walk {
    const struct session_layout *layout;
    enum space space;
    uint32_t base, position;
    uint32_t buffer;
    uint64_t offset, size; /* of the piece */
};

/* The buffer's bytes in the section: [*begin, *end). */
static void walk_range(const struct walk *walk, uint64_t *begin, uint64_t *end) {
    struct buffer_shape shape =
        walk->space == SPACE_KV ? walk->layout->kv[walk->buffer] : walk->layout->state[walk->buffer];
    *begin = 0;
    if (walk->space == SPACE_KV) {
        shape.rows = 1;
        *begin = buffer_shape_bytes(&shape) * walk->base;
        *end = buffer_shape_bytes(&shape) * walk->position;
    } else {
        *end = buffer_shape_bytes(&shape);
    }
}

static struct walk walk_start(const struct session_layout *layout, enum space space, uint32_t base,
                              uint32_t position) {
    return (struct walk){.layout = layout, .space = space, .base = base, .position = position};
}

/* The next piece; false past the last. */
static bool walk_on(struct walk *walk) {
    uint32_t buffers = walk->space == SPACE_KV ? walk->layout->kv_count : walk->layout->state_count;
    uint64_t begin, end;
    for (; walk->buffer < buffers; walk->buffer++, walk->offset = 0, walk->size = 0) {
        walk_range(walk, &begin, &end);
        walk->offset = walk->size == 0 ? begin : walk->offset + walk->size;
        if (walk->offset >= end)
            continue;
        walk->size = end - walk->offset < PIECE_BYTES ? end - walk->offset : PIECE_BYTES;
        return true;
    }
    return false;
}

static uint64_t walk_bytes(struct walk walk) {
    uint64_t bytes = 0;
    while (walk_on(&walk))
        bytes += walk.size;
    return bytes;
}

static void add_piece(struct sha256 *hash, const void *bytes, size_t size) {
    struct sha256 piece;
    unsigned char digest[SNAPSHOT_DIGEST];
    sha256_start(&piece);
    sha256_add(&piece, bytes, size);
    sha256_finish(&piece, digest);
    sha256_add(hash, digest, sizeof digest);
}

static void digest_array(const void *bytes, uint64_t size, unsigned char digest[SNAPSHOT_DIGEST]) {
    struct sha256 hash;
    sha256_start(&hash);
    for (uint64_t done = 0; done < size; done += PIECE_BYTES)
        add_piece(&hash, (const char *)bytes + done,
                  (size_t)(size - done < PIECE_BYTES ? size - done : PIECE_BYTES));
    sha256_finish(&hash, digest);
}

void snapshot_tokens_digest(const int32_t *tokens, size_t count, unsigned char digest[SNAPSHOT_DIGEST]) {
    digest_array(tokens, count * sizeof *tokens, digest);
}

/* Writing */

struct writer {
    const struct snapshot_writing *writing;
    struct session_layout layout;
    struct snapshot_header header;
    int descriptor;
    const char *path;
    unsigned char *piece;
};

static bool put(struct writer *writer, const void *bytes, size_t size, struct calla_error *error) {
    const char *from = bytes;
    while (size > 0) {
        ssize_t count = write(writer->descriptor, from, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return error_set(error, CALLA_IO, "%s cannot be written: %s.", writer->path,
                             strerror(count == 0 ? ENOSPC : errno));
        from += count;
        size -= (size_t)count;
    }
    return true;
}

static bool put_array(struct writer *writer, enum snapshot_section section, const void *bytes, uint64_t size,
                      struct calla_error *error) {
    writer->header.bytes[section] = size;
    digest_array(bytes, size, writer->header.digests[section]);
    return put(writer, bytes, (size_t)size, error);
}

static bool put_buffers(struct writer *writer, enum snapshot_section section, struct walk walk,
                        struct calla_error *error) {
    const struct snapshot_writing *writing = writer->writing;
    const struct snapshot *snapshot = writing->snapshot;
    struct sha256 hash;
    sha256_start(&hash);
    while (walk_on(&walk)) {
        if (writing->stop != NULL && writing->stop(writing->user))
            return error_set(error, CALLA_CANCELLED, "Writing %s was stopped.", writer->path);
        if (!snapshot->model->class->snapshot_read(snapshot->device, walk.space, walk.buffer, walk.offset,
                                                   writer->piece, walk.size, error))
            return false;
        add_piece(&hash, writer->piece, (size_t)walk.size);
        if (!put(writer, writer->piece, (size_t)walk.size, error))
            return false;
        writer->header.bytes[section] += walk.size;
    }
    sha256_finish(&hash, writer->header.digests[section]);
    return true;
}

static bool put_all(struct writer *writer, struct calla_error *error) {
    const struct snapshot_writing *writing = writer->writing;
    const struct snapshot *snapshot = writing->snapshot;
    uint32_t position = snapshot->position;
    unsigned char bytes[SNAPSHOT_HEADER_BYTES] = {0};
    struct walk state = walk_start(&writer->layout, SPACE_STATE, 0, position);
    struct walk kv = walk_start(&writer->layout, SPACE_KV, writing->base, position);
    /* The header comes last: until then the file is none. */
    if (!put(writer, bytes, sizeof bytes, error) ||
        !put_array(writer, SECTION_TOKENS, writing->tokens, position * sizeof(int32_t), error) ||
        !put_array(writer, SECTION_LOGITS, snapshot->logits, snapshot_logits_bytes(snapshot), error) ||
        !put_buffers(writer, SECTION_STATE, state, error) || !put_buffers(writer, SECTION_KV, kv, error))
        return false;
    write_header(&writer->header, bytes);
    if (lseek(writer->descriptor, 0, SEEK_SET) != 0)
        return error_set(error, CALLA_IO, "%s cannot be written: %s.", writer->path, strerror(errno));
    return put(writer, bytes, sizeof bytes, error);
}

/* What was renamed is only safe once its folder is. */
static void sync_folder(const char *path) {
    char *folder = strdup(path), *slash = folder == NULL ? NULL : strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = 0;
    int descriptor = folder == NULL ? -1 : open(slash == NULL ? "." : folder, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) {
        fsync(descriptor);
        close(descriptor);
    }
    free(folder);
}

static bool finish(struct writer *writer, const char *temporary, struct calla_error *error) {
    if (fsync(writer->descriptor) == 0 && rename(temporary, writer->path) == 0) {
        sync_folder(writer->path);
        return true;
    }
    return error_set(error, CALLA_IO, "%s cannot be written: %s.", writer->path, strerror(errno));
}

static bool write_beside(struct writer *writer, const char *temporary, struct calla_error *error) {
    writer->descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (writer->descriptor < 0)
        return error_set(error, CALLA_IO, "%s cannot be written: %s.", writer->path, strerror(errno));
    bool ok = put_all(writer, error) && finish(writer, temporary, error);
    close(writer->descriptor);
    if (!ok)
        unlink(temporary);
    return ok;
}

bool snapshot_file_write(const char *path, const struct snapshot_writing *writing, uint64_t *bytes,
                         struct calla_error *error) {
    struct calla_model *model = writing->snapshot->model;
    struct buffer temporary = {0};
    buffer_printf(&temporary, "%s.%016" PRIx64 ".partial", path, system_random());
    struct writer writer = {.writing = writing,
                            .path = path,
                            .piece = malloc(PIECE_BYTES),
                            .header = {.id = writing->id,
                                       .parent = writing->parent,
                                       .base = writing->base,
                                       .position = writing->snapshot->position}};
    bool ok = !temporary.failed && writer.piece != NULL;
    if (!ok)
        error_memory(error, "a snapshot", PIECE_BYTES);
    ok = ok && model_key(model, error) &&
         forward_layout(&writer.layout, &model->config, &model->policy, writing->snapshot->position, error);
    if (ok) {
        memcpy(writer.header.key, model->key, sizeof writer.header.key);
        ok = write_beside(&writer, temporary.data, error);
        session_layout_free(&writer.layout);
    }
    if (ok && bytes != NULL)
        *bytes = snapshot_file_bytes(&writer.header);
    free(writer.piece);
    buffer_free(&temporary);
    return ok;
}

/* Reading */

static bool check_file(const struct snapshot_file *file, struct calla_model *model,
                       struct calla_error *error) {
    const struct snapshot_header *header = &file->header;
    const char *path = file->file.path;
    if (snapshot_file_bytes(header) != file->file.size)
        return error_set(error, CALLA_BAD_INPUT, "%s has %" PRIu64 " bytes, but %" PRIu64 " are expected.",
                         path, file->file.size, snapshot_file_bytes(header));
    if (!model_key(model, error))
        return false;
    if (memcmp(header->key, model->key, sizeof model->key) != 0)
        return error_set(
            error, CALLA_BAD_INPUT,
            "%s was written with another model, backend, processor, set of kernels or version than "
            "%s here.",
            path, model->name);
    if (header->position > model->config.context_limit)
        return error_set(error, CALLA_BAD_INPUT, "%s is damaged: it has %u positions.", path,
                         header->position);
    struct session_layout layout = {0};
    if (!forward_layout(&layout, &model->config, &model->policy, header->position, error))
        return false;
    uint64_t logits = header->bytes[SECTION_LOGITS];
    bool fits =
        header->bytes[SECTION_STATE] == walk_bytes(walk_start(&layout, SPACE_STATE, 0, header->position)) &&
        header->bytes[SECTION_KV] ==
            walk_bytes(walk_start(&layout, SPACE_KV, header->base, header->position)) &&
        (logits == 0 || logits == model->config.vocabulary * sizeof(float));
    session_layout_free(&layout);
    return fits || error_set(error, CALLA_BAD_INPUT, "%s does not fit the model's sessions.", path);
}

bool snapshot_file_open(struct snapshot_file *file, const char *path, struct calla_model *model,
                        struct calla_error *error) {
    unsigned char bytes[SNAPSHOT_HEADER_BYTES];
    memset(file, 0, sizeof *file);
    if (!file_open(&file->file, path, error))
        return false;
    bool ok =
        file->file.size >= sizeof bytes
            ? file_read_at(&file->file, 0, bytes, sizeof bytes, error)
            : error_set(error, CALLA_BAD_INPUT, "%s is no snapshot of a session: it is too short.", path);
    if (ok && snapshot_header_parse(&file->header, bytes, path, error) && check_file(file, model, error))
        return true;
    file_close(&file->file);
    return false;
}

void snapshot_file_close(struct snapshot_file *file) {
    file_close(&file->file);
}

static uint64_t section_at(const struct snapshot_file *file, enum snapshot_section section) {
    uint64_t at = SNAPSHOT_HEADER_BYTES;
    for (size_t i = 0; i < (size_t)section; i++)
        at += file->header.bytes[i];
    return at;
}

static bool check_digest(const struct snapshot_file *file, enum snapshot_section section,
                         const unsigned char digest[SNAPSHOT_DIGEST], struct calla_error *error) {
    return memcmp(digest, file->header.digests[section], SNAPSHOT_DIGEST) == 0 ||
           error_set(error, CALLA_BAD_INPUT, "%s is damaged: a part of it does not match its digest.",
                     file->file.path);
}

static bool get_array(const struct snapshot_file *file, enum snapshot_section section, void *out,
                      struct calla_error *error) {
    uint64_t size = file->header.bytes[section];
    unsigned char digest[SNAPSHOT_DIGEST];
    if (!file_read_at(&file->file, section_at(file, section), out, (size_t)size, error))
        return false;
    digest_array(out, size, digest);
    return check_digest(file, section, digest, error);
}

int32_t *snapshot_file_tokens(const struct snapshot_file *file, struct calla_error *error) {
    int32_t *tokens = malloc((size_t)file->header.bytes[SECTION_TOKENS]);
    if (tokens == NULL)
        error_memory(error, "a snapshot's tokens", (size_t)file->header.bytes[SECTION_TOKENS]);
    else if (get_array(file, SECTION_TOKENS, tokens, error))
        return tokens;
    free(tokens);
    return NULL;
}

static bool get_buffers(const struct snapshot_file *file, enum snapshot_section section, struct walk walk,
                        struct calla_session *session, struct calla_error *error) {
    uint64_t at = section_at(file, section);
    struct sha256 hash;
    sha256_start(&hash);
    unsigned char *piece = malloc(PIECE_BYTES);
    bool ok = piece != NULL || error_memory(error, "a snapshot", PIECE_BYTES);
    while (ok && walk_on(&walk)) {
        ok = file_read_at(&file->file, at, piece, (size_t)walk.size, error) &&
             session->model->class->write(session->device, walk.space, walk.buffer, walk.offset, piece,
                                          walk.size, error);
        if (ok)
            add_piece(&hash, piece, (size_t)walk.size);
        at += walk.size;
    }
    free(piece);
    unsigned char digest[SNAPSHOT_DIGEST];
    sha256_finish(&hash, digest);
    return ok && check_digest(file, section, digest, error);
}

bool snapshot_file_read_kv(const struct snapshot_file *file, struct calla_session *session,
                           struct calla_error *error) {
    const struct snapshot_header *header = &file->header;
    return get_buffers(file, SECTION_KV,
                       walk_start(&session->layout, SPACE_KV, header->base, header->position), session,
                       error);
}

bool snapshot_file_read_state(const struct snapshot_file *file, struct calla_session *session,
                              struct calla_error *error) {
    uint64_t logits = file->header.bytes[SECTION_LOGITS];
    if (logits > 0 && (!get_array(file, SECTION_LOGITS, session->logits, error) ||
                       !session->model->class->write(session->device, SPACE_STEP, STEP_LOGITS, 0,
                                                     session->logits, logits, error)))
        return false;
    return get_buffers(file, SECTION_STATE,
                       walk_start(&session->layout, SPACE_STATE, 0, file->header.position), session, error);
}
