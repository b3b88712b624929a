/* An op: one step of the forward pass, as data.
 *
 * An op names what it computes (kind), the views of buffers that it reads and writes (operands) and a few
 * constants. It may touch nothing else. Everything that knows about computing is in src/backend/; everything
 * here can be analysed, printed and costed without running.
 *
 * Shapes below: T rows (tokens), H hidden size, V vocabulary, E experts, K experts a token, I expert width, S
 * shared expert width; delta layers: Hk key heads of Dk, Hv value heads of Dv, C = 2*Hk*Dk + Hv*Dv channels,
 * W taps; attention: N query heads, G KV heads, D head size, L context limit. Activations are float32.
 * Operands are listed in order; r reads, w writes.
 *
 * LINEAR, ROUTER, EXPERT_GATE_UP and HEAD may have constants.normalise: then weight[H] r of a norm comes
 * right after x, and what is x in the formula is rms_norm(x) * weight. */
#ifndef CALLA_PLAN_OP_H
#define CALLA_PLAN_OP_H

#include "base/dtype.h"
#include "base/error.h"

enum space {
    SPACE_WEIGHT,  /* buffer = index of the weight in the weight table */
    SPACE_SCRATCH, /* buffer = index in plan.scratch; undefined before its first write in the plan */
    SPACE_STATE,   /* recurrent and convolution state of a session, zero at position 0 */
    SPACE_KV,      /* K and V of the attention layers, [L, G*D] each */
    SPACE_STEP,    /* enum step_buffer */
    SPACE_COUNT
};

enum access { ACCESS_READ = 1, ACCESS_WRITE = 2 };

/* Small per-session buffers that carry what changes from step to step. */
enum step_buffer {
    STEP_RECORD, /* struct step_record */
    STEP_TOKENS, /* I32 [chunk rows]: ids to read; sample writes element 0 */
    STEP_LOGITS, /* F32 [rows, V] */
    STEP_BIAS,   /* F32 [V], added to the logits: logit_bias, -inf for ids that must not come */
    STEP_COUNTS, /* I32 [V]: how often each id was generated; bit 30 is set for ids of the prompt */
    STEP_BUFFER_COUNT
};

#define STEP_COUNT_IN_PROMPT 0x40000000

/* What a replayed plan reads instead of constants. */
struct step_record {
    uint32_t position; /* of row 0; sample adds `rows` */
    uint32_t rows;     /* T of the plan being run; sample sets it to 1 */
    uint32_t draws;    /* samples drawn so far: the counter of the random generator, sample adds 1 */
    uint32_t top_k;
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed;
};

/* A view: `rows` rows of `columns` elements, `stride` elements apart, from byte `offset` of a buffer. A row
 * is contiguous; stride >= columns. A vector [n] is one row of n columns, for [a,b] rows = a and columns = b.
 * For affine weights a row is a matrix row, and the offset is 0. */
struct operand {
    uint8_t space, dtype, access;
    uint32_t buffer;
    uint32_t rows, columns, stride;
    uint64_t offset;
};

