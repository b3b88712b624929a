"""The server's transport from outside: paths, methods, limits, who may ask, how it starts and ends."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest

from conftest import environment
from server import Server

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "What is 2 plus 2?"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def server(binary, model):
    with Server(binary, "-m", model) as running:
        yield running


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("first-key\nsecond-key\n")
    path.chmod(0o600)
    return path


def talk(server, data, seconds=20):
    """Everything that comes back until the server closes."""
    with server.socket(seconds) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


def error_of(body):
    """The error object, whose form is always the same."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return error


def fails(binary, *arguments):
    """The one sentence of a server that cannot start."""
    run = subprocess.run(
        [binary, "serve", *map(str, arguments)], capture_output=True, encoding="utf-8", timeout=30, env=environment()
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("calla serve: ")]
    assert run.returncode == 1 and len(lines) == 1, run.stderr
    return lines[0]


# Paths and methods


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/models/", "/v1/chat/completions/", "/HEALTH", "/../etc/passwd", "//health"])
def test_unknown_paths(server, path):
    status, headers, body = server.request("GET", path)
    assert status == 404 and error_of(body)["code"] == "not_found"


@pytest.mark.parametrize(
    "method, path, allow",
    [
        ("GET", CHAT, "POST, OPTIONS"),
        ("DELETE", CHAT, "POST, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("PUT", "/v1/models", "GET, HEAD, OPTIONS"),
        ("BREW", "/metrics", "GET, HEAD, OPTIONS"),
    ],
)
def test_wrong_methods(server, method, path, allow):
    status, headers, body = server.request(method, path)
    assert status == 405 and headers["Allow"] == allow and error_of(body)["code"] == "method_not_allowed"


def test_head_and_options(server):
    status, headers, body = server.request("HEAD", "/v1/models")
    assert status == 200 and body == b"" and int(headers["Content-Length"]) > 20
    status, headers, body = server.request("OPTIONS", CHAT)
    assert status == 204 and headers["Allow"] == "POST, OPTIONS" and "Access-Control-Allow-Origin" not in headers


def test_health_models_metrics(server):
    assert server.get("/health")[1]["status"] == "ok"
    models = server.get("/v1/models")[1]
    assert models["object"] == "list" and [model["id"] for model in models["data"]] == ["calla-tiny"]
    assert server.get("/v1/models/calla-tiny")[1] == models["data"][0]
    status, answer = server.get("/v1/models/gpt-4o")
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    assert server.post(CHAT, HELLO)[0] == 200
    # A request is counted when its connection is done with it, a moment after the client has the answer.
    deadline = time.monotonic() + 20
    while True:
        status, headers, body = server.request("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain")
        done = b"calla_reply_tokens_total 0\n" not in body and b"calla_active_requests 0\n" in body
        if done or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for line in body.decode().splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) calla_\w+ .+|calla_\w+(\{route="[^"]+",status="\w+"\})? [0-9.]+', line), line
    numbers = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line[0] != "#")
    assert int(numbers["calla_reply_tokens_total"]) >= 1
    assert int(numbers["calla_prompt_tokens_total"]) >= 1
    assert int(numbers["calla_resident_memory_bytes"]) > 1 << 20
    assert numbers["calla_active_requests"] == "0"


def test_one_connection_serves_many_requests(server):
    request = f"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nPOST {CHAT} HTTP/1.1\r\nHost: localhost\r\n"
    body = json.dumps(HELLO)
    request += f"Content-Length: {len(body)}\r\n\r\n{body}GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = talk(server, request.encode())
    assert answer.count(b"HTTP/1.1 200") == 3 and answer.count(b'"chat.completion"') == 1


# Bodies


def test_chunked_body_without_length(server):
    body = json.dumps(HELLO).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 10]), body[i : i + 10]) for i in range(0, len(body), 10))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    assert status_of(talk(server, head + chunks + b"0\r\n\r\n")) == 200


