/* A plan made ready to run: bound to memory, its kernels chosen, its pipelines made. A run encodes it into
 * command buffers of bounded work, up to two of which are underway; a decode step's next run is committed
 * while the GPU works on this one. */
#include <math.h>
#include <stdlib.h>

#include "backend/binding.h"
#include "backend/metal/metal_backend.h"
#include "base/system.h"
#include "plan/cost.h"

/* Scratch bytes up to which a program is a small one. */
#define SMALL_SCRATCH ((uint64_t)32 << 20)

/* Operands of OP_DELTA_STEP. */
enum { DELTA_STEP_RING = 9, DELTA_STEP_STATE = 10 };

/* What moving a byte is counted as, in operations: an M1 does as many in the time. */
#define OPERATIONS_A_BYTE 32.0

struct metal_program {
    struct metal_backend *backend;
    struct metal_session *session;
    struct op *plain;     /* the plan's ops, to which `ops` point */
    struct metal_op *ops; /* bound */
    const struct metal_kernel **kernels;
    uint64_t *workspaces, *workspace_sizes; /* offsets in the scratch memory */
    struct metal_memory *scratch;           /* the plan's buffers; bound as of `moves` */
    uint32_t op_count, scratch_count;
    uint64_t scratch_bytes; /* of all buffers and workspaces */
    uint64_t moves;         /* of the scratch memory when the ops were bound; 0: not yet */
    struct plan_facts facts;
    bool writes_kv, writes_logits;
    bool undoable; /* a step that leaves the state and the logits before it where they are */

    /* Where it was stopped: 0, 0 at its beginning. */
    uint32_t next_op, next_piece;
    uint64_t ended; /* run to its end for another program's sake: the session's resets then, plus 1 */
};

/* Of one run. */
struct run {
    struct metal_program *program;
    double start, seconds;
    bool may_stop;
    bool ahead; /* into one command buffer or not at all */
};

static bool is_large(const struct metal_program *program) {
    return program->scratch_bytes > SMALL_SCRATCH;
}

static struct metal_scratch *scratch_of(const struct metal_program *program) {
    return &program->backend->scratch[is_large(program)];
}

void metal_program_free(struct program *base) {
    struct metal_program *program = (struct metal_program *)base;
    if (program == NULL)
        return;
    struct metal_session *session = program->session;
    if (program->backend->stopped == program)
        program->backend->stopped = NULL;
    if (session->ahead == program)
        metal_session_idle(session, NULL);
    free(program->scratch);
    free(program->workspaces);
    free(program->workspace_sizes);
    free((void *)program->kernels);
    free(program->ops);
    free(program->plain);
    free(program);
}

/* ---- Binding */

static bool bind_memory(struct metal_operand *bound, const struct operand *operand,
                        const struct metal_memory *memory) {
    if (memory == NULL || !binding_inside(operand, memory->size))
        return false;
    *bound = (struct metal_operand){.buffer = memory->buffer,
                                    .offset = memory->offset + operand->offset,
                                    .dtype = operand->dtype,
                                    .rows = operand->rows,
                                    .columns = operand->columns,
                                    .stride = operand->stride,
                                    .access = operand->access};
    return true;
}

static bool bind_operand(struct metal_operand *bound, const struct operand *operand,
                         const struct metal_program *program) {
    const struct metal_backend *backend = program->backend;
    if (operand->space == SPACE_WEIGHT) {
        if (binding_weight(operand, backend->weights) == NULL)
            return false;
        *bound = backend->weight_operands[operand->buffer];
        bound->rows = operand->rows;
        return true;
    }
    if (operand->space == SPACE_SCRATCH)
        return operand->buffer < program->scratch_count &&
               bind_memory(bound, operand, &program->scratch[operand->buffer]);
    const struct metal_session *session = program->session;
    const struct metal_memory *memory =
        metal_session_memory(session, (enum space)operand->space, operand->buffer);
    if (memory == &session->step[STEP_LOGITS] && memory->size < session->other_logits.size)
        memory = &session->other_logits;
    return bind_memory(bound, operand, memory);
}

static void swap(struct metal_memory *a, struct metal_memory *b) {
    struct metal_memory kept = *a;
    *a = *b;
    *b = kept;
}

static void move_to(struct metal_operand *bound, const struct operand *operand,
                    const struct metal_memory *memory) {
    bound->buffer = memory->buffer;
    bound->offset = memory->offset + operand->offset;
}

