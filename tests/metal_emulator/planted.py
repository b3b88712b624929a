#!/usr/bin/env python3
"""planted.py [BUILD]: do the tests of ops see small errors of kernels? Each line below leaves one thing out of a kernel: a group's
bias, a lane's columns, a position of the cache, a token's change of the state. The kernel is compiled with it for the emulator, and
the test named beside it must fail. Minutes on one core: for who changes kernels or tolerances, no part of ctest. BUILD is a
build of the preset `default`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
KERNELS = ROOT / "src/backend/metal/kernels"
BIAS = "bias * sums[r];\n        }\n    } else if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8)"
NO_BIAS = "(column / 64 == 1 ? 0.0f : bias) * sums[r];\n        }\n    } else if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8)"
PIECE = "piece.bias = weight_scale(kind, matrix.biases, at / 64);"
NO_PIECE = "piece.bias = at / 64 % 3 == 2 ? 0.0f : weight_scale(kind, matrix.biases, at / 64);"
LANE = "for (uint column = lane * 16; column < columns;"
REACH = "mine[i] = at + c <= reach &&"

# file with the error, file that is compiled, test, what stands there, what stands there then
ERRORS = [
    ("weights.h", "linear", "linear", BIAS, NO_BIAS),
    ("weights.h", "experts", "experts", BIAS, NO_BIAS),
    ("linear.metal", "linear", "linear", LANE, LANE[:-1] + " && lane != 3;"),
    ("experts.metal", "experts", "experts", LANE, LANE[:-1] + " && lane != 1;"),
    ("gemm.h", "gemm", "many_rows", PIECE, NO_PIECE),
    ("gemm.h", "tensor_gemm", "many_rows", PIECE, NO_PIECE),
    ("attention_decode.metal", "attention_decode", "attention", "begin = min(group.y * each,",
     "begin = min(group.y * each + (group.y == 1 ? 1u : 0u),"),
    ("attention_decode.metal", "attention_decode", "attention", "begin = min(group.y * each,",
     "begin = min(group.y * each + (count > 70 ? 1u : 0u),"),
    ("attention_prefill.metal", "attention_prefill", "attention", REACH, REACH + " at + c != 60 &&"),
    ("attention_prefill.metal", "attention_prefill", "many_rows", REACH, REACH + " at + c != 60 &&"),
    ("attention_prefill.metal", "attention_prefill", "many_rows", REACH,
     "mine[i] = at + c < reach + (reach < 100 ? 1 : 0) &&"),
    ("tensor_attention.metal", "tensor_attention", "many_rows", REACH, REACH + " at + c != 60 &&"),
    ("tensor_attention.metal", "tensor_attention", "many_rows", REACH,
     "mine[i] = at + c < reach + (reach < 100 ? 1 : 0) &&"),
    ("delta_scan_128.metal", "delta_scan_128", "many_rows", "float2 gates = gate_tile[t];",
     "float2 gates = gate_tile[t];\n            if (begin + t == 50)\n                gates.y = 0.0f;"),
    ("delta_scan_128.metal", "delta_scan_128", "delta", "u = simd_shuffle(gate_tile[t].y * rest",
     "u = simd_shuffle((begin + t == 5 ? 0.0f : gate_tile[t].y) * rest"),
]


def compiler(library):
    """The command that CMake compiles checked kernels of a library with, up to the file."""
    made = (BUILD / f"tests/metal_emulator/CMakeFiles/metal_module_{library}.dir/build.make").read_text()
    return re.search(r"(\S*clang\S* -std=c\+\+20 .*) -c \S+ -o \S+\.checked\.o\n", made)[1]


def caught(folder, header, unit, test, old, new):
    library, version = ("tensor_kernels", "400") if unit.startswith("tensor_") else ("kernels", "310")
    objects = BUILD / "tests/metal_emulator" / library
    shutil.copytree(KERNELS, folder / "kernels")
    shutil.copytree(BUILD / "metal_modules", folder / "modules")
    changed = folder / "kernels" / header
    text = changed.read_text()
    if old not in text:
        sys.exit(f"{header} has no '{old}' any more")
    changed.write_text(text.replace(old, new))
    command = compiler(library)
    clang = command.split()[0]
    subprocess.check_call([ROOT / "tests/metal_emulator/compile.sh", clang, sys.executable, version,
                           folder / "kernels" / f"{unit}.metal", folder / unit])
    subprocess.check_call(f"{command} -c {folder}/{unit}.cpp -o {folder}/{unit}.checked.o", shell=True)
    others = [file for file in objects.glob("*.checked.o") if file.name != f"{unit}.checked.o"]
    subprocess.check_call([clang, "-shared", "-o", folder / f"modules/{library}.checked.so",
                           folder / f"{unit}.checked.o", *others, "-lm"])
    environment = dict(os.environ, CALLA_EMULATOR_MODULES=str(folder / "modules"))
    if library == "tensor_kernels":
        environment["CALLA_TEST_POLICY"] = "tensor_operations=on"
    run = subprocess.run([BUILD / f"tests/metal_emulator/metal_test_{test}"], cwd=ROOT, env=environment,
                         capture_output=True, text=True, errors="replace", check=False)
    return run.returncode != 0 and "FAILED" in run.stdout + run.stderr


missed = 0
for error in ERRORS:
    with tempfile.TemporaryDirectory() as folder:
        seen = caught(Path(folder), *error)
    missed += not seen
    print("seen  " if seen else "MISSED", f"{error[0]} in metal_test_{error[2]}: {' '.join(error[4].split())}", flush=True)
print(f"{missed} of {len(ERRORS)} errors missed")
sys.exit(missed != 0)