def test_expect_continue(server):
    body = json.dumps(HELLO).encode()
    with server.socket(20) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert status_of(connection.recv(100000)) == 200


def test_refused_before_the_body_is_asked_for(server):
    answer = talk(
        server,
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {1 << 40}\r\n\r\n".encode(),
    )
    assert status_of(answer) == 413


def test_body_limit(server):
    big = b'{"messages": [{"role": "user", "content": "' + b"\n" * (17 << 20) + b'"}]}'
    status, answer = server.post(CHAT, big)
    assert status == 413 and answer["error"]["code"] == "body_too_large" and "16777216" in answer["error"]["message"]
    chunked = (big[i : i + (1 << 20)] for i in range(0, len(big), 1 << 20))
    status, headers, body = server.request("POST", CHAT, chunked, {"Content-Type": "application/json"})
    assert status == 413
    assert server.get("/health")[0] == 200


def test_empty_and_broken_bodies(server):
    for body in (b"", b"{", b"[]", b"\xff\xfe", b"\0", b'{"a":' * 10000, b"null"):
        status, answer = server.post(CHAT, body)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error", body[:10]
    assert server.post(CHAT, HELLO)[0] == 200


@pytest.mark.parametrize(
    "request_bytes, statuses",
    [
        (b"GET /health HTTP/1.0\r\n\r\n", {200}),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n", {400}),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", {400}),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", {400, 413}),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", {400, 413}),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100000 + b"\r\n\r\n", {413, 414, 431}),
        (b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {413, 414, 431}),
    ],
)
def test_odd_requests(server, request_bytes, statuses):
    assert status_of(talk(server, request_bytes)) in statuses
    assert server.get("/health")[0] == 200


