/* The CPU backend: a plan's ops on all worker threads. Every thread goes through the phases; in each it takes
 * pieces of the phase's work, one by one, until there are none left, and then meets the others. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cpu/cpu.h"
#include "base/system.h"

/* Pieces that an op's units are cut into, a thread: enough to even out pieces of unequal work. */
#define SLICES_PER_THREAD 16

/* How far an op has come in the running phase. */
struct progress {
    atomic_size_t prepared, done; /* slices */
};

struct phase {
    uint32_t first, last; /* ops */
    atomic_size_t next;   /* slice to be taken */
};

struct cpu_backend;

struct cpu_program {
    struct program program;
    struct cpu_backend *backend;
    struct device_session *session;
    struct cpu_op *functions; /* of each op */
    size_t *shared_offsets;   /* of each op, in the backend's shared memory */
    struct progress *progress;
    struct phase *phases;
    uint32_t phase_count;
    uint32_t next_phase; /* to go on with */
    uint64_t ended;      /* run to its end without its owner: the session's resets then, plus 1 */
};

struct cpu_backend {
    struct host_backend host;
    const struct kernels *kernels;
    enum operand_format format;
    struct memory shared; /* what ops of one phase prepare: as large as the largest phase's */
    /* The large program that was stopped before its end, if there is one. When another needs the memory that
     * it works in, it is brought to its end first, in pieces too. */
    struct cpu_program *stopped;
};

/* One run of a program. */
struct run {
    struct cpu_backend *backend;
    struct cpu_program *program;
    uint32_t phase;      /* the one that the threads are in */
    double start, limit; /* seconds */
    bool stopping;
};

static struct phase *phase_of(const struct run *run) {
    return &run->program->phases[run->phase];
}

static struct cpu_task task_of(const struct cpu_backend *backend, const struct cpu_program *program,
                               uint32_t op) {
    return (struct cpu_task){.op = &program->program.ops[op],
                             .kernels = backend->kernels,
                             .format = backend->format,
                             .shared = backend->shared.data == NULL
                                           ? NULL /* while the first plan is compiled */
                                           : (char *)backend->shared.data + program->shared_offsets[op]};
}

/* An op's units, cut into slices, smaller ones towards the end, so that no thread waits for long there. */
struct slices {
    size_t units, count;
};

/* The first unit of a slice. Each has one; what there are more is shared out by 1 - (1 - slice / count)^2. */
static size_t slice_begin(struct slices slices, size_t slice) {
    size_t left = slices.count - slice, more = slices.units - slices.count;
    return slice + more - more * left * left / (slices.count * slices.count);
}

static struct slices slices_of(size_t (*units)(const struct cpu_task *task), const struct cpu_task *task,
                               size_t most) {
    size_t count = units == NULL ? 0 : units(task);
    return (struct slices){count, count < most ? count : most};
}

static void run_slice(void (*run)(const struct cpu_task *task, size_t begin, size_t end),
                      const struct cpu_task *task, struct slices slices, size_t slice) {
    run(task, slice_begin(slices, slice), slice_begin(slices, slice + 1));
}

/* The slices of a phase in the order in which they are taken: what all ops prepare, then what they compute. A
 * thread that computes waits for slices that others took earlier, and those wait for nothing. Returns false
 * where `taken` is past the last. */
static bool run_taken(const struct run *run, size_t taken, size_t threads, void *workspace) {
    struct cpu_program *program = run->program;
    size_t most = threads * SLICES_PER_THREAD;
    for (uint32_t op = phase_of(run)->first; op < phase_of(run)->last; op++) {
        struct cpu_task task = task_of(run->backend, program, op);
        struct slices prepare = slices_of(program->functions[op].prepare_units, &task, most);
        if (taken < prepare.count) {
            task.workspace = workspace;
            run_slice(program->functions[op].prepare, &task, prepare, taken);
            atomic_fetch_add_explicit(&program->progress[op].prepared, 1, memory_order_release);
            return true;
        }
        taken -= prepare.count;
    }
    for (uint32_t op = phase_of(run)->first; op < phase_of(run)->last; op++) {
        struct cpu_task task = task_of(run->backend, program, op);
        const struct cpu_op *functions = &program->functions[op];
        struct slices slices = slices_of(functions->units, &task, most);
        if (taken >= slices.count) {
            taken -= slices.count;
            continue;
        }
        size_t prepared = slices_of(functions->prepare_units, &task, most).count;
        for (unsigned round = 0;
             atomic_load_explicit(&program->progress[op].prepared, memory_order_acquire) < prepared; round++)
            threads_pause(round);
        task.workspace = workspace;
        run_slice(functions->run, &task, slices, taken);
        if (functions->finish != NULL &&
            atomic_fetch_add_explicit(&program->progress[op].done, 1, memory_order_acq_rel) + 1 ==
                slices.count)
            functions->finish(&task);
        return true;
    }
    return false;
}

