/* A plan made ready to run: bound to device memory, its kernels chosen, and recorded into one graph, so that
 * running it is one call. */
#include "backend/binding.h"
#include "backend/cuda/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>

/* Scratch bytes up to which a program is a small one. */
#define SMALL_SCRATCH ((uint64_t)32 << 20)

struct cuda_program {
    struct cuda_backend *backend;
    struct cuda_session *session;
    struct cuda_op *ops;
    const struct cuda_kernel **kernels;
    uint64_t *workspaces;        /* their offsets in the scratch memory */
    struct cuda_memory *scratch; /* sizes; `data` is bound to scratch_base */
    uint32_t op_count, scratch_count;
    uint64_t scratch_bytes; /* of all buffers and workspaces */
    const void *scratch_base;
    cudaGraphExec_t graph; /* NULL: not recorded yet */
    uint64_t runs;
    bool replayed; /* it will be run many times */
    char *pinned;  /* what ops need of the host's memory, 64 bytes aligned */
    struct plan_facts facts;
};

static void drop_graph(struct cuda_program *program) {
    if (program->graph != NULL)
        cudaGraphExecDestroy(program->graph);
    program->graph = NULL;
}

void cuda_program_free(struct program *base) {
    struct cuda_program *program = (struct cuda_program *)base;
    if (program == NULL)
        return;
    if (program->graph != NULL || program->pinned != NULL)
        cudaStreamSynchronize(program->backend->stream);
    drop_graph(program);
    cudaFreeHost(program->pinned);
    free(program->scratch);
    free(program->workspaces);
    free((void *)program->kernels);
    free(program->ops);
    free(program);
}

static bool bind_weight(struct cuda_view *view, const struct operand *operand,
                        const struct cuda_backend *backend) {
    if (binding_weight(operand, backend->weights) == NULL)
        return false;
    *view = backend->weight_views[operand->buffer];
    view->rows = operand->rows;
    return true;
}

static bool bind_memory(struct cuda_view *view, const struct operand *operand,
                        const struct cuda_memory *memory) {
    if (memory == NULL || !binding_inside(operand, memory->size))
        return false;
    *view = (struct cuda_view){.data = (char *)memory->data + operand->offset,
                               .dtype = operand->dtype,
                               .rows = operand->rows,
                               .columns = operand->columns,
                               .stride = operand->stride};
    return true;
}

static bool bind(struct cuda_op *bound, const struct cuda_program *program, struct calla_error *error) {
    for (uint32_t i = 0; i < bound->op.operand_count; i++) {
        const struct operand *operand = &bound->op.operands[i];
        struct cuda_view *view = &bound->views[i];
        bool inside;
        if (operand->space == SPACE_WEIGHT)
            inside = bind_weight(view, operand, program->backend);
        else if (operand->space == SPACE_SCRATCH)
            inside = operand->buffer < program->scratch_count &&
                     bind_memory(view, operand, &program->scratch[operand->buffer]);
        else if (operand->space == SPACE_KV)
            inside = binding_cache_rows(&bound->op, &(uint64_t){0}, &(uint64_t){0}) &&
                     cuda_kv_view(&program->session->kv, operand, view);
        else
            inside = bind_memory(
                view, operand,
                cuda_session_memory(program->session, (enum space)operand->space, operand->buffer));
        if (!inside || (operand->dtype == DTYPE_U8 && !binding_is_record(operand)))
            return binding_refuse(&bound->op, i, error);
    }
    return true;
}

static struct cuda_memory *scratch_of(const struct cuda_program *program) {
    return &program->backend->scratch[program->scratch_bytes > SMALL_SCRATCH];
}

/* Makes the backend's scratch memory large enough. What runs in it must have ended before it moves. */
static bool reserve_scratch(const struct cuda_program *program, struct calla_error *error) {
    struct cuda_memory *scratch = scratch_of(program), larger;
    if (program->scratch_bytes <= scratch->size && scratch->data != NULL)
        return true;
    cudaError_t status = cudaStreamSynchronize(program->backend->stream);
    if (status != cudaSuccess)
        return cuda_lost(program->backend, status, "computing", error);
    cuda_release(scratch); /* before the larger is asked for, so that both need not fit */
    if (!cuda_allocate(&larger, program->scratch_bytes, "scratch memory (a smaller chunk_rows needs less)",
                       error))
        return false;
    *scratch = larger;
    return true;
}

