"""Trains the model. One GPU: python3 tools/tiny/train.py --minutes 20 --out out; two: torchrun --nproc-per-node 2 ...

Float32 master weights; each step casts them to bfloat16 (through the fake quantisation from --quantise-from on) and
gives the gradient of the cast straight to the master. Matrices are updated by Muon, everything else by AdamW. The
learning rate follows the clock, so that it has decayed when the minutes are over."""
import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import model
from data import loader
from export import export
from generate import evaluate
from model import bits_of, stored


def orthogonal(g):
    """g [batch, m, n] -> nearest semi-orthogonal matrices, by five Newton-Schulz steps in bfloat16."""
    x = g.bfloat16()
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if wide else x


class Muon:
    """Momentum, orthogonalised; matrices of one shape are handled as one batch. Step size as Adam's (0.2 RMS)."""

    def __init__(self, params, decay=0.05):
        self.decay, self.groups = decay, {}
        for p in params:
            self.groups.setdefault(p.shape[-2:], []).append(p)
        self.momentum = {s: [torch.zeros_like(p) for p in ps] for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr, beta=0.95):
        for shape, params in self.groups.items():
            moments, grads = self.momentum[shape], [p.grad for p in params]
            torch._foreach_lerp_(moments, grads, 1 - beta)
            update = torch._foreach_lerp(grads, moments, beta)
            sizes = [p.numel() // (shape[0] * shape[1]) for p in params]
            o = orthogonal(torch.cat([u.view(-1, *shape) for u in update])) * (0.2 * max(shape) ** 0.5)
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(params, [x.view_as(p).to(p.dtype) for x, p in zip(o.split(sizes), params)], alpha=-lr)


def is_matrix(name, p):
    return p.dim() >= 2 and min(p.shape[-2:]) >= 64 and "conv1d" not in name and "embed" not in name and "lm_head" not in name and ".gate." not in name


def cast(state, quantised):
    """Masters -> bfloat16 leaves that collect gradients."""
    return {n: stored(n, p.detach(), quantised).bfloat16().requires_grad_() for n, p in state.items()}


def save(state, folder, log):
    """Quantised model and bfloat16 weights in pieces below 16 MiB; each appears whole."""
    folder = Path(folder)
    export(state, folder / "new")
    pieces, size, part = {}, 0, 0
    for n, p in state.items():
        if size + p.numel() * 2 > 15e6:
            part, size = part + 1, 0
        pieces.setdefault(part, {})[n] = p.detach().bfloat16().cpu()
        size += p.numel() * 2
    for k, v in pieces.items():
        save_file(v, str(folder / "new" / f"weights-{k}.safetensors"))
    (folder / "new" / "log.json").write_text(json.dumps(log))
    for f in (folder / "new").iterdir():
        f.rename(folder / f.name)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=20)
    a.add_argument("--tokens", type=int, default=65536, help="tokens a step and GPU")
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--optimizer", default="muon")
    a.add_argument("--decay-from", type=float, default=0.4)
    a.add_argument("--quantise-from", type=float, default=0.5)
    a.add_argument("--balance", type=float, default=0.01)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--compile", type=int, default=1)
    a.add_argument("--prose", default="out/prose.json.gz")
    a.add_argument("--tokenizer", default="models/calla-tiny/tokenizer.json")
    a.add_argument("--heldout", default="tests/data/tiny-heldout.jsonl")
    a.add_argument("--evaluate-at", type=float, nargs="*", default=[])
    a.add_argument("--save-every", type=float, default=2.0, help="minutes")
    a.add_argument("--resume", nargs="*", help="weights-*.safetensors of an earlier run")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--eval-limit", type=int, default=0)
    a.add_argument("--max-steps", type=int, default=10 ** 9)
    a.add_argument("--out", default="out")
    a = a.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl")
    say = print if rank == 0 else lambda *x, **k: None
    Path(a.out).mkdir(parents=True, exist_ok=True)
    batches = iter(loader(a.prose, a.tokenizer, a.tokens, a.seed * 100 + rank, a.workers))

    torch.manual_seed(a.seed)
    state = {n: p.detach().clone() for n, p in stock_state().items()}
    for f in a.resume or []:
        for n, p in load_file(f).items():
            state[n].copy_(p.float())
    state = {n: p.to(device).requires_grad_() for n, p in state.items()}
    say(f"{sum(p.numel() for p in state.values())} weights", flush=True)
    if a.compile and device.type == "cuda":
        model.compile_pieces()
    if a.optimizer == "muon":
        muon = Muon([p for n, p in state.items() if is_matrix(n, p)])
        rest = [(n, p) for n, p in state.items() if not is_matrix(n, p)]
    else:
        muon, rest = None, list(state.items())
    adam = torch.optim.AdamW([{"params": [p for n, p in rest if p.dim() > 1], "weight_decay": 0.01},
                              {"params": [p for n, p in rest if p.dim() == 1], "weight_decay": 0.0}],
                             lr=a.lr, betas=(0.9, 0.95), eps=1e-10, fused=device.type == "cuda")
    params = list(state.values())
    tokens = step = 0
    log, mean = [], torch.zeros(2, device=device)
    evaluations = sorted(a.evaluate_at)
    start = saved = time.time()
    clock = start
    fraction = 0.0
    while fraction < 1 and step < a.max_steps:
        quantised = fraction >= a.quantise_from
        lr = a.lr * min(1, (step + 1) / 200) * max(0.01, min(1, (1 - fraction) / (1 - a.decay_from)))
        ids, targets, cu, longest = next(batches)
        ids, targets, cu = (t.to(device, non_blocking=True) for t in (ids, targets, cu))
        w = cast(state, quantised)
        h, balance = model.forward(w, ids.long(), cu, longest)
        at = (targets >= 0).nonzero().squeeze(1)
        loss = F.cross_entropy((h[at] @ w["lm_head.weight"].T).float(), targets[at].long())
        (loss + a.balance * balance).backward()
        grads = [w[n].grad.float() if w[n].grad is not None else torch.zeros_like(p) for n, p in state.items()]
        if world > 1:
            flat = torch.cat([g.flatten() for g in grads] + [torch.full((1,), (time.time() - start) / (a.minutes * 60), device=device)])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            pieces = flat[:-1].split([p.numel() for p in params])
            grads = [x.view_as(p) for x, p in zip(pieces, params)]
        size = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (1.0 / size.clamp_min(1.0)))
        for p, g in zip(params, grads):
            p.grad = g
        for group in adam.param_groups:
            group["lr"] = lr
        adam.step()
        if muon:
            muon.step(lr)
        mean += torch.stack([loss.detach(), balance.detach()])
        step += 1
        tokens += a.tokens * world
        # every GPU must see the same clock
        fraction = float(flat[-1]) if world > 1 and step % 10 == 0 else fraction if world > 1 else (time.time() - start) / (a.minutes * 60)
        if step % 50 == 0 or step == 1:
            m = (mean / (50 if step > 1 else 1)).tolist()
            mean.zero_()
            now = time.time()
            log.append([step, tokens, round(now - start, 1), m[0], m[1], lr, quantised])
            say(f"step {step} {tokens / 1e6:.1f}M tokens {now - start:.0f} s loss {m[0]:.4f} balance {m[1]:.3f} |g| {size.item():.2f} lr {lr:.1e} "
                f"{'4-bit ' if quantised else ''}{(50 if step > 1 else 1) * a.tokens * world / (now - clock) / 1e3:.0f}K tokens/s", flush=True)
            clock = now
        if rank == 0 and evaluations and fraction >= evaluations[0]:
            evaluations.pop(0)
            try:
                say(f"at {fraction:.2f}:", evaluate(cast(state, True), a.heldout, a.tokenizer, device, a.eval_limit or None), flush=True)
            except Exception as e:  # a failed look must not end the run
                say("evaluation failed:", repr(e), flush=True)
            clock = time.time()
        if rank == 0 and time.time() - saved > a.save_every * 60:
            saved = time.time()
            save(state, a.out, log)
    say(f"trained {step} steps, {tokens} tokens, {time.time() - start:.0f} s, peak memory "
        f"{torch.cuda.max_memory_allocated() / 2 ** 30 if device.type == 'cuda' else 0:.1f} GiB", flush=True)
    if rank == 0:
        save(state, a.out, log)
        say("saved", flush=True)
        if a.heldout and os.path.exists(a.heldout):
            evaluate(cast(state, True), a.heldout, a.tokenizer, device, failures=f"{a.out}/failures.jsonl")
        Path(a.out, "finished").write_text("yes\n")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)  # do not wait for the data workers


def stock_state():
    m = model.stock_model()
    return dict(m.named_parameters())


if __name__ == "__main__":
    main()
