#include "unit.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "cli/npy.h"

/* A file as NumPy writes it: magic, version, length, dict, elements. */
static void make(struct buffer *file, unsigned version, const char *dict, const void *elements, size_t size) {
    buffer_clear(file);
    buffer_append(file, "\x93NUMPY", 6);
    buffer_append_byte(file, (char)version);
    buffer_append_byte(file, 0);
    size_t length = strlen(dict);
    for (unsigned i = 0; i < (version == 1 ? 2u : 4u); i++)
        buffer_append_byte(file, (char)(length >> 8 * i & 0xff));
    buffer_append_string(file, dict);
    buffer_append(file, elements, size);
}

static bool parse(const struct buffer *file, struct npy_header *header, struct calla_error *error) {
    return npy_parse_header((const uint8_t *)file->data, file->size, file->size, "x.npy", header, error);
}

static void headers_of_every_version(void **state) {
    (void)state;
    struct buffer file = {0};
    struct npy_header header;
    const int32_t three[3] = {1, 2, 3};
    for (unsigned version = 1; version <= 3; version++) {
        make(&file, version, "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }   \n", three,
             sizeof three);
        assert_true(parse(&file, &header, NULL));
        assert_int_equal(header.type, NPY_INT32);
        assert_int_equal(header.dimensions, 1);
        assert_int_equal(header.shape[0], 3);
        assert_int_equal(header.data_offset, file.size - sizeof three);
    }
    make(&file, 1, "{\"shape\":(1,3),\"descr\":\"<f4\",\"fortran_order\":False}", three, sizeof three);
    assert_true(parse(&file, &header, NULL));
    assert_int_equal(header.type, NPY_FLOAT32);
    assert_int_equal(header.dimensions, 2);
    assert_int_equal(header.shape[1], 3);
    make(&file, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }\n", NULL, 0);
    assert_true(parse(&file, &header, NULL));
    buffer_free(&file);
}

static void hostile_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *dict;
        const char *part; /* of the message */
    } cases[] = {
        {"", "damaged header"},
        {"{", "damaged header"},
        {"{}", "damaged header"},
        {"[]", "damaged header"},
        {"{'descr': '<i4'", "damaged header"},
        {"{'descr': '<i4, 'fortran_order': False, 'shape': (3,)}", "NumPy type"},
        {"{'descr': '<i4', 'fortran_order': False}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'x': 1}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': Maybe, 'shape': (3,)}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (-3,)}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3 3)}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': 3}", "damaged header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "damaged header"},
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (3,)}", "NumPy type \">i4\""},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}", "NumPy type \"<f8\""},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "NumPy type \"|O\""},
        {"{'descr': '<i4', 'fortran_order': True, 'shape': (3,)}", "Fortran order"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': ()}", "0 dimensions"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,1,3)}", "3 dimensions"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4,)}", "damaged: its header promises 4 x 1"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", "damaged: its header promises 2 x 1"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}", "damaged: its header promises 0 x 1"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", "damaged: its header promises 1 x 1"},
        /* 2^33 x 2^31 x 4 bytes is 0 modulo 2^64 */
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (8589934592, 2147483648)}",
         "damaged: its header"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (18446744073709551615, 2)}",
         "damaged: its header"},
    };
    const int32_t three[3] = {1, 2, 3};
    struct buffer file = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct npy_header header;
        struct calla_error error = {0};
        make(&file, 1, cases[i].dict, three, sizeof three);
        assert_false(parse(&file, &header, &error));
        if (strstr(error.message, cases[i].part) == NULL)
            fail_msg("%s: %s", cases[i].dict, error.message);
    }
    buffer_free(&file);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    const int32_t three[3] = {1, 2, 3};
    struct buffer file = {0};
    struct npy_header header;
    for (unsigned version = 1; version <= 2; version++) {
        make(&file, version, "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", three,
             sizeof three);
        for (size_t size = 0; size < file.size; size++) {
            /* a copy of exactly that size, so that the sanitizer sees a read past it */
            uint8_t *copy = malloc(size + 1);
            memcpy(copy, file.data, size);
            uint8_t *exact = realloc(copy, size == 0 ? 1 : size);
            assert_false(npy_parse_header(exact, size, size, "x.npy", &header, NULL));
            free(exact);
        }
    }
    make(&file, 4, "{}", NULL, 0);
    assert_false(parse(&file, &header, NULL));
    buffer_free(&file);
}

/* Files */

static char folder[] = "/tmp/calla-npy-XXXXXX";

static char *path_of(const char *name) {
    return path_join(folder, name);
}

static void write_bytes(const char *path, const struct buffer *bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes->data, 1, bytes->size, file), bytes->size);
    fclose(file);
}

