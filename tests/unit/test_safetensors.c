#include "unit.h"

#include <stdio.h>

#include "model/safetensors.h"
#include "scratch.h"

static bool parse(struct safetensors *header, const char *json, uint64_t data_bytes,
                  struct calla_error *error) {
    return safetensors_parse(header, json, strlen(json), data_bytes, "x.safetensors", error);
}

static void a_header_is_read(void **state) {
    (void)state;
    struct safetensors header;
    struct calla_error error = {0};
    assert_true(parse(&header,
                      "{\"__metadata__\":{\"format\":\"mlx\"},"
                      "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                      "\"a\":{\"dtype\":\"U32\",\"shape\":[],\"data_offsets\":[0,4]},"
                      "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                      "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1,1,5],\"data_offsets\":[20,25]}}  ",
                      32, &error));
    assert_int_equal(header.count, 4);
    assert_string_equal(header.entries[0].name, "a");
    assert_int_equal(header.entries[0].rank, 0);
    assert_int_equal(header.entries[0].dtype, DTYPE_U32);
    assert_string_equal(header.entries[1].name, "b");
    assert_int_equal(header.entries[1].dtype, DTYPE_BF16);
    assert_int_equal(header.entries[1].offset, 4);
    assert_int_equal(header.entries[1].bytes, 12);
    assert_int_equal(header.entries[1].shape[1], 3);
    assert_int_equal(header.entries[2].dtype, DTYPE_COUNT);
    assert_string_equal(header.entries[2].dtype_name, "F8_E4M3");
    assert_int_equal(header.unused, 4 + 7);
    safetensors_free(&header);
    assert_true(parse(&header, "{}", 9, &error));
    assert_int_equal(header.count, 0);
    assert_int_equal(header.unused, 9);
    safetensors_free(&header);
}

static void a_wrong_header_is_refused(void **state) {
    (void)state;
#define TENSOR(dtype, shape, offsets)                                                                        \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const char *const cases[][2] = {
        {"", "is not valid JSON"},
        {"{\"w\":", "is not valid JSON"},
        {"{} x", "is not valid JSON"},
        {"[]", "is not a JSON object"},
        {"{\"w\":1}", "tensor w: an object with dtype, shape and two data_offsets is expected"},
        {"{\"w\":{}}", "tensor w: an object"},
        {TENSOR("F32", "3", "[0,12]"), "tensor w: an object"},
        {TENSOR("F32", "[3]", "[0,12,13]"), "tensor w: an object"},
        {TENSOR("Q4_K", "[3]", "[0,12]"), "tensor w has the unknown dtype \"Q4_K\""},
        {TENSOR("F32", "[3.0]", "[0,12]"), "dimension 0 of the shape"},
        {TENSOR("F32", "[-3]", "[0,12]"), "dimension 0 of the shape"},
        {TENSOR("F32", "[1,\"3\"]", "[0,12]"), "dimension 1 of the shape"},
        {TENSOR("F32", "[1,1,1,1,1,1,1,1,3]", "[0,12]"), "has 9 dimensions"},
        {TENSOR("F32", "[4294967296,4294967296]", "[0,12]"), "a shape larger than any file"},
        {TENSOR("F32", "[9223372036854775807,2]", "[0,12]"), "a shape larger than any file"},
        {TENSOR("F32", "[3]", "[0,16]"), "tensor w has 16 bytes, but F32 [3] takes 12"},
        {TENSOR("BF16", "[3,2]", "[0,8]"), "tensor w has 8 bytes, but BF16 [3, 2] takes 12"},
        {TENSOR("F4", "[3]", "[0,1]"), "tensor w has 1 bytes, but F4 [3] takes 2"},
        {TENSOR("F32", "[3]", "[12,0]"), "no rising pair"},
        {TENSOR("F32", "[3]", "[-12,0]"), "no rising pair"},
        {TENSOR("F32", "[3]", "[0.0,12]"), "no rising pair"},
        {TENSOR("F32", "[3]", "[90,102]"),
         "truncated: tensor w ends at byte 102 of the data, but the file has only 100"},
        {TENSOR("F32", "[3]", "[9223372036854775795,9223372036854775807]"), "truncated"},
        {"{\"v\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
         "tensors w and v overlap: one ends at byte 12 of the data, the other starts at 8"},
        {"{\"v\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
         "overlap"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
         "duplicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors header;
        struct calla_error error = {0};
        if (parse(&header, cases[i][0], 100, &error))
            fail_msg("accepted: %s", cases[i][0]);
        if (strstr(error.message, cases[i][1]) == NULL || strstr(error.message, "x.safetensors") == NULL)
            fail_msg("%s: \"%s\" was expected, found \"%s\"", cases[i][0], cases[i][1], error.message);
        assert_null(header.entries);
        assert_int_equal(header.count, 0);
    }
}

