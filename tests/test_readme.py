"""The README says nothing that is not so.

A `console` block is a transcript: every line after `$ ` is run in the project's folder, and what follows it must be
what it prints (a line `...` stands for any lines, `...` at a line's end for any rest). An `sh` block holds commands that
need the real model, root or a fresh machine; of these the targets, the programs and every flag must exist. A number in the
section "Numbers" must stand on the page that its item links to.
"""

import re
import shlex
import subprocess

import pytest

from conftest import ROOT, environment

README = (ROOT / "README.md").read_text()
# Commands of an sh block that are not this project's.
FOREIGN = {"curl", "git", "cd", "sudo", "hf"}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def transcripts():
    """(command, expected output) of every console block."""
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                line, _, expected = expected.partition("\n")
                command = command[:-1] + line.lstrip("> ")
            yield command, expected.strip()


def pattern(expected):
    """The regular expression of an expected output."""
    lines = []
    for line in expected.splitlines():
        if line.strip() == "...":
            lines.append("(.*\n)*?")
        elif line.endswith("..."):
            lines.append(re.escape(line[:-3]) + ".*\n")
        else:
            lines.append(re.escape(line.rstrip()) + "[ ]*\n")
    return "".join(lines)


@pytest.mark.parametrize("command, expected", list(transcripts()), ids=lambda text: text.splitlines()[0] if text else "-")
def test_transcripts_are_true(command, expected, binary):
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    printed = result.stdout.strip("\n") + "\n"
    assert re.fullmatch(pattern(expected), printed), f"$ {command}\n{printed}\nis not\n\n{expected}"


def test_there_is_something_to_test():
    commands = [command for command, _ in transcripts()]
    assert any(command.startswith("make demo") for command in commands)
    assert any("build/calla run" in command for command in commands)
    assert any("make test" in block for block in blocks("sh"))


def sh_commands(text=README):
    for block in blocks("sh", text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = next((i for i, word in enumerate(words) if word in {"|", "&&", ";"}), len(words))
                if words[:end]:
                    yield words[:end]
                words = words[end + 1 :]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/building.md"])
def test_commands_that_are_not_run_exist(document, calla):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    presets = re.findall(r'"name": "([\w-]+)"', (ROOT / "CMakePresets.json").read_text())
    commands = list(sh_commands((ROOT / document).read_text()))
    assert commands
    for command in commands:
        program, *words = command
        if program == "make":
            for word in words:
                assert "=" in word or word in targets, f"{document}: make has no target {word}"
        elif program in {"cmake", "ctest"}:
            for word, value in zip(words, words[1:]):
                assert word != "--preset" or value in presets, f"{document}: no preset {value}"
        elif program in {"build/calla", "calla"}:
            usage = calla(words[0], "--help")
            assert usage.returncode == 0, f"{document}: calla has no command {words[0]}"
            for word in words[1:]:
                flag = word.split("=")[0]
                if re.match(r"--?[a-z]", flag):
                    known = re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", usage.stdout)
                    assert known, f"{document}: calla {words[0]} has no {flag}"
        else:
            assert program in FOREIGN or (ROOT / program).exists(), f"{document}: {program} is not known"


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target} does not exist"


def test_every_command_is_named(calla):
    """The README's list of commands is the program's."""
    listed = re.findall(r"^  (\w+) ", calla("--help").stdout, re.M)
    assert listed
    for command in listed:
        assert f"`{command}`" in README, f"the README does not tell of calla {command}"


def test_numbers_stand_on_the_pages_that_measured_them():
    section = re.search(r"^## Numbers\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    assert section, "the README has no section Numbers"
    items = re.split(r"^- ", section[1], flags=re.M)[1:]
    assert len(items) >= 3
    for item in items:
        page = re.findall(r"\]\(([^)]+)\)", item)[-1]
        text = (ROOT / page).read_text()
        words = re.sub(r"\[[^]]*\]\([^)]*\)", "", item)
        numbers = re.findall(r"(?<![\w.-])\d[\d.,e-]*\d|(?<![\w.-])\d\b", words)
        assert numbers
        for number in numbers:
            known = re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d.,]*\d)", text)
            assert known, f"{page} does not have {number} of: {item}"
