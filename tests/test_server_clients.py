"""Many clients, slow ones and those that leave: the model never waits for a socket, nor one client for another
longer than it must, and nothing is lost at the end."""

import concurrent.futures
import json
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from server import Server

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "What is 2 plus 2?"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def server(binary, model):
    with Server(binary, "-m", model, "--keepalive-seconds", "0.2", "--sessions", "2", "--queue", "64", "--drain-seconds", "0") as running:
        yield running


def endless(server, **more):
    """A request whose reply goes on to the end of the context: the tokens that end it are out of the question."""
    ends = [
        server.post("/tokenize", {"content": text, "special": True})[1]["tokens"]
        for text in ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
    ]
    assert all(len(tokens) == 1 for tokens in ends)
    return {"prompt": "x", "max_tokens": 8000, "logit_bias": {str(tokens[0]): -100 for tokens in ends}, **more}


def numbers(server):
    """The metrics without labels."""
    text = server.get("/metrics")[1]
    return {name: float(value) for name, value in re.findall(r"^calla_(\w+) ([0-9.]+)$", text, re.M)}


def wait_until(what, seconds=10):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def idle(server):
    now = numbers(server)
    return now["active_requests"] == 0 and now["waiting_requests"] == 0


def send(server, path, body):
    """A connection with a request on its way."""
    data = json.dumps(body).encode()
    connection = server.socket(60)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def read_until(connection, mark, seconds=60):
    connection.settimeout(seconds)
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere threads have no nice value to look at")
def test_sockets_and_bodies_give_way_to_the_model(server):
    assert server.post("/tokenize", {"content": "a"})[0] == 200
    tasks = Path(f"/proc/{server.process.pid}/task")
    nice = {task.name: int((task / "stat").read_text().rpartition(")")[2].split()[16]) for task in tasks.iterdir()}
    usual = nice[str(server.process.pid)]
    others = [value for value in nice.values() if value != usual]
    assert len(others) >= 3 and set(others) == {min(usual + 10, 19)}  # two readers and an HTTP thread, or both
    assert len(nice) - len(others) >= 2  # the main thread and the model's


# Those that leave


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_the_reply_is_made(server, stream):
    before = numbers(server)["reply_tokens_total"]
    connection = send(server, COMPLETION, endless(server, stream=stream))
    wait_until(lambda: numbers(server)["active_requests"] == 1)
    time.sleep(0.3)
    connection.close()
    start = time.monotonic()
    wait_until(lambda: idle(server))
    assert time.monotonic() - start < 1
    wait_until(lambda: any("status=499" in line and "finish=cancelled" in line for line in server.lines))
    assert numbers(server)["reply_tokens_total"] - before < 8000


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_the_prompt_is_read(server, stream):
    text = "".join(f"{i} " for i in range(600))
    connection = send(server, COMPLETION, {"prompt": text, "max_tokens": 1, "stream": stream})
    wait_until(lambda: numbers(server)["active_requests"] == 1)
    connection.close()
    start = time.monotonic()
    wait_until(lambda: idle(server))
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_the_queue(server, stream):
    busy = [send(server, COMPLETION, endless(server)) for _ in range(2)]
    wait_until(lambda: numbers(server)["active_requests"] == 2)
    waiting = send(server, COMPLETION, endless(server, stream=stream))
    wait_until(lambda: numbers(server)["waiting_requests"] == 1)
    waiting.close()
    start = time.monotonic()
    wait_until(lambda: numbers(server)["waiting_requests"] == 0)
    assert time.monotonic() - start < 1
    assert numbers(server)["active_requests"] == 2
    for connection in busy:
        connection.close()
    wait_until(lambda: idle(server))


def test_leaving_with_a_reset(server):
    connection = send(server, COMPLETION, endless(server, stream=True))
    read_until(connection, b"data: ")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    start = time.monotonic()
    wait_until(lambda: idle(server))
    assert time.monotonic() - start < 1


# Streams


def test_headers_come_before_the_model_has_time(server):
    busy = [send(server, COMPLETION, endless(server)) for _ in range(2)]
    wait_until(lambda: numbers(server)["active_requests"] == 2)
    start = time.monotonic()
    waiting = send(server, CHAT, {**HELLO, "stream": True})
    head = read_until(waiting, b"\r\n\r\n", 5)
    assert time.monotonic() - start < 1
    assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head
    times = [time.monotonic()]
    for _ in range(3):  # comments, while it waits
        read_until(waiting, b":", 5)
        times.append(time.monotonic())
    assert all(b - a < 1.5 for a, b in zip(times, times[1:]))
    for connection in busy:
        connection.close()
    assert b"[DONE]" in read_until(waiting, b"[DONE]", 30)
    waiting.close()


