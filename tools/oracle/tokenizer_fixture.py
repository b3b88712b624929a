#!/usr/bin/env python3
"""Writes tests/data/tokenizer/: a small tokenizer trained by Hugging Face `tokenizers`, and what that library makes of
some hundred texts with it, so that the unit tests compare with the original where it is not installed.

    python3 tools/oracle/tokenizer_fixture.py
"""

import json
import os

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from tokenizer import ADDED, CODE, EMOJI, MARKS, PROSE, WRITTEN, as_string, make_strings, without_added

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "tokenizer")


def train():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(MARKS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator([PROSE, CODE, EMOJI, *WRITTEN, "aaaa aaaaaaaa      \n\n\n\n"] * 3, trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in ADDED])
    return tokenizer


def main():
    os.makedirs(FOLDER, exist_ok=True)
    tokenizer = train()
    tokenizer.save(os.path.join(FOLDER, "tokenizer.json"), pretty=False)
    ordinary = without_added(tokenizer)
    strings = WRITTEN + [text for text in make_strings(6000, seed=3)[-1500:] if len(text) < 60][:450]
    lines = []
    for i, text in enumerate(strings):
        oracle = ordinary if i % 3 == 2 else tokenizer
        ids = oracle.encode(as_string(text), add_special_tokens=False).ids
        vector = {"special": oracle is tokenizer, "ids": ids}
        vector["bytes" if isinstance(text, bytes) else "text"] = text.hex() if isinstance(text, bytes) else text
        lines.append(json.dumps(vector, separators=(",", ":")))
    with open(os.path.join(FOLDER, "vectors.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
