"""calla plan: the figures of the full-size model, from nothing but its config."""

import json
import re
import shutil

import pytest

from conftest import ROOT
from test_cli import one_sentence

CONFIG = ROOT / "tests" / "data" / "config-qwen36-35b-a3b-4bit.json"

# Bytes of the published tensors that a decoded token reads: mixers, routers with shared experts and norms, head, one row
# of the embedding with the final norm, eight routed experts a layer; where router and experts each normalise their input,
# the norm's weights once more.
NORMS_AGAIN = 40 * 2048 * 2
WEIGHTS = 30 * 19014016 + 10 * 15336448 + 40 * 2336896 + 286064640 + 5248 + 40 * 8 * 1769472
STATE = 30 * (2 * 32 * 128 * 128 + (3 + 1) * 8192) * 4
KV_ROW = 10 * 2 * 2 * 256 * 2


def plan_json(calla, *arguments):
    result = calla("plan", "-m", CONFIG, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_table_beside_the_article(calla):
    result = calla("plan", "-m", CONFIG, "--phase", "decode")
    assert result.returncode == 0 and result.stderr == ""
    ops = int(re.search(r"^ops +(\d+) \(the article: 795\)$", result.stdout, re.MULTILINE)[1])
    phases = int(re.search(r"^phases +(\d+) \(the article: 555\)$", result.stdout, re.MULTILINE)[1])
    assert phases <= ops <= 300
    assert re.search(r"^bytes a token .*weights 1\.670 GB$", result.stdout, re.MULTILINE)


def test_bytes_of_a_decoded_token(calla):
    plan = plan_json(calla, "--context", "999")
    assert WEIGHTS == 1669561728
    assert plan["bytes"]["weights"] == WEIGHTS + NORMS_AGAIN
    assert plan_json(calla, "--policy", "fuse_norm=off")["bytes"]["weights"] == WEIGHTS
    assert plan["ops"] == plan["phases"] == 253
    assert plan["bytes"]["state"] == STATE
    assert plan["bytes"]["kv"] == 1001 * KV_ROW  # a thousand rows read, one written
    assert sum(plan["bytes"].values()) == 2 * plan["bytes"]["total"]
    assert plan["article"] == {"ops": 795, "phases": 555}


def test_every_op_is_listed(calla):
    plan = plan_json(calla)
    assert len(plan["list"]) == plan["ops"] == sum(kind["ops"] for kind in plan["kinds"])
    assert {op["phase"] for op in plan["list"]} == set(range(plan["phases"]))
    assert plan["list"][0]["kind"] == "embed" and plan["list"][-1]["kind"] == "sample"
    weights = {v["name"] for op in plan["list"] for v in op["operands"] if v["space"] == "weight"}
    assert "language_model.model.layers.39.mlp.switch_mlp.down_proj" in weights


def test_fusions_can_be_switched_off(calla):
    fused = plan_json(calla)
    for name in ["fuse_projections", "fuse_qk_prep", "fuse_delta_norm", "fuse_delta_conv", "fuse_expert_gate_up", "fuse_expert_down"]:
        plan = plan_json(calla, "--policy", f"{name}=off")
        assert plan["policy"][name] == "off" and fused["policy"][name] == "on"
        assert plan["ops"] > fused["ops"] and plan["phases"] >= fused["phases"]
        if name not in ["fuse_projections", "fuse_expert_gate_up"]:  # which change how often norms are computed
            assert plan["flops"] == fused["flops"] and plan["bytes"]["weights"] == fused["bytes"]["weights"]
    plan = plan_json(calla, "--policy", "fuse_norm=off")
    assert plan["ops"] == fused["ops"] + 81 and plan["phases"] == fused["phases"] + 81


def test_one_after_the_other(calla):
    plan = plan_json(calla, "--policy", "concurrent=off", "--policy", "fuse_projections=off")
    assert plan["phases"] == plan["ops"]


def test_prefill_reads_weights_once_for_many_rows(calla):
    plan = plan_json(calla, "--phase", "prefill", "--rows", "64", "--bandwidth", "100", "--flops", "50")
    assert plan["rows"] == 64
    assert WEIGHTS < plan["bytes"]["weights"] < 64 * WEIGHTS / 4
    least = max(plan["bytes"]["total"] / 100e9, plan["flops"] / 50e12)
    assert plan["least_seconds"] >= least * (1 - 1e-9)
    assert plan["tokens_per_second"] == pytest.approx(64 / plan["least_seconds"])


def test_a_folder_with_nothing_but_a_config(calla, tmp_path):
    shutil.copy(CONFIG, tmp_path / "config.json")
    result = calla("plan", "-m", tmp_path, "--backend", "metal", "--bandwidth", "546")
    assert result.returncode == 0 and result.stderr == ""
    assert re.search(r"^least time .* tokens/s at 546\.0 GB/s$", result.stdout, re.MULTILINE)


def test_kernels_and_predictions_for_metal(calla):
    plan = plan_json(calla, "--backend", "metal")
    for context in ["0", "4096", "32768", "131072", "262143"]:
        step = plan_json(calla, "--backend", "metal", "--context", context)
        assert step["ops"] <= step["kernels"] <= 380 and step["kernel_phases"] <= 300
    assert plan["phases"] <= plan["kernel_phases"] <= plan["kernels"]
    assert "kernels" not in plan_json(calla) and "predictions" not in plan_json(calla)
    chips = {prediction["chip"]: prediction for prediction in plan["predictions"]}
    assert list(chips)[0] == "M1" and list(chips)[-1] == "M5 Max" and len(chips) == 18
    assert chips["M1"]["bandwidth"] == 68e9 and chips["M5 Max"]["bandwidth"] == 614e9
    for chip in chips.values():
        least = plan["bytes"]["total"] / chip["bandwidth"]
        assert least * (1 - 1e-9) <= chip["least_seconds"] < 1.1 * least
        wait = chip["predicted_seconds"] - chip["least_seconds"]
        assert wait == pytest.approx(plan["kernel_phases"] * 4.2e-6)
        assert chip["predicted_tokens_per_second"] == pytest.approx(1 / chip["predicted_seconds"])

    table = calla("plan", "-m", CONFIG, "--backend", "metal").stdout
    assert re.search(r"^ops +253$", table, re.MULTILINE)
    assert int(re.search(r"^kernels +(\d+) \(the article: 795\)$", table, re.MULTILINE)[1]) == plan["kernels"]
    phases = int(re.search(r"^kernel phases +(\d+) \(the article: 555\)$", table, re.MULTILINE)[1])
    assert phases == plan["kernel_phases"]
    assert len(re.findall(r"^M[1-5](?: Pro| Max| Ultra)? +\d+ +", table, re.MULTILINE)) == 18

    serial = plan_json(calla, "--backend", "metal", "--policy", "concurrent=off")
    for one in serial["predictions"]:
        wait = one["predicted_seconds"] - one["least_seconds"]
        assert wait == pytest.approx(serial["kernels"] * 3.7e-6)


def test_a_long_context_and_a_chunk_on_metal(calla):
    short, long = (plan_json(calla, "--backend", "metal", "--context", n) for n in ("4096", "131071"))
    assert short["kernels"] <= long["kernels"] <= 380
    # Over a long context attention takes a phase more in each of ten layers.
    assert short["kernel_phases"] <= long["kernel_phases"] <= 300
    assert all(a["least_seconds"] < b["least_seconds"] for a, b in zip(short["predictions"], long["predictions"]))
    chunk = plan_json(calla, "--backend", "metal", "--phase", "prefill", "--rows", "512")
    fastest = chunk["predictions"][-1]
    assert chunk["kernels"] >= chunk["ops"]
    assert fastest["predicted_tokens_per_second"] == pytest.approx(512 / fastest["predicted_seconds"])


def test_ops_in_the_table(calla):
    short = calla("plan", "-m", CONFIG).stdout
    long = calla("plan", "-m", CONFIG, "--ops").stdout
    assert long.startswith(short)
    assert len(re.findall(r"^ +\d+ +(?:\d+|-) [a-z_]+ ", long[len(short) :], re.MULTILINE)) == 253


@pytest.mark.parametrize(
    "arguments, code, parts",
    [
        (["--rows", "2"], 2, ["--rows 2", "one row"]),
        (["--phase", "prefill", "--rows", "513"], 2, ["--rows 513", "512", "chunk_rows"]),
        (["--context", "262144"], 1, ["--context 262144", "262144 positions"]),
        (["--phase", "prefill", "--rows", "9", "--context", "262140"], 1, ["room for 4"]),
        (["--phase", "encode"], 2, ["--phase", "encode"]),
        (["--backend", "tpu"], 2, ["--backend", "tpu"]),
        (["--policy", "gqa_pack=4"], 2, ["gqa_pack", "cpu", "chunk_rows"]),
        (["--policy", "fuse"], 2, ["NAME=VALUE"]),
        (["--policy", "speculate=on"], 2, ["speculate", "off"]),
        (["--bandwidth", "-5"], 2, ["--bandwidth"]),
        (["--flops", "fast"], 2, ["--flops", "fast"]),
    ],
)
def test_what_is_wrong(calla, arguments, code, parts):
    one_sentence(calla("plan", "-m", CONFIG, *arguments), code, *parts)


def test_no_model_there(calla, tmp_path):
    one_sentence(calla("plan", "-m", tmp_path), 1, str(tmp_path), "config.json")
    one_sentence(calla("plan", "-m", tmp_path / "nothing"), 1, "nothing", "does not exist")
    (tmp_path / "config.json").write_text("{")
    one_sentence(calla("plan", "-m", tmp_path / "config.json"), 1, "config.json", "JSON")
