"""calla bench: figures that fit together, limits that are the plan's, comparisons in turn, an orderly end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from conftest import environment
from test_cli import one_sentence

QUICK = ["--quiet", "--repeat", "2", "--tokens", "4", "--bandwidth", "20"]


@pytest.fixture(scope="module")
def bench(calla):
    def run(*arguments, **more):
        result = calla("bench", *QUICK, *arguments, **more)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        return result.stdout

    return run


def interpreter(folder, body):
    """A program in place of Python that MLX-LM's side is played by."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys, time\n" + body)
    path.chmod(0o755)
    return {"CALLA_PYTHON": str(path)}


HELLO = 'print(json.dumps({"version": "1.2.3", "mlx": "4.5", "device": "none"}), flush=True)\n'
PLAYED = (
    HELLO
    + """
log = open(sys.argv[0] + ".log", "a")
for line in sys.stdin:
    request = json.loads(line)
    if "load" in request:
        print(json.dumps({"load_seconds": 0.5}), flush=True)
    else:
        print(len(request["prompt"]), request["tokens"], request["prompt"][:4], file=log, flush=True)
        print(json.dumps({"prompt_seconds": len(request["prompt"]) / 50, "decode_seconds": request["tokens"] / 10,
                          "peak_resident_bytes": 12345678}), flush=True)
"""
)


# The figures


def test_a_report_fits_together(bench, calla):
    report = json.loads(bench("--prefill", "16,8", "--decode", "8,1k", "--flops", "0.5", "--json", "-"))
    assert report["calla"]["version"] in calla("--version").stdout
    assert report["complete"] is True and report["mlx_lm"] is None and report["ablation"] == []
    assert report["machine"]["processor"] and 1 <= report["machine"]["cores"] <= report["machine"]["processors"]
    assert report["threads"] >= 1 and report["backend"] == "cpu"
    assert report["policy"]["chunk_rows"] == "512" and report["policy"]["gqa_pack"] is None
    assert report["bandwidth"] == {"bytes_per_second": 20e9, "source": "given"}
    assert all(figure["memory_bytes_per_second"] is None for figure in report["prefill"] + report["decode"])
    assert report["ready_seconds"] > 0
    assert 1e6 < report["peak_resident_bytes"] < report["machine"]["memory_bytes"]
    assert [(figure["length"], figure["tokens"]) for figure in report["prefill"]] == [(8, 8), (16, 16)]
    assert [(figure["length"], figure["tokens"]) for figure in report["decode"]] == [(8, 4), (1024, 4)]
    assert [figure["context"] for figure in report["decode"]] == ["read", "filled"]
    for figure in report["prefill"] + report["decode"]:
        rates = sorted(figure["tokens"] / seconds for seconds in figure["seconds"])
        spread = figure["tokens_per_second"]
        assert spread["count"] == len(rates) == 2
        assert spread["least"] == pytest.approx(rates[0]) and spread["most"] == pytest.approx(rates[1])
        assert spread["median"] == pytest.approx(sum(rates) / 2)
        assert spread["least"] <= spread["low_quartile"] <= spread["median"] <= spread["high_quartile"]
        seconds = figure["tokens"] / spread["median"]
        assert figure["bytes_per_second"] == pytest.approx(figure["bytes"] / seconds)
        assert figure["flops_per_second"] == pytest.approx(figure["flops"] / seconds)
        assert figure["share_of_limit"] == pytest.approx(spread["median"] / figure["limit_tokens_per_second"])


def plan(calla, *arguments):
    return json.loads(calla("plan", "--json", "--bandwidth", "20", "--flops", "0.5", *arguments).stdout)


def test_the_limit_is_the_plans(bench, calla):
    report = json.loads(
        bench("--prefill", "40", "--decode", "40", "--flops", "0.5", "--policy", "chunk_rows=16", "--json", "-")
    )
    prefill, decode = report["prefill"][0], report["decode"][0]
    chunks = [
        plan(calla, "--phase", "prefill", "--rows", rows, "--context", at, "--policy", "chunk_rows=16")
        for at, rows in [(0, 16), (16, 16), (32, 8)]
    ]
    # Two differences: calla plan gives every chunk the head and the sample.
    assert prefill["flops"] < sum(chunk["flops"] for chunk in chunks)
    assert prefill["flops"] == pytest.approx(sum(chunk["flops"] for chunk in chunks), rel=0.1)
    steps = [plan(calla, "--phase", "decode", "--context", 40 + i, "--policy", "chunk_rows=16") for i in range(4)]
    assert decode["flops"] == sum(step["flops"] for step in steps)
    assert decode["bytes"] == sum(step["bytes"]["total"] for step in steps)
    assert decode["limit_tokens_per_second"] == pytest.approx(4 / sum(step["least_seconds"] for step in steps))


