/* What the backends share whose device is this machine's own memory (reference and cpu): weights read in
 * place, a session's buffers, and plans bound to both. They differ only in who runs the ops. */
#ifndef CALLA_BACKEND_HOST_H
#define CALLA_BACKEND_HOST_H

#include "backend/backend.h"
#include "backend/kv_blocks.h"
#include "base/threads.h"

/* An operand as pointers. */
struct view {
    const unsigned char *bytes; /* first element; the codes of an affine matrix. Weights may lie unaligned */
    void *data;                 /* the same for buffers, NULL for weights */
    const unsigned char *scales, *biases; /* affine matrices: [rows, columns / 64] */
    enum dtype dtype, scale_dtype, bias_dtype;
    uint32_t rows, columns;
    size_t stride; /* elements from row to row */
};

/* An op that is ready to compute. */
struct bound_op {
    struct op op;
    struct view views[OP_MAX_OPERANDS];
};

/* Rows of float32 and int32 buffers, which are aligned. */
static inline float *float_row(const struct view *view, size_t row) {
    return (float *)view->data + row * view->stride;
}

static inline int32_t *int_row(const struct view *view, size_t row) {
    return (int32_t *)view->data + row * view->stride;
}

/* What follows x, and the weight of its norm where the op normalises. */
static inline const struct view *after_input(const struct bound_op *op) {
    return &op->views[op->op.constants.normalise ? 2 : 1];
}

static inline struct step_record *record_of(const struct view *view) {
    return view->data;
}

struct memory {
    void *data;
    uint64_t size;
};

/* Scratch bytes up to which a program is a small one. */
#define HOST_SMALL_SCRATCH ((size_t)32 << 20)

/* A plan bound to a session. Its scratch buffers lie in memory that programs of a backend share, since what
 * scratch holds is undefined between runs. */
struct program {
    struct bound_op *ops;
    struct memory *scratch;   /* buffers of the plan, at their places in the backend's scratch memory */
    const void *scratch_base; /* the address that they are bound to */
    uint32_t op_count, scratch_count;
    size_t scratch_bytes; /* of all */
};

static inline bool program_is_large(const struct program *program) {
    return program->scratch_bytes > HOST_SMALL_SCRATCH;
}

struct device_session {
    struct host_backend *backend;
    uint64_t resets;
    struct memory *state, *kv, *step;
    uint32_t state_count, kv_count;
    /* The KV buffers are ranges of addresses into which these blocks are mapped, as far as the session has
     * read. */
    struct kv_geometry geometry;
    struct kv_block **blocks; /* [block_limit] */
    uint32_t block_count, block_limit;
    uint64_t mappings; /* that its blocks need, among the store's */
};

struct host_backend {
    struct backend base;
    struct threads *threads;
    const struct weights *weights;
    /* For small programs, such as a decode step's, and for large ones, so that a large one can be left where
     * it is while small ones of other sessions run. Each is as large as the largest program's. */
    struct memory scratch[2];
    struct memory *workspaces; /* one a thread, of one size */
    struct kv_store blocks;    /* of keys and values */
    uint64_t snapshot_bytes;   /* of snapshots, without the blocks that they hold */
};

/* The functions of their classes. `size` is that of the implementation's struct, which starts with a
 * host_backend, or with a program; what comes after is zero. */
struct backend *host_open(const struct backend_class *class, size_t size, int threads,
                          struct calla_error *error);
void host_close(struct backend *base);
int host_threads(const struct backend *base);
bool host_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
               struct calla_error *error);
struct device_session *host_session_open(struct backend *base, const struct session_layout *layout,
                                         struct calla_error *error);
void host_session_close(struct device_session *session);
bool host_write(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
                const void *bytes, uint64_t size, struct calla_error *error);
bool host_read(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
               void *bytes, uint64_t size, struct calla_error *error);
bool host_reset(struct device_session *session, struct calla_error *error);
uint64_t host_snapshot_cost(const struct device_session *session, uint32_t positions);
uint64_t host_snapshot_bytes(const struct backend *base);
struct device_snapshot *host_snapshot_take(struct device_session *session, uint32_t positions,
                                           struct calla_error *error);
bool host_snapshot_restore(struct device_session *session, const struct device_snapshot *snapshot,
                           struct calla_error *error);
bool host_snapshot_read(const struct device_snapshot *snapshot, enum space space, uint32_t buffer,
                        uint64_t offset, void *bytes, uint64_t size, struct calla_error *error);
void host_snapshot_free(struct device_snapshot *snapshot);
struct program *host_compile(struct device_session *session, const struct plan *plan, size_t size,
                             struct calla_error *error);
void host_program_free(struct program *program);

/* Whether compiling the plan moves the memory that large programs work in. */
bool host_moves_large_scratch(const struct host_backend *backend, const struct plan *plan);

/* Makes memory at least `size` bytes large, 64-byte aligned; its contents are undefined afterwards. On
 * failure it is as it was. */
bool memory_reserve(struct memory *memory, size_t size, const char *what, struct calla_error *error);
/* Makes every thread's workspace at least `size` bytes large. */
bool host_reserve_workspaces(struct host_backend *backend, size_t size, struct calla_error *error);

/* Before a run: whether the cache has room for the rows of every op that reads or writes it; binds the ops
 * anew if the scratch memory has moved. */
bool host_ready(struct device_session *session, struct program *program, struct calla_error *error);

/* A session's keys and values (host_kv.c): what session_open and session_close need, ... */
bool host_kv_open(struct device_session *session, const struct session_layout *layout,
                  struct calla_error *error);
void host_kv_close(struct device_session *session);
/* ... what reset needs: gives up all blocks, ... */
bool host_kv_clear(struct device_session *session, struct calla_error *error);
/* ... and what comes before writing the positions [begin, end): sees to it that there are blocks and that
 * nobody else holds them. */
bool host_kv_prepare(struct device_session *session, uint64_t begin, uint64_t end, struct calla_error *error);

#endif
