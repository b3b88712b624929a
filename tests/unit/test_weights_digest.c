/* Every byte of the weights counts, their files do not, and they are read once only. */
#include "unit.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "model/synth.h"
#include "model/weights_digest.h"
#include "scratch.h"

struct opened {
    struct config config;
    struct weights weights;
};

static void open_weights(struct opened *opened, const char *folder) {
    struct calla_error error = {0};
    if (!config_read(&opened->config, folder, &error) ||
        !weights_open(&opened->weights, &opened->config, folder, &error))
        fail_msg("%s", error.message);
}

static void close_weights(struct opened *opened) {
    weights_close(&opened->weights);
    config_free(&opened->config);
}

static bool count_reports(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "hashing weights");
    assert_true(done <= total);
    ++*(int *)user;
    return true;
}

static void digest_of(const struct weights *weights, const char *folder, int *reports,
                      unsigned char digest[WEIGHTS_DIGEST]) {
    struct calla_error error = {0};
    struct calla_progress progress = {count_reports, reports};
    *reports = 0;
    if (!weights_digest(weights, folder, &progress, digest, &error))
        fail_msg("%s", error.message);
}

/* A small model's random weights in so many files. */
static char *synth(const char *folder, const char *name, uint32_t shards) {
    char *shape = scratch_path(folder, "shape.json"), *out = scratch_path(folder, name);
    scratch_write_text(folder, "shape.json", scratch_config);
    struct synth_options options = {.config = shape, .out = out, .seed = 1, .shards = shards, .threads = 1};
    struct synth_result result;
    assert_true(synth_write(&options, &result, NULL));
    free(shape);
    return out;
}

/* Turns one bit of a tensor's byte over in the file. */
static void flip(const struct weights *weights, const struct weight_part *part, uint64_t at, int bit) {
    FILE *file = fopen(weights->files[part->file].path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(part->offset + at), SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)(part->offset + at), SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1 << bit, file), byte ^ 1 << bit);
    assert_int_equal(fclose(file), 0);
}

static void every_bit_counts(void **state) {
    (void)state;
    char *folder = scratch_new();
    struct opened original = {0}, copy = {0};
    unsigned char expected[WEIGHTS_DIGEST], found[WEIGHTS_DIGEST];
    int reports;
    char *one = synth(folder, "one", 1), *three = synth(folder, "three", 3);
    open_weights(&original, one);
    digest_of(&original.weights, NULL, &reports, expected);
    open_weights(&copy, three);
    digest_of(&copy.weights, NULL, &reports, found);
    assert_memory_equal(found, expected, WEIGHTS_DIGEST);
    assert_true(weights_map(&copy.weights, NULL, NULL));
    digest_of(&copy.weights, NULL, &reports, found);
    assert_memory_equal(found, expected, WEIGHTS_DIGEST);
    uint32_t random = 9;
    for (int i = 0; i < 60; i++) {
        random = random * 1664525u + 1013904223u;
        const struct weight *weight = &copy.weights.table.weights[(random >> 8) % copy.weights.table.count];
        const struct weight_part *part = &weight->parts[i % (int)weight->part_count];
        uint64_t at = i % 4 == 0 ? part->bytes - 1 : i % 4 == 1 ? 0 : (random >> 4) % part->bytes;
        flip(&copy.weights, part, at, i % 8);
        digest_of(&copy.weights, NULL, &reports, found);
        assert_true(memcmp(found, expected, WEIGHTS_DIGEST) != 0);
        flip(&copy.weights, part, at, i % 8);
    }
    digest_of(&copy.weights, NULL, &reports, found);
    assert_memory_equal(found, expected, WEIGHTS_DIGEST);
    close_weights(&copy);
    close_weights(&original);
    free(one);
    free(three);
    scratch_remove(folder);
}

/* The one file of a folder. */
static char *only_file(const char *folder) {
    char *path = NULL;
    DIR *listed = opendir(folder);
    assert_non_null(listed);
    for (struct dirent *entry = readdir(listed); entry != NULL; entry = readdir(listed))
        if (entry->d_name[0] != '.') {
            assert_null(path);
            path = scratch_path(folder, entry->d_name);
        }
    closedir(listed);
    assert_non_null(path);
    return path;
}

static void read_once(void **state) {
    (void)state;
    char *scratch = scratch_new(), *folder = scratch_path(scratch, "cache"),
         *model = synth(scratch, "model", 2);
    struct opened opened = {0};
    unsigned char first[WEIGHTS_DIGEST], again[WEIGHTS_DIGEST];
    int reports;
    open_weights(&opened, model);
    /* The times of files that were written just now do not tell whether they are written to again. */
    digest_of(&opened.weights, folder, &reports, first);
    assert_int_equal(file_kind(folder), FILE_MISSING);
    sleep(4);
    digest_of(&opened.weights, folder, &reports, again);
    assert_true(reports > 0);
    assert_memory_equal(first, again, WEIGHTS_DIGEST);
    digest_of(&opened.weights, folder, &reports, again);
    assert_int_equal(reports, 0);
    assert_memory_equal(first, again, WEIGHTS_DIGEST);
    /* What was written down and is damaged or cut off does not count. */
    char *record = only_file(folder);
    for (int round = 0; round < 3; round++) {
        FILE *file = fopen(record, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, 40, SEEK_SET), 0);
        assert_int_equal(fputs("damage", file) >= 0, 1);
        assert_int_equal(fclose(file), 0);
        if (round > 0)
            assert_int_equal(truncate(record, round == 1 ? 95 : 0), 0);
        digest_of(&opened.weights, folder, &reports, again);
        assert_true(reports > 0);
        assert_memory_equal(first, again, WEIGHTS_DIGEST);
    }
    /* A change of one bit is seen, though size and name are the same. */
    flip(&opened.weights, &opened.weights.table.weights[3].parts[0], 5, 1);
    digest_of(&opened.weights, folder, &reports, again);
    assert_true(reports > 0);
    assert_true(memcmp(first, again, WEIGHTS_DIGEST) != 0);
    close_weights(&opened);
    free(record);
    free(model);
    free(folder);
    scratch_remove(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_bit_counts), cmocka_unit_test(read_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
