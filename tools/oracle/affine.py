"""Writes tests/data/affine.json: rows quantised by MLX, which the C quantiser must reproduce code for code.

    python tools/oracle/affine.py          (needs mlx and numpy)

A row is 128 BF16 values, written as their bits; codes are bytes as they lie in a file, in hex.
"""
import json
import pathlib

import mlx.core as mx
import numpy as np

COLUMNS = 128


def rows():
    random = np.random.default_rng(1)
    ramp = np.arange(COLUMNS) / COLUMNS
    yield "normal", random.normal(size=COLUMNS) / 8
    yield "normal again", random.normal(size=COLUMNS) * 3
    yield "positive", 1 + random.random(COLUMNS)
    yield "negative", -1 - random.random(COLUMNS)
    yield "zero", np.zeros(COLUMNS)
    yield "constant", np.full(COLUMNS, 0.75)
    yield "negative constant", np.full(COLUMNS, -0.3)
    yield "one outlier", np.where(np.arange(COLUMNS) == 70, 100.0, random.normal(size=COLUMNS))
    yield "ramp", ramp - 0.5
    yield "tiny", random.normal(size=COLUMNS) * 1e-9
    yield "symmetric", np.where(np.arange(COLUMNS) % 2 == 0, 1.0, -1.0) * ramp
    yield "wide", random.normal(size=COLUMNS) * 10.0 ** random.integers(-6, 6, COLUMNS)
    for i in range(8):
        yield f"random {i}", random.normal(size=COLUMNS) * 0.02 + random.normal() * 0.01


def bits16(array):
    return np.array(array.view(mx.uint16)).tolist()


def main():
    cases = []
    for name, values in rows():
        row = mx.array(values.astype(np.float32)).astype(mx.bfloat16)[None]
        for bits in (4, 8):
            codes, scales, biases = mx.quantize(row, group_size=64, bits=bits)
            back = mx.dequantize(codes, scales, biases, group_size=64, bits=bits)
            cases.append({
                "name": name,
                "bits": bits,
                "values": bits16(row[0]),
                "codes": np.array(codes[0]).tobytes().hex(),
                "scales": bits16(scales[0]),
                "biases": bits16(biases[0]),
                "dequantised": bits16(back[0]),
            })
    path = pathlib.Path(__file__).parents[2] / "tests/data/affine.json"
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(f'{{"mlx":"{mx.__version__}","cases":[\n{text}\n]}}\n')
    print(f"{len(cases)} cases in {path}")


main()
