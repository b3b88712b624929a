#!/usr/bin/env python3
"""MLX-LM as `calla bench --against mlx-lm` measures it: a server on standard input and output, one JSON object a line.

It says what it is as soon as mlx_lm is imported, and then answers

    {"load": DIR}                     with {"load_seconds": ...}
    {"prompt": [ids], "tokens": N}    with {"prompt_seconds": ..., "decode_seconds": ..., "peak_resident_bytes": ...}

or {"error": "a sentence"}. The fastest path of MLX-LM is the one that its own benchmark takes: generate_step with its
default prompt step and cache, greedily, weights wired down where the device can, without the text around it. The prompt's
time ends with the first token; the N tokens after that one are the decoded ones. Between two requests nothing runs.

By hand: echo '{"load": "DIR"}' | python tools/bench_mlx_lm.py
"""

import importlib.metadata
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path


def say(**values):
    print(json.dumps(values), file=ANSWERS, flush=True)


def load(folder):
    start = time.perf_counter()
    model, _ = load_model(Path(folder))
    mx.eval(model.parameters())
    return model, time.perf_counter() - start


def measure(model, ids, tokens):
    """Seconds of the prompt, and of the `tokens` tokens after the first (0 without any)."""
    prompt = mx.array(ids, dtype=mx.int32)
    mx.eval(prompt)
    with wired_limit(model, [generation_stream]):
        start = first = last = time.perf_counter()
        steps = generate_step(prompt, model, max_tokens=tokens + 1)
        for made, _ in enumerate(steps):
            last = time.perf_counter()
            if made == 0:
                first = last
            if made == tokens:
                break
        steps.close()
        mx.synchronize(generation_stream)  # the step after the last was begun already
    mx.clear_cache()
    return first - start, last - first


def peak_resident():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def answer(request, model):
    """-> the model to go on with."""
    if "load" in request:
        model, seconds = load(request["load"])
        say(load_seconds=seconds)
    elif model is None:
        say(error="MLX-LM was asked to measure before it had a model.")
    else:
        prompt_seconds, decode_seconds = measure(model, request["prompt"], request["tokens"])
        say(prompt_seconds=prompt_seconds, decode_seconds=decode_seconds, peak_resident_bytes=peak_resident())
    return model


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


# Standard output is for answers alone; whatever the libraries print goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

try:
    import mlx.core as mx
    from mlx_lm.generate import generate_step, generation_stream, wired_limit
    from mlx_lm.utils import load_model
except Exception as error:  # an import can fail in any way
    say(
        error=f"mlx_lm cannot be imported by {sys.executable} ({one_line(error)}): install it there (pip install mlx-lm), "
        "or name an interpreter that has it in the variable CALLA_PYTHON."
    )
    sys.exit(1)


def end_with(parent):
    """A program that is killed cannot end this one, which may be in the middle of a long round."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main():
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    say(
        version=importlib.metadata.version("mlx-lm"),
        mlx=importlib.metadata.version("mlx"),
        device=str(mx.default_device()),
    )
    model = None
    for line in sys.stdin:
        try:
            model = answer(json.loads(line), model)
        except Exception as error:  # told to whoever asked
            say(error=f"MLX-LM failed: {one_line(error)}")


if __name__ == "__main__":
    main()