/* Binds all ops to where the scratch memory is now. */
static bool bind_ops(struct cuda_program *program, struct calla_error *error) {
    if (!reserve_scratch(program, error))
        return false;
    char *next = scratch_of(program)->data;
    for (uint32_t i = 0; i < program->scratch_count; i++) {
        program->scratch[i].data = next;
        next += cuda_place(program->scratch[i].size);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!bind(&program->ops[i], program, error))
            return false;
        if (program->ops[i].op.kind == OP_SAMPLE)
            program->ops[i].mailbox = program->session->mailbox;
    }
    program->scratch_base = scratch_of(program)->data;
    return true;
}

/* Queues the kernels of all ops; `failed` is the op at which that ended. */
static cudaError_t queue_ops(const struct cuda_program *program, uint32_t *failed) {
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < program->op_count && status == cudaSuccess; i++) {
        *failed = i;
        char *workspace = (char *)scratch_of(program)->data + program->workspaces[i];
        status = program->kernels[i]->launch(&program->ops[i], &program->backend->device, workspace,
                                             program->backend->stream);
    }
    return status;
}

static bool queueing_failed(const struct cuda_program *program, uint32_t op, cudaError_t status,
                            struct calla_error *error) {
    char what[64];
    snprintf(what, sizeof what, "op %s of layer %d", op_name(program->ops[op].op.kind),
             program->ops[op].op.layer);
    cudaGetLastError(); /* what was reported shall not be found again by the next call */
    return cuda_failed(status, what, error);
}

/* Records the program into a graph; nothing runs. */
static bool record(struct cuda_program *program, struct calla_error *error) {
    cudaStream_t stream = program->backend->stream;
    drop_graph(program);
    cudaGraph_t graph = NULL;
    uint32_t failed = 0;
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess)
        return cuda_failed(status, "recording a plan", error);
    cudaError_t launched = queue_ops(program, &failed);
    status = cudaStreamEndCapture(stream, &graph);
    if (launched != cudaSuccess) {
        queueing_failed(program, failed, launched, error);
    } else if (status != cudaSuccess ||
               (status = cudaGraphInstantiate(&program->graph, graph, 0)) != cudaSuccess ||
               (status = cudaGraphUpload(program->graph, stream)) != cudaSuccess) {
        cuda_failed(status, "recording a plan", error);
    }
    if (graph != NULL)
        cudaGraphDestroy(graph);
    cudaGetLastError(); /* what was reported shall not be found again by the next call */
    return launched == cudaSuccess && status == cudaSuccess;
}

static bool check_ops(struct cuda_program *program, const struct plan *plan, struct calla_error *error) {
    for (uint32_t i = 0; i < plan->op_count; i++)
        program->ops[i].op = plan->ops[i];
    program->op_count = plan->op_count;
    return binding_plan(plan, &program->facts, error);
}

/* Sizes of the scratch buffers; then, bound once for it, kernels and their workspaces. Ops of one phase may
 * run side by side: their workspaces lie apart. */
static bool lay_out(struct cuda_program *program, const struct plan *plan, struct calla_error *error) {
    for (uint32_t i = 0; i < plan->scratch_count; i++) {
        program->scratch[i].size = buffer_shape_bytes(&plan->scratch[i]);
        if (program->scratch[i].size > UINT64_MAX / 4 || program->scratch_bytes > UINT64_MAX / 4)
            return error_memory(error, plan->scratch[i].name, SIZE_MAX);
        program->scratch_bytes += cuda_place(program->scratch[i].size);
    }
    program->scratch_count = plan->scratch_count;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (!bind(&program->ops[i], program, error))
            return false;
    cuda_choose_kernels(program->ops, program->op_count, &program->backend->device, program->kernels);
    uint64_t offset = program->scratch_bytes, end = offset;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct cuda_op *op = &program->ops[i];
        if (i == 0 || op->op.phase != program->ops[i - 1].op.phase)
            offset = program->scratch_bytes;
        program->workspaces[i] = offset;
        if (program->kernels[i]->workspace != NULL)
            offset += cuda_place(program->kernels[i]->workspace(op, &program->backend->device));
        end = offset > end ? offset : end;
    }
    program->scratch_bytes = end;
    return true;
}

