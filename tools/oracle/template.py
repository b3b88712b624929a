#!/usr/bin/env python3
"""Generated conversations and what jinja2 makes of them with the official chat template.

    tools/oracle/template.py TEMPLATE --count 600 --seed 1 > tests/data/template_conversations.jsonl

One line a conversation: {"request": <body of a chat-completions request>, "prompt": <the rendered text>}. The conversations
stay inside what the template accepts; what Calla accepts beyond it is tested by hand in tests/unit/test_chat_template.c.
"""

import argparse
import json
import random
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

OPTIONS = ("enable_thinking", "preserve_thinking", "add_vision_id")

WORDS = """Oslo weather the a of sunny rain teal 17 42 3.14 naïve café été e\u0301te\u0301 東京 你好 नमस्ते สวัสดี שלום مرحبا
👩‍👩‍👧‍👦 🏴‍☠️ 𝔘 ďábelské \u00a0 \u2028 \u3000 \ufeff \u200b \u0085 \x1c \x7f \x01 \t \r\n \n \n\n \\ \\n " ' < > & {{ }} {% %} {# #} </ <think> </think>
<tool_call> </tool_call> <tool_response> </tool_response> <|im_start|> <|im_end|> <|endoftext|> <function=f> </function> <parameter=k> </parameter>
[1,2] {"a":1} True None null 1e5 ```py print("x") ``` $x^2$ -0.0""".split(" ")

SPACES = ["", "", "", " ", "\n", "\n\n", "\t", " \r\n", "\u00a0", "\u3000 ", "\u2029", "\x1f", "\u205f\u1680", "\u200b", "\x00"]


def text(random, longest=12):
    words = [random.choice(WORDS) for _ in range(random.randrange(longest))]
    return random.choice(SPACES) + random.choice(["", " ", "\n"]).join(words) + random.choice(SPACES)


def name(random):
    return random.choice(["get_weather", "f", "search.web", "läuft", "a b", "x-1", "name", "items", "", 'q"uote', "<b>"])


def real(random):
    kind = random.randrange(6)
    if kind == 0:
        return random.choice([0.0, -0.0, 1.0, 1e16, 1e15, 123456789012345680.0, 1e-4, 1e-5, 1e22, 5e-324, 1.7976931348623157e308])
    if kind == 1:
        return 2.0 ** random.randrange(-1074, 1024)
    if kind == 2:
        return random.randrange(-10000, 10000) / 100
    if kind == 3:
        return random.random() * 10.0 ** random.randrange(-300, 300)
    if kind == 4:
        return float(random.randrange(-(2**60), 2**60))
    return random.gauss(0, 1)


def value(random, depth=3):
    kind = random.randrange(9 if depth > 0 else 6)
    if kind < 2:
        return text(random, 5)
    if kind == 2:
        return random.choice([0, 1, -1, 7, 2**63 - 1, -(2**63), random.randrange(-(10**6), 10**6)])
    if kind == 3:
        return real(random)
    if kind == 4:
        return random.choice([True, False])
    if kind == 5:
        return None
    if kind == 6:
        return [value(random, depth - 1) for _ in range(random.randrange(4))]
    return {key(random): value(random, depth - 1) for _ in range(random.randrange(4))}


def key(random):
    return random.choice(["city", "days", "edits", "größe", "a b", "", "😀", "x", "\n", 'k"'])


def content(random, empty=True):
    kind = random.randrange(10)
    if kind == 0 and empty:
        return random.choice([None, "", []])
    if kind < 3:
        return [part(random) for _ in range(random.randrange(1, 4))]
    return text(random)


def part(random):
    item = {"type": random.choice(["text", "text", "input_text", "output_text"]), "text": text(random, 6)}
    if random.random() < 0.2:
        item["cache_control"] = {"type": "ephemeral"}
    if random.random() < 0.1:
        del item["type"]
    return item


def tool(random):
    schema = {"type": "object", "properties": {key(random): value(random, 2) for _ in range(random.randrange(4))}}
    function = {"name": name(random), "description": text(random), "parameters": schema}
    if random.random() < 0.3:
        function["strict"] = random.choice([True, False, None])
    return random.choice([{"type": "function", "function": function}, function, {"function": function, "type": "function"}])


def call(random):
    function = {"name": name(random)}
    if random.random() < 0.9:
        function["arguments"] = {key(random): value(random) for _ in range(random.randrange(4))}
    if random.random() < 0.2:
        return function
    return {"type": "function", "id": "call_%d" % random.randrange(10), "function": function}


def assistant(random):
    message = {"role": "assistant", "content": content(random)}
    if random.random() < 0.05:
        del message["content"]
    if random.random() < 0.4:
        message["reasoning_content"] = random.choice([text(random), text(random), "", None, 5])
    elif random.random() < 0.4:
        opening = random.choice(["<think>\n", "<think>", "", "\n<think>\n\n", "a<think>b<think>"])
        message["content"] = opening + text(random) + random.choice(["\n</think>\n\n", "</think>", "\n\n</think>\n"]) + text(random)
    return message


def conversation(random):
    messages = []
    if random.random() < 0.5:
        messages.append({"role": "system", "content": content(random)})
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content(random)})
        if random.random() < 0.2:
            messages.append({"role": "user", "content": "<tool_response>\n" + text(random) + "\n</tool_response>"})
        while random.random() < 0.4:
            message = assistant(random)
            messages.append(message)
            if random.random() < 0.7:
                message["tool_calls"] = [call(random) for _ in range(random.choice([1, 1, 2, 3]))]
                for _ in message["tool_calls"]:
                    messages.append({"role": "tool", "tool_call_id": "call_1", "content": content(random)})
            elif random.random() < 0.2:
                message["tool_calls"] = random.choice([None, []])
        if random.random() < 0.6:
            messages.append(assistant(random))
    if random.random() < 0.5:
        messages.append({"role": "user", "content": text(random), "name": "anna"})
    if random.random() < 0.03 and messages[0]["role"] != "system":
        messages.insert(0, {"role": "tool", "content": text(random)})
    request = {"messages": messages}
    if random.random() < 0.4:
        request["tools"] = [tool(random) for _ in range(random.randrange(4))]
    for option in OPTIONS:
        if random.random() < 0.35:
            target = request if random.random() < 0.5 else request.setdefault("chat_template_kwargs", {})
            target[option] = random.choice([True, False, False, None, 0, 1, "false", ""])
    if random.random() < 0.3:
        request["add_generation_prompt"] = random.choice([True, False, 0, 1, "", "x", [], 0.0])
    return request


def environment():
    """The environment in which Hugging Face transformers renders chat templates."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = raise_exception
    return env


def load(path):
    with open(path, encoding="utf-8", newline="") as file:
        return environment().from_string(file.read())


def render(template, request):
    variables = {"messages": request["messages"], "add_generation_prompt": True}
    variables.update({name: request[name] for name in ("tools", "add_generation_prompt", *OPTIONS) if name in request})
    variables.update(request.get("chat_template_kwargs") or {})
    return template.render(**variables)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("template")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    template = load(arguments.template)
    generator = random.Random(arguments.seed)
    done = 0
    while done < arguments.count:
        request = conversation(generator)
        try:
            prompt = render(template, request)
        except jinja2.exceptions.TemplateError as error:
            # Every user message looked like a tool's response by chance.
            if "No user query" not in str(error):
                raise
            continue
        json.dump({"request": request, "prompt": prompt}, sys.stdout, ensure_ascii=False)
        print()
        done += 1


if __name__ == "__main__":
    main()
