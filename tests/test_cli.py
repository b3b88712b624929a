"""The command line as a whole: usage, run, tokenize, detokenize, template, info."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import environment
from terminal import Terminal

COMMANDS = ["run", "chat", "info", "plan", "bench", "eval", "synth", "tokenize", "detokenize", "template"]
GREEDY = ["--temperature", "0", "--max-tokens", "24"]


def one_sentence(result, code, *parts):
    """The program failed with this code and one line on standard error that has these parts."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("calla") and lines[0][-1] in ".?"
    for part in parts:
        assert part in lines[0]


def request(content="Hello", **more):
    return json.dumps({"messages": [{"role": "user", "content": content}]} | more)


@pytest.fixture(scope="session")
def endless(calla):
    """A request whose reply only the context ends."""
    ends = [entry["id"] for entry in json.loads(calla("info", "--json").stdout)["tokenizer"]["end_tokens"]]
    ends += json.loads(calla("tokenize", "--special", input="<|im_start|>").stdout)  # ends a reply as well
    bias = {str(token): -100 for token in ends}
    return request("Go on.", logit_bias=bias, enable_thinking=False, seed=1, temperature=1)


# Usage


def test_without_a_command(calla):
    result = calla()
    assert result.returncode == 2 and result.stdout == ""
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", result.stderr, re.MULTILINE)


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help(calla, word):
    result = calla(word)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith("usage: calla COMMAND")


def test_help_for_a_command_that_is_none(calla):
    one_sentence(calla("help", "rnu"), 2, "rnu", "did you mean", "run")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(calla, command):
    result = calla(command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert calla("help", command).stdout == result.stdout
    assert result.stdout.startswith(f"usage: calla {command} ")
    assert "--help" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_version(calla):
    assert re.fullmatch(r"calla \d+\.\d+\.\d+\n", calla("--version").stdout)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["rnu"], ["rnu", "did you mean", "run"]),
        (["frobnicate"], ["frobnicate", "calla --help"]),
        (["--quiet", "run"], ["--quiet", "follow the command"]),
        (["run", "--temprature", "1", "x"], ["--temprature", "--temperature"]),
        (["run", "--zzz", "x"], ["--zzz", "calla run --help"]),
        (["run", "-z", "x"], ["-z"]),
        (["run", "x", "--max-tokens"], ["--max-tokens", "needs a value"]),
        (["run", "x", "--max-tokens", "--quiet"], ["--max-tokens", "needs a value"]),
        (["run", "x", "--max-tokens", "many"], ["--max-tokens", "many", "whole number"]),
        (["run", "x", "--max-tokens=0"], ["--max-tokens", "from 1"]),
        (["run", "x", "--temperature", "hot"], ["--temperature", "hot"]),
        (["run", "x", "--top-p", "1.5"], ["--top-p", "1.5", "from 0 to 1"]),
        (["run", "x", "--quiet=1"], ["--quiet", "no value"]),
        (["run", "What", "is", "this"], ["quotes"]),
        (["run", "two", "prompts"], ["quotes"]),
        (["run", "x", "--request", "-"], ["--request", "exclude"]),
        (["run", ""], ["prompt", "empty"]),
        (["run", " \n"], ["prompt", "empty"]),
        (["run"], ["prompt", "empty"]),
        (["run", "-"], ["prompt", "empty"]),
        (["run", "x", "--backend", "abacus"], ["abacus", "reference"]),
        (["run", "x", "--policy", "chunk_rows"], ["chunk_rows"]),
        (["run", "x", "--policy", "nonsense=1"], ["nonsense", "chunk_rows"]),
        (["run", "x", "--policy", "chunk_rows=banana"], ["chunk_rows", "banana"]),
        (["chat", "hello"], ["hello", "calla run"]),
        (["info", "x"], ["x", "-m"]),
        (["tokenize", "x"], ["standard input"]),
        (["eval"], ["--text", "--tokens"]),
        (["eval", "--text", "a", "--tokens", "b"], ["--text", "--tokens"]),
        (["eval", "--text", "a", "--positions", "b"], ["--positions", "--logits"]),
    ],
)
def test_wrong_usage(calla, arguments, parts):
    one_sentence(calla(*arguments), 2, *parts)


