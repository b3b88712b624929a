#include "unit.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "scratch.h"

static void is_kind(const char *folder, const char *name, enum file_kind kind) {
    char *path = scratch_path(folder, name);
    assert_int_equal(file_kind(path), kind);
    free(path);
}

static void a_link_that_leads_nowhere_is_not_missing(void **state) {
    (void)state;
    char *folder = scratch_new();
    static const char *const links[][2] = {{"nothing", "dangling"}, {"loop", "loop"}, {"file", "good"}};
    scratch_write_text(folder, "file", "text");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char *path = scratch_path(folder, links[i][1]);
        assert_int_equal(symlink(links[i][0], path), 0);
        free(path);
    }
    is_kind(folder, "", FILE_FOLDER);
    is_kind(folder, "file", FILE_REGULAR);
    is_kind(folder, "good", FILE_REGULAR);
    is_kind(folder, "nothing", FILE_MISSING);
    is_kind(folder, "file/below", FILE_MISSING);
    is_kind(folder, "dangling", FILE_OTHER);
    is_kind(folder, "loop", FILE_OTHER);
    is_kind(folder, "loop/below", FILE_OTHER);
    scratch_remove(folder);
}

static void a_pipe_is_refused_and_not_waited_for(void **state) {
    (void)state;
    char *folder = scratch_new(), *path = scratch_path(folder, "pipe");
    struct calla_error error;
    struct file file;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_kind(path), FILE_OTHER);
    assert_false(file_open(&file, path, &error));
    assert_non_null(strstr(error.message, "is not a regular file"));
    free(path);
    scratch_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_leads_nowhere_is_not_missing),
        cmocka_unit_test(a_pipe_is_refused_and_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
