/* The Metal backend's host side on the emulator: command buffers, tokens handed over on the device, what is
 * lost and what is not, memory, snapshots. */
#include "unit.h"

#include <math.h>

#include "engine/engine.h"
#include "metal_emulator/metal_machine.h"

/* The token goes from step to step without the host, which may change it between any two; two sessions in
 * turn; after the first step no object is made. */
static void tokens_are_handed_over(void **unused) {
    (void)unused;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (int on_device = 0; on_device < 2; on_device++) {
            struct metal_emulator_options options = metal_emulator_options(true);
            options.seed = seed;
            struct machine machine;
            machine_open(&machine, &options);
            machine.policy.token_on_device = on_device;
            machine_start(&machine);
            struct device_session *sessions[2] = {session_of(&machine), session_of(&machine)};
            struct program *steps[2] = {step_of(sessions[0]), step_of(sessions[1])};
            int32_t expected[2] = {3, 50};
            for (int i = 0; i < 2; i++) {
                start_at(sessions[i], expected[i]);
                run(sessions[i], steps[i]);
                expected[i] = (expected[i] * 13 + 7) % VOCABULARY;
                assert_int_equal(token_of(sessions[i]), expected[i]);
            }
            struct metal_emulator_counts before = counts_of(&machine);
            for (int step = 0; step < 40; step++) {
                int i = step % 3 == 0;
                if (step % 7 == 6) {
                    expected[i] = step;
                    start_at(sessions[i], step);
                }
                run(sessions[i], steps[i]);
                expected[i] = (expected[i] * 13 + 7) % VOCABULARY;
                if (step % 5 != 4) /* not every token is asked for */
                    assert_int_equal(token_of(sessions[i]), expected[i]);
            }
            for (int i = 0; i < 2; i++)
                assert_int_equal(token_of(sessions[i]), expected[i]);
            struct metal_emulator_counts after = counts_of(&machine);
            assert_int_equal(after.objects, before.objects);
            assert_int_equal(after.command_buffers, before.command_buffers + 40);
            for (int i = 0; i < 2; i++) {
                metal_backend.program_free(steps[i]);
                metal_backend.session_close(sessions[i]);
            }
            machine_close(&machine);
        }
}

static void read_same(struct device_session *a, struct device_session *b, enum space space, uint32_t buffer,
                      uint64_t offset, uint64_t size) {
    unsigned char *bytes[2] = {malloc(size), malloc(size)};
    struct calla_error error = {0};
    assert_true(bytes[0] != NULL && bytes[1] != NULL);
    if (!metal_backend.read(a, space, buffer, offset, bytes[0], size, &error) ||
        !metal_backend.read(b, space, buffer, offset, bytes[1], size, &error))
        fail_msg("%s", error.message);
    if (memcmp(bytes[0], bytes[1], size) != 0)
        fail_msg("%s buffer %u: a step that was undone is seen", space_name(space), buffer);
    free(bytes[0]);
    free(bytes[1]);
}

/* A step is committed before the token that it reads has been seen; whatever comes instead of it undoes it.
 */
