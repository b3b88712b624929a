#include "model/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/system.h"
#include "base/threads.h"
#include "model/folder.h"
#include "model/random_weights.h"

#define SHARD_LIMIT ((uint64_t)5 << 30)
#define BLOCK ((size_t)4 << 20)
#define OPEN_SHARDS 8 /* written side by side: threads that write to one file wait for each other */
#define CONFIG_LIMIT ((size_t)16 << 20)
#define TOKENIZER_LIMIT ((size_t)256 << 20)

/* One tensor to write. */
struct item {
    const struct weight *weight;
    uint32_t part, shard;
    uint64_t order; /* its place within its shard, pseudo-random */
    uint64_t begin; /* in the shard's data */
};

struct synth {
    const struct synth_options *options;
    struct calla_error *error;
    struct config config;
    struct weight_table table;
    struct item *items;
    uint32_t item_count, shards;
    uint64_t bytes, written;
    bool made_folder;
    struct folder files; /* paths written so far */
};

static const struct weight_part *item_part(const struct item *item) {
    return &item->weight->parts[item->part];
}

/* Output files */

struct output {
    int descriptor;
    char *path; /* borrowed from synth.files */
};

static bool output_fail(struct synth *synth, const char *path) {
    return error_set(synth->error, CALLA_IO, "%s cannot be written: %s.", path, strerror(errno));
}

static bool output_open(struct synth *synth, struct output *output, const char *name) {
    char **names = realloc(synth->files.names, (synth->files.count + 1) * sizeof *names);
    if (names != NULL)
        synth->files.names = names;
    char *path = names == NULL ? NULL : path_join(synth->options->out, name);
    if (path == NULL)
        return error_memory(synth->error, "file names", strlen(name));
    output->descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (output->descriptor < 0) {
        output_fail(synth, path);
        free(path);
        return false;
    }
    output->path = path;
    synth->files.names[synth->files.count++] = path;
    return true;
}

/* Returns false with errno set. */
static bool write_at(int descriptor, const void *bytes, size_t size, uint64_t offset) {
    const char *rest = bytes;
    while (size > 0) {
        ssize_t count = pwrite(descriptor, rest, size, (off_t)offset);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        rest += count;
        offset += (uint64_t)count;
        size -= (size_t)count;
    }
    return true;
}

static bool output_write(struct synth *synth, struct output *output, const struct buffer *text) {
    return write_at(output->descriptor, text->data, text->size, 0) || output_fail(synth, output->path);
}

/* `ok` is how the writing went; a late error of the file system counts, too. */
static bool output_close(struct synth *synth, struct output *output, bool ok) {
    if (close(output->descriptor) != 0 && ok)
        return output_fail(synth, output->path);
    return ok;
}

static bool write_file(struct synth *synth, const char *name, const struct buffer *text) {
    struct output output = {-1, NULL};
    if (text->failed)
        return error_memory(synth->error, name, text->size);
    return output_open(synth, &output, name) &&
           output_close(synth, &output, output_write(synth, &output, text));
}

/* What goes where */

static int compare_places(const void *left, const void *right) {
    const struct item *a = left, *b = right;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return strcmp(item_part(a)->name, item_part(b)->name);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(item_part(left)->name, item_part(right)->name);
}

/* Cuts the tensors, in the order of the table, into shards of about equal size, none of them empty. */
static bool make_items(struct synth *synth) {
    uint32_t tensors = weight_table_tensors(&synth->table);
    synth->bytes = weight_table_bytes(&synth->table);
    synth->shards = synth->options->shards != 0 ? synth->options->shards
                                                : (uint32_t)((synth->bytes + SHARD_LIMIT - 1) / SHARD_LIMIT);
    if (synth->shards > tensors || synth->shards > 4096)
        return error_set(synth->error, CALLA_BAD_INPUT,
                         "%u shards were asked for; at most %u are possible with %u tensors.", synth->shards,
                         tensors < 4096 ? tensors : 4096, tensors);
    synth->items = calloc(tensors, sizeof *synth->items);
    if (synth->items == NULL)
        return error_memory(synth->error, "the list of tensors", tensors * sizeof *synth->items);
    uint64_t before = 0;
    uint32_t shard = 0;
    for (uint32_t i = 0; i < synth->table.count; i++) {
        const struct weight *weight = &synth->table.weights[i];
        for (uint32_t j = 0; j < weight->part_count; j++) {
            struct item *item = &synth->items[synth->item_count];
            double middle = ((double)before + 0.5 * (double)weight->parts[j].bytes) / (double)synth->bytes;
            uint32_t left = tensors - synth->item_count; /* this one included */
            if (synth->item_count > 0 &&
                (middle * synth->shards >= shard + 1 || synth->shards - shard > left))
                shard++;
            before += weight->parts[j].bytes;
            *item = (struct item){weight, j, shard, random_key(1, weight->parts[j].name), 0};
            synth->item_count++;
        }
    }
    qsort(synth->items, synth->item_count, sizeof *synth->items, compare_places);
    uint64_t end = 0;
    for (uint32_t i = 0; i < synth->item_count; i++) {
        struct item *item = &synth->items[i];
        item->begin = i > 0 && item[-1].shard == item->shard ? end : 0;
        end = item->begin + item_part(item)->bytes;
    }
    return true;
}

