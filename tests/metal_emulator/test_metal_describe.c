/* What `calla info` says of a GPU. */
#include "unit.h"

#include "backend/metal/metal_describe.h"

static void expect(struct metal_facts facts, const char *obstacle, const char *start, const char *part) {
    char line[320];
    metal_describe_tensor_operations(&facts, obstacle, line, sizeof line);
    if (strncmp(line, start, strlen(start)) != 0 || strstr(line, part) == NULL)
        fail_msg("\"%s\" does not begin with \"%s\" or lacks \"%s\"", line, start, part);
    assert_true(strlen(line) < sizeof line - 1);
}

static void test_tensor_operations(void **state) {
    (void)state;
    expect((struct metal_facts){.system = "macOS 26.4", .family = 10, .tensor_operations = true}, NULL,
           "used for prompts", "Apple10, macOS 26.4");
    expect((struct metal_facts){.system = "macOS 26.4", .family = 10, .tensor_operations = true},
           "their products are wrong", "not used", "their products are wrong; simdgroup");
    expect((struct metal_facts){.system = "macOS 26.4", .family = 9}, NULL, "not used", "family Apple9");
    expect((struct metal_facts){.system = "macOS 26.1", .family = 10}, NULL, "not used",
           "this is macOS 26.1");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
