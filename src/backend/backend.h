/* The interface between the engine and whatever computes: a backend holds the weights, a device session the
 * buffers of one conversation, a program a plan made ready to run. */
#ifndef CALLA_BACKEND_BACKEND_H
#define CALLA_BACKEND_BACKEND_H

#include "model/weights.h"
#include "plan/plan.h"
#include "plan/policy.h"

struct backend_options {
    int threads; /* 0: one per physical core */
    const struct policy *policy;
};

/* What computes. */
struct device_facts {
    char name[128];
    uint64_t memory; /* bytes that weights and sessions share; 0: unknown */
};

struct backend;
struct device_session;
struct device_snapshot;
struct program;

/* A backend's functions. Those that can fail fill the error. A program belongs to one device session. */
struct backend_class {
    const char *name;
    /* Whether this machine has the device; NULL: always. */
    bool (*available)(struct calla_error *error);
    /* The device, if it is not this machine's processor with its memory; otherwise NULL. */
    void (*device)(struct device_facts *facts);
    /* Bytes of its memory that nobody has taken yet; NULL where device is. */
    uint64_t (*free_memory)(const struct backend *backend);
    /* Bytes a second that the device reads from its memory, measured; 0 with an error when that fails. NULL
     * where device is. */
    double (*bandwidth)(struct calla_error *error);
    /* One line on whether the matrix units of a GPU that may have some are used, and why not; good until the
     * backend is closed. `failed`: they should be, but something is wrong. NULL where that is no question. */
    const char *(*tensor_operations)(const struct backend *backend, bool *failed);
    /* Which of its sets of kernels computes, where that is found out on the machine: they differ in the last
     * bits, so what one has begun another may not go on with. NULL where there is one set. */
    const char *(*kernels)(const struct backend *backend);
    struct backend *(*open)(const struct backend_options *options, struct calla_error *error);
    void (*close)(struct backend *backend);
    int (*threads)(const struct backend *backend);
    /* Makes the weights resident or mapped; `weights` outlives the backend. */
    bool (*load)(struct backend *backend, struct weights *weights, const struct calla_progress *progress,
                 struct calla_error *error);
    /* Buffers of the layout: state, KV and counts zero, the rest undefined. */
    struct device_session *(*session_open)(struct backend *backend, const struct session_layout *layout,
                                           struct calla_error *error);
    void (*session_close)(struct device_session *session);
    /* Copies bytes into and out of a state, KV or step buffer. Reads wait for what was run before. */
    bool (*write)(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
                  const void *bytes, uint64_t size, struct calla_error *error);
    bool (*read)(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
                 void *bytes, uint64_t size, struct calla_error *error);
    /* Zeroes the state buffers and gives up the memory of keys and values: position 0. */
    bool (*reset)(struct device_session *session, struct calla_error *error);
    /* Copies what it needs of the plan; the plan may be freed afterwards. */
    struct program *(*compile)(struct device_session *session, const struct plan *plan,
                               struct calla_error *error);
    void (*program_free)(struct program *program);
    /* Runs a program, or goes on with one that is not finished. A backend that can stop within a program does
     * so after about `seconds`, with *finished false; until it has finished, its session may only be given to
     * run, with the same program, to reset or to session_close, which both give it up. Programs of other
     * sessions may run. */
    bool (*run)(struct device_session *session, struct program *program, double seconds, bool *finished,
                struct calla_error *error);
    /* Begins the next run of a program that draws a token, for the token that its last run draws and that
     * nobody has seen yet. The next call of run with it finds this one under way; any other call but the read
     * of the token that was drawn undoes it, as if it had never been. Where that cannot be, or not now,
     * nothing is begun. NULL: never. */
    void (*run_ahead)(struct device_session *session, struct program *program);

    /* The rest may be NULL, all of it: then sessions cannot be kept.
     *
     * A snapshot keeps the state and the first `positions` rows of keys and values as they are now; no
     * program of the session is stopped. What later sessions and snapshots have in common with it they share:
     * keys and values are not copied but for a few rows, and memory for them grows with the positions in use.
     */
    struct device_snapshot *(*snapshot_take)(struct device_session *session, uint32_t positions,
                                             struct calla_error *error);
    /* Brings a session of the same backend, whose buffers have rows of the same size, to exactly what the
     * snapshot holds; gives up a stopped program. After a failure the session must be reset. */
    bool (*snapshot_restore)(struct device_session *session, const struct device_snapshot *snapshot,
                             struct calla_error *error);
    /* Copies bytes out of a state or KV buffer of the snapshot. May be called from a thread of its own, while
     * nobody frees the snapshot. */
    bool (*snapshot_read)(const struct device_snapshot *snapshot, enum space space, uint32_t buffer,
                          uint64_t offset, void *bytes, uint64_t size, struct calla_error *error);
    void (*snapshot_free)(struct device_snapshot *snapshot); /* before the backend is closed; NULL is fine */
    /* Bytes that taking a snapshot now would add to the memory of snapshots, and that memory: all of the
     * backend's snapshots, what they share counted once. */
    uint64_t (*snapshot_cost)(const struct device_session *session, uint32_t positions);
    uint64_t (*snapshot_bytes)(const struct backend *backend);
};

/* Every implementation's struct starts with its class. */
struct backend {
    const struct backend_class *class;
};

/* The class of "auto", "cpu", "cuda", "metal" or "reference"; NULL with an error that lists the names or says
 * what is missing. "auto" is the first whose device is there. */
const struct backend_class *backend_find(const char *name, struct calla_error *error);

/* The device of a class, the processor included. */
void backend_device(const struct backend_class *class, struct device_facts *facts);

extern const struct backend_class reference_backend;
extern const struct backend_class cpu_backend;
#ifdef CALLA_CUDA
extern const struct backend_class cuda_backend;
#endif
#ifdef CALLA_METAL
extern const struct backend_class metal_backend;
#endif

#endif