static void shard_name(const struct synth *synth, uint32_t shard, char *name, size_t size) {
    if (synth->shards == 1)
        snprintf(name, size, "model.safetensors");
    else
        snprintf(name, size, "model-%05u-of-%05u.safetensors", shard + 1, synth->shards);
}

/* Length and JSON of the header of items[0 .. count), which lie in one shard. */
static bool make_header(struct synth *synth, const struct item *items, uint32_t count,
                        struct buffer *header) {
    struct item *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return error_memory(synth->error, "a header", count * sizeof *sorted);
    memcpy(sorted, items, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_names);
    buffer_append(header, "\0\0\0\0\0\0\0\0", 8);
    buffer_append_string(header, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (uint32_t i = 0; i < count; i++) {
        const struct weight_part *part = item_part(&sorted[i]);
        buffer_printf(header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", part->name, dtype_name(part->dtype));
        for (uint32_t j = 0; j < part->rank; j++)
            buffer_printf(header, "%s%" PRIu64, j == 0 ? "" : ",", part->shape[j]);
        buffer_printf(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", sorted[i].begin,
                      sorted[i].begin + part->bytes);
    }
    buffer_append_byte(header, '}');
    if (header->size % 2 == 0)
        buffer_append_byte(header, ' ');
    free(sorted);
    if (header->failed)
        return error_memory(synth->error, "a header", header->size);
    uint64_t length = header->size - 8;
    memcpy(header->data, &length, 8);
    return true;
}

/* The shards of a wave are open at the same time. Their tensors are cut into pieces, which the threads fill
 * and write, lowest place first, so that each file is written from its begin to its end. */

struct piece {
    const struct item *item;
    uint64_t offset; /* in the tensor's bytes */
};

struct wave {
    struct synth *synth;
    uint32_t first; /* shard */
    struct output outputs[OPEN_SHARDS];
    uint64_t starts[OPEN_SHARDS]; /* of the data in the file */
    struct piece *pieces;
    size_t count;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t mutex; /* for synth->written, synth->error and the progress report */
};

static uint64_t piece_begin(const struct piece *piece) {
    return piece->item->begin + piece->offset;
}

static int compare_begins(const void *left, const void *right) {
    uint64_t a = piece_begin(left), b = piece_begin(right);
    return a < b ? -1 : a > b;
}

static size_t piece_size(const struct piece *piece) {
    uint64_t rest = item_part(piece->item)->bytes - piece->offset;
    return rest < BLOCK ? (size_t)rest : BLOCK;
}

/* After a piece of `size` bytes was written, or not, because of `failure` (an errno). */
static bool note_piece(struct wave *wave, const struct output *output, size_t size, int failure) {
    struct synth *synth = wave->synth;
    const struct calla_progress *progress = &synth->options->progress;
    pthread_mutex_lock(&wave->mutex);
    bool ok = !atomic_load(&wave->failed);
    errno = failure;
    if (ok && failure != 0)
        ok = output_fail(synth, output->path);
    synth->written += size;
    if (ok && progress->report != NULL &&
        !progress->report(progress->user, "writing weights", synth->written, synth->bytes))
        ok = error_set(synth->error, CALLA_CANCELLED, "Writing the weights was cancelled.");
    atomic_store(&wave->failed, !ok);
    pthread_mutex_unlock(&wave->mutex);
    return ok;
}

static void write_pieces(void *argument, size_t task) {
    struct wave *wave = argument;
    (void)task;
    uint8_t *block = malloc(BLOCK);
    bool ok = block != NULL || note_piece(wave, &wave->outputs[0], 0, ENOMEM);
    for (size_t i; ok && (i = atomic_fetch_add(&wave->next, 1)) < wave->count;) {
        const struct piece *piece = &wave->pieces[i];
        const struct item *item = piece->item;
        uint32_t file = item->shard - wave->first;
        size_t size = piece_size(piece);
        random_weights_fill(item->weight, item->part, wave->synth->options->seed, piece->offset, block, size);
        bool written =
            write_at(wave->outputs[file].descriptor, block, size, wave->starts[file] + piece_begin(piece));
        ok = note_piece(wave, &wave->outputs[file], size, written ? 0 : errno);
    }
    free(block);
}

static bool wave_pieces(struct wave *wave, const struct item *items, uint32_t count) {
    size_t pieces = 0;
    for (uint32_t i = 0; i < count; i++)
        pieces += (size_t)((item_part(&items[i])->bytes + BLOCK - 1) / BLOCK);
    wave->pieces = malloc(pieces * sizeof *wave->pieces);
    if (wave->pieces == NULL)
        return error_memory(wave->synth->error, "the list of blocks", pieces * sizeof *wave->pieces);
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t offset = 0; offset < item_part(&items[i])->bytes; offset += BLOCK)
            wave->pieces[wave->count++] = (struct piece){&items[i], offset};
    qsort(wave->pieces, wave->count, sizeof *wave->pieces, compare_begins);
    return true;
}

/* Opens the shard of items[0 .. count) and writes its header. */
static bool begin_shard(struct wave *wave, const struct item *items, uint32_t count) {
    struct synth *synth = wave->synth;
    struct buffer header = {0};
    char name[64];
    uint32_t file = items->shard - wave->first;
    shard_name(synth, items->shard, name, sizeof name);
    bool ok = make_header(synth, items, count, &header) && output_open(synth, &wave->outputs[file], name) &&
              output_write(synth, &wave->outputs[file], &header);
    wave->starts[file] = header.size;
    buffer_free(&header);
    return ok;
}

/* How many of items[0 .. count), which are sorted by shard, come before shard `end`. */
static uint32_t items_before(const struct item *items, uint32_t count, uint32_t end) {
    uint32_t i = 0;
    while (i < count && items[i].shard < end)
        i++;
    return i;
}

/* Writes the shards of items[0 .. count), OPEN_SHARDS at most. */
static bool write_wave(struct synth *synth, struct threads *threads, const struct item *items,
                       uint32_t count) {
    struct wave wave = {.synth = synth, .first = items->shard};
    pthread_mutex_init(&wave.mutex, NULL);
    for (int i = 0; i < OPEN_SHARDS; i++)
        wave.outputs[i].descriptor = -1;
    bool ok = wave_pieces(&wave, items, count);
    for (uint32_t first = 0, shard_count; first < count && ok; first += shard_count) {
        shard_count = items_before(items + first, count - first, items[first].shard + 1);
        ok = begin_shard(&wave, items + first, shard_count);
    }
    if (ok)
        threads_run(threads, write_pieces, &wave, (size_t)threads_count(threads));
    ok = ok && !atomic_load(&wave.failed);
    for (int i = 0; i < OPEN_SHARDS; i++)
        if (wave.outputs[i].descriptor >= 0)
            ok = output_close(synth, &wave.outputs[i], ok);
    pthread_mutex_destroy(&wave.mutex);
    free(wave.pieces);
    return ok;
}

static bool write_shards(struct synth *synth) {
    int count = synth->options->threads > 0 ? synth->options->threads : system_processors();
    struct threads *threads = threads_open(count, synth->error);
    bool ok = threads != NULL;
    for (uint32_t first = 0, wave_count; first < synth->item_count && ok; first += wave_count) {
        wave_count = items_before(&synth->items[first], synth->item_count - first,
                                  synth->items[first].shard + OPEN_SHARDS);
        ok = write_wave(synth, threads, &synth->items[first], wave_count);
    }
    threads_close(threads);
    return ok;
}

static bool write_index(struct synth *synth) {
    struct buffer text = {0};
    qsort(synth->items, synth->item_count, sizeof *synth->items, compare_names);
    buffer_printf(&text, "{\n    \"metadata\": {\n        \"total_size\": %" PRIu64 "\n    },\n",
                  synth->bytes);
    buffer_append_string(&text, "    \"weight_map\": {");
    for (uint32_t i = 0; i < synth->item_count; i++) {
        char name[64];
        shard_name(synth, synth->items[i].shard, name, sizeof name);
        buffer_printf(&text, "%s\n        \"%s\": \"%s\"", i == 0 ? "" : ",",
                      item_part(&synth->items[i])->name, name);
    }
    buffer_append_string(&text, "\n    }\n}");
    bool ok = write_file(synth, "model.safetensors.index.json", &text);
    buffer_free(&text);
    return ok;
}

/* The folder */

static bool prepare_folder(struct synth *synth) {
    const char *out = synth->options->out;
    if (mkdir(out, 0777) == 0) {
        synth->made_folder = true;
    } else if (errno != EEXIST) {
        return error_set(synth->error, CALLA_IO, "Folder %s cannot be made: %s.", out, strerror(errno));
    } else {
        struct folder folder;
        if (!folder_list(&folder, out, synth->error))
            return false;
        size_t count = folder.count;
        folder_free(&folder);
        if (count > 0)
            return error_set(synth->error, CALLA_BAD_INPUT,
                             "%s is not empty; name a folder that is empty or does not exist.", out);
    }
    struct statvfs space;
    uint64_t needed = synth->bytes + ((uint64_t)synth->item_count << 9);
    if (statvfs(out, &space) != 0)
        return error_set(synth->error, CALLA_IO, "The free space of %s cannot be told: %s.", out,
                         strerror(errno));
    uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    if (free_bytes < needed)
        return error_set(synth->error, CALLA_IO,
                         "%s has room for %" PRIu64 " MB; the weights take %" PRIu64 " MB.", out,
                         free_bytes / 1000000, (needed + 999999) / 1000000);
    return true;
}

static void remove_written(struct synth *synth) {
    for (size_t i = 0; i < synth->files.count; i++)
        unlink(synth->files.names[i]);
    if (synth->made_folder)
        rmdir(synth->options->out);
}

/* Copies a file of `folder` if it is there; *copied (may be NULL) counts it. */
static bool copy_file(struct synth *synth, const char *folder, const char *name, uint32_t *copied) {
    struct buffer text = {0};
    char *path = path_join(folder, name);
    if (path == NULL)
        return error_memory(synth->error, "a file name", strlen(folder));
    bool ok = true;
    if (file_kind(path) != FILE_MISSING) {
        ok = file_read(path, TOKENIZER_LIMIT, &text, synth->error) && write_file(synth, name, &text);
        *copied += ok;
    }
    buffer_free(&text);
    free(path);
    return ok;
}

static bool copy_tokenizer(struct synth *synth) {
    static const char *const names[] = {
        "tokenizer.json",         "vocab.json",          "merges.txt",
        "added_tokens.json",      "chat_template.jinja", "tokenizer_config.json",
        "special_tokens_map.json"};
    const char *folder = synth->options->tokenizer;
    uint32_t copied = 0;
    if (folder == NULL)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!copy_file(synth, folder, names[i], &copied))
            return false;
        if (i == 1 && copied == 0)
            return error_set(synth->error, CALLA_NOT_FOUND,
                             "%s has no tokenizer; tokenizer.json or vocab.json is expected.", folder);
    }
    return true;
}