static void a_step_too_many_is_undone(void **unused) {
    (void)unused;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct metal_emulator_options options = metal_emulator_options(true);
        options.seed = seed;
        struct machine machine;
        machine_open(&machine, &options);
        machine_start(&machine);
        struct device_session *ahead = session_of(&machine), *behind = session_of(&machine);
        struct program *steps[2] = {step_of(ahead), step_of(behind)};
        start_at(ahead, 3);
        start_at(behind, 3);
        uint64_t random = seed;
        for (int step = 0; step < 60; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t chance = (uint32_t)(random >> 40);
            run(ahead, steps[0]);
            run(behind, steps[1]);
            uint64_t before = counts_of(&machine).command_buffers;
            metal_backend.run_ahead(ahead, steps[0]);
            metal_backend.run_ahead(ahead, steps[0]); /* one is enough */
            const struct metal_session *session = (const struct metal_session *)ahead;
            assert_ptr_equal(session->ahead, steps[0]);
            if (seed % 2 == 0)
                assert_int_equal(counts_of(&machine).command_buffers, before + 1);
            else /* two in flight */
                for (int i = 0; i < 2; i++)
                    assert_int_equal(metal_commands_status(session->commands[i]), METAL_RUNNING);
            assert_int_equal(token_of(ahead), token_of(behind));
            if (seed % 2 == 1)
                assert_int_equal(metal_commands_status(session->commands[1 - session->turn]), METAL_RUNNING);
            if (chance % 3 == 0) {
                read_same(ahead, behind, SPACE_STEP, STEP_LOGITS, 0, VOCABULARY * sizeof(float));
                read_same(ahead, behind, SPACE_STEP, STEP_RECORD, 0, sizeof(struct step_record));
                read_same(ahead, behind, SPACE_STEP, STEP_COUNTS, 0, VOCABULARY * sizeof(int32_t));
                read_same(ahead, behind, SPACE_STEP, STEP_TOKENS, 0, sizeof(int32_t));
            } else if (chance % 5 == 0) {
                start_at(ahead, step);
                start_at(behind, step);
            } else if (chance % 7 == 0) {
                assert_true(metal_backend.reset(ahead, NULL) && metal_backend.reset(behind, NULL));
                start_at(ahead, step);
                start_at(behind, step);
            }
        }
        metal_backend.run_ahead(ahead, steps[0]);
        metal_backend.program_free(steps[0]);
        metal_backend.program_free(steps[1]);
        read_same(ahead, behind, SPACE_STEP, STEP_LOGITS, 0, VOCABULARY * sizeof(float));
        assert_int_equal(metal_emulator_faults(((struct metal_backend *)machine.backend)->device, NULL), 0);
        metal_backend.session_close(ahead);
        metal_backend.session_close(behind);
        machine_close(&machine);
    }
}

/* All that a session is, but for what means nothing: the row of a convolution's ring that comes next. */
static void same_sessions(const struct calla_session *a, const struct calla_session *b) {
    assert_int_equal(a->position, b->position);
    const struct session_layout *layout = &a->layout;
    for (uint32_t i = 0; i < layout->state_count; i++) {
        const struct buffer_shape *shape = &layout->state[i];
        uint64_t row_bytes = dtype_row_bytes(shape->dtype, shape->columns);
        for (uint32_t row = 0; row < shape->rows; row++)
            if (i % 2 == 1 || row != a->position % shape->rows)
                read_same(a->device, b->device, SPACE_STATE, i, row * row_bytes, row_bytes);
    }
    for (uint32_t i = 0; i < layout->kv_count; i++)
        read_same(a->device, b->device, SPACE_KV, i, 0,
                  a->position * dtype_row_bytes(layout->kv[i].dtype, layout->kv[i].columns));
    uint64_t vocabulary = layout->step[STEP_LOGITS].columns;
    read_same(a->device, b->device, SPACE_STEP, STEP_LOGITS, 0, vocabulary * sizeof(float));
    read_same(a->device, b->device, SPACE_STEP, STEP_COUNTS, 0, vocabulary * sizeof(int32_t));
    read_same(a->device, b->device, SPACE_STEP, STEP_RECORD, 0, sizeof(struct step_record));
    read_same(a->device, b->device, SPACE_STEP, STEP_TOKENS, 0, sizeof(int32_t));
}

