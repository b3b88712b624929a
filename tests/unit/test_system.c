/* What a thread can ask of the machine for itself. */
#include "unit.h"

#include <pthread.h>

#include "base/system.h"

#if defined(__linux__)
#include <sys/resource.h>

static int own_nice(void) {
    return getpriority(PRIO_PROCESS, 0);
}

static void *give_way(void *argument) {
    int *values = argument;
    system_give_way();
    values[0] = own_nice();
    system_give_way();
    values[1] = own_nice();
    return NULL;
}

static void test_give_way(void **state) {
    (void)state;
    pthread_t thread;
    int before = own_nice(), values[2] = {0, 0};
    int expected = before + 10 < 19 ? before + 10 : 19;
    assert_int_equal(pthread_create(&thread, NULL, give_way, values), 0);
    pthread_join(thread, NULL);
    assert_int_equal(values[0], expected);
    assert_int_equal(values[1], expected); /* once is enough */
    assert_int_equal(own_nice(), before);  /* the others stay as they are */
}
#else
static void test_give_way(void **state) {
    (void)state;
    system_give_way();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_give_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
