/* The policy: every choice that mechanism leaves open, each with a name, so that its worth can be measured
 * with all else equal (--policy NAME=VALUE). Adding a choice is a field here and a row in policy.c. */
#ifndef CALLA_PLAN_POLICY_H
#define CALLA_PLAN_POLICY_H

#include "base/dtype.h"
#include "base/error.h"

/* What matrix products with 4-bit weights multiply: activations as 8-bit integers with a scale per 64 and the
 * weights' codes, in exact integer sums; or both rounded to bfloat16. Sums over groups are float32. */
enum matrix_operands { MATRIX_INT8, MATRIX_BF16 };

/* Whose kernels the CPU backend runs; automatic: the best that the processor has. */
enum instruction_set {
    INSTRUCTIONS_AUTO,
    INSTRUCTIONS_PORTABLE,
    INSTRUCTIONS_AVX2,        /* with FMA */
    INSTRUCTIONS_AVX512,      /* F, BW, VL, DQ */
    INSTRUCTIONS_AVX512_VNNI, /* and VNNI */
    INSTRUCTIONS_AVX512_BF16, /* and BF16 */
    INSTRUCTIONS_NEON,
    INSTRUCTIONS_NEON_I8MM, /* with dot products, i8mm and bf16 */
};

struct policy {
    bool dequant_in_gemm;
    bool tensor_operations; /* matrix units are used where the GPU has them and they pass a self-test */
    bool device_routing;
    uint32_t expert_tile; /* rows a tile of the grouped matrix product: 16 or 32 */
    uint32_t delta_scan; /* 0: state kept in registers over the chunk ("register"), 1: block-wise ("block") */
    uint32_t chunk_rows; /* prompt rows a prefill chunk: bounds the scratch memory */
    bool token_on_device;
    bool concurrent;
    bool fuse_expert_gate_up, fuse_expert_down, fuse_qk_prep, fuse_delta_norm;
    bool fuse_delta_conv;  /* with fuse_delta_norm, which it goes on from */
    bool fuse_projections; /* projections of one input as one op */
    bool fuse_norm;        /* norms within the ops that read them */
    bool kv_coalesced;
    uint32_t gqa_pack;        /* query heads that share one read of a KV row */
    uint32_t attention_split; /* context length from which attention works in fixed blocks */
    uint32_t command_work;    /* GFLOP, or as long, of one command buffer */
    bool speculate;
    enum dtype kv_dtype; /* DTYPE_BF16 or DTYPE_F32 */
    enum matrix_operands matrix_operands;
    enum instruction_set instruction_set;
};

/* Whether there is a policy for this backend ("reference", "cpu", "cuda", "metal"); the error lists them. */
bool policy_check_backend(const char *backend, struct calla_error *error);

/* Defaults of a backend; of an unknown one, those of the reference. */
void policy_defaults(struct policy *policy, const char *backend);

/* Applies "NAME=VALUE". Unknown names, bad values and names that mean nothing on `backend` are errors that
 * list what there is. */
bool policy_set(struct policy *policy, const char *backend, const char *assignment,
                struct calla_error *error);

/* Name, value as text ("n/a" where it means nothing on `backend`) and whether it applies, for printing; false
 * past the last. */
bool policy_describe(const struct policy *policy, const char *backend, size_t index, const char **name,
                     char value[32], bool *applies);

/* What choice `index` may be set to instead, to see what it is worth: the other position of a switch, every
 * other name or power of two, half and double of another number, and the number that switches it off. `nth`
 * counts them; false past the last, and for a choice that means nothing on `backend`. policy_set may still
 * refuse one that is not built. */
bool policy_alternative(const struct policy *policy, const char *backend, size_t index, size_t nth,
                        char value[32]);

#endif