/* The same with a whole model: state, cache, and what a snapshot keeps. */
static void a_model_undoes_its_last_step(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.seed = 1; /* commands run when they are waited for */
    options.checked = false;
    metal_emulator_use(&options);
    struct calla_model_options with = {.path = "models/calla-tiny", .backend = "metal"};
    struct calla_error error = {0};
    struct calla_model *model = calla_model_open(&with, &error);
    if (model == NULL)
        fail_msg("%s", error.message);
    struct calla_session_options room = {.context = 300};
    struct calla_session *sessions[3];
    int32_t prompt[9], tokens[2];
    for (int i = 0; i < 9; i++)
        prompt[i] = 20 + 7 * i;
    const struct calla_sampling sampling = {.top_p = 1, .repetition_penalty = 1.1f};
    for (int i = 0; i < 3; i++)
        assert_non_null(sessions[i] = calla_session_open(model, &room, NULL));
    for (int i = 0; i < 2; i++) {
        assert_true(calla_session_read(sessions[i], prompt, 9, NULL, NULL, NULL));
        assert_true(session_start_sampling(sessions[i], &sampling, prompt, 9, NULL));
        assert_true(session_sample(sessions[i], &tokens[i], NULL));
    }
    for (int step = 0; step < 12; step++) {
        for (int i = 0; i < 2; i++)
            assert_true(session_step(sessions[i], tokens[i], &tokens[i], i == 0, NULL));
        assert_int_equal(tokens[0], tokens[1]);
        assert_non_null(((struct metal_session *)sessions[0]->device)->ahead);
        if (step == 4)
            same_sessions(sessions[0], sessions[1]);
        if (step == 6) /* another token than the one that was drawn */
            tokens[0] = tokens[1] = 5;
        if (step == 8) /* a chunk, after which nothing was drawn */
            for (int i = 0; i < 2; i++) {
                assert_true(session_step(sessions[i], tokens[i], NULL, false, NULL));
                tokens[i] = 6;
            }
    }
    struct metal_session *device = (struct metal_session *)sessions[0]->device;
    assert_non_null(device->ahead);
    struct device_snapshot *snapshot =
        metal_backend.snapshot_take(sessions[0]->device, sessions[0]->position, &error);
    assert_non_null(snapshot);
    assert_null(device->ahead);
    same_sessions(sessions[0], sessions[1]);
    assert_true(metal_backend.snapshot_restore(sessions[2]->device, snapshot, NULL));
    sessions[2]->position = sessions[0]->position;
    for (uint32_t i = 1; i < sessions[0]->layout.state_count; i += 2)
        read_same(sessions[2]->device, sessions[1]->device, SPACE_STATE, i, 0,
                  buffer_shape_bytes(&sessions[0]->layout.state[i]));
    metal_backend.snapshot_free(snapshot);
    for (int i = 0; i < 3; i++)
        calla_session_close(sessions[i]);
    calla_model_close(model);
}

/* After a chunk as long as they get and one of each kind that has kernels of its own, texts of all lengths
 * are read and gone on with, and sessions reset, without an object of Metal's being made: a system's driver
 * has failed where they came and went. */
static void nothing_is_made_after_warm_up(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.checked = false;
    metal_emulator_use(&options);
    static const char *const policy = "chunk_rows=40";
    struct calla_model_options with = {
        .path = "models/calla-tiny", .backend = "metal", .policies = &policy, .policy_count = 1};
    struct calla_error error = {0};
    struct calla_model *model = calla_model_open(&with, &error);
    if (model == NULL)
        fail_msg("%s", error.message);
    struct calla_session *session =
        calla_session_open(model, &(struct calla_session_options){.context = 300}, &error);
    assert_non_null(session);
    const struct metal_device *device = ((struct metal_backend *)model->backend)->device;
    struct metal_emulator_counts before = {0};
    int32_t tokens[300], next;
    for (int i = 0; i < 300; i++)
        tokens[i] = 20 + 7 * i % 301;
    enum { WARM_UP = 5 };
    static const uint32_t lengths[] = {40, 17, 8, 2, 1, 7, 33, 3, 65, 16, 4, 10};
    const struct calla_sampling sampling = {.temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1.1f};
    for (size_t turn = 0; turn < sizeof lengths / sizeof *lengths; turn++) {
        if (turn == WARM_UP)
            before = metal_emulator_counts(device);
        uint32_t position = session->position + lengths[turn];
        if (turn % 5 == 4) {
            assert_true(calla_session_reset(session, &error));
            position = lengths[turn];
        }
        uint64_t submitted = metal_emulator_counts(device).command_buffers;
        assert_true(calla_session_read(session, tokens, position, NULL, NULL, &error));
        /* One submission a chunk, and no wait within. */
        assert_int_equal(metal_emulator_counts(device).command_buffers - submitted,
                         (lengths[turn] + 39) / 40);
        assert_true(session_start_sampling(session, &sampling, tokens, position, &error));
        assert_true(session_sample(session, &next, &error));
        for (int step = 0; step < 3; step++) {
            tokens[position + (uint32_t)step] = next;
            assert_true(session_step(session, next, &next, step < 2, &error));
        }
        struct metal_emulator_counts now = metal_emulator_counts(device);
        if (turn >= WARM_UP)
            assert_int_equal(now.objects, before.objects);
    }
    calla_session_close(session);
    calla_model_close(model);
}

