/* A backend on the emulator with the smallest model there is, for the tests of its host side: opening and
 * closing it, plans for it, and what they leave. */
#ifndef CALLA_TESTS_METAL_MACHINE_H
#define CALLA_TESTS_METAL_MACHINE_H

#include "unit.h"

#include "backend/metal/metal_backend.h"
#include "metal_emulator/metal_emulator.h"
#include "plan/policy.h"
#include "scratch.h"

enum { VOCABULARY = 64, ROWS = 4, KV_ROWS = 1000, KV_COLUMNS = 8 };

/* A model of one table: the logits after a token are its row. */
struct machine {
    char *folder; /* with the table's file */
    struct file opened;
    struct weight weight;
    struct weights weights;
    struct policy policy;
    struct backend *backend;
    struct buffer_shape state[3], kv[2];
    struct session_layout layout;
    float table[VOCABULARY][VOCABULARY];
};

static void machine_open(struct machine *machine, const struct metal_emulator_options *options) {
    memset(machine, 0, sizeof *machine);
    metal_emulator_use(options);
    for (int i = 0; i < VOCABULARY; i++)
        for (int j = 0; j < VOCABULARY; j++)
            machine->table[i][j] = j == (i * 13 + 7) % VOCABULARY ? 5 : (float)((i * j) % 17) / 10;
    machine->folder = scratch_new();
    scratch_write(machine->folder, "table", machine->table, sizeof machine->table);
    char *path = scratch_path(machine->folder, "table");
    assert_true(file_open(&machine->opened, path, NULL));
    free(path);
    static char name[] = "table";
    machine->weight = (struct weight){
        .module = name, .dtype = DTYPE_F32, .matrices = 1, .rows = VOCABULARY, .columns = VOCABULARY};
    machine->weight.part_count = 1;
    machine->weight.parts[0] = (struct weight_part){.name = name, .bytes = sizeof machine->table};
    machine->weights = (struct weights){.table = {.weights = &machine->weight, .count = 1},
                                        .files = &machine->opened,
                                        .file_count = 1,
                                        .bytes = sizeof machine->table};
    policy_defaults(&machine->policy, "metal");
    machine->policy.tensor_operations = false; /* no self-test: it has a test of its own */
    for (int i = 0; i < 3; i++)
        machine->state[i] = (struct buffer_shape){DTYPE_F32, ROWS, VOCABULARY, "state"};
    for (int i = 0; i < 2; i++)
        machine->kv[i] = (struct buffer_shape){DTYPE_BF16, KV_ROWS, KV_COLUMNS, "kv"};
    machine->layout =
        (struct session_layout){.state = machine->state, .state_count = 3, .kv = machine->kv, .kv_count = 2};
    machine->layout.step[STEP_RECORD] =
        (struct buffer_shape){DTYPE_U8, 1, sizeof(struct step_record), "record"};
    machine->layout.step[STEP_TOKENS] = (struct buffer_shape){DTYPE_I32, 1, ROWS, "tokens"};
    machine->layout.step[STEP_LOGITS] = (struct buffer_shape){DTYPE_F32, 1, VOCABULARY, "logits"};
    machine->layout.step[STEP_BIAS] = machine->layout.step[STEP_LOGITS];
    machine->layout.step[STEP_COUNTS] = (struct buffer_shape){DTYPE_I32, 1, VOCABULARY, "counts"};
}

static void machine_start(struct machine *machine) {
    struct calla_error error = {0};
    struct backend_options options = {.policy = &machine->policy};
    machine->backend = metal_backend.open(&options, &error);
    if (machine->backend == NULL || !metal_backend.load(machine->backend, &machine->weights, NULL, &error))
        fail_msg("%s", error.message);
}

static void machine_close(struct machine *machine) {
    metal_backend.close(machine->backend);
    file_close(&machine->opened);
    scratch_remove(machine->folder);
}