/* Binds what changes its place from step to step: states, and logits. */
static void bind_moving(struct metal_program *program, uint32_t index) {
    const struct metal_session *session = program->session;
    const struct op *op = &program->plain[index];
    struct metal_op *bound = &program->ops[index];
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct operand *operand = &op->operands[i];
        if (operand->space == SPACE_STATE)
            move_to(&bound->operands[i], operand, &session->state[operand->buffer]);
        else if (operand->space == SPACE_STEP && operand->buffer == STEP_LOGITS)
            move_to(&bound->operands[i], operand,
                    program->undoable ? &session->other_logits : &session->step[STEP_LOGITS]);
    }
    if (op->kind != OP_DELTA_STEP)
        return;
    const struct operand *state = &op->operands[DELTA_STEP_STATE];
    bound->next_state = bound->operands[DELTA_STEP_STATE];
    if (program->undoable && state->space == SPACE_STATE)
        move_to(&bound->next_state, state, &session->other_state[state->buffer]);
}

/* The places of a step's results become those of what is there. */
static void move_on(const struct metal_program *program) {
    struct metal_session *session = program->session;
    if (!program->undoable)
        return;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct operand *state = &program->plain[i].operands[DELTA_STEP_STATE];
        if (program->plain[i].kind == OP_DELTA_STEP && state->space == SPACE_STATE)
            swap(&session->state[state->buffer], &session->other_state[state->buffer]);
    }
    if (program->writes_logits)
        swap(&session->step[STEP_LOGITS], &session->other_logits);
}

/* Before another program writes logits: to where there is room for more than one row. */
static void make_room_for_logits(const struct metal_program *program) {
    struct metal_session *session = program->session;
    if (!program->undoable && program->writes_logits &&
        session->step[STEP_LOGITS].size < session->other_logits.size)
        swap(&session->step[STEP_LOGITS], &session->other_logits);
}

/* Binds all ops to where the scratch memory is; its buffer is NULL while sizes are asked for. */
static bool bind_ops(struct metal_program *program, struct metal_buffer *scratch, struct calla_error *error) {
    uint64_t offset = 0;
    for (uint32_t i = 0; i < program->scratch_count; i++) {
        program->scratch[i].buffer = scratch;
        program->scratch[i].offset = offset;
        offset += metal_place(program->scratch[i].size);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct metal_op *op = &program->ops[i];
        op->op = &program->plain[i];
        op->before = i > 0 ? op - 1 : NULL;
        op->after = i + 1 < program->op_count ? op + 1 : NULL;
        for (uint32_t j = 0; j < op->op->operand_count; j++) {
            const struct operand *operand = &op->op->operands[j];
            if (!bind_operand(&op->operands[j], operand, program) ||
                (operand->dtype == DTYPE_U8 && !binding_is_record(operand)))
                return binding_refuse(op->op, j, error);
        }
        op->next_state = op->operands[DELTA_STEP_STATE];
        uint32_t size = (uint32_t)program->workspace_sizes[i];
        op->workspace = (struct metal_operand){.buffer = scratch,
                                               .offset = program->workspaces[i],
                                               .dtype = DTYPE_U8,
                                               .rows = size > 0,
                                               .columns = size,
                                               .stride = size,
                                               .access = ACCESS_READ | ACCESS_WRITE};
    }
    return true;
}

/* ---- Compiling */

static bool check_ops(struct metal_program *program, const struct plan *plan, struct calla_error *error) {
    program->op_count = plan->op_count;
    if (!binding_plan(plan, &program->facts, error))
        return false;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct op *op = &plan->ops[i];
        program->plain[i] = *op;
        for (uint32_t j = 0; j < op->operand_count; j++) {
            const struct operand *operand = &op->operands[j];
            bool written = (operand->access & ACCESS_WRITE) != 0;
            program->writes_kv |= written && operand->space == SPACE_KV;
            program->writes_logits |=
                written && operand->space == SPACE_STEP && operand->buffer == STEP_LOGITS;
        }
    }
    return true;
}

/* Whether what the op writes can be undone: the cache beyond the position means nothing, a row of the ring
 * that nobody reads neither, and of what a sample does the host knows all. */
static bool may_be_undone(const struct metal_program *program, uint32_t index) {
    const struct op *op = &program->plain[index];
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct operand *operand = &op->operands[i];
        if ((operand->access & ACCESS_WRITE) == 0 || op->kind == OP_SAMPLE)
            continue;
        bool moves =
            op->kind == OP_DELTA_STEP &&
            (i == DELTA_STEP_RING || (i == DELTA_STEP_STATE && program->kernels[index]->moves_state));
        if ((operand->space == SPACE_STATE && !moves) ||
            (operand->space == SPACE_STEP && (operand->buffer != STEP_LOGITS || operand->rows != 1)))
            return false;
    }
    return true;
}