static void the_memory_is_measured(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(false);
    options.facts.working_set = 1u << 20;
    metal_emulator_use(&options);
    struct calla_error error = {0};
    if (!(metal_backend.bandwidth(&error) > 0))
        fail_msg("%s", error.message);
}

/* The work of a command buffer is bounded, and where it is cut changes nothing. */
static void command_buffers_are_cut(void **unused) {
    (void)unused;
    static const uint32_t budgets[] = {0, 1u << 20};
    float results[2][ROWS * VOCABULARY];
    for (int i = 0; i < 2; i++) {
        struct metal_emulator_options options = metal_emulator_options(true);
        struct machine machine;
        machine_open(&machine, &options);
        machine.policy.command_work = budgets[i];
        machine_start(&machine);
        struct device_session *session = session_of(&machine);
        struct program *program = chain_of(session, 9);
        float values[ROWS * VOCABULARY];
        for (int j = 0; j < ROWS * VOCABULARY; j++)
            values[j] = 1 + (float)j / 100;
        for (uint32_t j = 0; j < 2; j++)
            assert_true(metal_backend.write(session, SPACE_STATE, j, 0, values, sizeof values, NULL));
        uint64_t before = counts_of(&machine).command_buffers;
        run(session, program);
        assert_true(metal_backend.read(session, SPACE_STATE, 1, 0, results[i], sizeof results[i], NULL));
        assert_int_equal(counts_of(&machine).command_buffers - before, i == 0 ? 9 : 1);
        metal_backend.program_free(program);
        metal_backend.session_close(session);
        machine_close(&machine);
    }
    assert_memory_equal(results[0], results[1], sizeof results[0]);
}

/* Commands that fail name their kernel, and take their session with them until it is reset, nothing else. */
static void a_failure_is_the_sessions(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.fail_kernel = "swiglu";
    struct machine machine;
    machine_open(&machine, &options);
    machine_start(&machine);
    struct device_session *lost = session_of(&machine), *other = session_of(&machine);
    struct program *failing = chain_of(lost, 2), *step = step_of(lost), *step_of_other = step_of(other);
    struct calla_error error = {0};
    float values[4];
    bool ok = metal_backend.run(lost, failing, (double)INFINITY, &(bool){false}, &error) &&
              metal_backend.read(lost, SPACE_STATE, 1, 0, values, sizeof values, &error);
    assert_false(ok);
    assert_int_equal(error.status, CALLA_DEVICE);
    assert_non_null(strstr(error.message, "swiglu"));
    error = (struct calla_error){0};
    assert_false(metal_backend.run(lost, step, (double)INFINITY, &(bool){false}, &error));
    assert_non_null(strstr(error.message, "swiglu"));
    start_at(other, 1);
    run(other, step_of_other);
    assert_int_equal(token_of(other), 20);
    assert_true(metal_backend.reset(lost, &error));
    start_at(lost, 2);
    run(lost, step);
    assert_int_equal(token_of(lost), 33);
    metal_backend.program_free(failing);
    metal_backend.program_free(step);
    metal_backend.program_free(step_of_other);
    metal_backend.session_close(lost);
    metal_backend.session_close(other);
    machine_close(&machine);
}

static void weights_are_refused(struct machine *machine, struct calla_error *error) {
    struct backend_options with = {.policy = &machine->policy};
    machine->backend = metal_backend.open(&with, error);
    assert_non_null(machine->backend);
    assert_false(metal_backend.load(machine->backend, &machine->weights, NULL, error));
    assert_int_equal(error->status, CALLA_OUT_OF_MEMORY);
}

/* Too little memory is said with numbers, before anything is loaded. */
static void memory_is_checked_first(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.facts.working_set = 10000;
    struct machine machine;
    machine_open(&machine, &options);
    struct calla_error error = {0};
    weights_are_refused(&machine, &error);
    assert_non_null(strstr(error.message, "Emulated Apple M5"));
    assert_int_equal(counts_of(&machine).buffers, 0);
    machine_close(&machine);
    options.facts.working_set = 30000;
    machine_open(&machine, &options);
    machine_start(&machine);
    assert_null(metal_backend.session_open(machine.backend, &machine.layout, &error));
    assert_non_null(strstr(error.message, "context"));
    machine_close(&machine);
}

