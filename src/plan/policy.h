/* The policy: every choice that mechanism leaves open, each with a name, so that its worth can be measured
 * with all else equal (--policy NAME=VALUE). Adding a choice is a field here and a row in policy.c. */
#ifndef CALLA_PLAN_POLICY_H
#define CALLA_PLAN_POLICY_H

#include "base/dtype.h"
#include "base/error.h"

struct policy {
    bool dequant_in_gemm;
    bool device_routing;
    uint32_t expert_tile;
    uint32_t delta_scan; /* 0: state kept in registers over the chunk ("register"), 1: block-wise ("block") */
    uint32_t chunk_rows;
    bool token_on_device;
    bool concurrent;
    bool fuse_expert_gate_up, fuse_expert_down, fuse_qk_prep, fuse_delta_norm;
    bool fuse_projections; /* projections of one input as one op */
    bool kv_coalesced;
    uint32_t gqa_pack;
    uint32_t attention_split;
    bool speculate;
    enum dtype kv_dtype; /* DTYPE_BF16 or DTYPE_F32 */
};

/* Defaults of a backend ("reference", "cpu", "cuda", "metal"). */
void policy_defaults(struct policy *policy, const char *backend);

/* Applies "NAME=VALUE". Unknown names, bad values and names that mean nothing on `backend` are errors that
 * list what there is. */
bool policy_set(struct policy *policy, const char *backend, const char *assignment,
                struct calla_error *error);

/* Name, value as text and whether it means something on `backend`, for printing; false past the last. */
bool policy_describe(const struct policy *policy, const char *backend, size_t index, const char **name,
                     char value[32], bool *applies);

#endif
