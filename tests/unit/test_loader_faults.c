/* Every allocation and every call of the system fails once, while a model is loaded and while one is written:
 * each time there must be an error that says so, nothing leaked and nothing left open. */
/* wrap: malloc calloc realloc strdup free */
/* wrap: open close fstat pread pwrite mmap munmap madvise opendir closedir */
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "model/synth.h"
#include "model/weights.h"
#include "scratch.h"

/* Calls are numbered from 1 while counting; call number `failing` fails. */
static bool counting, short_reads, early_end;
static uint64_t calls, failing;
static int64_t live_blocks, live_descriptors, live_maps, live_folders;

static bool written[1024]; /* descriptors that were opened for writing */

static bool fails(void) {
    return counting && ++calls == failing;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
char *__real_strdup(const char *string);
void __real_free(void *block);
int __real_open(const char *path, int flags, ...);
int __real_close(int descriptor);
int __real_fstat(int descriptor, struct stat *status);
ssize_t __real_pread(int descriptor, void *bytes, size_t size, off_t offset);
void *__real_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);
int __real_munmap(void *address, size_t size);
int __real_madvise(void *address, size_t size, int advice);
DIR *__real_opendir(const char *path);
int __real_closedir(DIR *stream);
ssize_t __real_pwrite(int descriptor, const void *bytes, size_t size, off_t offset);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
char *__wrap_strdup(const char *string);
void __wrap_free(void *block);
int __wrap_open(const char *path, int flags, int mode);
int __wrap_close(int descriptor);
int __wrap_fstat(int descriptor, struct stat *status);
ssize_t __wrap_pread(int descriptor, void *bytes, size_t size, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);
int __wrap_munmap(void *address, size_t size);
int __wrap_madvise(void *address, size_t size, int advice);
DIR *__wrap_opendir(const char *path);
int __wrap_closedir(DIR *stream);
ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t size, off_t offset);

static void *counted(void *block) {
    live_blocks += counting && block != NULL;
    return block;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *block, size_t size) {
    if (fails())
        return NULL;
    void *moved = __real_realloc(block, size);
    live_blocks += counting && block == NULL && moved != NULL;
    return moved;
}

char *__wrap_strdup(const char *string) {
    return fails() ? NULL : counted(__real_strdup(string));
}

void __wrap_free(void *block) {
    live_blocks -= counting && block != NULL;
    __real_free(block);
}

int __wrap_open(const char *path, int flags, int mode) {
    if (fails()) {
        errno = EMFILE;
        return -1;
    }
    int descriptor = __real_open(path, flags, mode);
    live_descriptors += counting && descriptor >= 0;
    if (descriptor >= 0)
        written[descriptor % 1024] = (flags & O_WRONLY) != 0;
    return descriptor;
}

int __wrap_close(int descriptor) {
    bool failed = written[descriptor % 1024] && fails(); /* after mere reading it would be no failure */
    live_descriptors -= counting;
    int result = __real_close(descriptor);
    errno = EIO;
    return failed ? -1 : result;
}

int __wrap_fstat(int descriptor, struct stat *status) {
    if (fails()) {
        errno = EIO;
        return -1;
    }
    return __real_fstat(descriptor, status);
}