def test_a_prompt_that_nobody_pipes_in(binary):
    with Terminal([binary, "run"]) as terminal:
        output, code = terminal.finish()
    assert code == 2 and b"There is no prompt" in output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["tokenize"], ["info"], ["run", *GREEDY, "Hi"]])
def test_output_that_cannot_be_written(binary, arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [binary, *arguments], stdout=full, stderr=subprocess.PIPE, input=b"text", env=environment(), timeout=60
        )
    assert result.returncode == 1
    assert b"Standard output cannot be written" in result.stderr


def with_closed_streams(binary, streams, *arguments, input=b""):
    """The program as `calla ... <&- >&-` starts it."""

    def close():
        for stream in streams:
            os.close(stream)

    return subprocess.run(
        [binary, *arguments], input=input, capture_output=True, env=environment(), timeout=60, preexec_fn=close
    )


@pytest.mark.parametrize("arguments", [["run", "--quiet"], ["run", "--quiet", "-"], ["chat", "--quiet"], ["tokenize", "--quiet"]])
def test_a_closed_input_is_not_a_file_of_the_model(binary, arguments):
    result = with_closed_streams(binary, [0], *arguments)
    assert result.returncode == 1 and result.stdout == b""
    assert b"Standard input cannot be read" in result.stderr and result.stderr.count(b"\n") == 1


def test_a_closed_output_is_not_a_file_that_is_written(binary, tmp_path):
    (tmp_path / "text").write_text("Once upon a time.")
    arguments = ["eval", "--quiet", "--text", tmp_path / "text", "--logits"]
    result = with_closed_streams(binary, [1], *arguments, tmp_path / "closed.npy")
    assert result.returncode == 1 and b"Standard output cannot be written" in result.stderr
    assert with_closed_streams(binary, [], *arguments, tmp_path / "open.npy").returncode == 0
    assert (tmp_path / "closed.npy").read_bytes() == (tmp_path / "open.npy").read_bytes()


# Which model


def test_the_bundled_model_says_so(calla):
    assert "bundled model" in calla("run", *GREEDY, "Hi").stderr
    assert calla("run", *GREEDY, "--quiet", "Hi").stderr == ""


def test_the_model_of_the_environment(calla, model, tmp_path):
    elsewhere = tmp_path / "another"
    elsewhere.symlink_to(model)
    assert json.loads(calla("info", "--json", env={"CALLA_MODEL": str(elsewhere)}).stdout)["name"] == "another"
    named = calla("info", "--json", "-m", model, env={"CALLA_MODEL": "/no/such"})
    assert named.returncode == 0 and "bundled" not in named.stderr


@pytest.mark.parametrize("command", ["run", "chat", "info", "eval", "tokenize", "detokenize", "template"])
def test_a_model_that_is_not_there(calla, command):
    more = {"run": ["Hi"], "eval": ["--text", "/dev/null"]}.get(command, [])
    one_sentence(calla(command, "-m", "/no/such/model", *more), 1, "/no/such/model")


def test_a_folder_that_is_no_model(calla, tmp_path):
    one_sentence(calla("run", "-m", tmp_path, "Hi"), 1, str(tmp_path), "config.json")


# run


def test_three_ways_to_give_a_prompt(calla):
    argument = calla("run", *GREEDY, "What is 2 plus 2?")
    assert argument.returncode == 0
    assert calla("run", *GREEDY, "-", input="What is 2 plus 2?").stdout == argument.stdout
    assert calla("run", *GREEDY, input="What is 2 plus 2?\n").stdout == argument.stdout


def test_argument_and_input_join_with_an_empty_line(calla):
    body = {"temperature": 0, "max_tokens": 24}
    joined = calla("run", *GREEDY, "Sum this up:", "-", input="One.\nTwo.\n")
    assert joined.stdout == calla("run", "--request", "-", input=request("Sum this up:\n\nOne.\nTwo.", **body)).stdout