/* Weights that no buffer holds together lie in several, and one that no buffer holds is refused. */
static void weights_are_split(void **unused) {
    (void)unused;
    enum { TABLES = 5 };
    struct metal_emulator_options options = metal_emulator_options(true);
    options.facts.max_buffer = 40000; /* two tables of 16 KB */
    struct machine machine;
    machine_open(&machine, &options);
    struct weight weights[TABLES];
    for (uint32_t i = 0; i < TABLES; i++) { /* table i is the first from row i on */
        weights[i] = machine.weight;
        weights[i].rows = VOCABULARY - i;
        weights[i].parts[0].offset = i * sizeof machine.table[0];
        weights[i].parts[0].bytes -= i * sizeof machine.table[0];
    }
    machine.weights.table = (struct weight_table){.weights = weights, .count = TABLES};
    machine_start(&machine);
    const struct metal_backend *backend = (struct metal_backend *)machine.backend;
    assert_int_equal(backend->weight_buffer_count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(metal_buffer_size(backend->weight_buffers[i]) <= options.facts.max_buffer);
    struct device_session *session = session_of(&machine);
    const int32_t tokens[ROWS] = {0, 7, 58, 33};
    assert_true(metal_backend.write(session, SPACE_STEP, STEP_TOKENS, 0, tokens, sizeof tokens, NULL));
    for (uint32_t i = 0; i < TABLES; i++) {
        struct plan plan = {.rows = ROWS};
        plan_add(
            &plan, OP_EMBED, 0,
            (struct operand[]){operand(SPACE_STEP, STEP_TOKENS, DTYPE_I32, 1, ROWS, ACCESS_READ),
                               operand(SPACE_WEIGHT, i, DTYPE_F32, VOCABULARY - i, VOCABULARY, ACCESS_READ),
                               state(0, ACCESS_WRITE)},
            3);
        struct program *program = compiled(session, &plan);
        float found[ROWS][VOCABULARY];
        run(session, program);
        assert_true(metal_backend.read(session, SPACE_STATE, 0, 0, found, sizeof found, NULL));
        for (uint32_t row = 0; row < ROWS; row++)
            assert_memory_equal(found[row], machine.table[(uint32_t)tokens[row] + i], sizeof found[row]);
        metal_backend.program_free(program);
    }
    metal_backend.session_close(session);
    machine_close(&machine);
    options.facts.max_buffer = 16000;
    machine_open(&machine, &options);
    struct calla_error error = {0};
    weights_are_refused(&machine, &error);
    assert_non_null(strstr(error.message, "no buffers large enough for the model's weights"));
    machine_close(&machine);
}

/* A kernel that needs more threads than its pipeline allows, and has no other way, is refused with both. */
static void too_few_threads_are_refused(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    options.pipeline_threads = 64;
    struct machine machine;
    machine_open(&machine, &options);
    machine_start(&machine);
    struct device_session *session = session_of(&machine);
    struct operand rows = state(0, ACCESS_READ);
    rows.columns = KV_COLUMNS;
    struct plan plan = {.rows = ROWS};
    plan_add(&plan, OP_KV_WRITE, 3,
             (struct operand[]){
                 operand(SPACE_STEP, STEP_RECORD, DTYPE_U8, 1, sizeof(struct step_record), ACCESS_READ), rows,
                 rows, operand(SPACE_KV, 0, DTYPE_BF16, KV_ROWS, KV_COLUMNS, ACCESS_WRITE),
                 operand(SPACE_KV, 1, DTYPE_BF16, KV_ROWS, KV_COLUMNS, ACCESS_WRITE)},
             5);
    struct calla_error error = {0};
    assert_true(plan_schedule(&plan, true, &error));
    assert_null(metal_backend.compile(session, &plan, &error));
    assert_non_null(strstr(error.message, "layer 3"));
    assert_non_null(strstr(error.message, "'kv_write' is launched with 128 threads"));
    assert_non_null(strstr(error.message, "1 to 64"));
    plan_free(&plan);
    metal_backend.session_close(session);
    machine_close(&machine);
}

static void fill(struct device_session *session, uint32_t first, uint32_t end, int mark) {
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t row = first; row < end; row++) {
            int16_t values[KV_COLUMNS];
            for (int i = 0; i < KV_COLUMNS; i++)
                values[i] = (int16_t)(mark * 1000 + (int)row + (int)buffer);
            assert_true(metal_backend.write(session, SPACE_KV, buffer, row * sizeof values, values,
                                            sizeof values, NULL));
        }
    float state_value = (float)(mark * 1000 + (int)end);
    assert_true(metal_backend.write(session, SPACE_STATE, 0, 0, &state_value, sizeof state_value, NULL));
}