@pytest.mark.parametrize(
    "headers, status",
    [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: gzip, chunked", 400),
        ("Transfer-Encoding: identity", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("Content-Length: 2\r\nContent-Length: 2", 400),
        ("Content-Length: 2\r\nContent-Encoding: gzip", 415),
        ("Content-Length: 2\r\nContent-Encoding: identity", 400),  # the body is read: it has no content
    ],
)
def test_how_a_body_is_sent(server, headers, status):
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n"
    body = b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in headers else b"{}"
    start = time.monotonic()
    with server.socket(20) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionResetError:  # the rest of the body was not read
            pass
    assert status_of(answer) == status and time.monotonic() - start < 5
    assert error_of(answer.partition(b"\r\n\r\n")[2])["message"]
    assert f'{{route="/tokenize",status="{status}"}}' in server.get("/metrics")[1]


def test_no_host(server):
    answer = talk(server, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert status_of(answer) == 400 and "Host" in error_of(answer.partition(b"\r\n\r\n")[2])["message"]


@pytest.mark.parametrize("data", [b"\0" * 1000, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n" * 1000, b"GET\r\n\r\n"])
def test_what_is_no_http(server, data):
    with server.socket(20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert server.get("/health")[0] == 200


# Who may ask


def test_host_header(server):
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "192.0.2.1"):
        status, headers, body = server.request("POST", CHAT, b"{}", {"Host": host})
        assert status == 403 and error_of(body)["code"] == "host_not_allowed"
    for host in ("localhost", f"LOCALHOST:{server.port}", "127.0.0.1", "[::1]:1"):
        assert server.request("GET", "/health", headers={"Host": host})[0] == 200


def test_allowed_host(binary, model):
    with Server(binary, "-m", model, "--allow-host", "calla.lan") as server:
        assert server.request("GET", "/health", headers={"Host": "calla.lan"})[0] == 200
        assert server.request("GET", "/health", headers={"Host": "evil.lan"})[0] == 403


def test_no_cors_unless_asked_for(server):
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET", "POST"):
        status, headers, body = server.request(method, "/v1/models", headers=asks)
        assert status == 403 and not any(name.startswith("Access-Control") for name in headers)
    assert server.request("GET", "/v1/models", headers={"Origin": server.url})[0] == 200


def test_cors(binary, model):
    with Server(binary, "-m", model, "--cors", "https://app.example") as server:
        asks = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, x-stainless-os",
        }
        status, headers, body = server.request("OPTIONS", CHAT, headers=asks)
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "POST" in headers["Access-Control-Allow-Methods"] and headers["Vary"] == "Origin"
        assert headers["Access-Control-Allow-Headers"] == "authorization, x-stainless-os"
        status, headers, body = server.request("POST", CHAT, b"[]", {"Origin": "https://app.example"})
        assert status == 400 and headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert server.request("GET", "/health", headers={"Origin": "https://evil.example"})[0] == 403
    with Server(binary, "-m", model, "--cors", "*") as server:
        status, headers, body = server.request("GET", "/health", headers={"Origin": "https://any.example"})
        assert status == 200 and headers["Access-Control-Allow-Origin"] == "*"


def test_keys(binary, model, key_file):
    with Server(binary, "-m", model, "--api-key-file", key_file, "--cors", "*") as server:
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "first-key"}, {"Authorization": "Bearer first-key1"}):
            for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/no-such")):
                status, headers, body = server.request(method, path, b"" if method == "POST" else None, wrong)
                assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
                assert error_of(body)["code"] == "invalid_api_key"
        for key in ("first-key", "second-key"):
            assert server.post(CHAT, HELLO, {"Authorization": f"Bearer {key}"})[0] == 200
        assert server.get("/health")[0] == 200
        assert server.request("OPTIONS", CHAT, headers={"Origin": "https://any.example"})[0] == 204
        assert "first-key" not in server.log()


# Starting


def test_cannot_start(binary, model, tmp_path, key_file):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port}" in fails(binary, "-m", model, "--port", port)
    assert "--api-key-file" in fails(binary, "-m", model, "--host", "0.0.0.0", "--port", 0)
    assert "no.such.host.invalid" in fails(binary, "-m", model, "--host", "no.such.host.invalid")
    assert "/no/such" in fails(binary, "-m", model, "--unix", "/no/such/folder/socket")
    assert "is no socket" in fails(binary, "-m", model, "--unix", key_file)
    assert "no-such-keys" in fails(binary, "-m", model, "--api-key-file", tmp_path / "no-such-keys")
    assert "no-such-model" in fails(binary, "-m", tmp_path / "no-such-model", "--port", 0)
    key_file.chmod(0o644)
    assert "chmod 600" in fails(binary, "-m", model, "--api-key-file", key_file)


class LoadingServer(Server):
    """One that is asked as soon as it listens."""

    def _wait(self, seconds):
        assert self.address.wait(seconds) and self.port, self.log()


def test_health_while_loading(binary, calla, model, tmp_path):
    """Several hundred megabytes of weights, read from the disk where the system lets go of a file's pages."""
    config = json.loads((model / "config.json").read_text())
    config["text_config"].update(num_experts=96, moe_intermediate_size=2048)
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = tmp_path / "large"
    assert calla("synth", "--config", tmp_path / "config.json", "-o", folder, "--tokenizer", model).returncode == 0
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    progress = []
    with LoadingServer(binary, "-m", folder) as server:
        status, headers, body = server.request("POST", CHAT, json.dumps(HELLO))
        assert status == 503 and error_of(body)["code"] == "model_loading" and int(headers["Retry-After"]) >= 1
        assert server.get("/v1/models")[0] == 503 and server.get("/metrics")[0] == 200
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status, answer = server.get("/health")
            if status == 200:
                break
            assert status == 503 and answer["status"] == "loading" and answer["doing"]
            progress.append(answer["progress"])
        assert status == 200 and server.post(CHAT, HELLO)[0] == 200
    assert progress == sorted(progress) and any(0 < share < 1 for share in progress)
    shutil.rmtree(folder)