def test_with_a_prompt_the_input_is_left_alone(binary):
    script = f'"{binary}" run --quiet --max-tokens 1 --no-think Hi >/dev/null; cat'
    result = subprocess.run(["sh", "-c", script], input=b"untouched", capture_output=True, env=environment())
    assert result.stdout == b"untouched"


def test_the_answer_ends_with_one_newline(calla):
    for seed in range(4):
        result = calla("run", "--no-think", "--max-tokens", "12", "--seed", seed, "--temperature", "2", "Hi")
        assert result.returncode == 0
        assert result.stdout.endswith("\n") and not result.stdout.endswith("\n\n")


def test_json_and_text_agree(calla):
    text = calla("run", *GREEDY, "--no-think", "Hello")
    result = calla("run", *GREEDY, "--no-think", "--json", "Hello")
    assert result.stdout.count("\n") == 1
    reply = json.loads(result.stdout)
    assert reply["content"].rstrip("\n") + "\n" == text.stdout
    assert reply["reasoning_content"] == "" and reply["tool_calls"] == []
    assert reply["finish_reason"] in ("stop", "length")
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["cached_tokens"] == 0
    assert reply["timings"]["prompt_seconds"] > 0


def test_a_seed_repeats_the_reply(calla):
    def sample(seed):
        return calla("run", "--no-think", "--temperature", "3", "--top-k", "0", "--top-p", "1", "--max-tokens", "16",
                     "--seed", seed, "Hi").stdout  # fmt: skip

    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


def test_thinking_goes_to_standard_error_on_demand(calla):
    silent = calla("run", *GREEDY, "--quiet", "What is 2 plus 2?")
    shown = calla("run", *GREEDY, "--quiet", "--show-thinking", "What is 2 plus 2?")
    reply = json.loads(calla("run", *GREEDY, "--json", "What is 2 plus 2?").stdout)
    assert silent.stderr == ""
    assert reply["reasoning_content"].strip() and reply["reasoning_content"].strip() in shown.stderr
    assert shown.stdout == silent.stdout


def test_statistics(calla):
    result = calla("run", *GREEDY, "--no-think", "Hi")
    usage = json.loads(calla("run", *GREEDY, "--no-think", "--json", "Hi").stdout)["usage"]
    line = result.stderr.splitlines()[-1]
    counts = re.search(r"prompt: (\d+) tokens \([\d.]+ tokens/s\); reply: (\d+) tokens \([\d.]+ tokens/s\)", line)
    assert [int(counts[1]), int(counts[2])] == [usage["prompt_tokens"], usage["completion_tokens"]]


