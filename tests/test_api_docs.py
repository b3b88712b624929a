"""docs/api.md says nothing that is not so: each curl block is run as it stands, and the block after it must be in the answer.

A JSON block holds a part of the answer: every key of it must be there with that value. "..." as a value, or at the end of a
text, stands for any rest; a number 0 for any number. Lines of a stream are compared likewise: "..." is any text, and a line of it
any lines.
"""

import json
import os
import re
import subprocess

import pytest

from conftest import ROOT, environment

PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```sh\n(curl .*?)^```\n```(json|)\n(.*?)^```$", PAGE, re.M | re.S)


def contains(answer, part, path="the answer"):
    if isinstance(part, dict):
        assert isinstance(answer, dict), path
        for key, value in part.items():
            assert key in answer, f"{path} has no {key!r}"
            contains(answer[key], value, f"{path}.{key}")
    elif isinstance(part, list):
        assert isinstance(answer, list) and len(answer) == len(part), path
        for number, value in enumerate(part):
            contains(answer[number], value, f"{path}[{number}]")
    elif isinstance(part, str) and part.endswith("..."):
        assert isinstance(answer, str) and answer.startswith(part[:-3]), path
    elif part == 0 and not isinstance(part, bool):
        assert isinstance(answer, (int, float)), path
    else:
        assert answer == part, f"{path} is {answer!r}"


def pattern(text):
    lines = []
    for line in text.splitlines():
        escaped = re.escape(line).replace(r"\.\.\.", ".*")
        lines.append("(.*\n)*?" if line == "..." else escaped + ".*\n+")
    return "".join(lines)


@pytest.mark.parametrize("command, kind, expected", EXAMPLES, ids=[re.search(r"\$URL(\S+)", e[0])[1] for e in EXAMPLES])
def test_examples(server, command, kind, expected):
    result = subprocess.run(
        ["bash", "-c", command.replace("curl ", "curl -sS ", 1)],
        env=environment(URL=server.url, PATH=os.environ["PATH"]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    if kind == "json":
        contains(json.loads(result.stdout), json.loads(expected))
    else:
        assert re.fullmatch(pattern(expected), result.stdout), result.stdout


def test_every_block_is_an_example():
    assert PAGE.count("```sh\n") == len(EXAMPLES) >= 8


def test_every_field_is_described():
    """The names that the request's readers look for stand on the page."""
    files = ["generation_request", "chat_request", "chat_tools", "chat_thinking", "completion_request", "text_endpoints"]
    calls = r'(?:request_\w+|read_\w+|show)\(\s*[^;"]*?"(\w+)"'
    names = {name for file in files for name in re.findall(calls, (ROOT / f"src/server/{file}.c").read_text())}
    names = {name for name in names if not name[0].isdigit()}
    assert {"temperature", "stop", "tools", "reasoning_effort", "echo"} <= names
    missing = [name for name in sorted(names) if not re.search(rf"`([a-z_.]+\.)?{name}(\.[a-z_.]+)?`", PAGE)]
    assert not missing
