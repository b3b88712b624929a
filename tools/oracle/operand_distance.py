#!/usr/bin/env python3
"""How far the distributions of the CPU backend's matrix operands, and mlx-lm's own, are from float32.

Each conversation of a text is read from position 0 by calla's reference backend (float32 throughout), by the CPU backend
with each kind of operands, and by mlx-lm as it comes, all on the same folder. Prints for each the mean and the worst
Kullback-Leibler divergence from the reference, the share of positions with the same likeliest token, the worst
relative L2 error of the logits, and the share of positions where that is large; over the replies, where the next token is the model's own to write, and over everything.
8-bit operands are worth being the default as long as their mean is below mlx-lm's.
"""

import argparse
from pathlib import Path

import numpy as np
from checkpoint import calla_logits
from mlx_lm_compare import TEXT, log_softmax, mlx_logits_of, mlx_model, read_conversations


FAR = 2e-2


def distance(found, expected):
    p, q = log_softmax(expected), log_softmax(found)
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return divergence.mean(), divergence.max(), (p.argmax(1) == q.argmax(1)).mean(), error.max(), (error >= FAR).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="models/calla-tiny", help="the folder (default: %(default)s)")
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("--text", default=TEXT, help="conversations or any text, <|endoftext|> between them (default: %(default)s)")
    parser.add_argument("--policy", action="append", default=[], help="NAME=VALUE for the CPU backend")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for files (default: %(default)s)")
    arguments = parser.parse_args()
    conversations = read_conversations(arguments.model, arguments.text)
    written = np.concatenate([np.isin(np.arange(len(tokens) - 1), positions) for tokens, positions in conversations])
    options = [part for policy in arguments.policy for part in ("--policy", policy)]

    def calla(backend, *policy):
        work = Path(arguments.output) / "work"
        return np.concatenate(
            [calla_logits(arguments.calla, arguments.model, t, work, backend, *policy)[:-1] for t, _ in conversations]
        )

    reference = calla("reference")
    model = mlx_model(arguments.model)
    runs = {
        "calla cpu, int8": calla("cpu", "--policy", "matrix_operands=int8", *options),
        "calla cpu, bf16": calla("cpu", "--policy", "matrix_operands=bf16", *options),
        "mlx-lm as it comes": np.concatenate([mlx_logits_of(model, t)[:-1] for t, _ in conversations]),
    }
    print(f"| | positions | mean KL | worst KL | same top-1 | worst L2 error | {FAR:.0e} or more |\n" + "|---" * 7 + "|")
    for name, logits in runs.items():
        for what, chosen in {"replies": written, "everything": np.ones_like(written)}.items():
            if not chosen.any():
                continue  # a text without replies
            mean, worst, same, error, far = distance(logits[chosen], reference[chosen])
            print(f"| {name}, {what} | {chosen.sum()} | {mean:.2e} | {worst:.2e} | {same:.2%} | {error:.2e} | {far:.1%} |")


if __name__ == "__main__":
    main()
