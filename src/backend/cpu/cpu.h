/* The CPU backend: how each op is cut into work that threads take.
 *
 * An op's work is a number of units that do not depend on each other. Some ops prepare something first, in
 * units of their own, that every unit needs (rows of input as 8-bit integers); some finish, once, when all
 * units are done (the chosen experts, when all their logits are there). Threads wait for nothing else within
 * a phase. A unit is computed in the same way whoever runs it and whatever T is, so the bits depend neither
 * on the threads nor on the chunk that a token came in. */
#ifndef CALLA_BACKEND_CPU_CPU_H
#define CALLA_BACKEND_CPU_CPU_H

#include "backend/cpu/kernels.h"

/* What an op's functions get. */
struct cpu_task {
    const struct bound_op *op;
    const struct kernels *kernels;
    enum operand_format format; /* of the inputs of products with 4-bit weights: INT8 or BF16 */
    void *shared;               /* the op's own, shared_bytes, 64-byte aligned: all threads see it */
    void *workspace;            /* the calling thread's own, workspace_bytes, 64-byte aligned */
};

/* Functions that are NULL: none. The sizes are asked when a plan is compiled, everything else while it runs,
 * where the step record says the position. */
struct cpu_op {
    size_t (*units)(const struct cpu_task *task);
    void (*run)(const struct cpu_task *task, size_t begin, size_t end);
    size_t (*prepare_units)(const struct cpu_task *task);
    void (*prepare)(const struct cpu_task *task, size_t begin, size_t end);
    void (*finish)(const struct cpu_task *task);
    size_t (*shared_bytes)(const struct cpu_task *task);
    size_t (*workspace_bytes)(const struct cpu_task *task);
};

/* Those of one kind; of an op without kernels of its own, the reference's function. */
struct cpu_op cpu_op_of(enum op_kind kind);

/* Each file's own ops. */
extern const struct cpu_op cpu_linear, cpu_head; /* products.c */
extern const struct cpu_op cpu_router, cpu_expert_linear, cpu_expert_gate_up, cpu_expert_down; /* experts.c */
extern const struct cpu_op cpu_expert_sort, cpu_swiglu, cpu_expert_combine; /* expert_rows.c */
extern const struct cpu_op cpu_conv_silu, cpu_delta_gates, cpu_delta_scan;  /* delta.c */
extern const struct cpu_op cpu_delta_tail, cpu_delta_step;
extern const struct cpu_op cpu_rms_norm, cpu_gated_norm; /* norms.c; rms_norm is head_norm's too */
extern const struct cpu_op cpu_sample;                   /* sample.c */

extern const struct cpu_op cpu_attention;                       /* attention.c */
extern const struct cpu_op cpu_qk_prep, cpu_rope, cpu_kv_write; /* positions.c */

/* A vector of weights [n] as float32. */
void weight_vector(const struct view *weight, float *out);

#endif