static void find_out_about_undoing(struct metal_program *program, const struct plan *plan) {
    program->undoable = program->facts.posts_token && program->facts.samples == 1 && plan->rows == 1 &&
                        program->session->other_state != NULL;
    for (uint32_t i = 0; i < program->op_count; i++)
        program->undoable &= may_be_undone(program, i);
}

static bool missing_kernel(const struct op *op, struct calla_error *error) {
    return error_set(error, CALLA_UNSUPPORTED, "Metal: op %s of layer %d has no kernel that fits it.",
                     op_name(op->kind), op->layer);
}

/* Sizes of the scratch buffers; then kernels and their workspaces. Ops of one phase may run side by side:
 * their workspaces lie apart. */
static bool lay_out(struct metal_program *program, const struct plan *plan, struct calla_error *error) {
    for (uint32_t i = 0; i < plan->scratch_count; i++) {
        program->scratch[i].size = buffer_shape_bytes(&plan->scratch[i]);
        if (program->scratch[i].size > UINT64_MAX / 4 || program->scratch_bytes > UINT64_MAX / 4)
            return error_memory(error, plan->scratch[i].name, SIZE_MAX);
        program->scratch_bytes += metal_place(program->scratch[i].size);
    }
    program->scratch_count = plan->scratch_count;
    if (!bind_ops(program, NULL, error))
        return false;
    uint64_t offset = program->scratch_bytes, end = offset;
    bool kept = false;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct metal_op *op = &program->ops[i];
        const struct metal_kernel *kernel = metal_kernel_of(op, program->backend->encoder);
        if (kernel == NULL)
            return missing_kernel(op->op, error);
        if (i == 0 || op->op->phase != program->ops[i - 1].op->phase) {
            offset = kept ? offset : program->scratch_bytes;
            kept = false;
        }
        kept |= kernel->keeps;
        program->kernels[i] = kernel;
        program->workspaces[i] = offset;
        if (kernel->workspace != NULL)
            program->workspace_sizes[i] = kernel->workspace(op, program->backend->encoder);
        if (program->workspace_sizes[i] > UINT32_MAX)
            return error_memory(error, op_name(op->op->kind), (size_t)program->workspace_sizes[i]);
        offset += metal_place(program->workspace_sizes[i]);
        end = offset > end ? offset : end;
    }
    program->scratch_bytes = end;
    return true;
}

static bool end_stopped(struct metal_backend *backend, double seconds, bool *ended,
                        struct calla_error *error);

/* Makes the backend's scratch memory large enough. What runs in it must have ended before it moves. */
static bool reserve_scratch(const struct metal_program *program, struct calla_error *error) {
    struct metal_backend *backend = program->backend;
    struct metal_scratch *scratch = scratch_of(program);
    if (program->scratch_bytes <= scratch->size && scratch->buffer != NULL)
        return true;
    if (is_large(program) && !end_stopped(backend, (double)INFINITY, &(bool){false}, error))
        return false;
    for (struct metal_session *session = backend->sessions; session != NULL; session = session->next)
        metal_session_wait_all(session, NULL); /* one that is lost says so when it is used */
    metal_release(backend, scratch->buffer);   /* before the larger is asked for, so that both need not fit */
    scratch->size = 0;
    scratch->moves++;
    scratch->buffer = metal_allocate(backend, program->scratch_bytes,
                                     "scratch memory (a smaller chunk_rows needs less)", error);
    if (scratch->buffer == NULL)
        return false;
    scratch->size = metal_buffer_size(scratch->buffer);
    return true;
}

/* What went wrong while an op was encoded. */
static bool encoding_failed(const struct metal_encoder *encoder, const struct op *op,
                            struct calla_error *error) {
    return error_set(error, encoder->error.status, "Op %s of layer %d: %s", op_name(op->kind), op->layer,
                     encoder->error.message);
}

/* Encodes every op without commands: pipelines are made. */
static bool make_pipelines(struct metal_program *program, struct calla_error *error) {
    struct metal_encoder *encoder = program->backend->encoder;
    metal_encoder_begin(encoder, NULL);
    encoder->position = 0;
    encoder->failed = encoder->stopped = false;
    encoder->token_slot = program->session->token_slots[0];
    for (uint32_t i = 0; i < program->op_count; i++) {
        metal_encoder_op(encoder, 0, 0);
        program->kernels[i]->encode(&program->ops[i], encoder);
        if (encoder->failed)
            return encoding_failed(encoder, &program->plain[i], error);
    }
    return true;
}