/* Once all threads are through with a phase: its counters are zero again for the next run. */
static void next_phase(void *argument) {
    struct run *run = argument;
    struct phase *phase = phase_of(run);
    atomic_store_explicit(&phase->next, 0, memory_order_relaxed);
    for (uint32_t op = phase->first; op < phase->last; op++) {
        atomic_store_explicit(&run->program->progress[op].prepared, 0, memory_order_relaxed);
        atomic_store_explicit(&run->program->progress[op].done, 0, memory_order_relaxed);
    }
    run->phase++;
    run->stopping = run->phase == run->program->phase_count || system_seconds() - run->start >= run->limit;
}

static void work(void *argument, size_t thread) {
    struct run *run = argument;
    struct threads *team = run->backend->host.threads;
    size_t threads = (size_t)threads_count(team);
    void *workspace = run->backend->host.workspaces[thread].data;
    while (!run->stopping) {
        atomic_size_t *next = &phase_of(run)->next;
        while (run_taken(run, atomic_fetch_add_explicit(next, 1, memory_order_relaxed), threads, workspace))
            ;
        threads_meet(team, next_phase, run);
    }
}

/* Runs a program from where it was stopped for about `seconds`; true when it has come to its end. Only large
 * programs are stopped: small ones do not keep their scratch memory. */
static bool go_on(struct cpu_backend *backend, struct cpu_program *program, double seconds) {
    bool large = program_is_large(&program->program);
    struct run run = {.backend = backend,
                      .program = program,
                      .phase = program->next_phase,
                      .start = system_seconds(),
                      .limit = large ? seconds : INFINITY,
                      .stopping = program->phase_count == 0};
    threads_run(backend->host.threads, work, &run, (size_t)threads_count(backend->host.threads));
    bool ended = run.phase == program->phase_count;
    program->next_phase = ended ? 0 : run.phase;
    if (large)
        backend->stopped = ended ? NULL : program;
    return ended;
}

/* Goes on with the stopped program, so that its scratch memory becomes free, for about `seconds`; true when
 * there is none any more. */
static bool end_stopped(struct cpu_backend *backend, double seconds) {
    struct cpu_program *program = backend->stopped;
    if (program == NULL)
        return true;
    if (!go_on(backend, program, seconds))
        return false;
    program->ended = program->session->resets + 1;
    return true;
}

static bool cpu_run(struct device_session *session, struct program *program, double seconds, bool *finished,
                    struct calla_error *error) {
    struct cpu_backend *backend = (struct cpu_backend *)session->backend;
    struct cpu_program *compiled = (struct cpu_program *)program;
    *finished = true;
    bool ended = compiled->ended == session->resets + 1;
    compiled->ended = 0;
    if (ended)
        return true;
    if (backend->stopped != compiled) {
        *finished = false;
        if (program_is_large(program) && !end_stopped(backend, seconds))
            return true;
        if (!host_ready(session, program, error))
            return false;
    }
    *finished = go_on(backend, compiled, seconds);
    return true;
}

/* Gives up the stopped program if it is the session's. */
static void give_up(const struct device_session *session) {
    struct cpu_backend *backend = (struct cpu_backend *)session->backend;
    if (backend->stopped == NULL || backend->stopped->session != session)
        return;
    backend->stopped->next_phase = 0;
    backend->stopped = NULL;
}

static bool cpu_reset(struct device_session *session, struct calla_error *error) {
    give_up(session);
    return host_reset(session, error);
}

static bool cpu_snapshot_restore(struct device_session *session, const struct device_snapshot *snapshot,
                                 struct calla_error *error) {
    give_up(session);
    return host_snapshot_restore(session, snapshot, error);
}

static void cpu_session_close(struct device_session *session) {
    if (session != NULL)
        give_up(session);
    host_session_close(session);
}