static void expect(struct device_session *session, uint32_t first, uint32_t end, int mark) {
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t row = first; row < end; row++) {
            int16_t values[KV_COLUMNS];
            assert_true(metal_backend.read(session, SPACE_KV, buffer, row * sizeof values, values,
                                           sizeof values, NULL));
            assert_int_equal(values[KV_COLUMNS - 1], (int16_t)(mark * 1000 + (int)row + (int)buffer));
        }
}

/* Snapshots bring back what was, share what they have in common, and say what they cost. */
static void snapshots_keep_and_share(void **unused) {
    (void)unused;
    struct metal_emulator_options options = metal_emulator_options(true);
    struct machine machine;
    machine_open(&machine, &options);
    machine_start(&machine);
    struct device_session *first = session_of(&machine), *second = session_of(&machine);
    fill(first, 0, 600, 1);
    struct device_snapshot *snapshots[2];
    uint64_t cost = metal_backend.snapshot_cost(first, 600);
    snapshots[0] = metal_backend.snapshot_take(first, 600, NULL);
    assert_non_null(snapshots[0]);
    assert_int_equal(metal_backend.snapshot_bytes(machine.backend), cost);
    fill(first, 600, 700, 2);
    /* Two whole blocks of 256 positions are known already. */
    uint64_t more = metal_backend.snapshot_cost(first, 700);
    assert_in_range(more, 3 * ROWS * VOCABULARY * 4 + (700 - 512) * 32,
                    3 * ROWS * VOCABULARY * 4 + (700 - 512) * 32 + 200);
    snapshots[1] = metal_backend.snapshot_take(first, 700, NULL);
    assert_int_equal(metal_backend.snapshot_bytes(machine.backend), cost + more);
    fill(first, 0, 10, 3);
    metal_backend.session_close(first);
    assert_true(metal_backend.snapshot_restore(second, snapshots[1], NULL));
    expect(second, 0, 600, 1);
    expect(second, 600, 700, 2);
    fill(second, 300, 310, 4);
    assert_true(metal_backend.snapshot_restore(second, snapshots[0], NULL));
    expect(second, 0, 600, 1);
    float state_value = 0;
    assert_true(metal_backend.read(second, SPACE_STATE, 0, 0, &state_value, sizeof state_value, NULL));
    assert_true(state_value == 1600);
    int16_t rows[3 * KV_COLUMNS];
    assert_true(metal_backend.snapshot_read(snapshots[1], SPACE_KV, 1, 511 * 16, rows, sizeof rows, NULL));
    assert_int_equal(rows[0], 1512);
    assert_int_equal(rows[KV_COLUMNS], 1513);
    struct calla_error error = {0};
    assert_false(metal_backend.snapshot_read(snapshots[0], SPACE_KV, 0, 599 * 16, rows, 17, &error));
    assert_false(metal_backend.snapshot_read(snapshots[0], SPACE_KV, 2, 0, rows, 1, &error));
    assert_null(metal_backend.snapshot_take(second, KV_ROWS + 1, &error));
    metal_backend.snapshot_free(snapshots[0]);
    metal_backend.snapshot_free(snapshots[1]);
    metal_backend.snapshot_free(NULL);
    assert_int_equal(metal_backend.snapshot_bytes(machine.backend), 0);
    metal_backend.session_close(second);
    machine_close(&machine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_handed_over),
        cmocka_unit_test(a_step_too_many_is_undone),
        cmocka_unit_test(a_model_undoes_its_last_step),
        cmocka_unit_test(nothing_is_made_after_warm_up),
        cmocka_unit_test(the_memory_is_measured),
        cmocka_unit_test(command_buffers_are_cut),
        cmocka_unit_test(a_failure_is_the_sessions),
        cmocka_unit_test(memory_is_checked_first),
        cmocka_unit_test(weights_are_split),
        cmocka_unit_test(too_few_threads_are_refused),
        cmocka_unit_test(snapshots_keep_and_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