/* The one beside the config, or the published model's sampling with this config's end tokens. */
static bool write_generation_config(struct synth *synth) {
    const char *slash = strrchr(synth->options->config, '/');
    struct buffer folder = {0}, text = {0};
    uint32_t copied = 0;
    if (slash == NULL)
        buffer_append_byte(&folder, '.');
    else
        buffer_append(&folder, synth->options->config, (size_t)(slash - synth->options->config) + 1);
    bool ok = !folder.failed ? copy_file(synth, folder.data, "generation_config.json", &copied)
                             : error_memory(synth->error, "a file name", strlen(synth->options->config));
    if (ok && copied == 0) {
        const struct config *config = &synth->config;
        buffer_append_string(&text, "{\n    \"do_sample\": true,\n");
        for (uint32_t i = 0; i < config->end_token_count; i++)
            buffer_printf(&text, "%s%" PRId32 "%s", i == 0 ? "    \"eos_token_id\": [" : ", ",
                          config->end_tokens[i], i + 1 == config->end_token_count ? "],\n" : "");
        buffer_append_string(&text,
                             "    \"temperature\": 1.0,\n    \"top_k\": 20,\n    \"top_p\": 0.95\n}\n");
        ok = write_file(synth, "generation_config.json", &text);
    }
    buffer_free(&folder);
    buffer_free(&text);
    return ok;
}

static bool write_all(struct synth *synth, const struct buffer *config) {
    return prepare_folder(synth) && write_shards(synth) && write_index(synth) && copy_tokenizer(synth) &&
           write_generation_config(synth) && write_file(synth, "config.json", config);
}

bool synth_write(const struct synth_options *options, struct synth_result *result,
                 struct calla_error *error) {
    struct synth synth = {.options = options, .error = error};
    struct buffer config = {0};
    bool ok = file_read(options->config, CONFIG_LIMIT, &config, error) &&
              config_parse(&synth.config, config.data, config.size, options->config, error) &&
              weight_table_new(&synth.table, &synth.config, error) && make_items(&synth);
    if (ok && !(ok = write_all(&synth, &config)))
        remove_written(&synth);
    if (ok)
        *result = (struct synth_result){synth.item_count, synth.bytes, synth.shards};
    buffer_free(&config);
    config_free(&synth.config);
    weight_table_free(&synth.table);
    folder_free(&synth.files);
    free(synth.items);
    return ok;
}
