"""Checks on a CPU, before any GPU time is spent: the template, the packed forward against transformers, the export
against MLX's own quantiser and against mlx-lm's loader.

    python3 tools/tiny/rehearse.py out/prose.json.gz models/calla-tiny"""
import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer

import model
from data import encode
from dialog import prompt_text, render
from export import export
from gen_text import conversation, set_prose


def check_template(folder, rng):
    import jinja2

    def fail(message):
        raise ValueError(message)
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    template = env.from_string((folder / "chat_template.jinja").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for _ in range(500):
        c = conversation(rng)
        if "text" in c:
            continue
        if not c["think"]:
            for m in c["messages"]:
                m.pop("reasoning_content", None)
        text = "".join(t for t, _ in render(c))
        assert template.render(messages=c["messages"], tools=c.get("tools"), add_generation_prompt=False) == text
        assert template.render(messages=c["messages"][:-1], tools=c.get("tools"), add_generation_prompt=True,
                               enable_thinking=c["think"]) == prompt_text(c)
        assert tokenizer.encode(text, add_special_tokens=False).ids[:4096] == encode(tokenizer, c)[0], "tokens split at a segment's end"
    print("template and tokens agree")


def check_forward():
    torch.manual_seed(0)
    stock = model.stock_model().eval()
    for p in stock.parameters():
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    for n, p in stock.named_parameters():  # larger weights make differences visible
        if p.dim() > 1:
            p.data *= 3
        if n.endswith("mlp.gate.weight"):
            p.data = torch.randn_like(p) * 0.1
    w = {n: model.stored(n, p.detach(), False) for n, p in stock.named_parameters()}
    lengths = [70, 5, 131]
    ids = torch.randint(0, 4032, (sum(lengths),))
    cu = torch.tensor([0, 70, 75, 206], dtype=torch.int32)
    h, _ = model.forward(w, ids, cu, 131)
    logits = h @ w["lm_head.weight"].T
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        want = stock(ids[None, a:b]).logits[0]
        error = ((want - logits[a:b]).norm() / want.norm()).item()
        print(f"packed forward against transformers: {error:.1e}")
        assert error < 1e-4
    return {n: p.detach() for n, p in stock.named_parameters()}


def check_export(state, folder):
    import mlx.core as mx
    import numpy as np
    for bits in (4, 8):
        x = torch.randn(64, 256)
        q, s, b = model.quantise(x, bits)
        mine = (q * s + b).flatten(-2)
        wq, ms, mb = mx.quantize(mx.array(x.numpy()).astype(mx.float32), group_size=64, bits=bits)
        theirs = torch.from_numpy(np.array(mx.dequantize(wq, ms, mb, group_size=64, bits=bits)))
        print(f"{bits} bits: error {(mine - x).norm() / x.norm():.4f}, MLX {(theirs - x).norm() / x.norm():.4f}, "
              f"scales differ by {((s.squeeze(-1) - torch.from_numpy(np.array(ms))).abs().max() / s.abs().max()).item():.1e}")
    with tempfile.TemporaryDirectory() as t:
        t = Path(t)
        export(state, t)
        for f in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (t / f).write_bytes((folder / f).read_bytes())
        import mlx_lm
        m, tokenizer = mlx_lm.load(str(t))
        m.set_dtype(mx.float32)
        ids = torch.randint(0, 4032, (90,))
        got = torch.from_numpy(np.array(m(mx.array(ids.numpy())[None]).astype(mx.float32)))[0]
        w = {n: model.stored(n, p, True) for n, p in state.items()}
        h, _ = model.forward(w, ids, torch.tensor([0, 90], dtype=torch.int32), 90)
        want = h @ w["lm_head.weight"].T
        print(f"exported random model through mlx-lm: relative difference of the logits {((want - got).norm() / want.norm()).item():.1e} (both float32)")
        text = "Hello  wörld 12 don't <|im_end|>\n\n<think> x"
        assert tokenizer.encode(text, add_special_tokens=False) == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
        print("size", (t / "model.safetensors").stat().st_size)


if __name__ == "__main__":
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as f:
        set_prose(json.load(f), False)
    folder = Path(sys.argv[2])
    check_template(folder, random.Random(3))
    check_export(check_forward(), folder)
