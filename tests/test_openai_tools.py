"""Tool calls over the API with the official client: the choice among tools, streams, and whole loops of an agent."""

import json

import openai
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
BOTH = [{"role": "user", "content": "Weather in Oslo and in Rome?"}]
QUICK = {"enable_thinking": False}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def create(client, messages=OSLO, tools=(WEATHER,), extra_body=QUICK, **keywords):
    return client.chat.completions.create(
        model="calla-tiny", messages=messages, tools=list(tools), extra_body=extra_body, **keywords
    )


def calls_of(reply):
    """[(name, arguments)] of a whole reply."""
    return [(c.function.name, json.loads(c.function.arguments)) for c in reply.choices[0].message.tool_calls or []]


def join(chunks):
    """The calls, text and finish reason of a stream, with the rules for tool call deltas."""
    calls, text, reason = [], "", None
    for chunk in chunks:
        delta = chunk.choices[0].delta
        reason = chunk.choices[0].finish_reason or reason
        text += delta.content or ""
        for part in delta.tool_calls or []:
            said = part.model_dump(exclude_unset=True)
            if part.index == len(calls):
                assert said["id"] and said["type"] == "function"
                assert said["function"] == {"name": said["function"]["name"], "arguments": ""}
                calls.append([said["function"]["name"], ""])
            else:
                assert part.index == len(calls) - 1
                assert set(said) == {"index", "function"} and set(said["function"]) == {"arguments"}
                calls[-1][1] += said["function"]["arguments"]
    return [(name, json.loads(arguments)) for name, arguments in calls], text, reason


@pytest.mark.parametrize("extra", [{}, QUICK], ids=["thinking", "not thinking"])
@pytest.mark.parametrize("stream", [False, True])
def test_one_call(client, extra, stream):
    reply = create(client, extra_body=extra, stream=stream)
    if stream:
        assert join(reply) == ([("get_weather", {"city": "Oslo"})], "", "tool_calls")
        return
    choice = reply.choices[0]
    assert calls_of(reply) == [("get_weather", {"city": "Oslo"})]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls[0].type == "function"


@pytest.mark.parametrize("stream", [False, True])
def test_several_calls(client, stream):
    reply = create(client, BOTH, stream=stream)
    calls = join(reply)[0] if stream else calls_of(reply)
    assert calls == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]


@pytest.mark.parametrize("stream", [False, True])
def test_no_parallel_calls(client, stream):
    reply = create(client, BOTH, parallel_tool_calls=False, stream=stream)
    calls = join(reply)[0] if stream else calls_of(reply)
    assert calls == [("get_weather", {"city": "Oslo"})]
    if not stream:
        assert reply.choices[0].finish_reason == "tool_calls"


def test_ids_of_calls_are_their_own(client):
    ids = [call.id for _ in range(2) for call in create(client, BOTH).choices[0].message.tool_calls]
    assert len(set(ids)) == 4


def test_required_call(client):
    messages = [{"role": "user", "content": "Hello"}]
    assert not calls_of(create(client, messages))
    for extra in QUICK, {}:
        reply = create(client, messages, [WEATHER, CLOCK], extra_body=extra, tool_choice="required", max_tokens=120)
        calls = calls_of(reply)
        assert calls and calls[0][0] in {"get_weather", "get_time"}


def test_named_call(client):
    choice = {"type": "function", "function": {"name": "get_time"}}
    reply = create(client, OSLO, [WEATHER, CLOCK], tool_choice=choice, max_tokens=120)
    assert calls_of(reply)[0][0] == "get_time"


def test_no_call(client):
    reply = create(client, tool_choice="none", max_tokens=30)
    assert reply.choices[0].message.tool_calls is None
    alone = client.chat.completions.create(model="calla-tiny", messages=OSLO, extra_body=QUICK, max_tokens=30)
    assert alone.choices[0].message.content == reply.choices[0].message.content
    assert alone.usage.prompt_tokens == reply.usage.prompt_tokens


