#!/usr/bin/env python3
"""Compares calla with mlx-lm running the very same folder, on conversations that both are forced to follow.

Both read the same tokens, each conversation from position 0. The likeliest next token is compared, and the probability
of the one that really comes next: over the replies, where the next token is the model's own to write, and over
everything, though the model was never taught to predict what people say. mlx-lm runs as it comes: activations in bfloat16, on whatever device MLX has. With
--float32 a second run of it, with all parameters cast to float32, tells how much of the difference is its rounding. The
replies of the first are held against the limits.

Writes <output>/mlx_lm.json and prints a table in Markdown. Exits with 1 if fewer than 99 % of the positions agree on
the likeliest token, or the perplexities differ by 0.1 % or more.
"""

import argparse
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from checkpoint import calla_logits, machine
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

AGREEMENT, PERPLEXITY = 0.99, 1e-3
TEXT = Path(__file__).resolve().parent / "text.txt"


# A turn of the model's: what it writes begins after the opening of its thoughts, or after empty ones.
REPLY = re.compile(r"<\|im_start\|>assistant\n(?:<think>\n(?:\n</think>\n\n)?)?(.*?<\|im_end\|>)", re.DOTALL)


def mlx_logits(folder, tokens, dtype=None):
    """Logits [T, V] of one forward pass over all tokens; `dtype` casts the parameters first."""
    return mlx_logits_of(mlx_model(folder, dtype), tokens)


def mlx_model(folder, dtype=None):
    model, _ = load_model(Path(folder))
    if dtype is not None:
        model.set_dtype(dtype)
    return model


def mlx_logits_of(model, tokens):
    logits = model(mx.array([list(map(int, tokens))]))[0].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def read_conversations(folder, path):
    """-> list of (ids, positions whose next token is the model's to write)."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    conversations = []
    for text in Path(path).read_text(encoding="utf-8").split("<|endoftext|>\n"):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        spans = [match.span(1) for match in REPLY.finditer(text)]
        written = [any(a <= start < b for a, b in spans) for start, _ in encoding.offsets]
        conversations.append((np.array(encoding.ids, np.int32), np.flatnonzero(written[1:])))
    return conversations


def compare(found, expected, following):
    """calla's logits against another's [N, V], and the tokens that really follow."""
    p, q = log_softmax(expected), log_softmax(found)
    rows = np.arange(len(following))
    perplexity = np.exp(-p[rows, following].mean()), np.exp(-q[rows, following].mean())
    return {
        "positions": len(following),
        "top1": float((p.argmax(1) == q.argmax(1)).mean()),
        "perplexity": float(perplexity[0]),
        "calla_perplexity": float(perplexity[1]),
        "perplexity_difference": float(perplexity[1] / perplexity[0] - 1),
        "mean_kl": float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        "worst_kl": float((np.exp(p) * (p - q)).sum(axis=1).max()),
    }


def write_fixture(path, conversations, log_probabilities):
    """For each conversation: tokens, reply positions, the likeliest tokens there, and log p of those that follow."""
    out, row = [], 0
    for tokens, positions in conversations:
        p = log_probabilities[row : row + len(tokens) - 1][positions]
        row += len(tokens) - 1
        following = p[np.arange(len(positions)), tokens[positions + 1]]
        out.append({"tokens": tokens.tolist(), "positions": positions.tolist(), "top1": p.argmax(1).tolist(),
                    "log_probability": [round(float(x), 7) for x in following]})  # fmt: skip
    Path(path).write_text("[" + ",\n".join(json.dumps(entry) for entry in out) + "]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="models/calla-tiny", help="the folder (default: %(default)s)")
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("--backend", default="cpu", help="calla's backend (default: %(default)s)")
    parser.add_argument("--policy", action="append", default=[], help="NAME=VALUE for calla, may be repeated")
    parser.add_argument("--text", default=TEXT, help="conversations, <|endoftext|> between them (default: %(default)s)")
    parser.add_argument("--tokens", help="token ids as a .npy file instead: every position counts")
    parser.add_argument("--float32", action="store_true", help="compare with mlx-lm in float32 too")
    parser.add_argument("--fixture", help="write mlx-lm's results for a test into this file")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for the result (default: %(default)s)")
    arguments = parser.parse_args()
    output = Path(arguments.output)
    options = [part for policy in arguments.policy for part in ("--policy", policy)]
    if arguments.tokens:
        tokens = np.load(arguments.tokens).astype(np.int32)
        conversations = [(tokens, np.arange(len(tokens) - 1))]
    else:
        conversations = read_conversations(arguments.model, arguments.text)
    following = np.concatenate([tokens[1:] for tokens, _ in conversations])
    written = np.concatenate([np.isin(np.arange(len(tokens) - 1), positions) for tokens, positions in conversations])
    if written.sum() < 192:
        sys.exit(f"{written.sum()} positions are too few to compare: 192 at least are wanted")

    def gather(logits_of):
        return np.concatenate([logits_of(tokens)[:-1] for tokens, _ in conversations])

    found = gather(lambda t: calla_logits(arguments.calla, arguments.model, t, output / "work", arguments.backend, *options))
    runs = {"as it comes": None} | ({"cast to float32": mx.float32} if arguments.float32 else {})
    results = {}
    print("| mlx-lm | positions | same top-1 | its perplexity | calla's | difference | mean KL | worst KL |")
    print("|" + "---|" * 8)
    for name, dtype in runs.items():
        model = mlx_model(arguments.model, dtype)
        expected = gather(lambda t: mlx_logits_of(model, t))
        if arguments.fixture and dtype is None:
            write_fixture(arguments.fixture, conversations, log_softmax(expected))
        for what, chosen in {"replies": written, "everything": np.ones_like(written)}.items():
            r = results[f"{name}, {what}"] = compare(found[chosen], expected[chosen], following[chosen])
            print(f"| {name}, {what} | {r['positions']} | {r['top1']:.2%} | {r['perplexity']:.5g}"
                  f" | {r['calla_perplexity']:.5g} | {r['perplexity_difference']:+.4%} | {r['mean_kl']:.1e}"
                  f" | {r['worst_kl']:.1e} |", flush=True)  # fmt: skip
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
    held = results["as it comes, replies"]
    return 0 if held["top1"] >= AGREEMENT and abs(held["perplexity_difference"]) < PERPLEXITY else 1


if __name__ == "__main__":
    sys.exit(main())