static struct device_session *session_of(struct machine *machine) {
    struct calla_error error = {0};
    struct device_session *session = metal_backend.session_open(machine->backend, &machine->layout, &error);
    if (session == NULL)
        fail_msg("%s", error.message);
    return session;
}

static struct operand operand(enum space space, uint32_t buffer, enum dtype dtype, uint32_t rows,
                              uint32_t columns, unsigned access) {
    return (struct operand){.space = (uint8_t)space,
                            .dtype = (uint8_t)dtype,
                            .access = (uint8_t)access,
                            .buffer = buffer,
                            .rows = rows,
                            .columns = columns,
                            .stride = columns};
}

static struct operand state(uint32_t index, unsigned access) {
    return operand(SPACE_STATE, index, DTYPE_F32, ROWS, VOCABULARY, access);
}

static struct program *compiled(struct device_session *session, struct plan *plan) {
    struct calla_error error = {0};
    assert_true(plan_schedule(plan, true, &error));
    struct program *program = metal_backend.compile(session, plan, &error);
    if (program == NULL)
        fail_msg("%s", error.message);
    plan_free(plan);
    return program;
}

/* Reads a token, draws the next. */
static struct program *step_of(struct device_session *session) {
    struct plan plan = {.rows = 1};
    struct operand logits = operand(SPACE_STEP, STEP_LOGITS, DTYPE_F32, 1, VOCABULARY, ACCESS_READ);
    struct operand tokens = operand(SPACE_STEP, STEP_TOKENS, DTYPE_I32, 1, 1, ACCESS_READ);
    plan_add(&plan, OP_EMBED, 0,
             (struct operand[]){tokens,
                                operand(SPACE_WEIGHT, 0, DTYPE_F32, VOCABULARY, VOCABULARY, ACCESS_READ),
                                writing(logits)},
             3);
    plan_add(&plan, OP_SAMPLE, -1,
             (struct operand[]){
                 operand(SPACE_STEP, STEP_RECORD, DTYPE_U8, 1, sizeof(struct step_record),
                         ACCESS_READ | ACCESS_WRITE),
                 logits, operand(SPACE_STEP, STEP_BIAS, DTYPE_F32, 1, VOCABULARY, ACCESS_READ),
                 operand(SPACE_STEP, STEP_COUNTS, DTYPE_I32, 1, VOCABULARY, ACCESS_READ | ACCESS_WRITE),
                 writing(tokens)},
             5);
    return compiled(session, &plan);
}

/* `count` ops, each waiting for the one before: state 1 = silu(state 1) * state 0. */
static struct program *chain_of(struct device_session *session, int count) {
    struct plan plan = {.rows = ROWS};
    for (int i = 0; i < count; i++)
        plan_add(&plan, OP_SWIGLU, i,
                 (struct operand[]){state(1, ACCESS_READ), state(0, ACCESS_READ), state(1, ACCESS_WRITE)}, 3);
    return compiled(session, &plan);
}

static void run(struct device_session *session, struct program *program) {
    struct calla_error error = {0};
    if (!metal_backend.run(session, program, (double)INFINITY, &(bool){false}, &error))
        fail_msg("%s", error.message);
}

static void start_at(struct device_session *session, int32_t token) {
    struct step_record record = {.rows = 1, .top_p = 1, .repetition_penalty = 1};
    assert_true(metal_backend.write(session, SPACE_STEP, STEP_RECORD, 0, &record, sizeof record, NULL));
    assert_true(metal_backend.write(session, SPACE_STEP, STEP_TOKENS, 0, &token, sizeof token, NULL));
}

static int32_t token_of(struct device_session *session) {
    int32_t token = -2;
    struct calla_error error = {0};
    if (!metal_backend.read(session, SPACE_STEP, STEP_TOKENS, 0, &token, sizeof token, &error))
        fail_msg("%s", error.message);
    return token;
}

static struct metal_emulator_counts counts_of(const struct machine *machine) {
    return metal_emulator_counts(((struct metal_backend *)machine->backend)->device);
}

#endif
