"""A running `calla serve` for the tests: on a free port, waited for, and stopped as a service manager would."""

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

from conftest import environment

ADDRESS = re.compile(r"http://([^\s/]+):(\d+)")


class Server:
    """with Server(binary, "-m", folder) as server: server.port, server.url, server.post("/v1/...", {...})"""

    def __init__(self, binary, *arguments, env=None, ready=30, stop=30):
        self.stop_timeout = stop
        self.lines = []
        self.address = threading.Event()
        self.host, self.port = None, None
        self.process = subprocess.Popen(
            [str(binary), "serve", *map(str, arguments)]
            + ([] if {"--port", "--unix"} & set(map(str, arguments)) else ["--port", "0"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment(**(env or {})),
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self._wait(ready)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if self.port is None and (match := ADDRESS.search(line)):
                self.host, self.port = match[1], int(match[2])
                self.address.set()
        self.address.set()

    def _wait(self, seconds):
        """Until the server has named its address, and the model is loaded."""
        end = time.monotonic() + seconds
        assert self.address.wait(seconds) and self.port, f"no address: {self.log()}"
        while True:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log()}"
            assert time.monotonic() < end, f"not ready after {seconds} s: {self.log()}"
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)

    def log(self):
        return "\n".join(self.lines)

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def socket(self, timeout=60):
        """A plain connection, for requests that no HTTP library would send."""
        return socket.create_connection((self.host, self.port), timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes) of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def get(self, path, **keywords):
        """(status, value) of a GET; the value is JSON where the response is."""
        status, headers, body = self.request("GET", path, **keywords)
        return status, _value(headers, body)

    def post(self, path, body, headers=None, **keywords):
        """(status, value) of a POST. The body is JSON unless it is bytes already."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        status, headers, body = self.request("POST", path, data, headers, **keywords)
        return status, _value(headers, body)

    def stream(self, path, body, **keywords):
        """The JSON objects of a stream, which must end with [DONE]; comments are left out."""
        status, headers, data = self.request(
            "POST", path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}, **keywords
        )
        assert status == 200, data
        assert headers["Content-Type"].startswith("text/event-stream")
        events = [event for event in data.decode("utf-8").split("\n\n") if event and not event.startswith(":")]
        assert all(event.startswith("data: ") and "\n" not in event for event in events), data
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(event[6:]) for event in events[:-1]]

    def stop(self, with_signal=signal.SIGTERM):
        """The exit code after a signal; the log is whole then."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            code = self.process.wait(self.stop_timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.reader.join(10)
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None:
            assert code == 0, f"ended with {code}: {self.log()}"


def _value(headers, body):
    if headers.get("Content-Type", "").startswith("application/json"):
        return json.loads(body)
    return body.decode("utf-8")
