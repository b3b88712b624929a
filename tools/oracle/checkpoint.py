"""Reading a checkpoint in MLX's affine format, independently of calla, and making small random ones with it."""

import json
import platform
import subprocess
from pathlib import Path

import numpy as np

GROUP = 64


def machine():
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def text_config(config):
    """The part of config.json that describes the language model."""
    return config.get("text_config", config)


def _bf16(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


def read_tensors(folder):
    """All tensors of the folder's safetensors files: name -> array; BF16 becomes float32."""
    types = {"F32": np.float32, "F16": np.float16, "U32": np.uint32, "BF16": np.uint16, "I32": np.int32}
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            raw = np.frombuffer(data[8 + size + begin : 8 + size + end], types[entry["dtype"]])
            raw = raw.reshape(entry["shape"])
            tensors[name] = _bf16(raw) if entry["dtype"] == "BF16" else raw
    return tensors


def dequantise(codes, scales, biases):
    """U32 [..., columns * bits / 32] with [..., columns / 64] scales and biases -> float32 [..., columns]."""
    columns = scales.shape[-1] * GROUP
    bits = codes.shape[-1] * 32 // columns
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (codes[..., None] >> shifts) & np.uint32(2**bits - 1)
    values = values.reshape(*codes.shape[:-1], columns // GROUP, GROUP).astype(np.float32)
    values = values * scales[..., None].astype(np.float32) + biases[..., None].astype(np.float32)
    return values.reshape(*codes.shape[:-1], columns)


def read_weights(folder):
    """The language model's weights as float32, named without "language_model." and ".weight"."""
    tensors, weights = read_tensors(folder), {}
    for name, tensor in tensors.items():
        if name.endswith((".scales", ".biases")) or "vision_tower" in name:
            continue
        module = name.removesuffix(".weight")
        if module + ".scales" in tensors:
            tensor = dequantise(tensor, tensors[module + ".scales"], tensors[module + ".biases"])
        weights[module.removeprefix("language_model.")] = np.asarray(tensor, np.float32)
    return weights


def small_config(*, layers, hidden, heads, kv_heads, head_size, rotary, key_heads, value_heads, key_size, value_size,
                 experts, chosen, width, shared, taps=4, interval=4, bits=4, tied=False, theta=10000000, plain=()):
    """A config.json of the family, laid out as the published one. `plain`: modules left unquantised."""
    vocabulary = len(token_strings())
    text = {
        "attention_bias": False, "attn_output_gate": True, "head_dim": head_size, "hidden_act": "silu",
        "hidden_size": hidden, "full_attention_interval": interval, "linear_conv_kernel_dim": taps,
        "linear_key_head_dim": key_size, "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
        "linear_value_head_dim": value_size, "max_position_embeddings": 4096, "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": width, "num_attention_heads": heads, "num_experts": experts,
        "num_experts_per_tok": chosen, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "partial_rotary_factor": rotary / head_size, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [rotary // 2 - 2 * (rotary // 6), rotary // 6, rotary // 6],
            "partial_rotary_factor": rotary / head_size, "rope_theta": theta, "rope_type": "default",
        },
        "shared_expert_intermediate_size": shared, "tie_word_embeddings": tied, "vocab_size": vocabulary,
        "bos_token_id": None, "eos_token_id": 257,
        "layer_types": ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)],
    }  # fmt: skip
    quantization = {"group_size": GROUP, "bits": bits, "mode": "affine"}
    for layer in range(layers):
        for module in ("gate", "shared_expert_gate"):
            quantization[f"language_model.model.layers.{layer}.mlp.{module}"] = {"group_size": GROUP, "bits": 8}
    for module in plain:
        quantization[module] = False
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "eos_token_id": [256, 257],
        "tie_word_embeddings": tied, "text_config": text,
        "quantization": quantization, "quantization_config": quantization,
    }  # fmt: skip


def token_strings():
    """The vocabulary of small models: the bytes in the byte-level alphabet, then control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    control = ["<|im_end|>", "<|endoftext|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    return [alphabet[b] for b in range(256)] + control + [f"<|extra_{i}|>" for i in range(320 - 256 - len(control))]


PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def write_tokenizer(folder):
    """A tokenizer.json with a token for each byte and no merges."""
    strings = token_strings()
    added = [
        {"id": i, "content": strings[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i in range(256, len(strings))
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {s: i for i, s in enumerate(strings[:256])}, "merges": [],
        },
    }  # fmt: skip
    Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def make_checkpoint(calla, config, folder, seed):
    """Random weights of this config in `folder`, which must not exist, spread over two files."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".config.json")
    source.write_text(json.dumps(config, indent=4, sort_keys=True))
    command = [calla, "synth", "--config", source, "-o", folder, "--seed", seed, "--shards", 2]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    source.unlink()
    write_tokenizer(folder)


def calla_logits(calla, folder, tokens, work, backend, *options):
    """Logits [T, vocabulary] of `calla eval`."""
    work = Path(work)
    work.mkdir(parents=True, exist_ok=True)
    np.save(work / "tokens.npy", np.asarray(tokens, np.int32))
    command = [calla, "eval", "-m", folder, "--backend", backend, "--tokens", work / "tokens.npy"]
    command += ["--logits", work / "logits.npy", "--quiet", *options]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return np.load(work / "logits.npy")
