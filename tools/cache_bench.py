#!/usr/bin/env python3
"""Time to the first token of requests whose beginnings were read before, with the cache and without it.

  tools/cache_bench.py -m DIR [--calla build/calla] [--long 8000] [--shared 2000] [--against COMMAND] [--brief] [-- SERVE OPTIONS...]

Four cases: the second turn of a chat of LONG tokens, another question after a shared system prompt of SHARED tokens, the
first request again with its last character changed, and the first request again after a restart. With --against the same is
asked of another server, which COMMAND starts ({port} in it becomes a port) and which says that it is ready at /health:

  tools/cache_bench.py -m DIR --brief --against "llama-server -m MODEL.gguf --port {port} -c 16384 -np 1" -- --sessions 1

A table in Markdown is printed. The servers run one after the other. The case without the cache is a server with
--cache-memory 0; with --brief it is the first request of each pair, of nearly the same length, of which nothing was read
before. Weights that are random say tokens whose text reads back as others; --reply-token ID has every token of the replies
be this one (16 is the digit 1). Only the standard library is needed."""

import argparse
import json
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

WORDS = """time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour""".split()


def prose(count, seed):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(count))


class Served:
    def __init__(self, binary, model, options):
        command = [binary, "serve", "-m", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8")
        self.url = None
        for line in self.process.stderr:
            if match := re.search(r"http://[^\s/]+:\d+", line):
                self.url = match[0]
            if "The model is loaded" in line:
                break
        else:
            sys.exit(f"{' '.join(command)} ended")
        # Nobody reads the rest; it must not fill the pipe.
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Other:
    """A server that a command starts."""

    def __init__(self, command):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.process = subprocess.Popen(shlex.split(command.replace("{port}", str(port))), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        while True:
            if self.process.poll() is not None:
                sys.exit(f"{command} ended")
            try:
                urllib.request.urlopen(self.url + "/health", timeout=60).close()
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


REPLY = {}  # what makes replies of one token only


def ask(url, messages):
    """(seconds to the first token, tokens of the prompt, cached ones, the message)"""
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "stream": True, "enable_thinking": False,
            "chat_template_kwargs": {"enable_thinking": False}, "stream_options": {"include_usage": True}, "cache_prompt": True, **REPLY}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    start, first, text, usage = time.monotonic(), None, "", {}
    with urllib.request.urlopen(request, timeout=36000) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                delta = choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
                text += delta
                if first is None and (delta or choice.get("finish_reason")):
                    first = time.monotonic() - start
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return first, usage.get("prompt_tokens"), cached, {"role": "assistant", "content": text}


def scale(url, tokens):
    """Words that make about so many tokens."""
    probe = ask(url, [{"role": "user", "content": prose(100, 99)}])[1] or 130
    return max(8, int(tokens * 100 / probe))


def chat(url, long):
    return [{"role": "system", "content": prose(scale(url, long), 1)}, {"role": "user", "content": "What is this about?"}]


def shared(url, size):
    return {"role": "system", "content": prose(scale(url, size), 2)}


def cases(url, long, size):
    """What a server that runs can do: {name: numbers}, and the same of the request before, which nothing was known of."""
    found, fresh = {}, {}

    def note(name, before, numbers):
        fresh[name], found[name] = before, numbers
        print(f"{name}: {numbers[:3]}, before it {before[:3]}", file=sys.stderr, flush=True)

    messages = chat(url, long)
    first = ask(url, messages)
    note("first turn", first, first)
    second = [*messages, first[3], {"role": "user", "content": "And what follows from it?"}]
    note("second turn of it", first, ask(url, second))
    system = shared(url, size)
    before = ask(url, [system, {"role": "user", "content": "What is the first word?"}])
    note("another question, shared system prompt", before, ask(url, [system, {"role": "user", "content": "Name one verb."}]))
    text = prose(scale(url, long), 3)
    before = ask(url, [{"role": "user", "content": text + "a"}])
    note("retry, last character changed", before, ask(url, [{"role": "user", "content": text + "b"}]))
    return found, fresh


def main():
    options = sys.argv[1:]
    passed = []
    if "--" in options:
        at = options.index("--")
        options, passed = options[:at], options[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--calla", default="build/calla")
    parser.add_argument("--long", type=int, default=8000, help="tokens of the long chat")
    parser.add_argument("--shared", type=int, default=2000, help="tokens of the shared system prompt")
    parser.add_argument("--against", metavar="COMMAND", help="starts a server to compare with on {port}")
    parser.add_argument("--against-only", action="store_true", help="ask the other server alone")
    parser.add_argument("--reply-token", type=int, metavar="ID", help="what replies are made of")
    parser.add_argument("--brief", action="store_true", help="without a server that has no cache")
    arguments = parser.parse_args(options)
    if arguments.against_only and not arguments.against:
        parser.error("--against-only needs --against COMMAND")
    if arguments.reply_token is not None:
        REPLY["logit_bias"] = {str(arguments.reply_token): 100}
    columns = {}
    again = "first turn again after a restart"
    if not arguments.against_only:
        with tempfile.TemporaryDirectory() as folder:
            with Served(arguments.calla, arguments.model, ["--cache-dir", folder, *passed]) as server:
                columns["cache"], fresh = cases(server.url, arguments.long, arguments.shared)
            with Served(arguments.calla, arguments.model, ["--cache-dir", folder, *passed]) as server:
                columns["cache"][again] = ask(server.url, chat(server.url, arguments.long))
        columns["no cache"] = fresh
        if not arguments.brief:
            with Served(arguments.calla, arguments.model, ["--cache-memory", "0", *passed]) as server:
                columns["no cache"] = cases(server.url, arguments.long, arguments.shared)[0]
        columns["no cache"][again] = columns["no cache"]["first turn"]
    if arguments.against:
        with Other(arguments.against) as server:
            columns["other"], columns["other, first request"] = cases(server.url, arguments.long, arguments.shared)
        with Other(arguments.against) as server:
            columns["other"][again] = ask(server.url, chat(server.url, arguments.long))
        columns["other, first request"][again] = columns["other"]["first turn"]
    print("| time to first token, s | " + " | ".join(f"{name} | cached tokens" for name in columns) + " |")
    print("|---" * (2 * len(columns) + 1) + "|")
    for name in next(iter(columns.values())):
        row = [column[name] for column in columns.values()]
        print(f"| {name} | " + " | ".join(f"{n[0]:.3f} | {n[2]} of {n[1]}" for n in row) + " |")


if __name__ == "__main__":
    main()
