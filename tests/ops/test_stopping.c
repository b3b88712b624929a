/* Programs that are stopped before their end: they go on where they were, other programs may run meanwhile,
 * and what is given up leaves nothing behind. On the CPU, or on the backend that CALLA_TEST_ONLY names. */
#include "unit.h"

#include <math.h>

#include "backend/backend.h"
#include "plan/policy.h"

#ifndef CALLA_TEST_ONLY
#define CALLA_TEST_ONLY "cpu"
#endif

enum { STEPS = 5, ROWS = 3, COLUMNS = 64 };

static const struct backend_class *class;

/* Operand `index` of a session's state buffers, or scratch buffer 0. */
static struct operand view(enum space space, uint32_t index, unsigned access) {
    return (struct operand){.space = (uint8_t)space,
                            .dtype = DTYPE_F32,
                            .access = (uint8_t)access,
                            .buffer = index,
                            .rows = ROWS,
                            .columns = COLUMNS,
                            .stride = COLUMNS};
}

struct machine {
    struct backend *backend;
    struct device_session *sessions[2];
    struct program *large[2], *small[2];
    struct buffer_shape shapes[2];
};

/* A plan whose every op waits for the one before: scratch = silu(scratch or state 0) * state 0, and at last
 * state 1. A large one has more scratch memory than it uses. */
static struct program *compile(struct device_session *session, uint32_t scratch_rows) {
    struct plan plan = {0};
    struct calla_error error = {0};
    plan_scratch(&plan, "values", DTYPE_F32, scratch_rows, COLUMNS);
    for (int i = 0; i < STEPS; i++) {
        struct operand from =
            i == 0 ? view(SPACE_STATE, 0, ACCESS_READ) : view(SPACE_SCRATCH, 0, ACCESS_READ);
        struct operand to =
            i + 1 == STEPS ? view(SPACE_STATE, 1, ACCESS_WRITE) : view(SPACE_SCRATCH, 0, ACCESS_WRITE);
        struct operand operands[] = {from, view(SPACE_STATE, 0, ACCESS_READ), to};
        assert_non_null(plan_add(&plan, OP_SWIGLU, 0, operands, 3));
    }
    assert_true(plan_schedule(&plan, true, &error));
    struct program *program = class->compile(session, &plan, &error);
    if (program == NULL)
        fail_msg("%s", error.message);
    plan_free(&plan);
    return program;
}

static void fill(struct device_session *session, float first) {
    float values[ROWS * COLUMNS];
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        values[i] = first + 0.01f * (float)i;
    assert_true(class->write(session, SPACE_STATE, 0, 0, values, sizeof values, NULL));
}

static void expect(struct device_session *session, float first) {
    float values[ROWS * COLUMNS];
    assert_true(class->read(session, SPACE_STATE, 1, 0, values, sizeof values, NULL));
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        double x = first + 0.01f * (float)i, y = x;
        for (int step = 0; step < STEPS; step++)
            y = y / (1 + exp(-y)) * x;
        if (!(fabs(values[i] - y) <= 1e-4 * (1 + fabs(y))))
            fail_msg("found %g, expected %g", values[i], y);
    }
}

static void machine_open(struct machine *machine, int threads) {
    struct calla_error error = {0};
    memset(machine, 0, sizeof *machine);
    struct policy policy;
    policy_defaults(&policy, CALLA_TEST_ONLY);
    policy.command_work = 0; /* every op is too much for one command buffer with others */
    struct backend_options options = {.threads = threads, .policy = &policy};
    machine->backend = class->open(&options, &error);
    assert_non_null(machine->backend);
    for (int i = 0; i < 2; i++)
        machine->shapes[i] = (struct buffer_shape){DTYPE_F32, ROWS, COLUMNS, "values"};
    struct session_layout layout = {.state = machine->shapes, .state_count = 2};
    for (int i = 0; i < STEP_BUFFER_COUNT; i++)
        layout.step[i] = (struct buffer_shape){DTYPE_U8, 1, sizeof(struct step_record), "step"};
    for (int i = 0; i < 2; i++) {
        machine->sessions[i] = class->session_open(machine->backend, &layout, &error);
        assert_non_null(machine->sessions[i]);
        machine->large[i] = compile(machine->sessions[i], 1u << 18); /* 64 MiB */
        machine->small[i] = compile(machine->sessions[i], ROWS);
    }
    fill(machine->sessions[0], 0.5f);
    fill(machine->sessions[1], 1.5f);
}

static void machine_close(struct machine *machine) {
    for (int i = 0; i < 2; i++) {
        class->program_free(machine->large[i]);
        class->program_free(machine->small[i]);
        class->session_close(machine->sessions[i]);
    }
    class->close(machine->backend);
}

/* One piece of work, as short as possible; whether the program has come to its end. */
static bool piece(struct machine *machine, int session, struct program *program) {
    bool finished = false;
    struct calla_error error = {0};
    if (!class->run(machine->sessions[session], program, 0, &finished, &error))
        fail_msg("%s", error.message);
    return finished;
}

