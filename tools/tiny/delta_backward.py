"""flash-linear-attention's chunked gated delta rule with one backward kernel replaced by plain PyTorch.

fla 0.6 refuses its gated `chunk_bwd_dqkwg` on Hopper GPUs with Triton 3.4 to 3.7.0 (the compiler gets it wrong). The
formulas below are that kernel's, as batched products over chunks of 64; every sequence must start at a multiple of 64.
`python3 tools/tiny/delta_backward.py` compares the gradients with transformers' plain implementation on the GPU."""
import torch
from triton.runtime import autotuner

_init = autotuner.Autotuner.__init__


def one_config(self, fn, arg_names, configs, *rest, **options):
    """One configuration a kernel instead of a search over a dozen: the search costs minutes and gains little here."""
    wanted = [c for c in configs if c.num_warps == 4 and c.num_stages in (2, 3)] or [c for c in configs if c.num_warps == 4]
    _init(self, fn, arg_names, (wanted or list(configs))[:1], *rest, **options)


autotuner.Autotuner.__init__ = one_config

import fla.ops.gated_delta_rule.chunk as chunk_module
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

CHUNK = 64


def products(q, k, v, do, h, dh, dv, g, scale):
    """q, k [T, H, K]; v, do, dv [T, HV, V]; h, dh [C, HV, K, V]; g [T, HV]: log2 of the decay summed inside a chunk."""
    c, ratio = q.shape[0] // CHUNK, v.shape[1] // q.shape[1]
    kind = q.dtype

    def chunks(x):
        return x.view(c, CHUNK, x.shape[1], x.shape[2]).transpose(1, 2).to(kind)
    q, k = (chunks(x).repeat_interleave(ratio, 1) for x in (q, k))
    v, do, dv = chunks(v), chunks(do), chunks(dv)
    g = g.view(c, CHUNK, -1).transpose(1, 2).float()
    last = g[..., -1:]
    hk, dhk = h.to(kind), dh.to(kind)
    ds = (do @ v.mT).float()
    dq = (do @ hk.mT).float() * torch.exp2(g)[..., None] * scale
    dk = (v @ dhk.mT).float() * torch.exp2(last - g)[..., None]
    dw = -(dv @ hk.mT)
    dg_last = (h.float() * dh.float()).sum((-2, -1)) * torch.exp2(last[..., 0]) + (dk * k.float()).sum((-2, -1))
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float("-inf"))
    ds = (ds * torch.exp2(decay) * scale).to(kind)
    dq = dq + (ds @ k).float()
    dk = dk + (ds.mT @ q).float()
    dg = (dq * q.float()).sum(-1) - (dk * k.float()).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + dg_last[..., None]], -1)

    def rows(x):  # sum over the value heads of a key head, back to [T, H, K]
        return x.transpose(1, 2).reshape(c * CHUNK, -1, ratio, x.shape[-1]).sum(2).to(kind)
    return rows(dq), rows(dk), dw.transpose(1, 2).reshape(c * CHUNK, dw.shape[1], -1), dg.transpose(1, 2).reshape(c * CHUNK, -1)


compiled = torch.compile(products, dynamic=False)


def chunk_bwd_dqkwg(q, k, v, do, h, dh, w=None, g=None, dv=None, scale=None, **_):
    dq, dk, dw, dg = compiled(q[0], k[0], v[0], do[0], h.flatten(0, 1), dh.flatten(0, 1), dv[0], g[0], scale)
    return dq[None], dk[None], dw[None].contiguous(), dg[None].contiguous()


chunk_module.chunk_bwd_dqkwg = chunk_bwd_dqkwg


def main():
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule as plain
    torch.manual_seed(0)
    n, cu = 512, torch.tensor([0, 64, 320, 512], dtype=torch.int32, device="cuda")
    shapes = [(n, 2, 128), (n, 2, 128), (n, 4, 128), (n, 4), (n, 4)]
    x = [torch.randn(s, device="cuda") for s in shapes]
    x[3] = -torch.rand(shapes[3], device="cuda") * 0.3
    x[4] = torch.rand(shapes[4], device="cuda")
    out = torch.randn(n, 4, 128, device="cuda")
    mine = [t.bfloat16().requires_grad_() if i < 3 else t.clone().requires_grad_() for i, t in enumerate(x)]
    o = chunk_gated_delta_rule(*(t[None] for t in mine), use_qk_l2norm_in_kernel=True, cu_seqlens=cu)[0][0]
    (o.float() * out).sum().backward()
    want = [t.bfloat16().float().requires_grad_() if i < 3 else t.clone().requires_grad_() for i, t in enumerate(x)]
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        q, k, v, g, beta = (t[None, a:b] for t in want)
        q, k = (t.repeat_interleave(2, 2) for t in (q, k))
        p = plain(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0][0]
        (p * out[a:b]).sum().backward()
        print("output", ((p - o[a:b]).norm() / p.norm()).item())
    worst = 0
    for name, m, w in zip("q k v g beta".split(), mine, want):
        e = ((m.grad.float() - w.grad).norm() / w.grad.norm()).item()
        worst = max(worst, e)
        print(f"gradient of {name}: relative difference {e:.4f}")
    assert worst < 0.03, "the backward pass is wrong"
    print("delta rule gradients agree")


if __name__ == "__main__":
    main()
