#!/usr/bin/env python3
"""Whether requests for /health cost the model its time: tokens per second of a reply with and without a load.

    tools/server_load.py [--binary build/calla] [--model DIR] [--threads 1] [--rounds 5] [--connections 16]

Rounds with and without load alternate, so that a busy machine disturbs both alike. The load is wrk, or a client
written here where wrk is not installed. wrk stands for clients on other machines, so it runs with a nice value of
19 and takes the time that nothing else wants. The model gets --threads threads; leave at least one processor to the
server's sockets and the load, or they share what the model has. Prints one line of JSON.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from server import Server  # noqa: E402

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Load:
    """Requests for /health, one after the other on each of several connections, until stopped."""

    def __init__(self, server, connections):
        self.count, self.stopping = 0, False
        self.wrk = None
        if shutil.which("wrk"):
            command = ["nice", "-n", "19", "wrk", "-t1", f"-c{connections}", "-d3600s", f"{server.url}/health"]
            self.wrk = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
            return
        self.threads = [threading.Thread(target=self.ask, args=(server,)) for _ in range(connections)]
        for thread in self.threads:
            thread.start()

    def ask(self, server):
        with server.socket() as connection:
            while not self.stopping:
                connection.sendall(REQUEST)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
                self.count += 1

    def stop(self):
        if self.wrk is not None:
            self.wrk.send_signal(2)
            self.wrk.communicate(timeout=30)
            return
        self.stopping = True
        for thread in self.threads:
            thread.join()


def tokens_per_second(server, tokens):
    body = {"prompt": "Once", "max_tokens": tokens, "logit_bias": {str(token): -100 for token in server.ends}}
    status, answer = server.post("/v1/completions", body, timeout=600)
    assert status == 200 and answer["usage"]["completion_tokens"] == tokens, answer
    return answer["timings"]["predicted_per_second"]


def requests_so_far(server):
    text = server.get("/metrics")[1]
    return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if 'route="/health"' in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "build" / "calla")
    parser.add_argument("--model", default=ROOT / "models" / "calla-tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with_load, without, answered = [], [], 0
    with Server(arguments.binary, "-m", arguments.model, "--threads", arguments.threads, "--log-format", "json") as server:
        server.ends = [
            token
            for text in ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
            for token in server.post("/tokenize", {"content": text, "special": True})[1]["tokens"]
        ]
        tokens_per_second(server, 20)
        for _ in range(arguments.rounds):
            without.append(tokens_per_second(server, arguments.tokens))
            before = requests_so_far(server)
            load = Load(server, arguments.connections)
            with_load.append(tokens_per_second(server, arguments.tokens))
            answered += requests_so_far(server) - before
            load.stop()
    print(
        json.dumps(
            {
                "tokens_per_second": {"without": without, "with": with_load},
                "median_change": statistics.median(with_load) / statistics.median(without) - 1,
                "health_requests": answered,
                "load": "wrk" if shutil.which("wrk") else "python",
            }
        )
    )


if __name__ == "__main__":
    main()
