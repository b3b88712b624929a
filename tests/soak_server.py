"""A soak of the server: many mixed requests (good, bad, abandoned) on several connections at a time.

    tests/soak_server.py [--binary build-asan/calla] [--model DIR] [--count 2000] [--connections 16] [--seed 1]

Every good request must get its whole answer, every bad one its error, and what is abandoned must end; at the end
nothing may be left in work, and memory must not have grown since the first tenth. Prints one line of JSON.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import random
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from server import Server  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

BAD = [
    (CHAT, b"", 400),
    (CHAT, b"{", 400),
    (CHAT, b"[]", 400),
    (CHAT, b'{"messages": []}', 400),
    (CHAT, b'{"messages": {}}', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "n": 5}', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
    (CHAT, b'{"x":' + b"[" * 10000, 400),
    (COMPLETION, b'{"prompt": 5.5}', 400),
    ("/tokenize", b'{"content": 5}', 400),
    ("/detokenize", b'{"tokens": [-1]}', 400),
    ("/nowhere", b"{}", 404),
    ("/health", b"{}", 405),
]


def good(random, server):
    """One request that must be answered in full."""
    content = random.choice(["What is 2 plus 2?", "Hello!", "Weather in Oslo?", "Name a colour.", "x" * 30])
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": random.randint(1, 12)}
    if random.random() < 0.05:  # a prompt of some 230 tokens, where the others have 15
        body.update(tools=[WEATHER], tool_choice=random.choice(["auto", "required"]))
    if random.random() < 0.4:
        body["enable_thinking"] = False
    if random.random() < 0.3:
        body["temperature"] = 1.0
    if random.random() < 0.2:
        body.update(logprobs=True, top_logprobs=3)
    kind = random.random()
    if kind < 0.4:
        status, answer = server.post(CHAT, body, timeout=600)
        assert status == 200 and answer["choices"][0]["finish_reason"], (status, answer)
        assert 1 <= answer["usage"]["completion_tokens"] <= body["max_tokens"]
    elif kind < 0.8:
        body["stream_options"] = {"include_usage": True}
        chunks = server.stream(CHAT, body, timeout=600)
        assert sum(1 for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]) == 1
        assert 1 <= chunks[-1]["usage"]["completion_tokens"] <= body["max_tokens"]
    elif kind < 0.9:
        status, answer = server.post(COMPLETION, {"prompt": content, "max_tokens": 5}, timeout=600)
        assert status == 200 and answer["choices"][0]["finish_reason"]
    else:
        status, answer = server.post("/tokenize", {"content": content}, timeout=600)
        assert status == 200 and answer["tokens"]
        assert server.post("/detokenize", answer, timeout=600)[1]["content"] == content
    return "good"


def bad(random, server):
    path, body, expected = random.choice(BAD)
    status, answer = server.post(path, body, timeout=600)
    assert status == expected and answer["error"]["message"], (path, body[:60], status, answer)
    return "bad"


def abandoned(random, server):
    """A client that leaves: in its headers, its body, or while the answer is made."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Count. " * random.randint(1, 12)}], "max_tokens": 500, "stream": random.random() < 0.5}
    ).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with server.socket(600) as connection:
        connection.sendall(request if random.random() < 0.7 else request[: random.randint(0, len(request) - 1)])
        time.sleep(random.random() * 0.3)
        if random.random() < 0.3:
            connection.setblocking(False)
            try:
                connection.recv(100)
            except BlockingIOError:
                pass
    return "abandoned"


def metrics(server):
    text = server.get("/metrics", timeout=600)[1]
    return {name: float(value) for name, value in re.findall(r"^calla_(\w+) ([0-9.]+)$", text, re.M)}


def soak(server, count, connections, seed):
    """The outcome: counts by kind, memory after each tenth, and what went wrong."""
    outcome = collections.Counter()
    failures, memory = [], []
    start = time.monotonic()

    def one(index):
        source = random.Random(seed * 1_000_003 + index)
        if server.process.poll() is not None:
            return "not asked: the server is gone"
        ask = source.choices([good, bad, abandoned], [6, 2, 2])[0]
        try:
            return ask(source, server)
        except (AssertionError, OSError, ValueError, KeyError, http.client.HTTPException) as failure:
            failures.append(f"request {index} ({ask.__name__}): {failure!r}"[:500])
            return "failed"

    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        for done, kind in enumerate(pool.map(one, range(count)), 1):
            outcome[kind] += 1
            if done % max(1, count // 10) == 0 and server.process.poll() is None:
                memory.append(int(metrics(server)["resident_memory_bytes"]))
    seconds = time.monotonic() - start
    end = time.monotonic() + 60
    if server.process.poll() is not None:
        raise SystemExit(f"The server is gone: {server.log()[-5000:]}")
    while (now := metrics(server))["active_requests"] + now["waiting_requests"] > 0 and time.monotonic() < end:
        time.sleep(0.05)
    return {
        "requests": count,
        "outcome": dict(outcome),
        "seconds": round(seconds, 1),
        "memory": memory,
        "left": now["active_requests"] + now["waiting_requests"],
        "failures": failures,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "build" / "calla")
    parser.add_argument("--model", default=ROOT / "models" / "calla-tiny")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    server = Server(arguments.binary, "-m", arguments.model, ready=120, stop=120)
    result = soak(server, arguments.count, arguments.connections, arguments.seed)
    result["exit_code"] = server.stop()
    result["sanitizer"] = [line for line in server.lines if "ERROR:" in line or "runtime error" in line]
    print(json.dumps(result))
    ok = not result["failures"] and result["left"] == 0 and result["exit_code"] == 0 and not result["sanitizer"]
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
