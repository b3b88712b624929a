/* What puts ops on the GPU: the interface between the host (metal_program.c), which binds ops to memory and
 * sees to barriers and command buffers, and the encode_*.c files, which know kernels and grids.
 *
 * The one idea: an op's encode function runs once while its program is compiled, when nothing is sent and
 * metal_use makes pipelines, and again at every run, when the same calls go into a command buffer and no
 * object is made. So both times it must ask for the same pipelines; what is chosen by metal_position, which
 * is 0 while compiling, is also named with metal_need.
 *
 * Ops of one phase may overlap: the host puts a barrier where the plan's phase ends, and after every op where
 * the policy has concurrent off. Within an op the launches up to the next metal_phase may overlap as well.
 *
 * Mistakes do not stop encoding: the first one is kept and fails the compilation or the run. */
#ifndef CALLA_BACKEND_METAL_METAL_ENCODE_H
#define CALLA_BACKEND_METAL_METAL_ENCODE_H

#include "backend/metal/metal_device.h"
#include "plan/op.h"
#include "plan/policy.h"

/* Where weights and buffers begin is a multiple of this; rows within them need not be. */
#define METAL_ALIGNMENT 256

/* An operand, bound: struct operand with a place in a buffer of the device. How weights lie there:
 *
 * - affine matrices: at `offset` the codes as the files have them, row after row: 8 to a 32-bit word, the
 *   first in the lowest bits (AFFINE4), or one byte each (AFFINE8); at `scales` and `biases` rows x
 *   (columns / 64) of `scale_dtype`, BF16 (the published model) or F32 (what a file has in another type).
 *   All three begin at multiples of METAL_ALIGNMENT.
 * - vectors, and the taps of convolutions: F32, whatever the file has.
 * - other matrices: BF16, F16 or F32, as in the file. */
struct metal_operand {
    struct metal_buffer *buffer; /* NULL while the sizes of workspaces are asked for */
    uint64_t offset;             /* bytes */
    uint64_t scales, biases;     /* affine weights: in the same buffer, bytes */
    uint32_t dtype, scale_dtype; /* enum dtype */
    uint32_t rows, columns;
    uint32_t stride; /* elements from row to row */
    uint32_t access; /* enum access */
};

/* An op, bound. */
struct metal_op {
    const struct op *op; /* its kind and constants; its operands are these: */
    struct metal_operand operands[OP_MAX_OPERANDS];
    /* Of OP_DELTA_STEP, for kernels with `moves_state`: where the new state goes, which may be another place
     * than the operand's, where the old one is. */
    struct metal_operand next_state;
    struct metal_operand workspace;        /* U8, one row of what `workspace` asked for; rows 0: nothing */
    const struct metal_op *before, *after; /* its neighbours in the plan, NULL where there is none */
};

struct metal_encoder;

/* One way of running ops of a kind. */
struct metal_kernel {
    /* NULL: any op of the kind. By shape, dtype, policy and GPU; not by position. */
    bool (*fits)(const struct metal_op *op, const struct metal_encoder *encoder);
    /* Bytes of memory of the op's own for the time of the op, undefined at its start; NULL: none. */
    uint64_t (*workspace)(const struct metal_op *op, const struct metal_encoder *encoder);
    void (*encode)(const struct metal_op *op, struct metal_encoder *encoder);
    bool moves_state; /* leaves the operand as it is and writes next_state */
    bool keeps;       /* the workspace stays as the op leaves it up to the end of the next phase */
};

/* What encode may ask. */
const struct policy *metal_policy(const struct metal_encoder *encoder);
const struct metal_facts *metal_facts(const struct metal_encoder *encoder);
/* The position of row 0 in this run, as the host knows it; the record on the device has the same. */
uint32_t metal_position(const struct metal_encoder *encoder);
/* Whether kernels of tensor_*.metal may be used: the GPU has the units, the system the language, and the
 * kernels passed their self-test. */
bool metal_tensors(const struct metal_encoder *encoder);

/* The pipeline of the launches that follow: kernel `function` with these values of its function constants.
 * `function` is a literal: the pointer is kept. A name that begins with "tensor_" is of tensor_*.metal. */
void metal_use(struct metal_encoder *encoder, const char *function, const struct metal_constant *constants,
               uint32_t count);
/* Makes the pipeline while compiling, for a later metal_use of the same; does nothing at a run. */
void metal_need(struct metal_encoder *encoder, const char *function, const struct metal_constant *constants,
                uint32_t count);