def test_progress_of_the_prompt(server):
    text = "".join(f"{i} " for i in range(200))
    connection = send(server, COMPLETION, {"prompt": text, "max_tokens": 1, "stream": True})
    data = read_until(connection, b"[DONE]")
    connection.close()
    comments = re.findall(rb"^: .*$", data, re.M)
    start = data.index(b"\r\n\r\n")
    assert data[start:].count(b"data: ") >= 2
    for comment in comments:  # none on a fast machine
        assert re.search(rb"\d+", comment), comment


# Many at a time


def test_64_connections(server):
    def ask(i):
        body = {**HELLO, "stream": i % 2 == 1}
        if i % 2 == 0:
            status, answer = server.post(CHAT, body, timeout=120)
            return status == 200 and answer["usage"]["completion_tokens"] >= 1
        return len(server.stream(CHAT, body, timeout=120)) >= 2

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert all(pool.map(ask, range(64)))


def test_full_queue(binary, model):
    with Server(binary, "-m", model, "--sessions", "1", "--queue", "2", "--drain-seconds", "0") as server:
        body = endless(server)
        connections = []
        for count in range(3):
            connections.append(send(server, COMPLETION, body))
            wait_until(lambda: sum(numbers(server)[name] for name in ("active_requests", "waiting_requests")) == count + 1)
        status, headers, answer = server.request("POST", COMPLETION, json.dumps(body))
        assert status == 503 and int(headers["Retry-After"]) >= 1
        assert json.loads(answer)["error"]["code"] == "queue_full"
        assert server.post("/tokenize", {"content": "a"})[0] == 200
        connections[1].close()
        wait_until(lambda: numbers(server)["waiting_requests"] == 1)
        connections.append(send(server, COMPLETION, body))
        wait_until(lambda: numbers(server)["waiting_requests"] == 2)
        for connection in connections:
            connection.close()


def test_a_short_request_passes_a_long_prompt(server):
    text = "A long prompt: " + "".join(f"{i} " for i in range(1400))  # as yet unread, and slower to read than to ask
    done = {}

    def ask(name, body):
        status = server.post(COMPLETION, body, timeout=120)[0]
        done[name] = time.monotonic()
        assert status == 200

    lengthy = threading.Thread(target=ask, args=("long", {"prompt": text, "max_tokens": 20}))
    lengthy.start()
    wait_until(lambda: numbers(server)["active_requests"] == 1)
    ask("short", {"prompt": "1 2 3", "max_tokens": 2})
    lengthy.join()
    assert done["short"] < done["long"]


def test_more_requests_at_once_than_connections(binary, model):
    """The first ones are answered; those beyond the limit are closed, and may try again."""
    body = json.dumps({**HELLO, "max_tokens": 1}).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with Server(binary, "-m", model, "--max-connections", "20", "--queue", "64") as server:
        connections = []
        for _ in range(30):
            connections.append(server.socket())
            connections[-1].sendall(request)
        answered = 0
        for connection in connections:
            try:
                answered += connection.recv(100).startswith(b"HTTP/1.1 200")
            except ConnectionResetError:
                pass
            connection.close()
        assert 18 <= answered <= 30 and server.get("/health")[0] == 200


# Slow ones


def test_slow_loris(server):
    """200 connections that send a byte of a header each second: a normal request is answered within a second."""
    slow = [server.socket() for _ in range(200)]
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 100
    longest = 0
    for second in range(3):
        for connection in slow:
            connection.sendall(request[second : second + 1])
        start = time.monotonic()
        assert server.get("/health")[0] == 200
        assert server.post(CHAT, {**HELLO, "max_tokens": 1})[0] == 200
        longest = max(longest, time.monotonic() - start)
        time.sleep(max(0, 1 - (time.monotonic() - start)))
    for connection in slow:
        connection.close()
    assert longest < 1


def test_more_connections_than_allowed(binary, model):
    """Those that say nothing make way for those that ask."""
    with Server(binary, "-m", model, "--max-connections", "8") as server:
        silent = [server.socket() for _ in range(50)]
        for _ in range(5):
            assert server.get("/health")[0] == 200
        wait_until(lambda: numbers(server)["connections"] <= 9)
        for connection in silent:
            connection.close()