def test_call_cut_by_max_tokens(client):
    """The reason is "length", and what came of the call is valid JSON that the next request may hold."""
    whole = create(client)
    for limit in range(2, whole.usage.completion_tokens - 1, 4):
        reply = create(client, max_tokens=limit)
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "length"
        for name, arguments in calls_of(reply):
            assert name == "get_weather" and isinstance(arguments, dict)
        turn = message.model_dump(exclude_none=True)
        again = create(client, [*OSLO, turn, {"role": "user", "content": "Go on."}], max_tokens=1)
        assert again.usage.completion_tokens == 1


@pytest.mark.parametrize(
    "arguments", ['{"city":"Oslo"}', "", "[1]", "{bad", "null", {"city": "Oslo"}, None], ids=lambda a: repr(a)
)
def test_arguments_of_earlier_calls_in_any_form(server, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        *OSLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12 degrees"}]},
    ]
    status, answer = server.post("/apply-template", {"messages": messages, "tools": [WEATHER]})
    assert status == 200 and "<function=get_weather>" in answer["prompt"] and "12 degrees" in answer["prompt"]
    status, reply = server.post("/v1/chat/completions", {"messages": messages, "tools": [WEATHER], "max_tokens": 1})
    assert status == 200, reply


def test_unknown_types_of_tools_are_skipped_and_named(server):
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "m", "tools": []}, WEATHER]
    body = {"messages": OSLO, "tools": tools, **QUICK}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert len(reply["warnings"]) == 2 and "web_search" in reply["warnings"][0] and "namespace" in reply["warnings"][1]
    alone = server.post("/v1/chat/completions", {**body, "tools": [WEATHER]})[1]
    assert "warnings" not in alone
    assert alone["usage"]["prompt_tokens"] == reply["usage"]["prompt_tokens"]


def test_typed_arguments(client):
    tool = {
        "type": "function",
        "function": {
            "name": "set_alarm",
            "description": "Set an alarm",
            "parameters": {
                "type": "object",
                "properties": {"hour": {"type": "integer"}, "repeat": {"type": "boolean"}},
                "required": ["hour", "repeat"],
            },
        },
    }
    messages = [{"role": "user", "content": "Set an alarm with hour 7 and repeat true."}]
    (name, arguments), *_ = calls_of(create(client, messages, [tool], tool_choice="required", max_tokens=120))
    assert name == "set_alarm"
    assert all(isinstance(value, (int, bool, str)) for value in arguments.values())


def weather_of(city):
    return json.dumps({"city": city, "temperature": 12, "sky": "sunny"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("extra", [{}, QUICK], ids=["thinking", "not thinking"])
def test_agent_loop(client, stream, extra):
    """Ask, call, result, answer; and a second question in the same conversation."""
    messages = list(OSLO)
    for question in None, "What is the weather in Rome?":
        if question:
            messages.append({"role": "user", "content": question})
        for _ in range(4):
            if stream:
                with client.chat.completions.stream(
                    model="calla-tiny", messages=messages, tools=[WEATHER], extra_body=extra
                ) as events:
                    reply = events.get_final_completion()
            else:
                reply = create(client, messages, extra_body=extra)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            if not message.tool_calls:
                break
            assert reply.choices[0].finish_reason == "tool_calls"
            for call in message.tool_calls:
                city = json.loads(call.function.arguments)["city"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": weather_of(city)})
        else:
            pytest.fail("the model calls without end")
        assert reply.choices[0].finish_reason == "stop"
        assert "12" in message.content
    called = [
        json.loads(call["function"]["arguments"])["city"]
        for turn in messages
        if turn["role"] == "assistant"
        for call in turn.get("tool_calls") or []
    ]
    assert called[0] == "Oslo" and "Rome" in called


def test_second_turn_reuses_the_first(client):
    """cached_tokens is the part of the prompt that was not computed again."""
    first = create(client, extra_body={})
    message = first.choices[0].message
    messages = [
        *OSLO,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": weather_of("Oslo")},
    ]
    second = create(client, messages, extra_body={})
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens
    assert second.timings["prompt_n"] == second.usage.prompt_tokens - cached
