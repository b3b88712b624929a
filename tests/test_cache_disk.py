"""What was read outlives the program, and no file in the cache's folder, however it came to be, makes an answer wrong."""

import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from server import Server
from test_cache import ask, metric, prose, random_history

LONG = [{"role": "system", "content": prose(900, 21)}, {"role": "user", "content": "Well, what of it?"}]


def settle(server, least=1, seconds=20):
    """Waits until as many files are written, and no more come."""
    end = time.monotonic() + seconds
    written = -1
    while time.monotonic() < end:
        before, written = written, metric(server, "cache_files_written_total")
        if written >= least and written == before:
            return written
        time.sleep(0.15)
    raise AssertionError(f"{written} files after {seconds} s: {server.log()}")


def files(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".snapshot")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def start(binary, model, folder):
    return lambda *options, **keywords: Server(binary, "-m", model, "--cache-dir", folder, *options, **keywords)


def test_restart(start, folder):
    with start() as server:
        first = ask(server, LONG)
        assert first[2] == 0
        messages = [*LONG, {"role": "assistant", "content": first[0]["content"]}, {"role": "user", "content": "And then?"}]
        second = ask(server, messages)
    assert files(folder)
    assert all(path.stat().st_mode & 0o077 == 0 for path in [folder, *folder.iterdir()])
    with start() as server:
        again = ask(server, LONG)
        assert again[0] == first[0] and again[1] - again[2] < 16
        assert ask(server, messages)[:2] == second[:2]
        assert metric(server, "cache_files_loaded_total") >= 1
        assert metric(server, "cache_files_failed_total") == 0


def test_killed(start, folder):
    server = start()
    first = ask(server, LONG)
    settle(server)
    (folder / "0123456789abcdef.snapshot.0123456789abcdef.partial").write_bytes(b"rest")
    server.stop(signal.SIGKILL)
    with start() as server:
        again = ask(server, LONG)
        assert again[0] == first[0] and again[2] > 0.9 * again[1]
    assert not list(folder.glob("*.partial"))


def test_damage(start, folder):
    """Flipped bits anywhere, files cut off, emptied, swapped, of no sense: a line in the log, and the same answer."""
    with start() as server:
        first = ask(server, LONG)
        settle(server)
    kept = {path: path.read_bytes() for path in files(folder)}
    choose = random.Random(5)

    def flip(data):
        at = choose.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]

    def swap(data):
        return choose.choice(list(kept.values()))

    ways = [flip, flip, flip, lambda data: data[: choose.randrange(len(data))], lambda data: b"", swap,
            lambda data: data + b"x", lambda data: data[:264] + bytes(len(data) - 264), lambda data: os.urandom(3000)]
    for way in ways:
        for path, data in kept.items():
            path.write_bytes(way(data))
        with start() as server:
            again = ask(server, LONG)
            assert again[0] == first[0], way
            if way is not swap:
                assert "ache" in server.log() or "snapshot was not used" in server.log()
            settle(server, 0)
        for path in folder.iterdir():
            if path.name != "lock":
                path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)


def test_damage_while_running(start, folder):
    """Files that go or change under a running server."""
    with start() as server:
        first = ask(server, LONG)
        settle(server)
    for change in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!")):
        with start() as server:
            for path in files(folder):
                change(path)
            assert ask(server, LONG)[0] == first[0]
            assert "A snapshot was not used" in server.log()
            settle(server)


def test_two_processes(start, folder):
    with start() as one, start() as two:
        end = time.monotonic() + 10
        while "only read" not in two.log() and time.monotonic() < end:
            time.sleep(0.02)
        assert "only read" in two.log() and "only read" not in one.log()
        first = ask(one, LONG)
        assert ask(two, LONG)[0] == first[0]
        settle(one)
        with start() as three:
            again = ask(three, LONG)
            assert again[0] == first[0] and again[2] > 0.9 * again[1]
            for path in files(folder):
                path.unlink()
            assert ask(three, [*LONG, {"role": "user", "content": "More."}])[1] > again[1]


def test_no_room(start, folder, binary, model):
    """A budget that holds few files, and one that holds none."""
    with start("--cache-disk", "12M") as server:
        answers = []
        for i in range(5):
            answers.append(ask(server, [{"role": "user", "content": prose(300, 30 + i)}], max_tokens=4))
            settle(server, i + 1)
        assert metric(server, "cache_disk_bytes") <= 12 << 20
        assert sum(path.stat().st_size for path in files(folder)) <= 12 << 20
    with start("--cache-disk", "1") as server:
        assert ask(server, [{"role": "user", "content": prose(300, 30)}], max_tokens=4)[0] == answers[0][0]
        assert "folder of 1 bytes has no room" in server.log()
    assert not files(folder)
    with start("--cache-memory", "100K") as server:
        assert "memory of 102400 bytes has no room" in server.log()
        assert [ask(server, LONG, max_tokens=2)[2] for _ in range(2)] == [0, 0]


