/* Every allocation of a backend made to fail in turn: an error each time, no leak and no crash (a sanitizer
 * is the judge). */
/* wrap: calloc */
#include "op_bench.h"

static long allocations_left = -1; /* negative: all succeed */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size) {
    if (allocations_left == 0)
        return NULL;
    if (allocations_left > 0)
        allocations_left--;
    return __real_calloc(count, size);
}

/* Opens a backend, loads weights, opens a session, compiles a plan, and closes it all; false with an error
 * if something failed. */
static bool live_once(const struct bench *bench, struct weights *weights, struct calla_error *error) {
    struct backend_options options = {.threads = 2};
    struct buffer_shape kv = {DTYPE_BF16, 16, 64, "K"};
    struct session_layout layout = {.state_count = bench->buffer_count, .kv = &kv, .kv_count = 1};
    struct buffer_shape shapes[BENCH_MAX];
    memcpy(shapes, bench->shapes, sizeof shapes);
    layout.state = shapes;
    for (int i = 0; i < STEP_BUFFER_COUNT; i++)
        layout.step[i] = (struct buffer_shape){DTYPE_F32, 1, 4, "step"};
    struct backend *backend = cpu_backend.open(&options, error);
    if (backend == NULL)
        return false;
    struct device_session *session = NULL;
    struct program *program = NULL;
    bool done = cpu_backend.load(backend, weights, NULL, error) &&
                (session = cpu_backend.session_open(backend, &layout, error)) != NULL &&
                (program = cpu_backend.compile(session, &bench->plan, error)) != NULL &&
                cpu_backend.run(session, program, 1e9, &(bool){false}, error);
    cpu_backend.program_free(program);
    cpu_backend.session_close(session);
    cpu_backend.close(backend);
    return done;
}

static void failed_allocations_are_errors(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, 1);
    struct operand x = bench_input(&bench, 2, 64, 1), y = bench_output(&bench, 2, 5);
    struct operand w = bench_weight(&bench, DTYPE_AFFINE4, 5, 64, 1, 0);
    bench_op(&bench, OP_HEAD, (struct operand[]){x, w, y}, 3);
    plan_scratch(&bench.plan, "unused", DTYPE_F32, 3, 3);
    struct file file;
    struct weights weights = bench_weights_open(&bench, &file);
    long failures = 0;
    for (bool done = false; !done; failures++) {
        struct calla_error error = {0};
        allocations_left = failures;
        done = live_once(&bench, &weights, &error);
        allocations_left = -1;
        if (!done) {
            assert_int_equal(error.status, CALLA_OUT_OF_MEMORY);
            assert_true(error.message[0] != 0);
        }
    }
    assert_true(failures > 15);
    bench_weights_close(&weights);
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(failed_allocations_are_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