def test_deadline_of_headers_and_bodies(server):
    slow = server.socket()
    slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
    body = server.socket()
    body.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    start = time.monotonic()
    for connection in (slow, body):
        connection.settimeout(20)
    while time.monotonic() - start < 20:
        try:
            slow.sendall(b"a")
            slow.settimeout(0.5)
            if slow.recv(1) == b"":
                break
        except TimeoutError:
            pass
        except OSError:
            break
    assert 5 < time.monotonic() - start < 15
    answer = b""
    while piece := body.recv(1000):
        answer += piece
    assert time.monotonic() - start < 15
    assert answer.startswith(b"HTTP/1.1 408 ") and b"\r\nContent-Type: application/json\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    wait_until(lambda: any("route=/tokenize status=408" in line for line in server.lines))


def test_slow_writer(server):
    body = json.dumps(HELLO).encode()
    with server.socket(60) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        for i in range(0, len(body), 4):
            connection.sendall(body[i : i + 4])
            time.sleep(0.05)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def without_chunks(answer):
    """The body of a chunked answer, as far as it is there: chunks begin and end anywhere."""
    rest, body = answer.split(b"\r\n\r\n", 1)[1], b""
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        size = int(size, 16)
        body, rest = body + rest[:size], rest[size + 2 :]
    return body


def test_slow_reader(server):
    """A client that does not read keeps neither the model nor others waiting, and gets all of it in the end."""
    tokens = 500
    biases = endless(server)["logit_bias"]
    body = {**HELLO, "max_tokens": tokens, "stream": True, "logit_bias": biases, "logprobs": True, "top_logprobs": 20}
    body["enable_thinking"] = False
    data = json.dumps(body).encode()
    before = numbers(server)
    connection = socket.socket()
    # Small segments and a small buffer keep the kernel from taking the whole reply.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.connect((server.host, server.port))
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    wait_until(lambda: numbers(server)["active_requests"] == 1)
    others = 0
    while not idle(server):  # the reply is made to its end without a reader, and others are served meanwhile
        assert server.post(CHAT, HELLO)[0] == 200
        others += 1
    time.sleep(0.3)
    # The server is still sending: the request is logged when its last byte is.
    assert not any(f"reply_tokens={tokens} " in line for line in server.lines)
    assert others >= 3 and numbers(server)["resident_memory_bytes"] - before["resident_memory_bytes"] < 16 << 20
    answer = without_chunks(read_until(connection, b"[DONE]"))
    assert answer.count(b'"top_logprobs":[{') == tokens and len(answer) > 1 << 19
    wait_until(lambda: any(f"reply_tokens={tokens} " in line for line in server.lines))
    connection.close()


def test_idle_connections_cost_no_memory(server):
    idle_ones = []
    for _ in range(64):
        connection = server.socket()
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        idle_ones.append(connection)
    for _ in range(100):
        server.get("/health")
    before = numbers(server)["resident_memory_bytes"]
    for _ in range(1500):
        server.get("/health")
    assert numbers(server)["resident_memory_bytes"] - before < 2 << 20
    for connection in idle_ones:  # they are still served
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.close()


# The end


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_may_finish(binary, model, with_signal):
    server = Server(binary, "-m", model, "--drain-seconds", "120")
    connection = send(server, COMPLETION, endless(server, stream=True, max_tokens=150))
    read_until(connection, b"data: ")
    server.process.send_signal(with_signal)
    data = read_until(connection, b"[DONE]")
    assert b'"finish_reason":"length"' in data
    assert server.process.wait(15) == 0
    connection.close()


def test_what_takes_too_long_is_told(binary, model):
    server = Server(binary, "-m", model, "--drain-seconds", "0.3", "--sessions", "1")
    stream = send(server, COMPLETION, endless(server, stream=True))
    read_until(stream, b"data: ")
    whole = send(server, COMPLETION, endless(server))
    wait_until(lambda: numbers(server)["waiting_requests"] == 1)
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    data = b""
    while piece := stream.recv(65536):
        data += piece
    *_, failure, done = re.findall(rb"^data: (.*)$", data, re.M)
    assert "shutting down" in json.loads(failure)["error"]["message"] and done == b"[DONE]"
    answer = b""
    while piece := whole.recv(65536):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 503") and b"shutting down" in answer
    assert server.process.wait(15) == 0
    assert time.monotonic() - start < 5
    with pytest.raises(OSError):
        server.socket(5)


def test_second_signal(binary, model):
    server = Server(binary, "-m", model, "--drain-seconds", "60")
    connection = send(server, COMPLETION, endless(server, stream=True))
    read_until(connection, b"data: ")
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5) == 128 + signal.SIGTERM
    connection.close()