def test_beyond_this_machine(binary, model, key_file):
    for how in (("--api-key-file", key_file), ("--insecure",)):
        with Server(binary, "-m", model, "--host", "0.0.0.0", "--port", 0, *how) as server:
            assert server.get("/health")[0] == 200


class UnixServer(Server):
    """The same on a unix socket; curl asks, since http.client cannot."""

    def __init__(self, binary, path, *arguments):
        self.path = path
        super().__init__(binary, "--unix", path, *arguments)

    def _wait(self, seconds):
        end = time.monotonic() + seconds
        while self.curl("/health")[0] != 200:
            assert self.process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.05)

    def curl(self, path, *arguments):
        command = ["curl", "-s", "-w", "\n%{http_code}", "--unix-socket", self.path, f"http://calla{path}", *arguments]
        run = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30)
        body, _, status = run.stdout.rpartition("\n")
        return int(status or 0), body


def test_unix_socket(binary, model, tmp_path):
    path = tmp_path / "socket"
    with UnixServer(binary, path, "-m", model) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        status, body = server.curl(CHAT, "-d", json.dumps(HELLO))
        assert status == 200 and json.loads(body)["object"] == "chat.completion"
        assert "listens on" in fails(binary, "-m", model, "--unix", path)
        server.process.kill()
        server.process.wait()
        assert path.exists()
        with UnixServer(binary, path, "-m", model) as second:
            assert second.curl("/health")[0] == 200
        assert not path.exists()
        server.stop = lambda: 0


# The log


def lines_of(server, route, count=1, seconds=5):
    end = time.monotonic() + seconds
    while True:
        found = [line for line in list(server.lines) if route in line]
        if len(found) >= count:
            return found
        assert time.monotonic() < end, server.log()
        time.sleep(0.02)


def test_log_as_json(binary, model):
    secret = "Sesame street"
    with Server(binary, "-m", model, "--log-format", "json") as server:
        asked = {"messages": [{"role": "user", "content": secret}], "max_tokens": 3}
        status, headers, body = server.request("POST", CHAT, json.dumps(asked))
        line = json.loads(lines_of(server, CHAT)[0])
        assert line["id"] == headers["X-Request-Id"] and line["status"] == 200 and line["reply_tokens"] == 3
        usage = json.loads(body)["usage"]
        assert line["prompt_tokens"] == line["computed_tokens"] == usage["prompt_tokens"]
        assert line["finish"] == "length"
        assert {"time", "route", "seconds", "queued_seconds", "prefill_seconds", "decode_seconds"} <= set(line)
        server.post(CHAT, b"{")
        assert json.loads(lines_of(server, CHAT, 2)[1])["status"] == 400
    assert all(json.loads(line) for line in server.lines) and secret not in server.log()


def test_log_of_text(binary, model):
    with Server(binary, "-m", model, "--log-text") as server:
        server.post(CHAT, {"messages": [{"role": "user", "content": 'Say "Sesame"\nnow'}], "max_tokens": 3})
        line = lines_of(server, CHAT)[0]
        zero = next(token for token in range(256) if server.post("/detokenize", {"tokens": [token]})[1]["content"] == "\0")
        body = {"prompt": "a", "max_tokens": 3, "logit_bias": {str(zero): 100}}
        assert server.post("/v1/completions", body)[1]["choices"][0]["text"] == "\0\0\0"
        zeros = lines_of(server, "/v1/completions")[0]
    assert 'text="' in line and r"Say \"Sesame\"\nnow" in line and "finish=length" in line
    assert r'text="a\u0000\u0000\u0000"' in zeros


def test_quiet(binary, model):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([binary, "serve", "-m", model, "--quiet", "--port", str(port)], stderr=subprocess.PIPE)
    try:
        for _ in range(200):
            if subprocess.run(["curl", "-sf", f"http://127.0.0.1:{port}/health"], capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        else:
            pytest.fail("not ready")
    finally:
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1]
    assert errors == b"" and process.returncode == 0