static void a_bomb_is_not_unpacked(void **state) {
    (void)state;
    size_t size = (size_t)16 << 20;
    char *json = malloc(size);
    struct safetensors header;
    struct calla_error error = {0};
    for (size_t i = 0; i < size; i++)
        json[i] = "[],"[i % 3];
    json[0] = '{';
    assert_false(safetensors_parse(&header, json, size, 0, "x", &error));
    assert_non_null(strstr(error.message, "too many for a model"));
    memset(json, '[', 1 << 20);
    assert_false(safetensors_parse(&header, json, 1 << 20, 0, "x", &error));
    free(json);
}

static void expect_file_error(const char *folder, const void *bytes, size_t size, const char *message) {
    struct safetensors header;
    struct file file;
    struct calla_error error = {0};
    char *path = scratch_path(folder, "x.safetensors");
    scratch_write(folder, "x.safetensors", bytes, size);
    assert_true(file_open(&file, path, &error));
    assert_false(safetensors_read(&header, &file, &error));
    if (strstr(error.message, message) == NULL || strstr(error.message, path) == NULL)
        fail_msg("\"%s\" was expected, found \"%s\"", message, error.message);
    file_close(&file);
    free(path);
}

static void the_length_is_checked(void **state) {
    (void)state;
    char *folder = scratch_new();
    expect_file_error(folder, "", 0, "has only 0 bytes");
    expect_file_error(folder, "\2\0\0\0\0\0\0", 7, "has only 7 bytes");
    expect_file_error(folder, "\3\0\0\0\0\0\0\0{}", 10, "is truncated: its header takes 3 bytes");
    expect_file_error(folder, "\1\0\0\0\0\0\0\0", 8, "is truncated");
    expect_file_error(folder, "\0\0\0\0\0\0\0\0", 8, "is not valid JSON");
    expect_file_error(
        folder, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10,
        "is no safetensors file: its first 8 bytes give a header of 18446744073709551615 bytes");
    expect_file_error(folder, "version https://git-lfs.github.com/spec/v1\n", 43, "is a Git LFS pointer");

    /* Offsets come back from the start of the file. */
    const char *json = "{\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}";
    char bytes[128] = {(char)strlen(json)};
    memcpy(bytes + 8, json, strlen(json));
    scratch_write(folder, "x.safetensors", bytes, 8 + strlen(json) + 3);
    struct safetensors header;
    struct file file;
    struct calla_error error = {0};
    char *path = scratch_path(folder, "x.safetensors");
    assert_true(file_open(&file, path, &error));
    assert_true(safetensors_read(&header, &file, &error));
    assert_int_equal(header.entries[0].offset, 8 + strlen(json) + 1);
    assert_int_equal(header.unused, 1);
    safetensors_free(&header);
    file_close(&file);
    free(path);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_read),
        cmocka_unit_test(a_wrong_header_is_refused),
        cmocka_unit_test(a_bomb_is_not_unpacked),
        cmocka_unit_test(the_length_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