static bool bind_to_scratch(struct metal_program *program, struct calla_error *error) {
    if (!reserve_scratch(program, error) || !bind_ops(program, scratch_of(program)->buffer, error))
        return false;
    program->moves = scratch_of(program)->moves;
    return true;
}

struct program *metal_compile(struct device_session *base, const struct plan *plan,
                              struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    if (!metal_usable(session->backend, error))
        return NULL;
    struct metal_program *program = calloc(1, sizeof *program);
    if (program == NULL) {
        error_memory(error, "a program", sizeof *program);
        return NULL;
    }
    program->backend = session->backend;
    program->session = session;
    size_t count = plan->op_count + (size_t)1;
    program->plain = calloc(count, sizeof *program->plain);
    program->ops = calloc(count, sizeof *program->ops);
    program->kernels = calloc(count, sizeof *program->kernels);
    program->workspaces = calloc(count, sizeof *program->workspaces);
    program->workspace_sizes = calloc(count, sizeof *program->workspace_sizes);
    program->scratch = calloc(plan->scratch_count + (size_t)1, sizeof *program->scratch);
    if (program->plain == NULL || program->ops == NULL || program->kernels == NULL ||
        program->workspaces == NULL || program->workspace_sizes == NULL || program->scratch == NULL)
        error_memory(error, "a program", count * sizeof *program->ops);
    else if (check_ops(program, plan, error) && lay_out(program, plan, error) &&
             bind_to_scratch(program, error) && make_pipelines(program, error)) {
        find_out_about_undoing(program, plan);
        return (struct program *)program;
    }
    metal_program_free((struct program *)program);
    return NULL;
}

/* ---- Running */

/* Begins the command buffer whose turn it is, after what it did before has ended. */
static bool begin_commands(struct metal_program *program, struct calla_error *error) {
    struct metal_session *session = program->session;
    struct metal_commands *commands = session->commands[session->turn];
    if (!metal_session_wait(session, session->turn, error) ||
        !metal_commands_begin(commands, program->backend->policy.concurrent, error))
        return false;
    metal_encoder_begin(program->backend->encoder, commands);
    program->backend->encoder->token_slot = session->token_slots[session->turn];
    return true;
}

static bool commit_commands(struct metal_session *session, struct calla_error *error) {
    struct calla_error why = {0};
    if (!metal_commands_commit(session->commands[session->turn], &why)) {
        metal_session_lose(session, &why);
        return metal_session_usable(session, error);
    }
    session->running[session->turn] = true;
    session->turn = 1 - session->turn;
    return true;
}

/* The encoder has enough for one command buffer: the next one is begun, unless the time is up. */
static bool next_commands(struct metal_encoder *encoder) {
    struct run *run = encoder->owner;
    struct metal_program *program = run->program;
    struct calla_error error = {0};
    if (run->ahead)
        return false;
    if (!commit_commands(program->session, &error) || !begin_commands(program, &error)) {
        encoder->failed = true;
        encoder->error = error;
        return false;
    }
    return !run->may_stop || system_seconds() - run->start < run->seconds;
}

/* The host is needed before the program can go on. */
static bool wait_commands(struct metal_encoder *encoder) {
    struct run *run = encoder->owner;
    struct metal_program *program = run->program;
    struct calla_error error = {0};
    if (commit_commands(program->session, &error) && metal_session_wait_all(program->session, &error) &&
        begin_commands(program, &error))
        return true;
    encoder->failed = true;
    encoder->error = error;
    return false;
}

static double work_of(const struct op *op, uint32_t position) {
    struct cost cost = op_cost(op, position);
    return (double)cost.flops + OPERATIONS_A_BYTE * (double)cost_bytes(&cost);
}

/* Encodes the program, from where it was stopped, for `position`; the last command buffer is left to be
 * committed. A command buffer that was begun and got nothing is not. */
static bool encode(struct run *run, uint32_t position, struct calla_error *error) {
    struct metal_program *program = run->program;
    struct metal_encoder *encoder = program->backend->encoder;
    encoder->position = position;
    encoder->failed = encoder->stopped = false;
    encoder->budget = 1e9 * program->backend->policy.command_work;
    encoder->next = next_commands;
    encoder->wait = wait_commands;
    encoder->owner = run;
    if (!begin_commands(program, error))
        return false;
    for (uint32_t i = program->next_op; i < program->op_count && !encoder->stopped; i++) {
        const struct op *op = &program->plain[i];
        if (i > 0 && op->phase != program->plain[i - 1].phase)
            metal_encoder_barrier(encoder);
        bind_moving(program, i);
        metal_encoder_op(encoder, work_of(op, position), i == program->next_op ? program->next_piece : 0);
        program->kernels[i]->encode(&program->ops[i], encoder);
        if (encoder->failed)
            return encoding_failed(encoder, op, error);
        if (encoder->stopped) {
            program->next_op = i;
            program->next_piece = encoder->stopped_piece;
        }
    }
    if (!encoder->stopped)
        program->next_op = program->next_piece = 0;
    return true;
}

