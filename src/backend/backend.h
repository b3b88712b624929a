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

struct backend;
struct device_session;
struct program;

/* A backend's functions. Those that can fail fill the error. A program belongs to one device session. */
struct backend_class {
    const char *name;
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
    /* Zeroes the state buffers: position 0. */
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
};

/* Every implementation's struct starts with its class. */
struct backend {
    const struct backend_class *class;
};

/* The class of "auto", "cpu" or "reference"; NULL with an error that lists the names. */
const struct backend_class *backend_find(const char *name, struct calla_error *error);

extern const struct backend_class reference_backend;
extern const struct backend_class cpu_backend;

#endif
