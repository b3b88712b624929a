"""Greedy answers to the held-out prompts while training, by recomputing whole packed sequences (no cache needed)."""
import json
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import model
from dialog import prompt_text
from scoring import parse_reply, report, right, well_formed

PLAIN = {f.__name__: f for f in (model.delta_in, model.delta_out, model.attention_in, model.attention_out, model.moe)}


def load_prompts(path):
    """-> list of {kind, check, request, prompt text}."""
    items = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            item = json.loads(line)
            messages = []
            for m in item["request"]["messages"]:
                if m.get("tool_calls"):
                    m = {**m, "tool_calls": [{"function": {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}} for c in m["tool_calls"]]}
                messages.append(m)
            item["think"] = item["request"]["chat_template_kwargs"]["enable_thinking"]
            c = {"messages": messages + [{"role": "assistant", "content": ""}], "tools": item["request"].get("tools"), "think": item["think"]}
            item["prompt"] = prompt_text(c)
            items.append(item)
    return items


@torch.no_grad()
def answers(w, prompts, tokenizer, device, most=320, budget=120000):
    """-> generated ids of each prompt, end token left out."""
    rows = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    starts = [len(r) for r in rows]
    active = list(range(len(rows)))
    head = w["lm_head.weight"]
    for _ in range(most):
        if not active:
            break
        at, still = 0, []
        while at < len(active):
            group, total = [], 0
            while at < len(active) and (not group or total + len(rows[active[at]]) <= budget):
                group.append(active[at])
                total += len(rows[active[at]])
                at += 1
            cu = np.concatenate([[0], np.cumsum([len(rows[i]) for i in group])]).astype(np.int32)
            ids = torch.from_numpy(np.concatenate([rows[i] for i in group]).astype(np.int64)).to(device)
            cu_t = torch.from_numpy(cu).to(device)
            h, _ = model.forward(w, ids, cu_t, int(np.diff(cu).max()), PLAIN)
            new = (h[cu_t[1:].long() - 1] @ head.T).float().argmax(-1).tolist()
            for i, t in zip(group, new):
                if t not in (model.IM_END, model.ENDOFTEXT):
                    rows[i].append(t)
                    still.append(i)
        active = still
    return [r[s:] for r, s in zip(rows, starts)]


def evaluate(w, path, tokenizer_file, device, limit=None, failures=None):
    tokenizer = Tokenizer.from_file(tokenizer_file)
    items = load_prompts(path)
    if limit:
        items = items[::max(1, len(items) // limit)]
    start = time.time()
    out = answers(w, [i["prompt"] for i in items], tokenizer, device)
    rows, bad = [], []
    for item, ids in zip(items, out):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        message = parse_reply(text, item["think"], item["request"].get("tools"))
        ok = right(item["check"], message)
        rows.append((item["kind"], ok, well_formed(message, item["request"].get("tools")) if item["check"]["type"] == "calls" else None))
        if not ok:
            bad.append({"id": item["id"], "kind": item["kind"], "think": item["think"], "query": item["request"]["messages"][-1]["content"][-300:], "want": item["check"]["value"], "got": text[-700:]})
    lines, share, formed = report(rows)
    if failures:
        with open(failures, "w", encoding="utf-8") as f:
            for b in bad:
                f.write(json.dumps(b, ensure_ascii=False) + "\n")
    print("\n".join(lines), f"\n{time.time() - start:.0f} s", flush=True)
    return share, formed
