"""Nothing is read twice: what usage.prompt_tokens_details.cached_tokens says of requests that other engines compute
again, and that it is true and changes no answer."""

import copy
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import Server

CHAT = "/v1/chat/completions"
WORDS = "amber birch cedar delta ember flint grove heron inlet jade karst lilac maple north ochre pearl quartz river".split()
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def prose(count, seed=0):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(count))


def ask(server, messages, **fields):
    """(message, prompt tokens, cached tokens) of a greedy reply."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 60, **fields}
    status, reply = server.post(CHAT, body)
    assert status == 200, reply
    usage = reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert reply["timings"]["cache_n"] == cached
    assert reply["timings"]["prompt_n"] == usage["prompt_tokens"] - cached
    return reply["choices"][0]["message"], usage["prompt_tokens"], cached


def count(server, messages, **fields):
    """Tokens of the prompt."""
    return server.post("/apply-template", {"messages": messages, **fields})[1]["count"]


def metric(server, name):
    return int(re.search(rf"^calla_{name} (\d+)$", server.get("/metrics")[1], re.M)[1])


def tokens_counted(server, most=30):
    """(prompt, cached, computed) tokens of all requests: they count when they end, which is after their client has read
    the answer. So this waits until nothing has changed for a while."""
    names = ("prompt_tokens_total", "cached_tokens_total", "computed_tokens_total")
    end, before, since = time.monotonic() + most, None, 0
    while time.monotonic() < end:
        now = tuple(metric(server, name) for name in names)
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 0.4:
            break
        time.sleep(0.05)
    assert now[0] == now[1] + now[2]
    return now


@pytest.fixture(scope="module")
def server(binary, model):
    with Server(binary, "-m", model) as running:
        yield running


@pytest.fixture(scope="module")
def plain(binary, model):
    with Server(binary, "-m", model, "--cache-memory", "0") as running:
        yield running


def test_second_turn(server):
    """The history is not computed again, though the think block of the reply is gone."""
    messages = [{"role": "system", "content": prose(500, 1)}, {"role": "user", "content": "Remember: teal."}]
    message, first, cached = ask(server, messages)
    assert cached == 0
    messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Which colour?"}]
    _, second, cached = ask(server, messages)
    assert cached >= count(server, messages[:2], add_generation_prompt=False)


def test_same_request_again(server):
    messages = [{"role": "user", "content": prose(700, 2)}]
    first = ask(server, messages)
    again = ask(server, messages)
    assert first[2] == 0 and again[1] - again[2] < 16 and again[0] == first[0]


def test_last_character_changed(server):
    text = prose(900, 3)
    _, tokens, _ = ask(server, [{"role": "user", "content": text}])
    for end in "?!.":
        _, tokens, cached = ask(server, [{"role": "user", "content": text[:-1] + end}])
        assert tokens - cached <= 32 + 16
    _, tokens, cached = ask(server, [{"role": "user", "content": text[:-300] + "and so on"}])
    assert tokens - cached <= 256 + 16


def test_without_thinking(server):
    """What is read before a turn of the past is kept, though the empty think block is not shown there."""
    messages, replies = [], []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Say {WORDS[turn]} and {WORDS[turn + 5]}."})
        message, _, cached = ask(server, messages, enable_thinking=False)
        messages.append({"role": "assistant", "content": message["content"]})
    assert cached >= count(server, messages[:2], add_generation_prompt=False)


def test_users_under_one_system_prompt(server):
    system = {"role": "system", "content": prose(600, 4)}
    size = count(server, [system, {"role": "user", "content": "x"}])
    before = tokens_counted(server)[2]
    with ThreadPoolExecutor(8) as pool:
        questions = [[system, {"role": "user", "content": f"Question {i}: {WORDS[i]}?"}] for i in range(8)]
        list(pool.map(lambda messages: ask(server, messages, max_tokens=2), questions))
    computed = tokens_counted(server)[2] - before
    assert size <= computed <= size + 8 * 60


def test_metrics_and_log(server):
    messages = [{"role": "user", "content": prose(50, 5)}]
    before = tokens_counted(server)
    cached = computed = 0
    for _ in range(2):
        _, tokens, found = ask(server, messages, max_tokens=3)
        cached, computed = cached + found, computed + tokens - found
    after = tokens_counted(server)
    assert after[1] - before[1] == cached > 0
    assert after[2] - before[2] == computed
    assert 0 < metric(server, "cache_memory_bytes") <= metric(server, "cache_memory_limit_bytes")
    assert metric(server, "cache_snapshots") > 0
    assert re.search(rf"cached_tokens={found} computed_tokens={tokens - found} ", server.log())


def test_completions(server):
    text = prose(300, 6)
    usages = [
        server.post("/v1/completions", {"prompt": text + end, "max_tokens": 1, "temperature": 0})[1]["usage"]
        for end in ("", " and then", "")
    ]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, usages[0]["prompt_tokens"], usages[0]["prompt_tokens"]]


def test_a_rotating_header_in_the_system_prompt(server):
    header = "x-anthropic-billing-header: cc_version=9.9.9; cc_entrypoint=cli; cch=0000{};"
    question = {"role": "user", "content": "Well?"}
    for shape in (
        lambda i, text: header.format(i) + "\n" + text,
        lambda i, text: [{"type": "text", "text": header.format(i)}, {"type": "text", "text": text}],
    ):
        text = prose(300, 7)
        ask(server, [{"role": "system", "content": shape(1, text)}, question])
        _, tokens, cached = ask(server, [{"role": "system", "content": shape(2, text)}, question])
        assert cached > 0.9 * tokens
    shown = server.post("/apply-template", {"messages": [{"role": "system", "content": shape(3, "Hi")}, question]})[1]
    assert "billing" not in shown["prompt"]
    # In anybody else's mouth it is text.
    shown = server.post("/apply-template", {"messages": [{"role": "user", "content": header}]})[1]
    assert "billing" in shown["prompt"]


def tool_turn(server):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    message, prompt, _ = ask(server, messages, tools=[WEATHER], max_tokens=300)
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    return messages, message, prompt


def forms(message):
    """The reply as clients send it back."""
    call = message["tool_calls"][0]
    arguments = json.loads(call["function"]["arguments"])
    with_arguments = lambda value: [{**call, "function": {**call["function"], "arguments": value}}]
    bare = {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]}
    yield "as it was", message
    yield "without reasoning", bare
    yield "empty reasoning", {**bare, "reasoning_content": ""}
    yield "null reasoning", {**bare, "reasoning_content": None}
    yield "no content", {**bare, "content": None}
    yield "empty content", {**bare, "content": ""}
    yield "spaces around", {**bare, "content": f"\n  {message['content'] or ''} \n"}
    yield "arguments written apart", {**bare, "tool_calls": with_arguments(json.dumps(arguments, indent=4))}
    escaped = "".join(f"\\u{ord(c):04x}" if c.isalpha() else c for c in arguments["city"])
    yield "arguments in escapes", {**bare, "tool_calls": with_arguments('{ "city" : "%s" }' % escaped)}
    yield "arguments as an object", {**bare, "tool_calls": with_arguments(arguments)}
    yield "another id", {**bare, "tool_calls": [{**call, "id": "call_1"}]}


def test_a_reply_comes_back_changed_in_what_does_not_matter(server):
    messages, message, prompt = tool_turn(server)
    assert message["reasoning_content"] and not message["content"]
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7 degrees, rain"}
    said = set()
    for name, form in forms(message):
        reply, _, cached = ask(server, [*messages, form, answer], tools=[WEATHER])
        assert cached > prompt, name
        said.add(json.dumps(reply))
    assert len(said) == 1
    # What matters is not mistaken for it.
    other = copy.deepcopy(message)
    other["tool_calls"][0]["function"]["arguments"] = '{"city": "Rome"}'
    _, _, cached = ask(server, [*messages, other, answer], tools=[WEATHER])
    assert cached <= prompt
    _, _, cached = ask(server, [*messages, {**message, "reasoning_content": "Another thought."}, answer], tools=[WEATHER])
    assert cached <= prompt


def test_cache_off(plain):
    messages = [{"role": "user", "content": prose(100, 8)}]
    assert [ask(plain, messages, max_tokens=2)[2] for _ in range(2)] == [0, 0]
    assert metric(plain, "cache_memory_bytes") == metric(plain, "cache_snapshots") == 0


def test_memory_stays_flat(binary, model):
    """Unrelated prompts one after the other, with a budget that holds a few: none is exceeded, and nothing grows."""
    with Server(binary, "-m", model, "--cache-memory", "24M", "--sessions", "2") as server:
        sizes = []
        for i in range(40):
            ask(server, [{"role": "user", "content": prose(400, 1000 + i)}], max_tokens=2)
            assert metric(server, "cache_memory_bytes") <= 24 << 20
            sizes.append(metric(server, "resident_memory_bytes"))
        assert metric(server, "cache_snapshots_evicted_total") > 20
        assert max(sizes[10:]) < 1.05 * max(sizes[:10])


def random_history(choose):
    """Requests of a conversation that is continued, edited, retried and branched."""
    messages = [{"role": "system", "content": prose(choose.randrange(1, 200), choose.random())}]
    while True:
        what = choose.randrange(6)
        if what == 0 and len(messages) > 2:
            del messages[choose.randrange(1, len(messages)) :]
        elif what == 1 and len(messages) > 1:
            at = choose.randrange(1, len(messages))
            messages[at] = {**messages[at], "content": prose(choose.randrange(1, 30), choose.random())}
        elif what == 2:
            messages[0] = {"role": "system", "content": prose(choose.randrange(1, 200), choose.random())}
        if messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": prose(choose.randrange(1, 60), choose.random())})
        fields = {"enable_thinking": choose.random() < 0.5, "preserve_thinking": choose.random() < 0.3}
        reply = yield copy.deepcopy(messages), fields
        messages.append(reply if choose.random() < 0.5 else {"role": "assistant", "content": reply["content"]})


def test_answers_do_not_depend_on_it(server, plain, binary, model, seed=None):
    """Greedy answers over random histories with the cache, without it, and with one that is too small for most."""
    seed = random.randrange(1 << 30) if seed is None else seed
    choose = random.Random(seed)
    with Server(binary, "-m", model, "--cache-memory", "3M") as small:
        for _ in range(3):
            history = random_history(choose)
            messages, fields = next(history)
            before = 0
            for _ in range(6):
                replies = [ask(each, messages, max_tokens=24, **fields) for each in (server, plain, small)]
                assert replies[0][:2] == replies[1][:2] == replies[2][:2], f"seed {seed}"
                # Without a cache there is only the session itself, when a prompt goes on from all that it holds: the
                # prompt before, and the reply.
                cached = replies[1][2]
                assert cached == 0 or 0 < before <= cached < before + 24, f"seed {seed}"
                before = replies[1][1]
                messages, fields = history.send(replies[0][0])
