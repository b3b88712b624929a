#include "unit.h"

#include <stdatomic.h>

#include "base/threads.h"

#define TASKS 1000

static void mark(void *argument, size_t task) {
    atomic_int *seen = argument;
    atomic_fetch_add(&seen[task], 1);
}

static void every_task_runs_once(void **state) {
    (void)state;
    for (int count = 1; count <= 4; count++) {
        struct threads *threads = threads_open(count, NULL);
        assert_non_null(threads);
        assert_int_equal(threads_count(threads), count);
        for (int round = 0; round < 50; round++) {
            static atomic_int seen[TASKS];
            for (int i = 0; i < TASKS; i++)
                atomic_init(&seen[i], 0);
            threads_run(threads, mark, seen, TASKS);
            for (int i = 0; i < TASKS; i++)
                assert_int_equal(atomic_load(&seen[i]), 1);
        }
        threads_close(threads);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_task_runs_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