static void rows_written_are_rows_read(void **state) {
    (void)state;
    char *path = path_of("rows.npy");
    const float rows[2][3] = {{1, -2.5f, 3}, {0, 1e30f, -0.0f}};
    struct npy_writer writer;
    assert_true(npy_writer_open(&writer, path, 2, 3, NULL));
    assert_true(npy_writer_row(&writer, rows[0], NULL));
    assert_int_equal(file_kind(path), FILE_MISSING);
    assert_true(npy_writer_row(&writer, rows[1], NULL));
    assert_true(npy_writer_finish(&writer, NULL));
    npy_writer_close(&writer);

    struct npy_reader reader;
    assert_true(npy_reader_open(&reader, path, NULL));
    assert_int_equal(reader.header.shape[0], 2);
    assert_int_equal(reader.header.shape[1], 3);
    assert_int_equal(reader.header.data_offset % 64, 0);
    float values[3];
    for (uint64_t row = 0; row < 2; row++) {
        assert_true(npy_reader_row(&reader, row, values, NULL));
        assert_memory_equal(values, rows[row], sizeof values);
    }
    struct calla_error error;
    assert_false(npy_reader_row(&reader, 2, values, &error));
    npy_reader_close(&reader);
    size_t count;
    assert_null(npy_read_integers(path, &count, &error));
    assert_non_null(strstr(error.message, "one-dimensional array of int32"));
    unlink(path);
    free(path);
}

static void an_unfinished_file_leaves_nothing(void **state) {
    (void)state;
    char *path = path_of("unfinished.npy"), *partial = path_of("unfinished.npy.partial");
    const float row[2] = {1, 2};
    struct npy_writer writer;
    struct calla_error error;
    assert_true(npy_writer_open(&writer, path, 2, 2, &error));
    assert_true(npy_writer_row(&writer, row, &error));
    assert_int_equal(file_kind(partial), FILE_REGULAR);
    assert_false(npy_writer_finish(&writer, &error));
    assert_non_null(strstr(error.message, "1 of its 2 rows"));
    npy_writer_close(&writer);
    assert_int_equal(file_kind(path), FILE_MISSING);
    assert_int_equal(file_kind(partial), FILE_MISSING);
    npy_writer_close(&writer);
    free(path);
    free(partial);
}

static void what_is_no_regular_file_is_not_replaced(void **state) {
    (void)state;
    struct npy_writer writer;
    struct calla_error error;
    assert_false(npy_writer_open(&writer, "/dev/null", 1, 1, &error));
    assert_non_null(strstr(error.message, "/dev/null"));
    assert_int_equal(file_kind("/dev/null"), FILE_OTHER);
    assert_false(npy_writer_open(&writer, "/no/such/folder/x.npy", 1, 1, &error));
    assert_non_null(strstr(error.message, "/no/such/folder/x.npy"));
}

static void integers_of_both_widths(void **state) {
    (void)state;
    char *path = path_of("integers.npy");
    struct buffer file = {0};
    struct calla_error error;
    size_t count = 0;
    const int32_t narrow[3] = {7, -1, INT32_MAX};
    make(&file, 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", narrow, sizeof narrow);
    write_bytes(path, &file);
    int32_t *read = npy_read_integers(path, &count, &error);
    assert_non_null(read);
    assert_int_equal(count, 3);
    assert_memory_equal(read, narrow, sizeof narrow);
    free(read);

    int64_t wide[3] = {7, -1, INT32_MAX};
    make(&file, 2, "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n", wide, sizeof wide);
    write_bytes(path, &file);
    read = npy_read_integers(path, &count, &error);
    assert_non_null(read);
    assert_memory_equal(read, narrow, sizeof narrow);
    free(read);

    wide[1] = (int64_t)INT32_MAX + 1;
    make(&file, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n", wide, sizeof wide);
    write_bytes(path, &file);
    assert_null(npy_read_integers(path, &count, &error));
    assert_non_null(strstr(error.message, "element 1 is 2147483648"));

    make(&file, 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (0,), }\n", NULL, 0);
    write_bytes(path, &file);
    read = npy_read_integers(path, &count, &error);
    assert_non_null(read);
    assert_int_equal(count, 0);
    free(read);
    unlink(path);
    assert_null(npy_read_integers(path, &count, &error));
    struct npy_reader reader;
    assert_false(npy_reader_open(&reader, path, &error));
    npy_reader_close(&reader);
    buffer_free(&file);
    free(path);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_every_version),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(rows_written_are_rows_read),
        cmocka_unit_test(an_unfinished_file_leaves_nothing),
        cmocka_unit_test(what_is_no_regular_file_is_not_replaced),
        cmocka_unit_test(integers_of_both_widths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