ssize_t __wrap_pread(int descriptor, void *bytes, size_t size, off_t offset) {
    if (fails()) {
        errno = EIO;
        return early_end ? 0 : -1;
    }
    if (counting && short_reads && size > 1000)
        size /= 2;
    return __real_pread(descriptor, bytes, size, offset);
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    if (fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *map = __real_mmap(address, size, protection, flags, descriptor, offset);
    live_maps += counting && map != MAP_FAILED;
    return map;
}

int __wrap_munmap(void *address, size_t size) {
    live_maps -= counting;
    return __real_munmap(address, size);
}

int __wrap_madvise(void *address, size_t size, int advice) {
    bool hint = advice == MADV_WILLNEED || advice == MADV_HUGEPAGE;
    if (!hint && fails()) {
        errno = EFAULT;
        return -1;
    }
    return __real_madvise(address, size, advice);
}

DIR *__wrap_opendir(const char *path) {
    if (fails()) {
        errno = EACCES;
        return NULL;
    }
    DIR *stream = __real_opendir(path);
    live_folders += counting && stream != NULL;
    return stream;
}

int __wrap_closedir(DIR *stream) {
    live_folders -= counting;
    return __real_closedir(stream);
}

ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t size, off_t offset) {
    if (fails()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwrite(descriptor, bytes, counting && short_reads && size > 1000 ? size / 2 : size, offset);
}

struct model {
    char *folder, *path, *out;
};

static int model_new(void **state) {
    static struct model model;
    model.folder = scratch_new();
    json_t *config = json_loads(scratch_config, 0, NULL), *text = json_object_get(config, "text_config");
    json_object_set_new(text, "num_hidden_layers", json_integer(2));
    json_object_set_new(text, "full_attention_interval", json_integer(2));
    json_object_del(text, "layer_types");
    char *dump = json_dumps(config, 0);
    scratch_write_text(model.folder, "config.json", dump);
    model.path = scratch_path(model.folder, "config.json");
    model.out = scratch_path(model.folder, "model");
    free(dump);
    json_decref(config);
    *state = &model;
    return 0;
}

static int model_free(void **state) {
    struct model *model = *state;
    scratch_remove(model->folder);
    free(model->path);
    free(model->out);
    return 0;
}

static bool synth(const struct model *model, struct calla_error *error) {
    struct synth_options options = {.config = model->path, .out = model->out, .shards = 2, .threads = 1};
    struct synth_result result;
    return synth_write(&options, &result, error);
}

/* What a backend does with a checkpoint. */
static bool load(const struct model *model, struct calla_error *error) {
    struct config config = {0};
    struct weights weights = {0};
    uint8_t bytes[128];
    bool ok =
        config_read(&config, model->out, error) && weights_open(&weights, &config, model->out, error) &&
        weights_map(&weights, NULL, error) &&
        weights_read_part(&weights, weights.table.embed, 0, 7, bytes, sizeof bytes, error) &&
        memcmp(bytes, (const char *)weights_part(&weights, weights.table.embed, 0) + 7, sizeof bytes) == 0;
    weights_close(&weights);
    config_free(&config);
    return ok;
}

/* Runs `work` again and again, failing each of its calls in turn, until it runs through. */
static void fail_each(const struct model *model, bool (*work)(const struct model *, struct calla_error *)) {
    for (failing = 1;; failing++) {
        struct calla_error error = {0};
        calls = 0;
        live_blocks = live_descriptors = live_maps = live_folders = 0;
        counting = true;
        bool ok = work(model, &error);
        counting = false;
        if (live_blocks != 0 || live_descriptors != 0 || live_maps != 0 || live_folders != 0)
            fail_msg("call %llu: %lld blocks, %lld descriptors, %lld maps, %lld folders stay: %s",
                     (unsigned long long)failing, (long long)live_blocks, (long long)live_descriptors,
                     (long long)live_maps, (long long)live_folders, error.message);
        if (calls < failing) {
            assert_true(ok);
            break;
        }
        if (!ok && (error.message[0] == 0 || (error.status != CALLA_OUT_OF_MEMORY &&
                                              error.status != CALLA_IO && error.status != CALLA_NOT_FOUND)))
            fail_msg("call %llu: status %d, \"%s\"", (unsigned long long)failing, (int)error.status,
                     error.message);
        if (ok)
            fail_msg("call %llu failed unnoticed", (unsigned long long)failing);
    }
    assert_true(failing > 200);
}

static bool synth_and_remove(const struct model *model, struct calla_error *error) {
    bool ok = synth(model, error);
    bool was_counting = counting;
    counting = false;
    if (ok) {
        scratch_remove(strdup(model->out));
    } else if (file_kind(model->out) != FILE_MISSING) {
        fail_msg("%s is left behind: %s", model->out, error->message);
    }
    counting = was_counting;
    return ok;
}

static void writing(void **state) {
    fail_each(*state, synth_and_remove);
    short_reads = true;
    struct calla_error error = {0};
    failing = 0;
    counting = true;
    bool ok = synth(*state, &error);
    counting = short_reads = false;
    if (!ok)
        fail_msg("%s", error.message);
}

static void loading(void **state) {
    fail_each(*state, load);
}

static void loading_with_short_reads(void **state) {
    short_reads = early_end = true;
    fail_each(*state, load);
    short_reads = early_end = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing),
        cmocka_unit_test(loading),
        cmocka_unit_test(loading_with_short_reads),
    };
    return cmocka_run_group_tests(tests, model_new, model_free);
}
