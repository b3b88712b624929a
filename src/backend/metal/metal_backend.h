/* What the C files of the Metal backend share.
 *
 * The one idea: processor and GPU share all memory, and command buffers run one after the other in the order
 * in which they were committed. So bytes are copied by the processor, after waiting for what the session has
 * committed, and the programs of a backend share their scratch memory.
 *
 * A session has two command buffers and two slots for sampled tokens, which take turns: while the GPU runs
 * the one, the other is encoded and committed. A step that is committed before anybody has asked for it can
 * be undone, because its state and logits do not take the place of those before it: there are two of each,
 * which take turns as well. */
#ifndef CALLA_BACKEND_METAL_BACKEND_H
#define CALLA_BACKEND_METAL_BACKEND_H

#include "backend/backend.h"
#include "backend/metal/metal_count.h"
#include "backend/metal/metal_encode.h"

struct metal_memory {
    struct metal_buffer *buffer;
    uint64_t offset, size;
};

static inline uint64_t metal_place(uint64_t bytes) {
    return (bytes + METAL_ALIGNMENT - 1) / METAL_ALIGNMENT * METAL_ALIGNMENT;
}

static inline unsigned char *metal_memory_bytes(const struct metal_memory *memory) {
    return (unsigned char *)metal_buffer_contents(memory->buffer) + memory->offset;
}

/* Scratch memory, which only grows; `moves` tells programs when to bind their ops anew. */
struct metal_scratch {
    struct metal_buffer *buffer;
    uint64_t size, moves;
};

/* ---- Pipelines: made once for each function and values of its constants (metal_encode.c). */

#define METAL_MAX_CONSTANTS 12

struct metal_pipeline_entry {
    const char *function;
    struct metal_constant constants[METAL_MAX_CONSTANTS];
    uint32_t count;
    struct metal_pipeline *pipeline; /* NULL: the place is free */
};

struct metal_pipelines {
    struct metal_pipeline_entry *entries; /* [capacity], a power of two */
    uint32_t count, capacity;
};

void metal_pipelines_free(struct metal_pipelines *pipelines);

/* ---- The encoder */

enum metal_slot_kind { METAL_SLOT_EMPTY, METAL_SLOT_VIEW, METAL_SLOT_BYTES };

struct metal_slot {
    enum metal_slot_kind kind;
    bool sent;
    struct metal_view view;
    uint32_t size;
    unsigned char bytes[METAL_MAX_BYTES];
};

/* What is bound is kept here and sent with the launch, so that a command buffer may end before any launch. */
struct metal_encoder {
    struct metal_backend *backend;
    struct metal_commands *commands; /* NULL while compiling and counting */
    struct metal_counts *counts;     /* of metal_count, which makes no pipelines; else NULL */
    uint32_t position;
    struct metal_memory token_slot; /* where OP_SAMPLE also puts the token */
    const struct metal_pipeline *pipeline, *sent_pipeline;
    struct metal_slot slots[METAL_BUFFER_SLOTS];
    uint32_t memory[METAL_BUFFER_SLOTS], sent_memory[METAL_BUFFER_SLOTS]; /* threadgroup memory */
    uint64_t dispatches;                                                  /* of this command buffer */
    bool barrier_due; /* something was launched since the last barrier */

    /* Work, by which command buffers are cut. An op's is counted at its first launch unless it divides it
     * itself (metal_piece). Pieces that were done before the program was stopped are passed over. */
    double work, budget, op_work;
    bool op_begins; /* nothing of the op has been launched or divided yet */
    uint32_t piece, done_pieces;
    bool passing; /* over a piece that has been done, or after having been stopped */
    bool stopped;
    uint32_t stopped_piece;
    /* Ends this command buffer and begins the next; false to stop here. */
    bool (*next)(struct metal_encoder *encoder);
    /* The same after waiting for all of it. False after a mistake. */
    bool (*wait)(struct metal_encoder *encoder);
    void *owner;

    bool failed;
    struct calla_error error; /* the first mistake */
};

/* Forgets what the commands before had set: to be called when new ones have begun. */
void metal_encoder_begin(struct metal_encoder *encoder, struct metal_commands *commands);
/* Before an op's encode function. */
void metal_encoder_op(struct metal_encoder *encoder, double work, uint32_t done_pieces);
/* A barrier, if anything was launched since the last. */
void metal_encoder_barrier(struct metal_encoder *encoder);

/* The slot for the token, as an operand I32 [1, 1]; buffer NULL while sizes are asked for. */
struct metal_operand metal_token_slot(const struct metal_encoder *encoder);

/* ---- The backend */

struct metal_backend {
    struct backend base;
    struct metal_device *device;
    const struct metal_facts *facts;
    struct policy policy;
    bool tensors;                /* tensor operations are used */
    char tensor_operations[320]; /* whether they are, and why not: metal_describe.h */
    struct metal_library *kernels, *tensor_kernels;
    struct metal_pipelines pipelines;
    struct metal_encoder *encoder;

    const struct weights *weights;
    struct metal_operand *weight_operands; /* of the whole weights, in the table's order */
    struct metal_buffer **weight_buffers;
    uint32_t weight_buffer_count;