/* Whether the kernel may have threadgroups of so many threads, by which ways of running ops are chosen. Makes
 * the pipeline the first time, which is while compiling: `fits` and `encode` ask the same each time. */
bool metal_allows(const struct metal_encoder *encoder, const char *function,
                  const struct metal_constant *constants, uint32_t count, uint32_t threads);
/* Of the pipeline in use. Never NULL. */
const struct metal_limits *metal_use_limits(const struct metal_encoder *encoder);

/* [[buffer(slot)]] of the launches that follow, until it is set anew. What the kernel may touch through the
 * slot is what the emulator holds it to. */

/* All of an operand with the operand's access; of affine weights the codes. */
void metal_bind(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand);
/* The same for an operand that the next launch writes every element of, and does not read. */
void metal_bind_output(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand);
void metal_bind_scales(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand);
void metal_bind_biases(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand);
/* Rows first_row .. first_row + rows - 1 (of affine weights their codes): the kernel's pointer is to the
 * first. `access` is of enum metal_access. */
void metal_bind_rows(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand,
                     uint32_t first_row, uint32_t rows, uint32_t access);
/* `size` bytes from byte `offset` of a workspace or another operand without gaps. */
void metal_bind_part(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *whole,
                     uint64_t offset, uint64_t size, uint32_t access);
/* A copy of up to METAL_MAX_BYTES bytes, for parameters. */
void metal_bind_bytes(struct metal_encoder *encoder, uint32_t slot, const void *bytes, size_t size);
/* [[threadgroup(index)]]: `size` bytes, a multiple of 16. */
void metal_bind_memory(struct metal_encoder *encoder, uint32_t index, uint32_t size);

/* Runs the pipeline in use. No count is 0, and threads are at most metal_use_limits' max_threads: more is an
 * error already while compiling. */
void metal_launch(struct metal_encoder *encoder, struct metal_size groups, struct metal_size threads);
/* The same with the groups counted on the device: three uint32 at byte `offset` (a multiple of 4) of
 * `counts`. */
void metal_launch_indirect(struct metal_encoder *encoder, const struct metal_operand *counts, uint64_t offset,
                           struct metal_size threads);
/* What comes next in this op sees what came before it. Not needed at an op's beginning and end. */
void metal_phase(struct metal_encoder *encoder);

/* Command buffers are cut where their work exceeds a budget, because the system kills long ones: between ops,
 * and before this call in an op that takes long (attention over a long cache): a barrier stands here then.
 * What was used and bound stays so. `flops` is the work up to the next call or the op's end; an op that makes
 * this call makes it before its first launch too. The calls of an op must be the same each time it is encoded
 * at one position. */
void metal_piece(struct metal_encoder *encoder, double flops);

/* Ends the command buffer, waits until all that was launched has run, and begins the next: what operands hold
 * is the host's to read and write, up to the next launch. False where nothing runs: while compiling and
 * counting, and after a mistake. */
bool metal_wait(struct metal_encoder *encoder);
/* The bytes of an operand, for the host. */
void *metal_operand_bytes(const struct metal_operand *operand);

/* For an op that cannot be run as it is: one sentence, of which the host makes an error. */
void metal_fail(struct metal_encoder *encoder, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline struct metal_constant metal_bool(uint32_t index, bool value) {
    return (struct metal_constant){.index = index, .type = METAL_BOOL, .value.boolean = value};
}

static inline struct metal_constant metal_uint(uint32_t index, uint32_t value) {
    return (struct metal_constant){.index = index, .type = METAL_UINT, .value.unsigned_integer = value};
}

/* What follows x: one later where the op normalises. */
static inline const struct metal_operand *metal_after_input(const struct metal_op *op) {
    return &op->operands[op->op->constants.normalise ? 2 : 1];
}

/* The ways of running each kind of op, of which the first that fits is taken; the last fits every op of the
 * kind. Each array is defined by the encode_*.c file of its family, and named in metal_ops.c. */
extern const struct metal_kernel metal_embed[], metal_rms_norm[], metal_linear[], metal_conv_silu[],
    metal_delta_gates[], metal_delta_scan[], metal_gated_norm[], metal_delta_tail[], metal_delta_step[],
    metal_head_norm[], metal_rope[], metal_kv_write[], metal_qk_prep[], metal_attention[], metal_router[],
    metal_expert_sort[], metal_expert_linear[], metal_swiglu[], metal_expert_combine[],
    metal_expert_gate_up[], metal_expert_down[], metal_head[], metal_sample[];

#endif