def test_nothing_can_be_written(start, folder):
    """The folder is gone: a line in the log, and answers as ever."""
    with start() as server:
        shutil.rmtree(folder)
        first = ask(server, LONG)
        end = time.monotonic() + 10
        while "was not written" not in server.log() and time.monotonic() < end:
            time.sleep(0.1)
        assert "A snapshot was not written" in server.log()
        assert ask(server, LONG)[0] == first[0]
        assert metric(server, "cache_files_failed_total") >= 1


def test_another_model(start, folder):
    with start() as server:
        ask(server, LONG)
        settle(server)
    with start("--policy", "kv_dtype=f32") as server:
        assert ask(server, LONG)[2] == 0
        assert re.search("another model, backend, processor, set of kernels or version", server.log())


def with_config(folder, key, value):
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {}), *(p.get("rope_parameters", {}) for p in (config, config.get("text_config", {})))):
        if key in part:
            part[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder):
    """One bit in the middle of the largest tensor; the time of change stays."""
    path = folder / "model.safetensors"
    status, data = path.stat(), bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    header.pop("__metadata__", None)
    begin, end = max((tensor["data_offsets"] for tensor in header.values()), key=lambda at: at[1] - at[0])
    data[start + begin + (end - begin) // 2 + 77] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: with_config(folder, "rope_theta", 1000.0),
        lambda folder: with_config(folder, "rms_norm_eps", 0.1),
        lambda folder: with_config(folder, "num_experts_per_tok", 1),
        change_weights,
    ],
    ids=["rope_theta", "rms_norm_eps", "num_experts_per_tok", "weights"],
)
def test_the_model_was_changed(binary, model, tmp_path, change):
    """The same folder with other weights, or the same weights run in another way."""
    copy, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(model, copy)
    with Server(binary, "-m", copy, "--cache-dir", cache) as server:
        ask(server, LONG, max_tokens=2)
        settle(server)
    change(copy)
    with Server(binary, "-m", copy, "--cache-dir", cache) as server:
        assert ask(server, LONG, max_tokens=2)[2] == 0


def test_a_copy_of_the_model_is_the_same_one(binary, model, tmp_path):
    copy, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(model, copy)
    with Server(binary, "-m", model, "--cache-dir", cache) as server:
        first = ask(server, LONG, max_tokens=2)
        settle(server)
    with Server(binary, "-m", copy, "--cache-dir", cache) as server:
        again = ask(server, LONG, max_tokens=2)
    assert again[:2] == first[:2] and again[1] - again[2] < 16


def test_other_files_stay(start, folder):
    """Files that only look a little like the cache's are nobody's but their owner's."""
    folder.mkdir()
    names = ["film.mkv.partial", "session.snapshot", "0123456789abcdef.snapshot.partial", "0123456789ABCDEF.snapshot"]
    for name in names:
        (folder / name).write_text("mine")
    with start("--cache-disk", "1") as server:
        ask(server, LONG, max_tokens=2)
    assert all((folder / name).read_text() == "mine" for name in names)


def test_wrong_use(calla, model, tmp_path):
    (tmp_path / "file").write_text("")
    for options, words in (
        (["--cache-disk", "1G"], "--cache-dir"),
        (["--cache-memory", "much"], "--cache-memory"),
        (["--cache-memory", "0", "--cache-dir", tmp_path], "--cache-memory"),
        (["--cache-dir", tmp_path / "file" / "folder"], "folder"),
        (["--cache-dir", tmp_path / "file"], "no folder"),
        (["--cache-dir", "/dev/null"], "no folder"),
        (["--cache-dir", ""], "empty"),
    ):
        done = calla("serve", "-m", model, "--port", "0", *options)
        assert done.returncode in (1, 2) and words in done.stderr.splitlines()[-1], done.stderr


def test_answers_after_restarts(start, binary, model):
    """Greedy answers over random histories, restarted between the requests, are those without a cache."""
    seed = random.randrange(1 << 30)
    with Server(binary, "-m", model, "--cache-memory", "0") as plain:
        history = random_history(random.Random(seed))
        messages, fields = next(history)
        for _ in range(6):
            expected = ask(plain, messages, max_tokens=24, **fields)
            with start() as server:
                for _ in range(2):
                    assert ask(server, messages, max_tokens=24, **fields)[:2] == expected[:2], f"seed {seed}"
            messages, fields = history.send(expected[0])
