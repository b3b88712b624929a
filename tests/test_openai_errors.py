"""What the API refuses: 400 with an error object that names the field, and the server goes on."""

import json
import time

import openai
import pytest

HI = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(autouse=True)
def alive(server):
    """Whatever a test sends, the server answers afterwards."""
    yield
    assert server.process.poll() is None, server.log()
    assert server.get("/health")[0] == 200


def refused(answer, parameter, status=400):
    """The error object of an answer, checked for its form."""
    got, value = answer
    assert got == status, value
    error = value["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == parameter
    assert error["message"].endswith(".") and len(error["message"]) > 15
    if parameter:
        assert parameter.split("[")[0].split(".")[0] in error["message"]
    return error


WRONG = [
    ({"temperature": "0.7"}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1e9}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"stop": 5}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"n": 0}, "n"),
    ({"n": 2}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"seed": "x"}, "seed"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
]


@pytest.mark.parametrize("fields, parameter", WRONG, ids=lambda value: json.dumps(value))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_wrong_types_and_ranges(server, path, fields, parameter):
    base = {"messages": HI} if "chat" in path else {"prompt": "hi"}
    refused(server.post(path, {**base, **fields}), parameter)
    if "stream" not in fields:  # the status is that of an error, not of a stream that has one
        refused(server.post(path, {**base, **fields, "stream": True}), parameter)


@pytest.mark.parametrize(
    "fields, parameter",
    [
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0]"),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0]"),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"tools": {}}, "tools"),
        ({"tools": [[[]]]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_budget": "5"}, "reasoning_budget"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_wrong_chat_requests(server, fields, parameter):
    refused(server.post("/v1/chat/completions", {"messages": HI, **fields}), parameter)


@pytest.mark.parametrize(
    "fields, parameter",
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 2, "echo": True}, "logprobs"),
        ({"echo": 1}, "echo"),
    ],
    ids=lambda value: json.dumps(value),
)
def test_wrong_completion_requests(server, fields, parameter):
    refused(server.post("/v1/completions", {"prompt": "hi", **fields}), parameter)


def test_the_client_raises_what_it_should(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=HI, temperature=9)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"


BODIES = [
    b"",
    b" ",
    b"[]",
    b"null",
    b"5",
    b'"text"',
    b"{",
    b'{"messages":[{"role":"user","content":"hi"}]',
    b'{"messages":[{"role":"user","content":"hi"}]} trailing',
    b'{"messages":[{"role":"user","content":"hi"}],"seed":1,"seed":2}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"messages":[{"role":"user","content":"\\u0000"}]}',
    b'{"messages":[{"role":"user","content":"\x00"}]}',
    b'{"messages":[{"role":"user","content":"\n"}]}',
    b'{"messages":[{"role":"user","content":"hi"}],"seed":99999999999999999999999}',
    b'{"messages":[{"role":"user","content":"hi"}],"top_p":1e999}',
    b'{"messages":[{"role":"user","content":"hi"}],"top_p":NaN}',
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"])
def test_what_is_no_request(server, path, body):
    refused(server.post(path, body), None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"tools":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"x":' + b"[" * 10000 + b"0" + b"]" * 10000 + b"}",
        b"[" * 60000,
        b'{"a":' * 60000 + b"1" + b"}" * 60000,
        b'{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":'
        + b'{"type":"array","items":' * 5000
        + b"{}"
        + b"}" * 5000
        + b"}}]}",
    ],
    ids=["tools", "unknown field", "brackets", "objects", "schema"],
)
def test_deep_nesting_is_refused_at_once(server, body):
    start = time.monotonic()
    error = refused(server.post("/v1/chat/completions", body), None)
    assert time.monotonic() - start < 2
    assert "nested" in error["message"]


def test_a_schema_that_refers_to_itself(server):
    schema = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}, "b": {"$ref": "#"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {"messages": HI, "tools": [tool], "tool_choice": "required", "max_tokens": 40, "enable_thinking": False}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200 and reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


def test_a_prompt_longer_than_the_context(server):
    context = server.get("/v1/models")[1]["data"][0]["max_model_len"]
    for path, body, field in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * context}]}, "messages"),
        ("/v1/completions", {"prompt": "word " * (context + 10)}, "prompt"),
        ("/v1/completions", {"prompt": [1] * (context + 1)}, "prompt"),
    ):
        for stream in False, True:
            status, value = server.post(path, {**body, "stream": stream})
            error = value["error"]
            assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == field
            numbers = [int(word) for word in error["message"].replace(",", " ").replace(";", " ").split() if word.isdigit()]
            assert context in numbers and max(numbers) > context


def test_megabytes_of_line_ends(server):
    """Refused by size or by the context, whatever it is the server lives."""
    body = json.dumps({"messages": [{"role": "user", "content": "x" + "\n" * (4 << 20) + "x"}]}).encode()
    status, value = server.post("/v1/chat/completions", body, timeout=120)
    assert status in (400, 413) and value["error"]["message"]


def test_too_many_messages_and_tools(server):
    refused(server.post("/v1/chat/completions", {"messages": HI * 20000}), "messages")
    refused(server.post("/v1/chat/completions", {"messages": HI, "tools": [WEATHER] * 2000}), "tools")


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", "Expect: 100-continue\r\nContent-Length: {size}"])
def test_bodies_sent_in_other_ways(server, head):
    body = json.dumps({"messages": HI, "max_tokens": 1}).encode()
    data = body
    if "chunked" in head:
        data = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:7], body[7:])) + b"0\r\n\r\n"
    request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{head}\r\n\r\n"
    with server.socket() as connection:
        connection.sendall(request.format(size=len(body)).encode())
        if "Expect" in head:
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert b'"finish_reason":"length"' in answer


def test_random_bodies(server):
    """Good requests with random bytes changed: never a 500, never silence."""
    import random

    dice = random.Random(7)
    good = json.dumps(
        {"messages": HI, "tools": [WEATHER], "stop": ["a"], "logit_bias": {"5": 1}, "max_tokens": 1, "top_p": 0.5}
    ).encode()
    for _ in range(150):
        body = bytearray(good)
        for _ in range(dice.choice([1, 1, 2, 5])):
            at = dice.randrange(len(body))
            body[at : at + dice.choice([0, 1, 1, 3])] = bytes(dice.randrange(256) for _ in range(dice.choice([0, 1, 1, 2])))
        status, value = server.post("/v1/chat/completions", bytes(body))
        assert status in (200, 400), value
