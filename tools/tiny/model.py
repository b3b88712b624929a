"""The model: its shape, the 4-bit fake quantisation, and a fast training forward over packed sequences.

Weights, names and initialisation are transformers' `Qwen3_5MoeForCausalLM`; `forward` computes the same function on a
dictionary of those weights, but over one flat row of N tokens that holds many sequences (`cu` are their bounds), with
all experts as one wide matrix whose hidden units are scaled by the router's weights. rehearse.py compares the two."""
import torch
import torch.nn.functional as F

HIDDEN, LAYERS, VOCAB = 256, 8, 4096
EXPERTS, ACTIVE, EXPERT_WIDTH, SHARED_WIDTH = 24, 6, 64, 128
Q_HEADS, HEAD = 8, 256
K_HEADS, V_HEADS, DELTA = 2, 4, 128
ROTARY, THETA, EPS = 64, 1e7, 1e-6
KEY_WIDTH, VALUE_WIDTH = K_HEADS * DELTA, V_HEADS * DELTA
ENDOFTEXT, IM_START, IM_END = 4032, 4033, 4034


def text_config():
    """The `text_config` block, with the published model's keys."""
    return {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": ENDOFTEXT,
        "dtype": "bfloat16", "eos_token_id": ENDOFTEXT, "full_attention_interval": 4, "head_dim": HEAD, "hidden_act": "silu",
        "hidden_size": HIDDEN, "initializer_range": 0.02,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": DELTA, "linear_num_key_heads": K_HEADS,
        "linear_num_value_heads": V_HEADS, "linear_value_head_dim": DELTA, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 8192, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": EXPERT_WIDTH,
        "mtp_num_hidden_layers": 0, "mtp_use_dedicated_embeddings": False, "num_attention_heads": Q_HEADS,
        "num_experts": EXPERTS, "num_experts_per_tok": ACTIVE, "num_hidden_layers": LAYERS, "num_key_value_heads": 1,
        "output_router_logits": False, "pad_token_id": None, "partial_rotary_factor": ROTARY / HEAD, "rms_norm_eps": EPS,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": ROTARY / HEAD,
                            "rope_theta": int(THETA), "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": SHARED_WIDTH, "tie_word_embeddings": False,
        "use_cache": True, "vocab_size": VOCAB}


def stock_model(dtype=torch.float32):
    """transformers' own module, freshly initialised."""
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM
    return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**text_config())).to(dtype)


# ---- quantisation ----------------------------------------------------------------------------------------------------

def bits_of(name):
    """4 or 8 for a weight that is stored quantised, 0 for one that stays bfloat16."""
    if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
        return 8
    return 4 if name.endswith(("proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight",
                               "embed_tokens.weight", "lm_head.weight", "gate_up_proj", "down_proj")) else 0


def is_shifted_norm(name):
    """Norms that transformers keeps as w and multiplies by 1 + w; the checkpoint holds 1 + w."""
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def quantise(w, bits):
    """w: [..., in], float32 -> q [..., in/64, 64], scale and bias [..., in/64, 1] rounded to bfloat16 (held as float32).

    MLX's affine rule: the edge of larger magnitude is met exactly, so the scale may be negative; w ~ scale * q + bias."""
    g = w.unflatten(-1, (-1, 64))
    low, high = g.amin(-1, keepdim=True), g.amax(-1, keepdim=True)
    top = 2 ** bits - 1
    down = low.abs() > high.abs()
    scale = ((high - low) / top).clamp_min(1e-7)
    scale = torch.where(down, scale, -scale)
    edge = torch.where(down, low, high)
    q0 = torch.round(edge / scale)
    scale = torch.where(q0 != 0, edge / torch.where(q0 != 0, q0, torch.ones_like(q0)), scale)
    bias = torch.where(q0 != 0, edge, torch.zeros_like(edge))
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    q = torch.round((g - bias) / torch.where(scale == 0, torch.ones_like(scale), scale)).clamp(0, top)
    return q, scale, bias


def stored(name, w, quantised):
    """The value that the checkpoint would hold of weight `name` (norms as 1 + w), float32 in and out."""
    if quantised and bits_of(name):
        q, scale, bias = quantise(w, bits_of(name))
        return (q * scale + bias).flatten(-2)
    return w + 1 if is_shifted_norm(name) else w


# ---- forward ---------------------------------------------------------------------------------------------------------
# The pieces below see flat rows only, so that one compiled graph serves every mix of sequence lengths.

def norm(x, weight):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


def delta_in(h, pos, w_norm, w_qkv, w_z, w_b, w_a, conv, a_log, dt_bias):
    """h [N, H] -> q, k [N, 2, 128], v, z [N, 4, 128], log decay g and beta [N, 4]."""
    x = norm(h, w_norm)
    qkv = x @ w_qkv.T
    taps = conv.squeeze(1)
    y = qkv * taps[:, 3]
    for back in (1, 2, 3):  # token t reads t-1, t-2, t-3 of its own sequence
        past = F.pad(qkv, (0, 0, back, 0))[:qkv.shape[0]]
        y = y + torch.where((pos >= back)[:, None], past, torch.zeros_like(past)) * taps[:, 3 - back]
    y = F.silu(y)
    q, k, v = y.split([KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH], -1)
    beta = torch.sigmoid((x @ w_b.T).float())
    g = -a_log.float().exp() * F.softplus((x @ w_a.T).float() + dt_bias.float())
    shape = lambda t: t.reshape(t.shape[0], -1, DELTA)
    return shape(q), shape(k), shape(v), shape(x @ w_z.T), g, beta


def delta_out(h, o, z, w_norm, w_out):
    o32 = o.float()
    o = o32 * torch.rsqrt(o32.pow(2).mean(-1, keepdim=True) + EPS) * w_norm.float() * F.silu(z.float())
    return h + o.to(h.dtype).flatten(1) @ w_out.T