    uint64_t used; /* bytes of all buffers */
    /* For small programs, such as a decode step's, and for large ones, which may be left before their end
     * while small ones run. */
    struct metal_scratch scratch[2];
    struct metal_program *stopped; /* the large program that was left, if there is one */
    struct metal_session *sessions;
    uint64_t snapshot_bytes;
    struct calla_error lost; /* why the GPU cannot be used any more; CALLA_OK while it can */
};

/* A buffer within what the GPU's working set leaves; `what` names it in the error, with advice. */
struct metal_buffer *metal_allocate(struct metal_backend *backend, uint64_t size, const char *what,
                                    struct calla_error *error);
void metal_release(struct metal_backend *backend, struct metal_buffer *buffer);

/* Whether the GPU has not been lost. */
bool metal_usable(const struct metal_backend *backend, struct calla_error *error);

/* Taps of convolutions, which are stored as float32, have no more columns. */
#define METAL_SMALL_COLUMNS 16

/* metal_load.c */
bool metal_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
                struct calla_error *error);

/* metal_ops.c: the first kernel that fits an op (checked and bound), NULL where there is none. */
const struct metal_kernel *metal_kernel_of(const struct metal_op *op, const struct metal_encoder *encoder);

/* metal_self_test.c: whether tensor operations, of which the library is loaded, give what simdgroup matrices
 * give; the error says where they do not, or do not run. Leaves no object behind, and `tensors` off. */
bool metal_self_test(struct metal_backend *backend, struct calla_error *error);

/* ---- Sessions (metal_session.c) */

struct metal_session {
    struct metal_backend *backend;
    struct metal_session *next;
    struct metal_buffer *small; /* state and step buffers, and the slots */
    struct metal_buffer **kv_buffers;
    struct metal_memory *state, *kv, step[STEP_BUFFER_COUNT], token_slots[2];
    uint64_t *kv_row_bytes;
    uint32_t state_count, kv_count;
    struct step_record record; /* as it will be when all that is committed has run */
    uint64_t resets;

    struct metal_commands *commands[2];
    bool running[2];   /* committed, and not waited for */
    uint32_t turn;     /* of the command buffer and slot to be used next */
    bool token_posted; /* the last program that was committed puts its token into the slot of its turn */
    uint32_t token_turn;
    /* The program whose next run was committed last although nobody has asked for it; NULL: none. All else
     * here is as if it had not been. */
    struct metal_program *ahead;
    struct metal_memory
        *other_state; /* [state_count]: where a step puts a state's successor; NULL: nowhere */
    struct metal_memory other_logits; /* one row */

    struct metal_kv_block *
        *blocks; /* [block_limit]: rows of `kv` that snapshots hold as they are (metal_snapshot.c) */
    uint32_t block_limit;
    struct calla_error lost; /* why its buffers are not to be trusted; until it is reset */
};

struct device_session *metal_session_open(struct backend *base, const struct session_layout *layout,
                                          struct calla_error *error);
void metal_session_close(struct device_session *base);
bool metal_write(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset,
                 const void *bytes, uint64_t size, struct calla_error *error);
bool metal_read(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset, void *bytes,
                uint64_t size, struct calla_error *error);
bool metal_reset(struct device_session *base, struct calla_error *error);
/* A session's buffer, NULL when there is none of that number. */
const struct metal_memory *metal_session_memory(const struct metal_session *session, enum space space,
                                                uint32_t buffer);
/* Waits for the commands of a turn, for all; when they failed the session is lost, and the error says why. */
bool metal_session_wait(struct metal_session *session, uint32_t turn, struct calla_error *error);
bool metal_session_wait_all(struct metal_session *session, struct calla_error *error);
/* Waits for all, and undoes the step ahead, if there is one. */
bool metal_session_idle(struct metal_session *session, struct calla_error *error);
/* Whether neither the session nor the GPU is lost. */
bool metal_session_usable(const struct metal_session *session, struct calla_error *error);
bool metal_session_lose(struct metal_session *session, const struct calla_error *why);

/* ---- Programs (metal_program.c) */

struct program *metal_compile(struct device_session *base, const struct plan *plan,
                              struct calla_error *error);
void metal_program_free(struct program *base);
bool metal_run(struct device_session *base, struct program *compiled, double seconds, bool *finished,
               struct calla_error *error);
void metal_run_ahead(struct device_session *base, struct program *compiled);
/* Gives up the program of this session that was left before its end. */
void metal_give_up(struct metal_session *session);

/* ---- Snapshots (metal_snapshot.c) */

struct device_snapshot *metal_snapshot_take(struct device_session *base, uint32_t positions,
                                            struct calla_error *error);
bool metal_snapshot_restore(struct device_session *base, const struct device_snapshot *taken,
                            struct calla_error *error);
bool metal_snapshot_read(const struct device_snapshot *base, enum space space, uint32_t buffer,
                         uint64_t offset, void *bytes, uint64_t size, struct calla_error *error);
void metal_snapshot_free(struct device_snapshot *base);
uint64_t metal_snapshot_cost(const struct device_session *base, uint32_t positions);
uint64_t metal_snapshot_bytes(const struct backend *base);
/* A session's account of what snapshots hold; after its buffers are there, and before they go. */
bool metal_kv_open(struct metal_session *session, const struct session_layout *layout,
                   struct calla_error *error);
void metal_kv_close(struct metal_session *session);
/* The rows from `position` on may be written: snapshots no longer hold them as they are. */
void metal_kv_changes(struct metal_session *session, uint64_t position);

#endif