def test_a_request_is_honoured(calla):
    def ask(*options, **body):
        return json.loads(calla("run", "--json", *options, "--request", "-", input=request(**body)).stdout)

    assert ask(max_tokens=3)["usage"]["completion_tokens"] == 3
    assert ask(max_completion_tokens=3)["finish_reason"] == "length"
    assert ask("--max-tokens", "2", max_tokens=3)["usage"]["completion_tokens"] == 2
    plain = ask(enable_thinking=False, max_tokens=4, temperature=0)
    assert plain["reasoning_content"] == "" and plain["content"]
    overridden = ask("--no-think", chat_template_kwargs={"enable_thinking": True}, max_tokens=4, temperature=0)
    assert overridden["content"] == plain["content"]
    assert ask("--system", "Be brief.", max_tokens=1)["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


def test_a_logit_bias_decides(calla):
    token = json.loads(calla("tokenize", input="&").stdout)[0]
    body = request(logit_bias={token: 100}, enable_thinking=False, max_tokens=5, temperature=0)
    assert calla("run", "--request", "-", input=body).stdout == "&&&&&\n"


@pytest.mark.parametrize(
    "body, part",
    [
        ("", "JSON"),
        ("[]", "object"),
        ("{}", "messages"),
        ('{"messages": 5}', "messages"),
        (request(temperature="warm"), "temperature"),
        (request(temperature=-1), "temperature"),
        (request(top_p=2), "top_p"),
        (request(top_k=1.5), "top_k"),
        (request(max_tokens=0), "max_tokens"),
        (request(max_tokens=-1), "max_tokens"),
        (request(seed="x"), "seed"),
        (request(logit_bias=[1]), "logit_bias"),
        (request(logit_bias={"abc": 1}), "logit_bias"),
        (request(logit_bias={"5": 1000}), "logit_bias"),
        (request(logit_bias={"999999999": 1}), "logit_bias"),
        (request(n=2), '"n"'),
        (request(stop=["a", "b", "c", "d", "e"]), "stop"),
        (request(logprobs=True), "logprobs"),
        (request(top_logprobs=5), "\"top_logprobs\""),
        (request(response_format={"type": "json_object"}), "response_format"),
        (request(tool_choice="required"), "tool_choice"),
        (request(temperature=3), "temperature"),
        ('{"messages": [{"role": "critic", "content": "x"}]}', "critic"),
        ('{"messages": ' + "[" * 5000, "JSON"),
    ],
)
def test_a_request_that_cannot_be_met(calla, body, part):
    one_sentence(calla("run", "--quiet", "--request", "-", input=body), 1, part)


def test_stop_strings_end_the_answer(calla):
    body = request("Count from one to nine.", enable_thinking=False, temperature=0, max_tokens=60)
    whole = json.loads(calla("run", "--json", "--request", "-", input=body).stdout)["content"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    body = request("Count from one to nine.", enable_thinking=False, temperature=0, max_tokens=60, stop=[stop])
    reply = json.loads(calla("run", "--json", "--request", "-", input=body).stdout)
    assert reply["content"] == whole[: whole.index(stop)]
    assert reply["finish_reason"] == "stop"


def test_null_means_absent(calla):
    body = request(temperature=None, top_p=None, seed=None, stop=None, n=None, tools=None, logit_bias=None, max_tokens=2)
    assert calla("run", "--request", "-", input=body).returncode == 0


def test_a_tool_call_is_one_line_of_json(calla):
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    body = request("What is the weather in Paris?", tools=[tool], temperature=0, max_tokens=300)
    lines = calla("run", "--request", "-", input=body).stdout.splitlines()
    call = json.loads(lines[-1])
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    reply = json.loads(calla("run", "--json", "--request", "-", input=body).stdout)
    assert reply["finish_reason"] == "tool_calls" and reply["tool_calls"][0]["function"] == call["function"]
    without = json.loads(calla("run", "--json", "--request", "-", input=body.replace('"tools"', '"other"')).stdout)
    assert without["tool_calls"] == []


def test_a_prompt_longer_than_the_context(calla):
    result = calla("run", "--quiet", "--context", "16", "word " * 100)
    one_sentence(result, 1, "--context", " 16")
    assert int(re.search(r"has (\d+) tokens", result.stderr)[1]) > 100


def test_a_prompt_longer_than_the_model_allows(calla):
    limit = json.loads(calla("info", "--json").stdout)["architecture"]["context_limit"]
    result = calla("run", "--quiet", input="word " * 10000)
    one_sentence(result, 1, f"a context of {limit}", "shorten it")
    assert "--context" not in result.stderr  # cannot help


def test_a_zero_byte_does_not_end_the_answer(calla):
    zero = json.loads(calla("tokenize", input="a\0").stdout)[1]
    body = request(enable_thinking=False, max_tokens=3, logit_bias={str(zero): 100})
    assert calla("run", "--quiet", "--request", "-", input=body).stdout == "\0\0\0\n"
    assert json.loads(calla("run", "--quiet", "--json", "--request", "-", input=body).stdout)["content"] == "\0\0\0"


def test_more_context_than_the_model_has(calla):
    one_sentence(calla("run", "--quiet", "--context", "2000000000", "Hi"), 1, "2000000000")


def test_input_that_is_not_utf8(calla):
    result = calla("run", *GREEDY, input=b"caf\xe9 \x00 \xff\xfe", bytes=True)
    assert result.returncode == 0
    assert b"not all UTF-8" in result.stderr
    result.stdout.decode()


def test_a_reader_that_goes_away(binary, endless):
    process = subprocess.Popen(
        [binary, "run", "--request", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    process.stdin.write(endless.encode())
    process.stdin.close()
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert b"cannot be written" not in process.stderr.read()


def interrupt(binary, endless, *options, delay=1):
    """Interrupts a reply under way; gives the exit code, standard output and standard error."""
    process = subprocess.Popen(
        [binary, "run", *options, "--request", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    process.stdin.write(endless.encode())
    process.stdin.close()
    if "--json" in options:
        process.stderr.readline()  # it says which model it uses, and from then on minds the signal
        time.sleep(delay)
        first = b""
    else:
        first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    output, errors = first + process.stdout.read(), process.stderr.read()
    return process.wait(timeout=30), output, errors


def test_interrupted_it_keeps_the_answer_so_far(binary, endless):
    code, output, errors = interrupt(binary, endless)
    assert code == 130
    assert output.decode().endswith("\n") and len(output) > 1
    assert b"stopped" in errors.splitlines()[-1]


def test_interrupted_it_still_prints_json(binary, endless):
    for delay in (1, 5, 25):  # the reply must have begun, which does not show
        code, output, _ = interrupt(binary, endless, "--json", delay=delay)
        assert code == 130
        if output:
            break
    assert json.loads(output)["finish_reason"] == "cancelled"


# On a terminal


def test_thinking_is_dim_on_a_terminal(binary):
    with Terminal([binary, "run", *GREEDY, "What is 2 plus 2?"]) as terminal:
        assert b"\033[2m" in terminal.finish()[0]
    with Terminal([binary, "run", *GREEDY, "What is 2 plus 2?"], NO_COLOR="1") as terminal:
        assert b"\033[2m" not in terminal.finish()[0]
    with Terminal([binary, "run", *GREEDY, "What is 2 plus 2?"], TERM="dumb") as terminal:
        assert b"\033" not in terminal.finish()[0]
    with Terminal([binary, "run", *GREEDY, "--quiet", "--no-think", "What is 2 plus 2?"]) as terminal:
        assert b"\033" not in terminal.finish()[0]


def test_a_long_prompt_shows_progress(binary, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("All work and no play makes a dull day. " * 40)
    command = f'"{binary}" run --no-think --max-tokens 1 --policy chunk_rows=16 - < "{text}"'
    with Terminal(["/bin/sh", "-c", command]) as terminal:
        output, code = terminal.finish(120)
    assert code == 0
    tokens, speed = map(float, re.search(rb"prompt: (\d+) tokens \(([\d.]+) tokens/s", output).groups())
    seconds = tokens / speed
    if seconds > 0.8:
        assert b"reading the prompt: " in output
        # The line is gone when the answer comes.
        assert b"\r\033[K" in output.rpartition(b"reading the prompt: ")[2]
    elif seconds < 0.3:  # nothing that flashes by
        assert b"reading the prompt" not in output


def test_the_model_cannot_drive_the_terminal(binary, calla, tmp_path):
    token = json.loads(calla("tokenize", input="\033").stdout)[0]
    body = tmp_path / "request.json"
    body.write_text(request(logit_bias={token: 100}, enable_thinking=False, max_tokens=5, temperature=0))
    raw = calla("run", "--quiet", "--request", body)
    assert raw.stdout == "\033" * 5 + "\n"
    with Terminal([binary, "run", "--quiet", "--request", body]) as terminal:
        assert terminal.finish() == (b"\r\n", 0)


def test_control_c_on_a_terminal(binary, endless, tmp_path):
    body = tmp_path / "request.json"
    body.write_text(endless)
    with Terminal([binary, "run", "--request", body]) as terminal:
        terminal.expect(b"names another.\r\n")
        terminal.read_more(30)
        terminal.send(b"\x03")
        output, code = terminal.finish()
    assert code == 130
    assert b"; stopped" in output or b"Stopped while reading the prompt" in output


# Text and tokens


@pytest.mark.parametrize("text", ["", "Hello, world!", "  spaces\t\n\n", "é 日本語 👩‍👩‍👧‍👦", "<|im_end|>", "a\0b"])
def test_text_comes_back(calla, text):
    ids = calla("tokenize", input=text)
    assert ids.returncode == 0
    assert all(isinstance(token, int) for token in json.loads(ids.stdout))
    assert calla("detokenize", input=ids.stdout).stdout == text


def test_control_tokens_only_when_asked_for(calla):
    assert len(json.loads(calla("tokenize", "--special", input="<|im_end|>").stdout)) == 1
    assert len(json.loads(calla("tokenize", input="<|im_end|>").stdout)) > 1


@pytest.mark.parametrize(
    "ids, part",
    [
        ("", "JSON"),
        ("[1, 2", "JSON"),
        ('{"ids": []}', "array"),
        ("[1.5]", "Element 0"),
        ('[1, "2"]', "Element 1"),
        ("[-1]", "Element 0"),
        ("[4294967296]", "Element 0"),
        ("[2000000000]", "2000000000"),
    ],
)
def test_ids_that_are_none(calla, ids, part):
    one_sentence(calla("detokenize", "--quiet", input=ids), 1, part)


def test_template_prints_the_prompt(calla):
    result = calla("template", input=request("Hi", enable_thinking=False))
    assert result.stdout == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    one_sentence(calla("template", "--quiet", input='{"messages": [{"role": "wizard", "content": "x"}]}'), 1, "wizard")


# info


def test_info(calla, model):
    info = json.loads(calla("info", "--json", "-m", model).stdout)
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    assert info["name"] == model.name
    assert info["architecture"]["layers"] == text["num_hidden_layers"]
    assert info["architecture"]["experts"] == text["num_experts"]
    memory = info["memory"]
    files = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert 0.9 * files < memory["weight_bytes"] <= files
    assert memory["fits"] is True
    last = memory["contexts"][-1]
    assert last["context"] == info["architecture"]["context_limit"]
    parts = ["weight_bytes", "session_state_bytes", "scratch_bytes"]
    assert last["total_bytes"] == sum(memory[part] for part in parts) + last["kv_cache_bytes"]
    assert last["kv_cache_bytes"] == last["context"] * memory["kv_cache_bytes_per_token"]
    assert info["backend"]["name"] == "cpu"
    assert info["backend"]["tensor_operations"] is None  # a question of GPUs
    assert info["policies"]["kv_coalesced"] is None  # means nothing on a CPU
    assert {entry["text"] for entry in info["tokenizer"]["end_tokens"]} >= {"<|im_end|>"}


def test_info_for_people(calla, model):
    text = calla("info", "-m", model).stdout
    assert "fits" in text and re.search(r"kv_coalesced +n/a", text)
    assert re.search(r"chunk_rows +64\n", calla("info", "-m", model, "--policy", "chunk_rows=64").stdout)


def test_info_at_one_context(calla):
    def memory(*arguments):
        return json.loads(calla("info", "--json", *arguments).stdout)["memory"]

    chosen = memory("--context", "4096")["contexts"]
    assert chosen == [entry for entry in memory()["contexts"] if entry["context"] == 4096]
    assert [entry["context"] for entry in memory("--context", "1000")["contexts"]] == [1000]
    one_sentence(calla("info", "--quiet", "--context", "2000000000"), 1, "2000000000")


def test_smaller_chunks_need_less_scratch(calla):
    def scratch(rows):
        return json.loads(calla("info", "--json", "--policy", f"chunk_rows={rows}").stdout)["memory"]["scratch_bytes"]

    assert 0 < scratch(64) < scratch(256)
