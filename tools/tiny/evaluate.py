"""Measures the model on the held-out prompts, through the calla binary or through mlx-lm.

    python3 tools/tiny/evaluate.py                                   # build/calla, models/calla-tiny
    python3 tools/tiny/evaluate.py --engine mlx
    python3 tools/tiny/evaluate.py --answers out/answers.jsonl --failures out/failures.jsonl

Each line of tests/data/tiny-heldout.jsonl holds a chat-completions request, the expected answer and its kind. The binary
is run once a prompt: `calla run -m MODEL --request - --json --quiet`, the request on stdin, one JSON object on stdout.
Answers are kept in --answers as they arrive, so that a long measurement can be stopped and taken up again.
Exit status 1 when fewer than 90 % are right or fewer than 95 % of the tool calls are well-formed."""
import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scoring import parse_reply, report, right, well_formed


def through_calla(args, request):
    done = subprocess.run([args.calla, "run", "-m", args.model, "--request", "-", "--json", "--quiet"],
                          input=json.dumps(request), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{args.calla} failed with status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Mlx:
    """mlx-lm with greedy sampling, in float32 (bfloat16 activations lose what so small a model needs)."""

    def __init__(self, folder):
        import mlx.core as mx
        import mlx_lm
        self.mlx_lm = mlx_lm
        self.model, self.tokenizer = mlx_lm.load(folder)
        self.model.set_dtype(mx.float32)

    def __call__(self, request):
        messages = []
        for m in request["messages"]:
            if m.get("tool_calls"):
                m = {**m, "tool_calls": [{"function": {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}} for c in m["tool_calls"]]}
            messages.append(m)
        think = request["chat_template_kwargs"]["enable_thinking"]
        prompt = self.tokenizer.apply_chat_template(messages, tools=request.get("tools"), add_generation_prompt=True, enable_thinking=think)
        if not isinstance(prompt, list):
            prompt = self.tokenizer.encode(prompt, add_special_tokens=False)
        text = self.mlx_lm.generate(self.model, self.tokenizer, prompt=prompt, max_tokens=request["max_tokens"])
        return parse_reply(text.removesuffix("<|im_end|>"), think, request.get("tools"))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--engine", choices=["calla", "mlx"], default="calla")
    a.add_argument("--calla", default="build/calla")
    a.add_argument("--model", default="models/calla-tiny")
    a.add_argument("--prompts", default="tests/data/tiny-heldout.jsonl")
    a.add_argument("--every", type=int, default=1, help="take every n-th prompt only")
    a.add_argument("--answers", help="keep answers here, and do not ask again for those that it holds")
    a.add_argument("--jobs", type=int, default=1, help="prompts at a time (calla only)")
    a.add_argument("--failures", help="write what went wrong as JSON lines")
    a = a.parse_args()
    with open(a.prompts, encoding="utf-8") as f:
        items = [json.loads(line) for line in f][::a.every]
    start = time.time()
    known = {}
    if a.answers and Path(a.answers).exists():
        with open(a.answers, encoding="utf-8") as f:
            known = {d["id"]: d["message"] for d in map(json.loads, f)}
    engine = Mlx(a.model) if a.engine == "mlx" else lambda request: through_calla(a, request)
    keep = open(a.answers, "a", encoding="utf-8") if a.answers else None

    def answer(item):
        if item["id"] not in known:
            known[item["id"]] = message = engine(item["request"])
            if keep:
                keep.write(json.dumps({"id": item["id"], "message": message}, ensure_ascii=False) + "\n")
                keep.flush()
        return known[item["id"]]
    with ThreadPoolExecutor(1 if a.engine == "mlx" else a.jobs) as pool:
        messages = list(pool.map(answer, items))
    rows, bad = [], []
    for item, message in zip(items, messages):
        ok = right(item["check"], message)
        formed = well_formed(message, item["request"].get("tools")) if item["check"]["type"] == "calls" else None
        rows.append((item["kind"], ok, formed))
        if not ok:
            bad.append({"id": item["id"], "kind": item["kind"], "query": item["request"]["messages"][-1]["content"][-400:],
                        "want": item["check"]["value"], "got": message})
    lines, share, formed = report(rows)
    print("\n".join(lines))
    print(f"\n{len(rows)} prompts through {a.engine}, {time.time() - start:.0f} s")
    if a.failures:
        with open(a.failures, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(b, ensure_ascii=False) + "\n" for b in bad)
    sys.exit(share < 0.90 or formed < 0.95)


if __name__ == "__main__":
    main()