static void goes_on_where_it_stopped(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct machine machine;
        machine_open(&machine, threads);
        for (int time = 0; time < 2; time++) {
            for (int i = 0; i < STEPS; i++)
                assert_int_equal(piece(&machine, 0, machine.large[0]), i + 1 == STEPS);
            expect(machine.sessions[0], 0.5f);
        }
        assert_true(piece(&machine, 0, machine.small[0])); /* those are not stopped */
        machine_close(&machine);
    }
}

static void others_run_meanwhile(void **state) {
    (void)state;
    struct machine machine;
    machine_open(&machine, 2);
    assert_false(piece(&machine, 0, machine.large[0]));
    assert_true(piece(&machine, 1, machine.small[1]));
    expect(machine.sessions[1], 1.5f);
    assert_false(piece(&machine, 0, machine.large[0]));
    /* The other large one needs the same memory: in its time the first comes to its end, piece by piece, and
     * the first one's owner is told so once. */
    fill(machine.sessions[1], 0.25f);
    for (int i = 2; i <= STEPS; i++)
        assert_false(piece(&machine, 1, machine.large[1]));
    assert_true(piece(&machine, 0, machine.large[0]));
    expect(machine.sessions[0], 0.5f);
    while (!piece(&machine, 1, machine.large[1]))
        ;
    expect(machine.sessions[1], 0.25f);
    fill(machine.sessions[0], 0.75f);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(piece(&machine, 0, machine.large[0]), i + 1 == STEPS);
    expect(machine.sessions[0], 0.75f);
    machine_close(&machine);
}

static void a_reset_gives_it_up(void **state) {
    (void)state;
    struct machine machine;
    machine_open(&machine, 2);
    for (int ended = 0; ended < 2; ended++) {
        assert_false(piece(&machine, 0, machine.large[0]));
        if (ended) {
            while (!piece(&machine, 1, machine.large[1]))
                ;
        }
        assert_true(class->reset(machine.sessions[0], NULL));
        fill(machine.sessions[0], 0.3f);
        for (int i = 0; i < STEPS; i++)
            assert_int_equal(piece(&machine, 0, machine.large[0]), i + 1 == STEPS);
        expect(machine.sessions[0], 0.3f);
    }
    /* Closed, or freed, while stopped. */
    assert_false(piece(&machine, 0, machine.large[0]));
    class->program_free(machine.large[0]);
    machine.large[0] = NULL;
    assert_false(piece(&machine, 1, machine.large[1]));
    assert_true(piece(&machine, 0, machine.small[0]));
    machine_close(&machine);
}

/* Two large ones in turn: each owner's pieces bring both on, and what is given up before it began leaves
 * nothing behind. */
static void large_ones_take_turns(void **state) {
    (void)state;
    struct machine machine;
    machine_open(&machine, 2);
    for (bool ended[2] = {false, false}; !ended[0] || !ended[1];)
        for (int i = 0; i < 2; i++)
            ended[i] = ended[i] || piece(&machine, i, machine.large[i]);
    expect(machine.sessions[0], 0.5f);
    expect(machine.sessions[1], 1.5f);
    assert_false(piece(&machine, 0, machine.large[0]));
    assert_false(piece(&machine, 1, machine.large[1]));
    assert_true(class->reset(machine.sessions[1], NULL));
    while (!piece(&machine, 0, machine.large[0]))
        ;
    expect(machine.sessions[0], 0.5f);
    machine_close(&machine);
}

/* Compiling may move the memory of programs: only then is the stopped one brought to its end before. */
static void compiling_may_end_it(void **state) {
    (void)state;
    struct machine machine;
    machine_open(&machine, 2);
    assert_false(piece(&machine, 0, machine.large[0]));
    struct program *small = compile(machine.sessions[1], 1u << 12), /* more than the small ones so far */
        *no_larger = compile(machine.sessions[1], 1u << 18);
    assert_true(piece(&machine, 1, small));
    expect(machine.sessions[1], 1.5f);
    for (int i = 1; i < STEPS; i++)
        assert_int_equal(piece(&machine, 0, machine.large[0]), i + 1 == STEPS);
    expect(machine.sessions[0], 0.5f);
    class->program_free(small);
    class->program_free(no_larger);
    assert_false(piece(&machine, 0, machine.large[0]));
    struct program *larger = compile(machine.sessions[1], 1u << 19);
    assert_true(piece(&machine, 0, machine.large[0]));
    expect(machine.sessions[0], 0.5f);
    while (!piece(&machine, 1, larger))
        ;
    expect(machine.sessions[1], 1.5f);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(piece(&machine, 0, machine.large[0]), i + 1 == STEPS);
    expect(machine.sessions[0], 0.5f);
    class->program_free(larger);
    machine_close(&machine);
}

int main(void) {
    struct calla_error error;
    if ((class = backend_find(CALLA_TEST_ONLY, &error)) == NULL) {
        print_message("%s\n", error.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_where_it_stopped), cmocka_unit_test(others_run_meanwhile),
        cmocka_unit_test(a_reset_gives_it_up),      cmocka_unit_test(large_ones_take_turns),
        cmocka_unit_test(compiling_may_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
