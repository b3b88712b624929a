"""What the black-box tests share: the program, the bundled model, and a way to run one on the other."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def environment(**extra):
    """The caller's environment without what would change the output of the program or of a make."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CALLA", "MAKE", "MFLAGS"))}
    env.update({"TERM": "dumb", "LC_ALL": "C.UTF-8"}, **extra)
    return env


def pytest_collection_modifyitems(items):
    """The files that take longest first: `make test` hands whole files to two processes."""
    first = ["test_install", "test_tokenizer_oracle", "test_cache_disk", "test_server_clients", "test_cache", "test_readme", "test_bench"]
    items.sort(key=lambda item: first.index(item.path.stem) if item.path.stem in first else len(first))


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def binary():
    """The program under test: build/calla, or what the variable CALLA names."""
    path = Path(os.environ.get("CALLA", ROOT / "build" / "calla")).resolve()
    assert path.exists(), f"{path} is missing: run `make` first"
    return path


@pytest.fixture(scope="session")
def model():
    """The folder of the bundled model."""
    path = ROOT / "models" / "calla-tiny"
    assert (path / "config.json").exists(), f"the bundled model is missing in {path}"
    return path


@pytest.fixture(scope="session")
def calla(binary):
    """calla("run", "-m", path, "prompt", input="", timeout=60) -> CompletedProcess with text (bytes=True: bytes)."""

    def run(*arguments, input="", timeout=60, bytes=False, cwd=ROOT, env=None):
        if not bytes and not isinstance(input, str):
            raise TypeError("input is text unless bytes=True")
        return subprocess.run(
            [str(binary), *map(str, arguments)],
            input=input or (b"" if bytes else ""),
            capture_output=True,
            timeout=timeout,
            cwd=cwd,
            env=environment(**(env or {})),
            **({} if bytes else {"encoding": "utf-8"}),
        )

    return run


@pytest.fixture(scope="session")
def server(binary, model):
    """One running `calla serve` with the bundled model, for all tests that leave it as they found it."""
    from server import Server

    with Server(binary, "-m", model) as running:
        yield running