static void cpu_program_free(struct program *program) {
    struct cpu_program *compiled = (struct cpu_program *)program;
    if (compiled == NULL)
        return;
    if (compiled->backend->stopped == compiled)
        compiled->backend->stopped = NULL;
    free(compiled->functions);
    free(compiled->shared_offsets);
    free(compiled->progress);
    free(compiled->phases);
    host_program_free(program);
}

/* Phases, and the memory that ops need while they run. */
static bool prepare_run(struct cpu_backend *backend, struct cpu_program *program, struct calla_error *error) {
    size_t workspace = 0, shared = 0, largest = 0;
    for (uint32_t i = 0; i < program->program.op_count; i++) {
        const struct op *op = &program->program.ops[i].op;
        if (i == 0 || op->phase != program->program.ops[i - 1].op.phase) {
            program->phases[program->phase_count++].first = i;
            shared = 0;
        }
        program->phases[program->phase_count - 1].last = i + 1;
        program->functions[i] = cpu_op_of(op->kind);
        program->shared_offsets[i] = shared;
        struct cpu_task task = task_of(backend, program, i);
        if (program->functions[i].workspace_bytes != NULL) {
            size_t bytes = program->functions[i].workspace_bytes(&task);
            workspace = bytes > workspace ? bytes : workspace;
        }
        if (program->functions[i].shared_bytes != NULL)
            shared += (program->functions[i].shared_bytes(&task) + 127) / 64 * 64;
        largest = shared > largest ? shared : largest;
    }
    return host_reserve_workspaces(&backend->host, workspace, error) &&
           memory_reserve(&backend->shared, largest, "memory of an op", error);
}

static struct program *cpu_compile(struct device_session *session, const struct plan *plan,
                                   struct calla_error *error) {
    struct cpu_backend *backend = (struct cpu_backend *)session->backend;
    if (host_moves_large_scratch(&backend->host, plan))
        end_stopped(backend, INFINITY);
    struct program *program = host_compile(session, plan, sizeof(struct cpu_program), error);
    if (program == NULL)
        return NULL;
    struct cpu_program *compiled = (struct cpu_program *)program;
    compiled->backend = backend;
    compiled->session = session;
    size_t count = plan->op_count + (size_t)1;
    compiled->functions = calloc(count, sizeof *compiled->functions);
    compiled->shared_offsets = calloc(count, sizeof *compiled->shared_offsets);
    compiled->progress = calloc(count, sizeof *compiled->progress);
    compiled->phases = calloc(count, sizeof *compiled->phases);
    if (compiled->functions == NULL || compiled->shared_offsets == NULL || compiled->progress == NULL ||
        compiled->phases == NULL)
        error_memory(error, "a program", count * sizeof *compiled->functions);
    else if (prepare_run(backend, compiled, error))
        return program;
    cpu_program_free(program);
    return NULL;
}

static struct backend *cpu_open(const struct backend_options *options, struct calla_error *error) {
    struct policy policy;
    policy_defaults(&policy, "cpu");
    if (options->policy != NULL)
        policy = *options->policy;
    const struct kernels *kernels = kernels_find(policy.instruction_set, error);
    if (kernels == NULL)
        return NULL;
    struct backend *base = host_open(&cpu_backend, sizeof(struct cpu_backend), options->threads, error);
    if (base != NULL) {
        struct cpu_backend *backend = (struct cpu_backend *)base;
        backend->kernels = kernels;
        backend->format = policy.matrix_operands == MATRIX_INT8 ? OPERAND_INT8 : OPERAND_BF16;
    }
    return base;
}

static const char *cpu_kernels(const struct backend *base) {
    return ((const struct cpu_backend *)base)->kernels->name;
}

static void cpu_close(struct backend *base) {
    if (base != NULL)
        free(((struct cpu_backend *)base)->shared.data);
    host_close(base);
}

const struct backend_class cpu_backend = {
    .name = "cpu",
    .kernels = cpu_kernels,
    .open = cpu_open,
    .close = cpu_close,
    .threads = host_threads,
    .load = host_load,
    .session_open = host_session_open,
    .session_close = cpu_session_close,
    .write = host_write,
    .read = host_read,
    .reset = cpu_reset,
    .compile = cpu_compile,
    .program_free = cpu_program_free,
    .run = cpu_run,
    .snapshot_take = host_snapshot_take,
    .snapshot_restore = cpu_snapshot_restore,
    .snapshot_read = host_snapshot_read,
    .snapshot_free = host_snapshot_free,
    .snapshot_cost = host_snapshot_cost,
    .snapshot_bytes = host_snapshot_bytes,
};