def test_a_figure_is_held_against_the_memory_beside_it(calla):
    report = json.loads(
        calla("bench", "--decode", "40", "--tokens", "4", "--repeat", "3", "--warm-up", "0", "--json", "-").stdout
    )
    decode = report["decode"][0]
    memory = decode["memory_bytes_per_second"]
    assert report["bandwidth"]["source"] == "measured" and memory["count"] == 3
    assert decode["limit_tokens_per_second"] == pytest.approx(memory["median"] * 4 / decode["bytes"])
    assert report["peak_resident_bytes"] < 512 << 20  # the buffer that the memory is read from is not counted


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be taken away here")
def test_threads_are_those_that_may_run(bench):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        report = json.loads(bench("--prefill", "8", "--decode", "8", "--json", "-"))
    finally:
        os.sched_setaffinity(0, allowed)
    assert report["threads"] == 1 and report["machine"]["cores"] == report["machine"]["processors"] == 1


def test_a_report_that_somebody_writes_is_left_alone(calla, tmp_path):
    report, partial = tmp_path / "r.json", tmp_path / "r.json.partial"
    with open(partial, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("mine")
        other.flush()
        one_sentence(calla("bench", *QUICK, "--json", report), 1, "r.json", "being written")
        assert partial.read_text() == "mine"
    result = calla("bench", *QUICK, "--prefill", "8", "--decode", "8", "--json", report)  # what is only left over is not
    assert result.returncode == 0 and json.loads(report.read_text())["complete"] and not partial.exists()
    one_sentence(calla("bench", *QUICK, "--json", tmp_path / "a", "--plot", f"{tmp_path}/./a"), 1, "being written")
    one_sentence(calla("bench", *QUICK, "--json", ""), 1, "empty")


def test_without_a_compute_rate_only_decode_has_a_limit(bench):
    report = json.loads(bench("--prefill", "8", "--decode", "8", "--json", "-"))
    assert report["flops_per_second"] is None
    assert report["prefill"][0]["share_of_limit"] is None and report["prefill"][0]["limit_tokens_per_second"] is None
    assert report["decode"][0]["share_of_limit"] > 0


def test_the_bandwidth_is_measured(calla):
    result = calla("bench", "--quiet", "--repeat", "1", "--decode", "8", "--tokens", "2", "--json", "-")
    bandwidth = json.loads(result.stdout)["bandwidth"]
    assert bandwidth["source"] == "measured" and 2e8 < bandwidth["bytes_per_second"] < 1e13
    # What it took is not counted as the model's.
    assert json.loads(result.stdout)["peak_resident_bytes"] < 4e8


def test_every_repeat_counts_and_no_warm_up(bench):
    report = json.loads(bench("--decode", "8", "--repeat", "3", "--warm-up", "0", "--json", "-"))
    assert len(report["decode"][0]["seconds"]) == 3 and report["prefill"] == []
    assert report["method"]["repeat"] == 3 and report["method"]["warm_up"] == 0


def test_the_whole_context_is_read_when_asked(bench):
    report = json.loads(bench("--decode", "8,12", "--real-context", "--json", "-"))
    assert [figure["context"] for figure in report["decode"]] == ["read", "read"]


def test_one_token_and_the_longest_context(bench, calla):
    limit = json.loads(calla("info", "--json").stdout)["architecture"]["context_limit"]
    report = json.loads(bench("--prefill", "1", "--decode", f"1,{limit - 4}", "--json", "-"))
    assert [figure["length"] for figure in report["decode"]] == [1, limit - 4]


def test_the_reference_runs_too(bench):
    table = bench("--backend", "reference", "--prefill", "8", "--decode", "8")
    assert "backend reference" in table


def test_the_table(bench):
    lines = bench("--prefill", "16,8", "--decode", "1K").splitlines()
    rows = [line.split()[:2] for line in lines if line.startswith(("prefill", "decode"))]
    assert rows == [["prefill", "8"], ["prefill", "16"], ["decode", "1K*"]]
    assert max(map(len, lines)) <= 120


# Files


def test_report_and_plot_are_files(bench, tmp_path):
    table = bench("--prefill", "8,16", "--decode", "8", "--json", tmp_path / "r.json", "--plot", tmp_path / "p.svg")
    assert "tokens/s" in table
    assert json.loads((tmp_path / "r.json").read_text())["complete"] is True
    picture = xml.parse(tmp_path / "p.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert picture.tag == space + "svg"
    texts = [text.text for text in picture.iter(space + "text")]
    assert "calla-tiny" in texts and "Prefill, tokens/s" in texts and "Decode, tokens/s" in texts
    assert len([dot for dot in picture.iter(space + "circle")]) == 3
    assert "href" not in (tmp_path / "p.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.svg", "r.json"]


# Policies


def test_a_policy_is_compared_in_turn(bench):
    report = json.loads(bench("--ablate", "fuse_qk_prep", "--prefill", "8", "--decode", "8", "--json", "-"))
    (entry,) = report["ablation"]
    assert entry["policy"] == "fuse_qk_prep" and entry["value"] == "on" and entry["alternative"] == "off"
    assert [(figure["phase"], figure["length"]) for figure in entry["figures"]] == [("prefill", 8), ("decode", 8)]
    for figure in entry["figures"]:
        pairs = zip(figure["value"]["seconds"], figure["alternative"]["seconds"], strict=True)
        ratios = sorted(other / own for own, other in pairs)
        assert figure["ratio"]["least"] == pytest.approx(ratios[0]) and figure["ratio"]["count"] == 2


def test_a_policy_named_twice_is_compared_once(bench):
    report = json.loads(
        bench("--ablate", "fuse_norm", "--ablate", "chunk_rows", "--ablate", "fuse_norm", "--decode", "4", "--json", "-")
    )
    assert [(entry["policy"], entry["alternative"]) for entry in report["ablation"]] == [
        ("fuse_norm", "off"), ("chunk_rows", "256"), ("chunk_rows", "1024")
    ]  # fmt: skip


def test_all_policies_are_listed(bench, calla):
    known = json.loads(calla("info", "--json").stdout)["policies"]
    report = json.loads(
        bench("--ablate", "all", "--decode", "4", "--repeat", "1", "--warm-up", "0", "--tokens", "1", "--json", "-")
    )
    assert list(dict.fromkeys(entry["policy"] for entry in report["ablation"])) == list(known)
    for entry in report["ablation"]:
        if known[entry["policy"]] is None:
            assert entry["value"] == "n/a" and "nothing" in entry["not_compared"]
        elif entry["not_compared"] is None:
            assert len(entry["figures"]) == 1 and entry["alternative"] != entry["value"]
        else:
            assert entry["figures"] == [] and entry["not_compared"].endswith(".")
    assert "n/a" in bench("--ablate", "gqa_pack", "--decode", "4")


def test_the_others_values_are_kept(bench):
    report = json.loads(
        bench("--ablate", "concurrent", "--policy", "concurrent=off", "--policy", "chunk_rows=64", "--decode", "4", "--json", "-")
    )  # fmt: skip
    assert report["ablation"][0]["value"] == "off" and report["ablation"][0]["alternative"] == "on"
    assert report["policy"]["chunk_rows"] == "64"


# MLX-LM


def test_the_two_take_turns_on_the_same_prompt(bench, tmp_path):
    env = interpreter(tmp_path, PLAYED)
    report = json.loads(bench("--against", "mlx-lm", "--prefill", "8,16", "--json", "-", env=env))
    log = (tmp_path / "python.log").read_text().splitlines()
    ids = {line.split("[")[1] for line in log}
    assert [line.split()[0] for line in log] == ["8"] * 3 + ["16"] * 3 and len(ids) == 1
    assert report["mlx_lm"] == {
        "version": "1.2.3", "mlx": "4.5", "device": "none", "load_seconds": 0.5, "peak_resident_bytes": 12345678
    }  # fmt: skip
    assert [figure["length"] for figure in report["decode"]] == [8, 16]
    for figure in report["prefill"] + report["decode"]:
        speed = 50 if figure in report["prefill"] else 10
        assert figure.get("context", "read") == "read"
        assert figure["mlx_lm"]["tokens_per_second"]["median"] == pytest.approx(speed)
        assert figure["ratio"]["least"] == pytest.approx(figure["tokens_per_second"]["least"] / speed)
    table = bench("--against", "mlx-lm", "--decode", "8", "--plot", tmp_path / "p.svg", env=env)
    assert "ratio" in table and "mlx-lm    1.2.3" in table
    assert "mlx-lm" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    "body, part",
    [
        ("", "ended before it answered"),
        ('print("what?", flush=True); time.sleep(9)', "MLX-LM's answer"),
        ('print(json.dumps({"error": "No mlx_lm."}), flush=True)', "No mlx_lm."),
        (HELLO, "ended before it answered"),
        (HELLO + 'input(); print(json.dumps({"load_seconds": "soon"}), flush=True); input()', "load_seconds"),
        (HELLO + 'input(); print(json.dumps({"load_seconds": 1}), flush=True); input()', "ended before"),
    ],
    ids=["silent", "garbage", "missing", "no load", "no number", "no round"],
)
def test_another_side_that_fails(calla, tmp_path, body, part):
    env = interpreter(tmp_path, body)
    result = calla("bench", *QUICK, "--against", "mlx-lm", "--prefill", "8", env=env)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1 and part in result.stderr


def test_no_python_and_no_mlx_lm(calla, tmp_path):
    env = {"CALLA_PYTHON": "/nowhere/python"}
    one_sentence(calla("bench", "--quiet", "--against", "mlx-lm", env=env), 1, "/nowhere/python", "CALLA_PYTHON")
    (tmp_path / "mlx_lm").mkdir()
    (tmp_path / "mlx_lm" / "__init__.py").write_text("raise ImportError('there is\\nno mlx_lm')")
    env = {"CALLA_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    one_sentence(calla("bench", "--quiet", "--against", "mlx-lm", env=env), 1, "cannot be imported", "pip install")


def test_mlx_lm_itself(bench):
    """With the real one, where it is installed."""
    pytest.importorskip("mlx_lm")
    report = json.loads(
        bench(
            "--against", "mlx-lm", "--prefill", "8", "--tokens", "2", "--repeat", "1", "--warm-up", "0", "--json", "-",
            env={"CALLA_PYTHON": sys.executable}, timeout=240,
        )
    )  # fmt: skip
    assert report["mlx_lm"]["version"][0].isdigit()
    for figure in report["prefill"] + report["decode"]:
        assert figure["mlx_lm"]["tokens_per_second"]["median"] > 0 and figure["ratio"]["median"] > 0


# What is wrong, before anything is measured


@pytest.mark.parametrize(
    "arguments, code, parts",
    [
        (["--prefill", "256,x"], 2, ["--prefill", '"x"']),
        (["--decode", "0"], 2, ["--decode"]),
        (["--decode", "8,"], 2, ["--decode"]),
        (["--repeat", "0"], 2, ["--repeat"]),
        (["--repeat", "101"], 2, ["--repeat"]),
        (["--bandwidth", "-1"], 2, ["--bandwidth"]),
        (["--against", "llama"], 2, ["--against"]),
        (["--ablate", "fuse_qk_perp"], 2, ["fuse_qk_perp", "did you mean fuse_qk_prep?"]),
        (["--ablate", "all", "--against", "mlx-lm"], 2, ["--ablate", "--against"]),
        (["--ablate", "all", "--plot", "x.svg"], 2, ["--plot"]),
        (["--json", "same", "--plot", "same"], 2, ["same"]),
        (["--plot", "-"], 2, ["--plot", "file"]),
        (["--policy", "concurrent=x"], 2, ["concurrent"]),
        (["DIR"], 2, ["-m"]),
        (["--prefill", "1000K"], 1, ["--prefill", "1024000"]),
        (["--decode", "256", "--context", "257"], 1, ["--decode", "--context 257"]),
        (["--decode", "8", "--context", "10000000"], 1, ["--context 10000000"]),
        (["-m", "/nowhere"], 1, ["/nowhere"]),
        (["--json", "/nowhere/x.json"], 1, ["/nowhere/x.json"]),
        (["--plot", "/nowhere/x.svg"], 1, ["/nowhere/x.svg"]),
    ],
)
def test_what_is_refused(calla, arguments, code, parts):
    one_sentence(calla("bench", *QUICK, *arguments, timeout=20), code, *parts)


def test_decode_needs_room_for_its_tokens(calla):
    limit = json.loads(calla("info", "--json").stdout)["architecture"]["context_limit"]
    one_sentence(calla("bench", *QUICK, "--decode", limit - 3), 1, "--decode", str(limit))


def test_ctrl_c_leaves_what_was_measured(binary, tmp_path):
    """The first length is done at once, the second takes long."""
    process = subprocess.Popen(
        [binary, "bench", *QUICK, "--decode", "8", "--prefill", "8,2K", "--repeat", "100", "--warm-up", "0",
         "--json", tmp_path / "r.json", "--plot", tmp_path / "p.svg"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == "calla bench: The measurements were stopped; the report has what was measured until then.\n"
    assert "decode" in output
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False and report["decode"][0]["length"] == 8
    xml.parse(tmp_path / "p.svg")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_other_side_too(binary, tmp_path, number):
    """Python that ignores SIGTERM, and what it started."""
    pids = tmp_path / "pids"
    env = interpreter(
        tmp_path,
        "import os, signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nchild = subprocess.Popen(['sleep', '600'])\n"
        + f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n" + HELLO + "input()\ntime.sleep(600)",
    )  # fmt: skip
    process = subprocess.Popen(
        [binary, "bench", *QUICK, "--against", "mlx-lm", "--prefill", "8", "--json", tmp_path / "r.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**env),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    time.sleep(2)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number and output == ""
    assert errors == "calla bench: The measurements were stopped.\n"
    assert not list(tmp_path.glob("r.json*"))
    for pid in pids.read_text().split():
        assert ended(int(pid))


def ended(pid):
    """Whether a process is gone within some seconds, or only waits to be buried."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            pass
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_mlx_lm_does_not_outlive_a_bench_that_is_killed(binary, tmp_path):
    """The script itself, in the middle of a long load, with a library of that name that is none."""
    for package in ["mlx", "mlx_lm"]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text("def default_device():\n    return 'none'\n")
    (tmp_path / "mlx_lm" / "generate.py").write_text("generate_step = generation_stream = wired_limit = None\n")
    (tmp_path / "mlx_lm" / "utils.py").write_text(
        f"import os, time\ndef load_model(folder):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    for package in ["mlx", "mlx_lm"]:
        (tmp_path / f"{package}-1.0.dist-info").mkdir()
        (tmp_path / f"{package}-1.0.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
        )
    process = subprocess.Popen(
        [binary, "bench", *QUICK, "--against", "mlx-lm", "--prefill", "8"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=environment(CALLA_PYTHON=sys.executable, PYTHONPATH=str(tmp_path)),
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.kill()
    process.communicate()
    assert ended(int((tmp_path / "pid").read_text()))


# Output that nobody can have


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "command, parts",
    [
        ('"$@" >&-', ["Standard output", "Bad file"]),
        ('"$@" >/dev/full', ["Standard output", "No space"]),
        ('{ sleep 1; "$@"; } | true; exit "${PIPESTATUS[0]}"', ["Nobody reads"]),
    ],
)
def test_output_that_nobody_gets_is_found_first(binary, tmp_path, command, parts):
    result = subprocess.run(
        ["bash", "-c", command, "bash", binary, "bench", "--quiet", "--decode", "2K", "--real-context", "--tokens", "1000",
         "--json", tmp_path / "r.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), timeout=10,
    )  # fmt: skip
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert all(part in result.stderr for part in parts), result.stderr
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_without_the_models_end_tokens(calla, model, tmp_path):
    """Such tokens are never drawn, so there is nothing to keep from being drawn."""
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for name in ["config.json", "generation_config.json"]:
        config = json.loads((model / name).read_text())
        config["eos_token_id"] = [4094, 4095]
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(json.dumps(config))
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 4094
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = calla("bench", "-m", tmp_path, *QUICK[1:], "--prefill", "8", "--decode", "8", "--json", "-")
    assert result.returncode == 0 and json.loads(result.stdout)["decode"][0]["tokens_per_second"]["count"] == 2
    assert "end token" in result.stderr