def rotate(x, cos, sin):
    """x [N, heads, 256], cos and sin [N, 32]: the first 64 dimensions turn in pairs (j, j + 32)."""
    a, b, rest = x.float().split([ROTARY // 2, ROTARY // 2, HEAD - ROTARY], -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def attention_in(h, cos, sin, w_norm, w_q, w_k, w_v, q_norm, k_norm):
    """h [N, H] -> q, gate [N, 8, 256], k, v [N, 1, 256]."""
    x = norm(h, w_norm)
    q, gate = (x @ w_q.T).view(-1, Q_HEADS, 2 * HEAD).chunk(2, -1)
    k, v = (x @ w_k.T).view(-1, 1, HEAD), (x @ w_v.T).view(-1, 1, HEAD)
    return rotate(norm(q, q_norm), cos, sin), gate, rotate(norm(k, k_norm), cos, sin), v


def attention_out(h, o, gate, w_o):
    return h + (o * torch.sigmoid(gate.float()).to(o.dtype)).flatten(1) @ w_o.T


def moe(h, w_norm, w_router, gate_up, down, s_gate, s_up, s_down, s_switch):
    """h [N, H] -> h + experts + shared expert, and the load-balancing loss of this layer."""
    x = norm(h, w_norm)
    logits = x.float() @ w_router.float().T
    p = logits.softmax(-1)
    top, index = p.topk(ACTIVE, -1)
    chosen = torch.zeros_like(p).scatter(-1, index, 1.0)
    weight = chosen * p / top.sum(-1, keepdim=True)
    balance = EXPERTS * (chosen.mean(0) * p.mean(0)).sum() / ACTIVE
    gate, up = gate_up.chunk(2, 1)
    act = F.silu(x @ gate.flatten(0, 1).T) * (x @ up.flatten(0, 1).T)  # [N, E * width]
    act = act * weight.to(act.dtype)[..., None].expand(-1, -1, EXPERT_WIDTH).flatten(1)
    y = act @ down.permute(0, 2, 1).flatten(0, 1)
    shared = (F.silu(x @ s_gate.T) * (x @ s_up.T)) @ s_down.T
    return h + y + torch.sigmoid((x @ s_switch.T).float()).to(x.dtype) * shared, balance


def attend(q, k, v, cu, longest):
    """Causal attention inside each sequence."""
    if q.is_cuda:
        out = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, longest, longest, 0.0, True, False, scale=HEAD ** -0.5)
        return out[0]
    parts = []
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        t = [x[a:b].transpose(0, 1)[None] for x in (q, k.expand(-1, Q_HEADS, -1), v.expand(-1, Q_HEADS, -1))]
        parts.append(F.scaled_dot_product_attention(*t, is_causal=True)[0].transpose(0, 1))
    return torch.cat(parts)


def delta_rule(q, k, v, g, beta, cu):
    if q.is_cuda:
        from delta_backward import chunk_gated_delta_rule
        return chunk_gated_delta_rule(q[None], k[None], v[None], g[None], beta[None], use_qk_l2norm_in_kernel=True, cu_seqlens=cu)[0][0]
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule
    parts = []
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(torch_chunk_gated_delta_rule(q[None, a:b], k[None, a:b], v[None, a:b], g=g[None, a:b], beta=beta[None, a:b],
                                                  use_qk_l2norm_in_kernel=True)[0][0])
    return torch.cat(parts)


PIECES = {f.__name__: f for f in (delta_in, delta_out, attention_in, attention_out, moe)}


def compile_pieces():
    for name in PIECES:
        PIECES[name] = torch.compile(PIECES[name], dynamic=False)


def positions(cu, n):
    """Position of each of n tokens inside its sequence, and the rotary tables."""
    t = torch.arange(n, device=cu.device)
    pos = t - cu[torch.searchsorted(cu, t, right=True) - 1]
    angle = pos[:, None].float() * THETA ** (-torch.arange(0, ROTARY, 2, device=cu.device).float() / ROTARY)
    return pos, angle.cos(), angle.sin()


def forward(w, ids, cu, longest, pieces=None):
    """w: name -> weight as `stored` gives it; ids [N]; cu int32 [S + 1] -> hidden rows after the last norm [N, H], balance."""
    p = pieces or PIECES
    pos, cos, sin = positions(cu, ids.shape[0])
    h = F.embedding(ids, w["model.embed_tokens.weight"])
    balance = 0.0
    for i in range(LAYERS):
        def get(*names):
            return [w[f"model.layers.{i}.{n}"] for n in names]
        if i % 4 != 3:
            q, k, v, z, g, beta = p["delta_in"](h, pos, *get(
                "input_layernorm.weight", "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight", "linear_attn.in_proj_b.weight",
                "linear_attn.in_proj_a.weight", "linear_attn.conv1d.weight", "linear_attn.A_log", "linear_attn.dt_bias"))
            o = delta_rule(q, k, v, g, beta, cu)
            h = p["delta_out"](h, o, z, *get("linear_attn.norm.weight", "linear_attn.out_proj.weight"))
        else:
            q, gate, k, v = p["attention_in"](h, cos, sin, *get(
                "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                "self_attn.q_norm.weight", "self_attn.k_norm.weight"))
            h = p["attention_out"](h, attend(q, k, v, cu, longest), gate, *get("self_attn.o_proj.weight"))
        h, b = p["moe"](h, *get(
            "post_attention_layernorm.weight", "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
            "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert.down_proj.weight",
            "mlp.shared_expert_gate.weight"))
        balance = balance + b / LAYERS
    return norm(h, w["model.norm.weight"]), balance
