#!/usr/bin/env python3
"""Compares calla with mlx-lm running the very same folder, on text that both are forced to follow.

Both read the same tokens; of every position the likeliest next token is compared, and the probability of the one that
really comes next. mlx-lm runs as it comes: activations in bfloat16, on whatever device MLX has. A second run of it
with all parameters cast to float32 tells how much of the difference is its rounding: only the first is held against
the limits.

Writes <output>/mlx_lm.json and prints a table in Markdown. Exits with 1 if fewer than 99 % of the positions agree on
the likeliest token, or the perplexities differ by 0.1 % or more.
"""

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from checkpoint import calla_logits, machine
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

AGREEMENT, PERPLEXITY = 0.99, 1e-3
TEXT = Path(__file__).resolve().parent / "text.txt"


def mlx_logits(folder, tokens, dtype=None):
    """Logits [T, V] of one forward pass over all tokens; `dtype` casts the parameters first."""
    model, _ = load_model(Path(folder))
    if dtype is not None:
        model.set_dtype(dtype)
    logits = model(mx.array([list(map(int, tokens))]))[0].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def compare(found, expected, tokens):
    """calla's logits against another's; position t predicts tokens[t + 1]."""
    p, q = log_softmax(expected), log_softmax(found)
    rows, following = np.arange(len(tokens) - 1), np.asarray(tokens[1:])
    perplexity = np.exp(-p[rows, following].mean()), np.exp(-q[rows, following].mean())
    return {
        "positions": len(tokens),
        "top1": float((p.argmax(1) == q.argmax(1)).mean()),
        "perplexity": float(perplexity[0]),
        "calla_perplexity": float(perplexity[1]),
        "perplexity_difference": float(perplexity[1] / perplexity[0] - 1),
        "mean_kl": float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        "worst_kl": float((np.exp(p) * (p - q)).sum(axis=1).max()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="models/calla-tiny", help="the folder (default: %(default)s)")
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("--backend", default="cpu", help="calla's backend (default: %(default)s)")
    parser.add_argument("--text", default=TEXT, help="text to follow; control tokens in it count (default: %(default)s)")
    parser.add_argument("--tokens", help="token ids as a .npy file instead of a text")
    parser.add_argument("--positions", type=int, default=1024, help="tokens at most (default: %(default)s)")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for the result (default: %(default)s)")
    arguments = parser.parse_args()
    output = Path(arguments.output)
    if arguments.tokens:
        tokens = np.load(arguments.tokens)
    else:
        tokenizer = Tokenizer.from_file(str(Path(arguments.model) / "tokenizer.json"))
        text = Path(arguments.text).read_text(encoding="utf-8")
        tokens = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    tokens = tokens[: arguments.positions].astype(np.int32)
    if len(tokens) < 192:
        sys.exit(f"{len(tokens)} tokens are too few to compare: 192 at least are wanted")
    found = calla_logits(arguments.calla, arguments.model, tokens, output / "work", arguments.backend)
    runs = {"as it comes": None, "cast to float32": mx.float32}
    results = {name: compare(found, mlx_logits(arguments.model, tokens, dtype), tokens) for name, dtype in runs.items()}
    print("| mlx-lm | positions | same top-1 | its perplexity | calla's | difference | mean KL | worst KL |")
    print("|" + "---|" * 8)
    for name, r in results.items():
        print(f"| {name} | {r['positions']} | {r['top1']:.2%} | {r['perplexity']:.5g} | {r['calla_perplexity']:.5g}"
              f" | {r['perplexity_difference']:+.4%} | {r['mean_kl']:.1e} | {r['worst_kl']:.1e} |")  # fmt: skip
    report = {
        "command": " ".join(sys.argv),
        "machine": machine(),
        "device": str(mx.default_device()),
        "mlx": importlib.metadata.version("mlx"),
        "mlx_lm": importlib.metadata.version("mlx-lm"),
        "model": str(arguments.model),
        "backend": arguments.backend,
        "results": results,
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / "mlx_lm.json").write_text(json.dumps(report, indent=2) + "\n")
    held = results["as it comes"]
    return 0 if held["top1"] >= AGREEMENT and abs(held["perplexity_difference"]) < PERPLEXITY else 1


if __name__ == "__main__":
    sys.exit(main())