/* After the last commands of a run: what the session will be when they have run. */
static void note_end(struct metal_program *program) {
    struct metal_session *session = program->session;
    if (program->writes_kv)
        metal_kv_changes(session, session->record.position);
    for (uint32_t i = 0; i < program->facts.samples; i++) {
        session->record.position += session->record.rows;
        session->record.rows = 1;
        session->record.draws++;
    }
    session->token_posted = program->facts.posts_token;
    session->token_turn = 1 - session->turn;
    move_on(program);
}

void metal_run_ahead(struct device_session *base, struct program *compiled) {
    struct metal_session *session = (struct metal_session *)base;
    struct metal_program *program = (struct metal_program *)compiled;
    uint32_t position = session->record.position;
    struct run run = {.program = program, .ahead = true};
    if (!program->undoable || session->ahead != NULL || !session->token_posted ||
        program->moves != scratch_of(program)->moves || !metal_session_usable(session, NULL) ||
        !binding_has_room(&program->facts, position, NULL))
        return;
    bool whole = encode(&run, position, NULL) && !program->backend->encoder->stopped;
    program->next_op = program->next_piece = 0;
    if (!whole)
        return; /* the run that needs it will say why not */
    if (program->writes_kv)
        metal_kv_changes(session, position);
    if (commit_commands(session, NULL))
        session->ahead = program;
}

/* Runs a program from where it was stopped for about `seconds`, if it may be stopped at all: only large ones
 * keep what they have in memory that small ones do not use. */
static bool go_on(struct metal_program *program, double seconds, bool *finished, struct calla_error *error) {
    struct metal_session *session = program->session;
    struct metal_backend *backend = program->backend;
    struct run run = {
        .program = program, .start = system_seconds(), .seconds = seconds, .may_stop = is_large(program)};
    session->token_posted = false;
    struct calla_error why = {0};
    make_room_for_logits(program);
    if (!encode(&run, session->record.position, &why)) {
        metal_session_lose(session, &why); /* a part of it may have run */
        return metal_session_usable(session, error);
    }
    *finished = !backend->encoder->stopped;
    if (is_large(program))
        backend->stopped = *finished ? NULL : program;
    if (!*finished)
        return true; /* nothing is encoded in the command buffer that was begun */
    if (!commit_commands(session, error))
        return false;
    note_end(program);
    return true;
}

/* The large program that was left before its end goes on for about `seconds`, because another needs the
 * memory that it works in; *ended when there is none any more. */
static bool end_stopped(struct metal_backend *backend, double seconds, bool *ended,
                        struct calla_error *error) {
    struct metal_program *program = backend->stopped;
    *ended = true;
    if (program == NULL)
        return true;
    if (!metal_session_usable(program->session, NULL) || !go_on(program, seconds, ended, NULL)) {
        metal_give_up(program->session); /* its owner will hear why */
        *ended = true;
        return metal_usable(backend, error);
    }
    if (*ended)
        program->ended = program->session->resets + 1;
    return true;
}

void metal_give_up(struct metal_session *session) {
    struct metal_program *stopped = session->backend->stopped;
    if (stopped == NULL || stopped->session != session)
        return;
    stopped->next_op = stopped->next_piece = 0;
    session->backend->stopped = NULL;
}

bool metal_run(struct device_session *base, struct program *compiled, double seconds, bool *finished,
               struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    struct metal_program *program = (struct metal_program *)compiled;
    struct metal_backend *backend = session->backend;
    *finished = true;
    if (!metal_session_usable(session, error))
        return false;
    if (session->ahead == program) {
        session->ahead = NULL;
        note_end(program);
        return true;
    }
    if (session->ahead != NULL && !metal_session_idle(session, error))
        return false;
    bool has_ended = program->ended == session->resets + 1;
    program->ended = 0;
    if (has_ended)
        return true;
    bool goes_on = backend->stopped == program;
    if (!goes_on) {
        program->next_op = program->next_piece = 0;
        if (!binding_has_room(&program->facts, session->record.position, error))
            return false;
        if (is_large(program) && !end_stopped(backend, seconds, finished, error))
            return false;
        if (!*finished)
            return true;
        if (program->moves != scratch_of(program)->moves && !bind_to_scratch(program, error))
            return false;
    }
    return go_on(program, seconds, finished, error);
}
