#!/usr/bin/env python3
"""Compares calla's logits with those of Hugging Face transformers on random small checkpoints.

For each shape: `calla synth` writes a checkpoint in the published 4-bit format; its weights are dequantised here, by
code that shares nothing with calla, into transformers' Qwen3_5MoeForCausalLM, which runs in float32 on the CPU with
eager attention; `calla eval` runs the folder itself. The result is the relative L2 error of the logits,
|calla - transformers| / |transformers|, of every position. A position where transformers' own last chosen and first
unchosen expert are within 1e-4 of each other in some layer, so that rounding may choose, is counted and left out.

Writes <output>/transformers.json and prints a table in Markdown. Exits with 1 if an error reaches 1e-5 (layers add
little to the residual stream of random models: a wrong mixer is an error of some hundredths).
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from checkpoint import calla_logits, machine, make_checkpoint, read_weights, small_config, text_config
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

LIMIT, TIE = 1e-5, 1e-4

SHAPES = {
    "proportions of the 35B model": dict(
        layers=4, hidden=256, heads=4, kv_heads=1, head_size=64, rotary=16, key_heads=2, value_heads=4, key_size=32,
        value_size=32, experts=16, chosen=4, width=64, shared=64),
    "head sizes of the 35B model, tied embeddings": dict(
        layers=4, hidden=128, heads=8, kv_heads=1, head_size=256, rotary=64, key_heads=2, value_heads=4, key_size=128,
        value_size=128, experts=8, chosen=2, width=64, shared=128, tied=True),
    "deep and narrow, as many key as value heads": dict(
        layers=12, hidden=64, heads=2, kv_heads=2, head_size=32, rotary=32, key_heads=4, value_heads=4, key_size=16,
        value_size=16, experts=32, chosen=8, width=64, shared=64, interval=3, theta=10000),
    "every expert chosen, 3 value heads a key head, 3 taps": dict(
        layers=4, hidden=192, heads=6, kv_heads=2, head_size=64, rotary=32, key_heads=1, value_heads=3, key_size=64,
        value_size=64, experts=4, chosen=4, width=128, shared=64, interval=2, taps=3),
    "64 experts, 8 chosen, wide shared expert": dict(
        layers=8, hidden=512, heads=8, kv_heads=2, head_size=64, rotary=16, key_heads=4, value_heads=16, key_size=64,
        value_size=64, experts=64, chosen=8, width=64, shared=320),
    "8-bit matrices, unquantised head, keys wider than values": dict(
        layers=6, hidden=128, heads=4, kv_heads=4, head_size=32, rotary=8, key_heads=2, value_heads=8, key_size=64,
        value_size=32, experts=6, chosen=3, width=192, shared=64, bits=8, plain=["language_model.lm_head"]),
    "attention in every layer": dict(
        layers=3, hidden=128, heads=4, kv_heads=2, head_size=64, rotary=64, key_heads=1, value_heads=1, key_size=64,
        value_size=64, experts=8, chosen=1, width=64, shared=64, interval=1),
}  # fmt: skip


def load_transformers(folder):
    """transformers' model of the folder's weights, in float32."""
    config = text_config(json.loads(Path(folder, "config.json").read_text()))
    known = {k: v for k, v in config.items() if k != "model_type"}
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**known, attn_implementation="eager")).float().eval()
    weights = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in read_weights(folder).items()}
    state = {}
    for name, value in weights.items():
        if name.endswith("switch_mlp.gate_proj"):
            up = weights[name.replace("gate_proj", "up_proj")]
            state[name.replace("switch_mlp.gate_proj", "experts.gate_up_proj")] = torch.cat([value, up], dim=1)
        elif name.endswith("switch_mlp.up_proj"):
            continue
        elif name.endswith("switch_mlp.down_proj"):
            state[name.replace("switch_mlp.down_proj", "experts.down_proj")] = value
        elif name.endswith(("A_log", "dt_bias")):
            state[name] = value
        elif name.endswith("conv1d"):
            state[name + ".weight"] = value.reshape(value.shape[0], 1, -1)
        elif name.endswith("norm") and not name.endswith("linear_attn.norm"):
            state[name + ".weight"] = value - 1  # transformers adds 1
        else:
            state[name + ".weight"] = value
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def transformers_logits(model, tokens):
    """Logits [T, V], and for every position the least gap between chosen and unchosen experts over the layers."""
    gaps = []

    def look(module, _, output):
        p = torch.softmax(output[0].float(), dim=-1).sort(dim=-1, descending=True).values
        if module.top_k < module.num_experts:
            gaps.append(p[:, module.top_k - 1] - p[:, module.top_k])

    hooks = [layer.mlp.gate.register_forward_hook(look) for layer in model.model.layers]
    with torch.no_grad():
        logits = model(torch.tensor([list(map(int, tokens))]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    gap = torch.stack(gaps).min(dim=0).values.numpy() if gaps else np.full(len(tokens), np.inf)
    return logits.numpy(), gap


def compare(found, expected, gap):
    """Errors of the positions whose experts are certain, and how often the likeliest token is the same."""
    error = np.linalg.norm(found.astype(np.float64) - expected, axis=1) / np.linalg.norm(expected, axis=1)
    certain = gap >= TIE
    return {
        "positions": len(error),
        "left_out": int((~certain).sum()),
        "worst": float(error[certain].max()),
        "mean": float(error[certain].mean()),
        "worst_left_out": float(error[~certain].max()) if (~certain).any() else None,
        "top1": float((found.argmax(1) == expected.argmax(1)).mean()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("--backend", default="reference", help="calla's backend (default: %(default)s)")
    parser.add_argument("--policy", action="append", default=[], help="NAME=VALUE for calla, may be repeated")
    parser.add_argument("--positions", type=int, default=192, help="tokens a shape (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and tokens (default: %(default)s)")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for the result (default: %(default)s)")
    arguments = parser.parse_args()
    output = Path(arguments.output)
    options = [part for policy in arguments.policy for part in ("--policy", policy)]
    torch.set_num_threads(2)
    results = []
    print(f"| shape | positions | left out | worst error | mean error | same top-1 |\n|{'---|' * 6}")
    for index, (name, shape) in enumerate(SHAPES.items()):
        folder = output / f"shape-{index}"
        shutil.rmtree(folder, ignore_errors=True)
        make_checkpoint(arguments.calla, small_config(**shape), folder, arguments.seed + index)
        tokens = np.random.default_rng(arguments.seed + index).integers(0, 256, arguments.positions)
        expected, gap = transformers_logits(load_transformers(folder), tokens)
        found = calla_logits(arguments.calla, folder, tokens, output / "work", arguments.backend, *options)
        result = {"shape": name, **compare(found, expected, gap), "config": shape}
        results.append(result)
        print(f"| {name} | {result['positions']} | {result['left_out']} | {result['worst']:.1e} | {result['mean']:.1e}"
              f" | {result['top1']:.1%} |", flush=True)  # fmt: skip
    report = {
        "command": " ".join(sys.argv),
        "machine": machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "limit": LIMIT,
        "shapes": results,
    }
    (output / "transformers.json").write_text(json.dumps(report, indent=2) + "\n")
    worst = max(result["worst"] for result in results)
    print(f"\nworst relative L2 error {worst:.2e}; the limit is {LIMIT:.0e}")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
