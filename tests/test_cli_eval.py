"""calla eval, held against the same sums in numpy."""

import json

import numpy as np
import pytest

from test_cli import one_sentence

TEXT = "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times."


@pytest.fixture(scope="module")
def evaluated(calla, tmp_path_factory):
    """A folder with the text, its tokens and its logits, and what eval said of it."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "text.txt").write_text(TEXT)
    tokens = np.array(json.loads(calla("tokenize", input=TEXT).stdout), dtype=np.int32)
    np.save(folder / "tokens.npy", tokens)
    result = calla("eval", "--text", folder / "text.txt", "--logits", folder / "logits.npy", "--json")
    assert result.returncode == 0, result.stderr
    return folder, tokens, np.load(folder / "logits.npy"), json.loads(result.stdout)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_perplexity_is_that_of_the_logits(evaluated):
    _, tokens, logits, report = evaluated
    assert logits.dtype == np.float32 and logits.shape[0] == len(tokens) == report["tokens"]
    losses = -log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]
    assert report["predicted"] == len(tokens) - 1
    assert report["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert report["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-6)


def test_text_and_tokens_give_the_same(calla, evaluated):
    folder, tokens, logits, report = evaluated
    again = calla("eval", "--tokens", folder / "tokens.npy", "--logits", folder / "again.npy", "--json")
    assert json.loads(again.stdout)["loss"] == report["loss"]
    assert np.array_equal(np.load(folder / "again.npy"), logits)
    np.save(folder / "wide.npy", tokens.astype(np.int64))
    wide = calla("eval", "--tokens", folder / "wide.npy", "--json")
    assert json.loads(wide.stdout)["loss"] == report["loss"]
    from_input = calla("eval", "--text", "-", "--json", input=TEXT)
    assert json.loads(from_input.stdout)["loss"] == report["loss"]


def test_it_agrees_with_itself(calla, evaluated):
    folder, tokens, _, _ = evaluated
    result = calla("eval", "--text", folder / "text.txt", "--reference", folder / "logits.npy", "--json")
    assert json.loads(result.stdout)["reference"] == {
        "rows": len(tokens), "same_top": len(tokens), "top1_agreement": 1.0,
        "kl_mean": 0.0, "kl_max": 0.0, "relative_l2_mean": 0.0, "relative_l2_max": 0.0,
    }  # fmt: skip
    text = calla("eval", "--text", folder / "text.txt", "--reference", folder / "logits.npy").stdout
    assert "top-1 agreement     100.0000 %" in text and "perplexity" in text


def test_comparison_is_that_of_numpy(calla, evaluated):
    folder, tokens, logits, _ = evaluated
    noise = np.random.default_rng(3).normal(size=logits.shape).astype(np.float32)
    reference = logits + noise * np.linspace(0, 3, len(tokens), dtype=np.float32)[:, None]
    np.save(folder / "noisy.npy", reference)
    result = calla("eval", "--tokens", folder / "tokens.npy", "--reference", folder / "noisy.npy", "--json")
    found = json.loads(result.stdout)["reference"]
    theirs, ours = log_softmax(reference), log_softmax(logits)
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    gap = (logits.astype(np.float64) - reference) ** 2
    distance = np.sqrt(gap.sum(axis=1) / (reference.astype(np.float64) ** 2).sum(axis=1))
    same = int((logits.argmax(axis=1) == reference.argmax(axis=1)).sum())
    assert 0 < same < len(tokens)
    assert found["same_top"] == same and found["top1_agreement"] == pytest.approx(same / len(tokens))
    assert found["kl_mean"] == pytest.approx(divergence.mean(), rel=1e-6)
    assert found["kl_max"] == pytest.approx(divergence.max(), rel=1e-6)
    assert found["relative_l2_mean"] == pytest.approx(distance.mean(), rel=1e-6)
    assert found["relative_l2_max"] == pytest.approx(distance.max(), rel=1e-6)


def test_positions_choose_the_rows(calla, evaluated):
    folder, tokens, logits, report = evaluated
    positions = np.array([0, 3, len(tokens) - 1], dtype=np.int32)
    np.save(folder / "positions.npy", positions)
    result = calla("eval", "--tokens", folder / "tokens.npy", "--positions", folder / "positions.npy",
                   "--logits", folder / "some.npy", "--json")  # fmt: skip
    assert np.array_equal(np.load(folder / "some.npy"), logits[positions])
    assert json.loads(result.stdout)["loss"] == report["loss"]
    result = calla("eval", "--tokens", folder / "tokens.npy", "--positions", folder / "positions.npy",
                   "--reference", folder / "some.npy", "--json")  # fmt: skip
    assert json.loads(result.stdout)["reference"]["rows"] == 3


@pytest.mark.parametrize(
    "positions, part", [([3, 3], "element 1"), ([5, 2], "element 1"), ([-1], "element 0"), ([0, 100000], "element 1")]
)
def test_positions_that_are_none(calla, evaluated, tmp_path, positions, part):
    np.save(tmp_path / "positions.npy", np.array(positions, dtype=np.int32))
    result = calla("eval", "--quiet", "--tokens", evaluated[0] / "tokens.npy", "--positions", tmp_path / "positions.npy",
                   "--logits", tmp_path / "out.npy")  # fmt: skip
    one_sentence(result, 1, "positions.npy", part)
    assert not (tmp_path / "out.npy").exists()


def test_files_that_do_not_fit(calla, evaluated, tmp_path):
    folder, tokens, logits, _ = evaluated

    def evaluate(*arguments):
        return calla("eval", "--quiet", *arguments)

    def compare(reference):
        np.save(tmp_path / "reference.npy", reference)
        return evaluate("--tokens", folder / "tokens.npy", "--reference", tmp_path / "reference.npy")

    one_sentence(compare(logits[1:]), 1, "reference.npy", "shape", f"[{len(tokens)}, {logits.shape[1]}]")
    one_sentence(compare(logits[:, 1:]), 1, "reference.npy", "shape")
    one_sentence(compare(logits.astype(np.float64)), 1, "reference.npy", "<f8")
    one_sentence(compare(np.asfortranarray(logits)), 1, "reference.npy", "Fortran")
    broken = logits.copy()
    broken[2, 5] = np.nan
    one_sentence(compare(broken), 1, "reference.npy", "row 2, column 5")
    one_sentence(evaluate("--text", "/no/such/text"), 1, "/no/such/text")
    one_sentence(evaluate("--text", "-"), 1, "0 tokens")
    one_sentence(evaluate("--tokens", folder / "text.txt"), 1, "text.txt", ".npy")
    one_sentence(evaluate("--tokens", folder / "logits.npy"), 1, "logits.npy", "one-dimensional")
    np.save(tmp_path / "beyond.npy", np.array([1, 2_000_000], dtype=np.int32))
    one_sentence(evaluate("--tokens", tmp_path / "beyond.npy"), 1, "beyond.npy", "2000000")
    one_sentence(evaluate("--text", folder / "text.txt", "--logits", "/no/such/out.npy"), 1, "/no/such/out.npy")
    one_sentence(evaluate("--text", folder / "text.txt", "--context", "4"), 1, "--context", " 4;")


def test_a_failure_leaves_the_old_file(calla, evaluated, tmp_path):
    folder, _, logits, _ = evaluated
    (tmp_path / "out.npy").write_text("precious")
    broken = logits.copy()
    broken[-1, 0] = np.inf
    np.save(tmp_path / "reference.npy", broken)
    result = calla("eval", "--quiet", "--text", folder / "text.txt", "--logits", tmp_path / "out.npy",
                   "--reference", tmp_path / "reference.npy")  # fmt: skip
    assert result.returncode == 1
    assert (tmp_path / "out.npy").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"out.npy", "reference.npy"}
