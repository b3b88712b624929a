"""/v1/completions and /v1/models with the official client, and the endpoints for text and tokens."""

import json
import math

import openai
import pytest

PROSE = "It is a truth universally"


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def create(client, prompt=PROSE, **keywords):
    return client.completions.create(model="calla-tiny", prompt=prompt, **{"temperature": 0, **keywords})


def test_completion(client):
    reply = create(client, max_tokens=8)
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-") and reply.model == "calla-tiny"
    choice = reply.choices[0]
    assert choice.text and choice.finish_reason == "length" and choice.index == 0 and choice.logprobs is None
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def test_sixteen_tokens_are_the_default(client):
    assert create(client).usage.completion_tokens == 16


def test_forms_of_a_prompt(client, server):
    tokens = server.post("/tokenize", {"content": PROSE, "special": True})[1]["tokens"]
    texts = {create(client, prompt, max_tokens=4).choices[0].text for prompt in (PROSE, [PROSE], tokens, [tokens])}
    assert len(texts) == 1


def test_streamed_equals_whole(client):
    whole = create(client, max_tokens=8)
    chunks = list(create(client, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]


def test_echo(client):
    text = create(client, max_tokens=3).choices[0].text
    assert create(client, max_tokens=3, echo=True).choices[0].text == PROSE + text
    assert "".join(c.choices[0].text for c in create(client, max_tokens=3, echo=True, stream=True)) == PROSE + text


def test_all_text_is_content(client):
    """No think block, no calls: what the model writes is what comes."""
    prompt = "<|im_start|>user\nWhat is 17 plus 25?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    text = create(client, prompt, max_tokens=100).choices[0].text
    assert "\n</think>\n\n" in text and text.endswith("42")


def test_stop_strings(client):
    whole = create(client, max_tokens=12).choices[0].text
    stop = whole[7:11]
    reply = create(client, max_tokens=12, stop=[stop])
    assert reply.choices[0].text == whole[: whole.find(stop)] and reply.choices[0].finish_reason == "stop"


def test_logprobs(client):
    reply = create(client, max_tokens=6, logprobs=2).choices[0]
    log = reply.logprobs
    assert "".join(log.tokens) == reply.text
    assert len(log.token_logprobs) == len(log.top_logprobs) == len(log.text_offset) == len(log.tokens) == 6
    for token, logprob, top in zip(log.tokens, log.token_logprobs, log.top_logprobs, strict=True):
        assert len(top) == 2 and top[token] == logprob == max(top.values())
    assert [reply.text[offset] for offset in log.text_offset] == [token[0] for token in log.tokens]


def test_logprobs_sum_to_the_likelihood_of_the_text(client, server):
    """The chosen token's logarithm is the same when it is asked for step by step, and the distribution adds up to one."""
    reply = create(client, max_tokens=4, logprobs=1).choices[0]
    tokens = server.post("/tokenize", {"content": PROSE, "special": True})[1]["tokens"]
    total = 0
    for text, logprob in zip(reply.logprobs.tokens, reply.logprobs.token_logprobs, strict=True):
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": 20}
        step = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
        assert step["tokens"] == [text]
        assert step["token_logprobs"][0] == pytest.approx(logprob, abs=1e-3)
        assert 0.5 < sum(map(math.exp, step["top_logprobs"][0].values())) <= 1 + 1e-4
        total += step["token_logprobs"][0]
        tokens = tokens + server.post("/tokenize", {"content": text})[1]["tokens"]
    assert total == pytest.approx(sum(reply.logprobs.token_logprobs), abs=4e-3)


def test_logprobs_are_of_the_models_own_distribution(client):
    plain = create(client, max_tokens=1, logprobs=5).choices[0].logprobs.top_logprobs[0]
    warm = create(client, max_tokens=1, logprobs=5, temperature=1.7, seed=3, presence_penalty=2).choices[0].logprobs
    assert warm.top_logprobs[0] == plain


def test_penalties_and_biases_change_the_text(client, server):
    plain = create(client, max_tokens=24).choices[0].text
    assert create(client, max_tokens=24).choices[0].text == plain
    for fields in (
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 2}},
        {"logit_bias": {str(server.post("/tokenize", {"content": "."})[1]["tokens"][0]): 100}},
    ):
        assert create(client, max_tokens=24, **fields).choices[0].text != plain, fields


def test_samples_follow_the_distribution(client):
    """The first word of many seeds: as often as its probability says, within five standard deviations."""
    top = create(client, max_tokens=1, logprobs=1).choices[0].logprobs.top_logprobs[0]
    word, logprob = next(iter(top.items()))
    count, p = 60, math.exp(logprob)
    options = {"max_tokens": 1, "temperature": 1, "top_p": 1, "extra_body": {"top_k": 0, "min_p": 0}}
    found = sum(create(client, seed=seed, **options).choices[0].text == word for seed in range(count))
    assert abs(found - count * p) < 5 * math.sqrt(count * p * (1 - p))


def test_models(client, server):
    models = client.models.list().data
    assert [model.id for model in models] == ["calla-tiny"]
    assert client.models.retrieve("calla-tiny").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"
    assert server.get("/v1/models")[1]["object"] == "list"


TEXTS = ["", "Hello, world", "->", "(x):\n", "  x", "\t\tif x:\n\n  y", "नमस्ते", "12345", "👩‍👩‍👧", "I'LL", "a\u00a0b", "\r\n\r\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_back(server, text):
    status, answer = server.post("/tokenize", {"content": text})
    assert status == 200 and answer["count"] == len(answer["tokens"])
    assert server.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"content": text})


def test_tokens_are_those_of_the_command(server, calla, model):
    text = "What is 17 plus 25? <|im_end|>"
    for flags, special in ([], False), (["--special"], True):
        printed = calla("tokenize", "-m", model, *flags, input=text).stdout
        assert server.post("/tokenize", {"content": text, "special": special})[1]["tokens"] == json.loads(printed)


def test_pieces(server):
    pieces = server.post("/tokenize", {"content": "Hi 👩", "with_pieces": True})[1]["tokens"]
    data = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
    assert data.decode() == "Hi 👩"


def test_template_is_that_of_the_command(server, calla, model):
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]}
    assert server.post("/apply-template", body)[1]["prompt"] == calla("template", "-m", model, input=json.dumps(body)).stdout
