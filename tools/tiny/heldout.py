"""Writes the held-out prompts: JSON lines of {"id", "kind", "check", "request"}; `request` is a chat-completions body.

    python3 tools/tiny/heldout.py out/prose.json.gz tests/data/tiny-heldout.jsonl

The seed, the operands, the pairs of word and task, the phrasings of facts and the prose differ from training's."""
import gzip
import json
import random
import sys

import gen_text
from dialog import request_body
from gen_text import copying, json_conversation, recall, set_prose, simple
from gen_tools import tool_conversation

SEED = 20261129
PLAN = [  # kind, number of prompts, generator
    ("greeting", 30, lambda r, t: simple(r, True, t, "greeting")), ("arithmetic", 60, lambda r, t: simple(r, True, t, "arithmetic")),
    ("letters", 50, lambda r, t: simple(r, True, t, "letters")), ("units", 30, lambda r, t: simple(r, True, t, "units")),
    ("counting", 20, lambda r, t: simple(r, True, t, "counting")),
    ("facts", 40, lambda r, t: simple(r, True, t, "facts")), ("copying", 30, lambda r, t: copying(r, True, t)),
    ("json", 50, lambda r, t: json_conversation(r, True, t)),
    ("tool call", 60, lambda r, t: tool_conversation(r, True, t, "tool call")),
    ("parallel calls", 40, lambda r, t: tool_conversation(r, True, t, "parallel calls")),
    ("no call needed", 30, lambda r, t: tool_conversation(r, True, t, "no call needed")),
    ("answer from result", 40, lambda r, t: tool_conversation(r, True, t, "answer from result")),
    ("recall to 512 tokens", 30, lambda r, t: recall(r, True, t, r.randint(100, 1600))),
    ("recall to 4K tokens", 30, lambda r, t: recall(r, True, t, r.randint(3000, 13000))),
]


def build():
    """-> list of (kind, conversation), thinking on for every other one."""
    rng = random.Random(SEED)
    out = []
    for kind, count, make in PLAN:
        for i in range(count):
            out.append((kind, make(rng, i % 2 == 0)))
    return out


def main(prose, path):
    with gzip.open(prose, "rt", encoding="utf-8") as f:
        set_prose(json.load(f), True)
    assert gen_text.PROSE
    items = build()
    with open(path, "w", encoding="utf-8") as f:
        for i, (kind, c) in enumerate(items):
            line = {"id": i, "kind": kind, "check": c["check"], "request": request_body(c)}
            f.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"{len(items)} prompts")


if __name__ == "__main__":
    main(*sys.argv[1:])