enum op_kind {
    /* tokens I32[T] r, table[V,H] r, y[T,H] w: y = table[token]; ids outside the table read row 0 */
    OP_EMBED,
    /* x[T,H] r, weight[H] r, y[T,H] w: y = x / sqrt(mean(x^2) + epsilon) * weight */
    OP_RMS_NORM,
    /* x[T,in] r, then matrix_count times (W[out,in] r, y[T,out] w): y = x W^T; with accumulate y += x W^T (y
       is rw) */
    OP_LINEAR,
    /* record r, x[T,C] r, taps[C,W] r, state[W,C] rw, q[T,Hk*Dk] w, k[T,Hk*Dk] w, v[T,Hv*Dv] w: causal
     * depthwise convolution over time, SiLU, split; q and k l2-normalised per head
     * (x / sqrt(sum(x^2) + l2_epsilon)), q also scaled by Dk^-0.5. The state is a ring: row p % W is x of
     * position p. Rows position - W + 1 .. position - 1 are read (those before position 0 are zeros, as the
     * state is then), the last min(T, W) rows of x are written: with T = 1 into a row that is not read. */
    OP_CONV_SILU,
    /* a[T,Hv] r, b[T,Hv] r, A_log[Hv] r, dt_bias[Hv] r, decay[T,Hv] w, beta[T,Hv] w:
     * decay = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b) */
    OP_DELTA_GATES,
    /* q[T,Hk*Dk] r, k[T,Hk*Dk] r, v[T,Hv*Dv] r, decay[T,Hv] r, beta[T,Hv] r, state[Hv*Dv,Dk] rw, y[T,Hv*Dv]
     * w: per value head h (key head h*Hk/Hv) and token: S = decay S; S += beta (v - S k) k^T; y = S q */
    OP_DELTA_SCAN,
    /* x[T,Hv*Dv] r, z[T,Hv*Dv] r, weight[Dv] r, y[T,Hv*Dv] w: per head y = rms_norm(x) * weight * silu(z) */
    OP_GATED_NORM,
    /* Fusion of DELTA_GATES, DELTA_SCAN and GATED_NORM: a r, b r, A_log r, dt_bias r, q r, k r, v r, z r,
     * weight r, state rw, y w */
    OP_DELTA_TAIL,
    /* Fusion of CONV_SILU and DELTA_TAIL for T = 1: record r, qkv[1,C] r, a[1,Hv] r, b[1,Hv] r, taps[C,W] r,
     * A_log[Hv] r, dt_bias[Hv] r, z[1,Hv*Dv] r, weight[Dv] r, conv state[W,C] rw, state[Hv*Dv,Dk] rw,
     * y[1,Hv*Dv] w */
    OP_DELTA_STEP,
    /* x[T*heads,D] r (strided), weight[D] r, y[T*heads,D] w: rms_norm of each row */
    OP_HEAD_NORM,
    /* record r, x[T*heads,D] rw (constants.heads is the heads of x, query or key): rotates dimensions (j, j +
     * rotary_size/2) of row t*heads + h by (position + t) * rope_theta^(-2j/rotary_size) */
    OP_ROPE,
    /* record r, k[T,G*D] r, v[T,G*D] r, K[L,G*D] w, V[L,G*D] w: rows position .. position+T-1 of the cache */
    OP_KV_WRITE,
    /* Fusion of HEAD_NORM and ROPE on q and k and KV_WRITE: record r, q[T*N,D] r (strided), k[T,G*D] r,
     * v[T,G*D] r, q_norm[D] r, k_norm[D] r, y[T*N,D] w, K w, V w */
    OP_QK_PREP,
    /* record r, q[T*N,D] r, gate[T*N,D] r (strided), K[L,G*D] r, V[L,G*D] r, y[T*N,D] w: causal softmax(q K^T
     * D^-0.5) V over positions 0 .. position+t, query head n with KV head n*G/N, times sigmoid(gate) */
    OP_ATTENTION,
    /* x[T,H] r, router[E,H] r, shared_gate[1,H] r, ids I32[T,K] w, scores[T,K+1] w: softmax over E, the K
     * largest in falling order (the lower id first on a tie), renormalised to sum 1; scores[K] =
     * sigmoid(shared_gate x) */
    OP_ROUTER,
    /* ids I32[T,K] r, starts I32[1,E+1] w, order I32[1,T*K] w: the T*K pairs sorted by expert, stable; the
     * pairs of expert e are order[starts[e]] .. order[starts[e+1]-1], pair p being slot p%K of row p/K */
    OP_EXPERT_SORT,
    /* x[T or T*K, in] r, ids I32[T,K] r, starts r, order r, W[E*out,in] r, y[T*K,out] w: row p of y is expert
     * ids[p]'s matrix times row p/K of x (row p when x has T*K rows). starts and order are left out when T
     * = 1. */
    OP_EXPERT_LINEAR,
    /* gate[R,I] r, up[R,I] r, y[R,I] w: y = silu(gate) * up */
    OP_SWIGLU,
    /* routed[T*K,H] r, shared[T,H] r, scores[T,K+1] r, y[T,H] rw: y += sum_k scores[k] routed[k] + scores[K]
       shared */
    OP_EXPERT_COMBINE,
    /* Fusion of the gate and up products and SWIGLU, routed and shared: x[T,H] r, ids r, starts r, order r
     * (both left out when T = 1), gate[E*I,H] r, up[E*I,H] r, shared_gate[S,H] r, shared_up[S,H] r,
     * routed[T*K,I] w, shared[T,S] w */
    OP_EXPERT_GATE_UP,
    /* Fusion of the down products and EXPERT_COMBINE: routed[T*K,I] r, shared[T,S] r, ids r, scores r, starts
     * r, order r (both left out when T = 1), down[E*H,I] r, shared_down[H,S] r, y[T,H] rw */
    OP_EXPERT_DOWN,
    /* x[R,H] r, head[V,H] r, logits[R,V] w: logits = x head^T */
    OP_HEAD,
    /* record rw, logits[1,V] r, bias[V] r, counts I32[V] rw, tokens I32[1] w: one token; see
     * backend/reference/sample.c. Writes the id, or -1 if a logit is NaN; counts it; moves the record on to
     * the next step. */
    OP_SAMPLE,
    OP_KIND_COUNT
};

struct op_constants {
    uint32_t key_heads, value_heads, key_size, value_size, taps; /* delta layers: Hk, Hv, Dk, Dv, W */
    uint32_t heads, kv_heads, head_size, rotary_size;            /* attention: N, G, D */
    uint32_t experts, experts_per_token;                         /* E, K */
    uint32_t matrix_count;                                       /* OP_LINEAR */
    bool accumulate;                                             /* OP_LINEAR */
    bool normalise;                                              /* the norm's weight follows x */
    float epsilon;                                               /* of rms_norm and gated_norm */
    float l2_epsilon;                                            /* of q and k of the delta layers */
    float rope_theta;
};

#define OP_MAX_OPERANDS 12

struct op {
    enum op_kind kind;
    int32_t layer; /* -1 outside the layers */
    uint32_t operand_count;
    uint32_t phase; /* filled by plan_schedule: ops of one phase are independent */
    struct operand operands[OP_MAX_OPERANDS];
    struct op_constants constants;
};

/* Bytes of the elements of a view, the scales and offsets of affine weights included, gaps not. */
uint64_t operand_bytes(const struct operand *view);

/* Whether ops of this kind may have constants.normalise. */
bool op_normalises(enum op_kind kind);

const char *op_name(enum op_kind kind);
const char *space_name(enum space space);

#endif
