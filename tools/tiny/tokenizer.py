"""Trains the byte-level BPE tokenizer on generated conversations and prose, in the form of the real model's.

    python3 tools/tiny/tokenizer.py out/prose.json.gz models/calla-tiny

4032 base tokens (all 256 bytes among them), then the real model's 33 added tokens in its order: ids 4032..4064."""
import gzip
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dialog import render
from gen_text import conversation, set_prose

BASE_TOKENS = 4032
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response>
<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>""".split()
NOT_SPECIAL = set("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
                  "<tool_response> </tool_response> <think> </think>".split())


def build():
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tokenizer


def texts(paragraphs, rng, count=30000):
    for _ in range(count):
        c = conversation(rng)
        for t, _ in [(c["text"], True)] if "text" in c else render(c):
            for name in ADDED:
                if name in t:
                    t = t.replace(name, " ")
            yield t
    yield from paragraphs


def main(prose, folder):
    with gzip.open(prose, "rt", encoding="utf-8") as f:
        paragraphs = json.load(f)
    set_prose(paragraphs, False)
    tokenizer = build()
    tokenizer.train_from_iterator(texts(paragraphs, random.Random(7)), trainers.BpeTrainer(
        vocab_size=BASE_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=t not in NOT_SPECIAL) for t in ADDED])
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    assert tokenizer.get_vocab_size() == BASE_TOKENS + len(ADDED)
    assert [tokenizer.token_to_id(t) for t in ADDED] == list(range(BASE_TOKENS, BASE_TOKENS + len(ADDED)))
    config = {
        "add_bos_token": False, "add_prefix_space": False, "additional_special_tokens": ADDED[1:14], "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 8192,
        "pad_token": "<|endoftext|>", "pretokenize_regex": PATTERN, "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=4, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
