"""A soak of the cache: agents whose chats grow, are edited, retried, branched and abandoned, hours of it compressed.

    tests/soak_cache.py [--binary build/calla] [--model DIR] [--seconds 720] [--agents 8] [--seed 1]

In the middle the server is killed as by a power cut and started again on the same folder. Memory, descriptors, mappings
and the folder must stay within bounds, and a sample of the greedy replies must be what a server without a cache says.
Prints one line of JSON.
"""

import argparse
import collections
import copy
import http.client
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from server import Server  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"
WORDS = """amber birch cedar delta ember flint grove heron inlet jade karst lilac maple north ochre pearl quartz river
stone tundra umber violet willow yarrow zephyr one two three four five six seven""".split()
MEMORY, DISK = 96 << 20, 256 << 20


def prose(choose, most):
    return " ".join(choose.choice(WORDS) for _ in range(choose.randrange(1, most)))


class Soak:
    def __init__(self, binary, model, seconds, agents, seed):
        self.binary, self.model, self.agents, self.seed = binary, model, agents, seed
        self.folder = tempfile.TemporaryDirectory()
        self.start, self.seconds = time.monotonic(), seconds
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures, self.samples, self.seen = [], [], []
        self.server = self.launch()

    def launch(self):
        return Server(self.binary, "-m", self.model, "--cache-memory", MEMORY, "--cache-dir", Path(self.folder.name) / "cache",
                      "--cache-disk", DISK, "--sessions", "4", "--context", "8192", ready=120, stop=120)

    def over(self):
        return time.monotonic() - self.start > self.seconds

    def count(self, **numbers):
        with self.lock:
            self.counts.update(numbers)

    def ask(self, body):
        """The answer, from whichever server runs: one that was killed is asked again when it is back."""
        while True:
            server = self.server
            try:
                status, answer = server.post(CHAT, body, timeout=600)
            except (OSError, http.client.HTTPException):
                if self.server is server and not server.gone:
                    raise
                time.sleep(0.2)
                continue
            assert status == 200, (status, answer)
            return answer

    def abandon(self, body):
        data = json.dumps({**body, "stream": True, "max_tokens": 300}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        try:
            with self.server.socket(60) as connection:
                connection.sendall(head + data)
                time.sleep(0.3)
        except OSError:
            pass

    def agent(self, number):
        choose = random.Random(self.seed * 1000 + number)
        systems = [prose(random.Random(self.seed * 77 + number // 2 * 2 + i), 250) for i in range(2)]
        messages = []
        while not self.over():
            what = choose.choices(["go on", "edit", "retry", "branch", "new", "abandon"], [50, 12, 12, 10, 8, 8])[0]
            if what == "new" or len(messages) < 2 or sum(len(m["content"] or "") for m in messages) > 15000:
                messages = [{"role": "system", "content": choose.choice(systems)}]
            elif what == "branch":
                del messages[choose.randrange(1, len(messages)) :]
            elif what in ("edit", "retry"):
                at = max(i for i, message in enumerate(messages) if message["role"] == "user")
                text = messages[at]["content"]
                del messages[at:]
                changed = text[:-1] + choose.choice("?!.;") if what == "retry" else prose(choose, 400)
                messages.append({"role": "user", "content": changed})
            if messages[-1]["role"] != "user":
                long = choose.random() < 0.15
                messages.append({"role": "user", "content": prose(choose, 1200 if long else 80)})
            body = {"messages": copy.deepcopy(messages), "temperature": 0, "max_tokens": choose.randrange(1, 32),
                    "enable_thinking": choose.random() < 0.3}
            if what == "abandon":
                self.abandon(body)
                self.count(abandoned=1)
                continue
            try:
                answer = self.ask(body)
            except (AssertionError, OSError, ValueError, http.client.HTTPException) as failure:
                self.failures.append(f"agent {number}: {failure!r}"[:500])
                continue
            message, usage = answer["choices"][0]["message"], answer["usage"]
            self.count(requests=1, prompt_tokens=usage["prompt_tokens"],
                       cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
                       reply_tokens=usage["completion_tokens"])
            if choose.random() < 0.06:
                self.samples.append((body, message))
            messages.append(message if choose.random() < 0.5 else {"role": "assistant", "content": message["content"]})

    def look(self):
        pid = self.server.process.pid
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            mappings = Path(f"/proc/{pid}/maps").read_text().count("\n")
            memory = int(re.search(r"^calla_cache_memory_bytes (\d+)$", self.server.get("/metrics")[1], re.M)[1])
        except (OSError, http.client.HTTPException):
            return
        disk = sum(path.stat().st_size for path in Path(self.folder.name, "cache").glob("*") if path.exists())
        self.seen.append({
            "at": round(time.monotonic() - self.start), "resident": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024,
            "descriptors": descriptors, "mappings": mappings, "cache": memory, "disk": disk, "pid": pid})

    def kill(self):
        """What every server should survive."""
        self.server.gone = True
        self.server.process.kill()
        self.server.process.wait()
        self.server = self.launch()
        self.server.gone = False

    def run(self):
        self.server.gone = False
        agents = [threading.Thread(target=self.agent, args=(i,)) for i in range(self.agents)]
        for thread in agents:
            thread.start()
        killed = False
        while not self.over():
            time.sleep(2)
            self.look()
            if not killed and time.monotonic() - self.start > self.seconds / 2:
                self.kill()
                killed = True
        for thread in agents:
            thread.join()
        exit_code = self.server.stop()
        log = [line for line in self.server.lines if "snapshot" in line.lower() or "ERROR:" in line]
        return self.judge(exit_code, log)

    def judge(self, exit_code, log):
        differ = 0
        samples = self.samples[:: max(1, len(self.samples) // 120)]
        with Server(self.binary, "-m", self.model, "--cache-memory", "0", "--context", "8192", ready=120) as plain:
            for body, message in samples:
                again = plain.post(CHAT, body, timeout=600)[1]["choices"][0]["message"]
                # An id of a call says nothing.
                text = lambda m: re.sub(r"call_\w+", "", json.dumps(m))
                differ += text(again) != text(message)
        halves = {}
        for pid in dict.fromkeys(look["pid"] for look in self.seen):
            looks = [look for look in self.seen if look["pid"] == pid]
            tenth = max(1, len(looks) // 5)
            name = "before kill -9" if not halves else "after it"
            halves[name] = {key: [max(look[key] for look in looks[i * tenth : (i + 1) * tenth]) for i in range(5) if looks[i * tenth : (i + 1) * tenth]]
                            for key in ("resident", "descriptors", "mappings", "cache", "disk")}
        self.folder.cleanup()
        return {"seconds": round(time.monotonic() - self.start), **self.counts, "compared": len(samples), "differ": differ,
                "maxima of fifths": halves, "failures": self.failures, "exit_code": exit_code, "log": log[:20]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "build" / "calla")
    parser.add_argument("--model", default=ROOT / "models" / "calla-tiny")
    parser.add_argument("--seconds", type=float, default=720)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = Soak(arguments.binary, arguments.model, arguments.seconds, arguments.agents, arguments.seed).run()
    print(json.dumps(result))
    flat = all(half["resident"][-1] < 1.1 * max(half["resident"][:2]) and half["descriptors"][-1] <= max(half["descriptors"][:2]) + 2
               and max(half["cache"]) <= MEMORY for half in result["maxima of fifths"].values())
    ok = flat and not result["failures"] and result["differ"] == 0 and result["exit_code"] == 0
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
