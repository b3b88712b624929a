"""The chat template against its original: the official file, run by jinja2.

The unit tests compare the renderer with tests/data/template_*.jsonl; here those files are compared with jinja2, and the
program with conversations that are new in every run.
"""

import importlib.util
import json
import os
import random
import sys

import jinja2
import pytest

from conftest import ROOT

# What the original does not know or takes otherwise, though it raises no error (docs/template.md).
OTHERWISE = {
    "reasoning_effort none",
    "null is as if not given",
}


def load_oracle():
    spec = importlib.util.spec_from_file_location("template_oracle", ROOT / "tools" / "oracle" / "template.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = load_oracle()


@pytest.fixture(scope="session")
def original(model):
    return oracle.load(model / "chat_template.jinja")


def lines(name):
    with open(ROOT / "tests" / "data" / name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check(calla, original, request):
    result = calla("template", input=json.dumps(request).encode(), bytes=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode() == oracle.render(original, request)


def test_the_conversations_are_jinja2s(original):
    conversations = lines("template_conversations.jsonl")
    assert len(conversations) >= 500
    for conversation in conversations:
        assert oracle.render(original, conversation["request"]) == conversation["prompt"]


def test_the_examples_differ_only_where_the_original_refuses(original):
    refused = 0
    for example in lines("template_examples.jsonl"):
        if "prompt" not in example or example["name"] in OTHERWISE:
            continue
        try:
            prompt = oracle.render(original, example["request"])
        except (jinja2.exceptions.TemplateError, TypeError):
            refused += 1
            continue
        assert prompt == example["prompt"], example["name"]
    assert refused >= 15


# Other conversations in each run, the same ones in each of a run's processes.
SEEDS = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))


@pytest.mark.parametrize("seed", [SEEDS.randrange(10**9) for _ in range(40)])
def test_a_new_conversation(calla, original, seed):
    generator = random.Random(seed)
    while True:
        request = oracle.conversation(generator)
        try:
            oracle.render(original, request)
            break
        except jinja2.exceptions.TemplateError as error:
            assert "No user query" in str(error)
    check(calla, original, request)


def test_numbers(calla, original):
    generator = random.Random(7)
    numbers = [oracle.real(generator) for _ in range(5000)]
    numbers += [2.0**exponent for exponent in range(-1074, 1024)] + [10.0**exponent for exponent in range(-323, 309)]
    numbers += [sys.float_info.max, sys.float_info.min, sys.float_info.epsilon, 2**63 - 1, -(2**63)]
    check(calla, original, {"messages": [{"role": "user", "content": "u"}], "tools": [{"numbers": numbers}]})


def test_white_space_of_every_character(calla, original):
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    messages = [{"role": "user", "content": c + "x" + c} for c in characters]
    check(calla, original, {"messages": messages, "tools": [{"characters": "".join(characters)}]})
