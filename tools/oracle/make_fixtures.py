#!/usr/bin/env python3
"""Writes tests/data/forward: a checkpoint of 200 KB, tokens, and what transformers and mlx-lm make of them in float32.

The test of the forward pass compares calla with these files where neither of the two is installed.
"""

import argparse
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
from checkpoint import make_checkpoint, small_config
from mlx_lm_compare import mlx_logits
from transformers_logits import TIE, load_transformers, transformers_logits

SHAPE = dict(
    layers=4, hidden=64, heads=4, kv_heads=2, head_size=32, rotary=8, key_heads=1, value_heads=2, key_size=32,
    value_size=32, experts=6, chosen=2, width=64, shared=64)  # fmt: skip
POSITIONS = 80  # more than transformers' chunk of 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("-o", "--output", default="tests/data/forward", help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    folder = Path(arguments.output)
    shutil.rmtree(folder, ignore_errors=True)
    for seed in range(100):
        make_checkpoint(arguments.calla, small_config(**SHAPE), folder, seed)
        tokens = np.random.default_rng(seed).integers(0, 256, POSITIONS).astype(np.int32)
        logits, gap = transformers_logits(load_transformers(folder), tokens)
        if gap.min() >= TIE:  # no position to leave out
            break
        shutil.rmtree(folder)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "transformers.npy", logits.astype("<f4"))
    np.save(folder / "mlx_lm.npy", mlx_logits(folder, tokens, mx.float32).astype("<f4"))
    print(f"seed {seed}, {sum(p.stat().st_size for p in folder.iterdir())} bytes in {folder}")


if __name__ == "__main__":
    main()