/* The host's memory of the ops that need some. */
static bool allocate_pinned(struct cuda_program *program, struct calla_error *error) {
    uint64_t bytes = 0;
    for (int place = 0; place < 2; place++) {
        for (uint32_t i = 0; i < program->op_count; i++) {
            struct cuda_op *op = &program->ops[i];
            if (program->kernels[i]->pinned == NULL)
                continue;
            if (place)
                op->pinned = program->pinned + bytes;
            bytes += (program->kernels[i]->pinned(op, &program->backend->device) + 63) / 64 * 64;
        }
        if (bytes == 0 || place)
            return true;
        cudaError_t status = cudaMallocHost((void **)&program->pinned, (size_t)bytes);
        if (status != cudaSuccess)
            return cuda_failed(status, "memory of the host for a plan", error);
        bytes = 0;
    }
    return true;
}

struct program *cuda_compile(struct device_session *base, const struct plan *plan,
                             struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (!cuda_usable(session->backend, error))
        return NULL;
    struct cuda_program *program = calloc(1, sizeof *program);
    if (program == NULL) {
        error_memory(error, "a program", sizeof *program);
        return NULL;
    }
    program->backend = session->backend;
    program->session = session;
    program->replayed = plan->rows <= 1;
    size_t count = plan->op_count + (size_t)1;
    program->ops = calloc(count, sizeof *program->ops);
    program->kernels = calloc(count, sizeof *program->kernels);
    program->workspaces = calloc(count, sizeof *program->workspaces);
    program->scratch = calloc(plan->scratch_count + (size_t)1, sizeof *program->scratch);
    if (program->ops == NULL || program->kernels == NULL || program->workspaces == NULL ||
        program->scratch == NULL)
        error_memory(error, "a program", count * sizeof *program->ops);
    else if (check_ops(program, plan, error) && lay_out(program, plan, error) &&
             allocate_pinned(program, error) && bind_ops(program, error) &&
             (!program->replayed || record(program, error)))
        return (struct program *)program;
    cuda_program_free((struct program *)program);
    return NULL;
}

/* Queues what a program does. The chunk at a prompt's end has a length of its own and its program may never
 * run again: it is recorded when it does, for recording takes longer than queueing while the device works. */
static bool start(struct cuda_program *program, struct calla_error *error) {
    bool once = program->runs++ == 0 && !program->replayed;
    if (once) {
        uint32_t failed = 0;
        cudaError_t status = queue_ops(program, &failed);
        return status == cudaSuccess || queueing_failed(program, failed, status, error);
    }
    if (program->graph == NULL && !record(program, error))
        return false;
    cudaError_t status = cudaGraphLaunch(program->graph, program->backend->stream);
    return status == cudaSuccess || cuda_lost(program->backend, status, "running a plan", error);
}

/* Queues the program and returns; the host is at most two programs ahead, so that who stops waiting for an
 * answer does not wait for many chunks of a prompt. */
bool cuda_run(struct device_session *base, struct program *compiled, double seconds, bool *finished,
              struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    struct cuda_program *program = (struct cuda_program *)compiled;
    (void)seconds;
    *finished = true;
    uint32_t position = session->record.position;
    if (!cuda_usable(session->backend, error) || !binding_has_room(&program->facts, position, error) ||
        !cuda_kv_prepare(session, position, position + program->facts.cache_rows, error))
        return false;
    if (program->scratch_base != scratch_of(program)->data) {
        if (!bind_ops(program, error))
            return false;
        drop_graph(program);
    }
    cudaEvent_t ran = session->ran[session->runs++ % 2];
    cudaError_t status = cudaEventSynchronize(ran);
    if (status == cudaSuccess && !start(program, error))
        return false;
    if (status == cudaSuccess)
        status = cudaEventRecord(ran, session->backend->stream);
    if (status != cudaSuccess)
        return cuda_lost(session->backend, status, "running a plan", error);
    for (uint32_t i = 0; i < program->facts.samples; i++) {
        session->record.position += session->record.rows;
        session->record.rows = 1;
        session->record.draws++;
        session->samples++;
    }
    session->token_posted = program->facts.posts_token;
    /* While the device works, what the next step needs; where memory is short, that step says so. */
    if (program->facts.samples > 0) {
        position = session->record.position;
        cuda_kv_prepare(session, position, position + (uint64_t)1, NULL);
    }
    return true;
}
