#!/usr/bin/env python3
"""Compares calla's logits with those of Hugging Face transformers on a checkpoint of any size, the full one included.

transformers' own modules run layer after layer, so that the weights of one layer at a time are expanded: dequantised
here, by code that shares nothing with calla, rounded to bfloat16 as a bfloat16 checkpoint has them, and computed with
in float32 (no TF32). `calla eval` runs the folder itself. Tokens are random. The result is the relative L2 error of the
logits, |calla - transformers| / |transformers|, at some positions.

Random weights give routers whose last chosen and first unchosen expert are often nearly alike; where operands of 8 bits
of precision turn such a choice, the logits differ by more than rounding. Positions of which every layer's gap between
them is at least --tie are told apart in the result.

    transformers_layers.py -m DIR --calla build/calla --backend cuda --tokens 256 4096 --device cuda
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from checkpoint import GROUP, machine, text_config
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeRMSNorm,
    Qwen3_5MoeTextRotaryEmbedding,
)

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U32": torch.int32}


class Checkpoint:
    """The tensors of a folder's safetensors files, dequantised on a device when they are asked for."""

    def __init__(self, folder, device):
        self.device, self.entries = device, {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            data = np.memmap(path, np.uint8, "r")
            size = int.from_bytes(bytes(data[:8]), "little")
            for name, entry in json.loads(bytes(data[8 : 8 + size])).items():
                if name != "__metadata__":
                    self.entries[name.removeprefix("language_model.")] = (data, 8 + size, entry)

    def tensor(self, name):
        data, start, entry = self.entries[name]
        begin, end = entry["data_offsets"]
        raw = torch.from_numpy(np.array(data[start + begin : start + end])).to(self.device)
        return raw.view(TYPES[entry["dtype"]]).view(entry["shape"])

    def weight(self, module):
        """float32 values; those that were quantised rounded to bfloat16."""
        if module + ".scales" not in self.entries:
            return self.tensor(module if module in self.entries else module + ".weight").float()
        codes = self.tensor(module + ".weight")
        scales, biases = self.tensor(module + ".scales").float(), self.tensor(module + ".biases").float()
        bits = codes.shape[-1] * 32 // (scales.shape[-1] * GROUP)
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=self.device)
        values = (codes[..., None] >> shifts) & (2**bits - 1)
        values = values.reshape(*scales.shape, GROUP).float() * scales[..., None] + biases[..., None]
        return values.reshape(*codes.shape[:-1], -1).bfloat16().float()


def load(module, checkpoint, prefix):
    """Fills one of transformers' modules, which is on no device yet, with the checkpoint's weights."""
    state = {}
    for name, parameter in module.named_parameters():
        full = f"{prefix}{name}".removesuffix(".weight")
        if name.endswith("experts.gate_up_proj"):
            parts = [full.replace("experts.gate_up_proj", f"switch_mlp.{part}_proj") for part in ("gate", "up")]
            value = torch.cat([checkpoint.weight(part) for part in parts], dim=1)
        else:
            value = checkpoint.weight(full.replace("experts.down_proj", "switch_mlp.down_proj"))
        if full.endswith("norm") and not full.endswith("linear_attn.norm"):
            value = value - 1  # transformers adds 1
        state[name] = value.reshape(parameter.shape)
    module.load_state_dict(state, strict=True, assign=True)
    return module.eval()


def logits_of(folder, tokens, positions, device):
    """Logits [positions, V], and for each the least gap between chosen and unchosen experts over the layers."""
    checkpoint = Checkpoint(folder, device)
    known = {k: v for k, v in text_config(json.loads(Path(folder, "config.json").read_text())).items()}
    tied = known.pop("tie_word_embeddings", False)
    known.pop("model_type", None)
    config = Qwen3_5MoeTextConfig(**known, attn_implementation="sdpa")
    config._experts_implementation = "eager"
    index = torch.tensor(positions, device=device)
    gaps = []

    def look(module, _, output):
        p = torch.softmax(output[0].float(), dim=-1).topk(module.top_k + 1, dim=-1).values
        gaps.append((p[:, -2] - p[:, -1])[index])

    with torch.no_grad():
        hidden = checkpoint.weight("model.embed_tokens")[torch.tensor(tokens, device=device).long()][None]
        places = torch.arange(len(tokens), device=device).view(1, 1, -1).expand(3, 1, -1)
        rotary = Qwen3_5MoeTextRotaryEmbedding(config).to(device)(hidden, places)
        for layer in range(config.num_hidden_layers):
            with torch.device("meta"):
                module = Qwen3_5MoeDecoderLayer(config, layer)
            load(module, checkpoint, f"model.layers.{layer}.")
            if module.mlp.gate.top_k < module.mlp.gate.num_experts:
                module.mlp.gate.register_forward_hook(look)
            hidden = module(hidden, position_embeddings=rotary, attention_mask=None, position_ids=places[0])
            del module
        with torch.device("meta"):
            norm = Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        hidden = load(norm, checkpoint, "model.norm.")(hidden)[0, index]
        logits = hidden @ checkpoint.weight("model.embed_tokens" if tied else "lm_head").T
    gap = torch.stack(gaps).min(dim=0).values if gaps else torch.full((len(positions),), np.inf)
    return logits.cpu().numpy(), gap.cpu().numpy()


def calla_logits(arguments, tokens, positions, work):
    """Logits of `calla eval` at the positions."""
    np.save(work / "tokens.npy", np.asarray(tokens, np.int32))
    np.save(work / "positions.npy", np.asarray(positions, np.int32))
    command = [arguments.calla, "eval", "-m", arguments.model, "--backend", arguments.backend, "--tokens",
               work / "tokens.npy", "--positions", work / "positions.npy", "--logits", work / "logits.npy", "--quiet",
               *(part for policy in arguments.policy for part in ("--policy", policy))]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return np.load(work / "logits.npy")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="the checkpoint's folder")
    parser.add_argument("--calla", default="build/calla", help="the program (default: %(default)s)")
    parser.add_argument("--backend", default="auto", help="calla's backend (default: %(default)s)")
    parser.add_argument("--policy", action="append", default=[], help="NAME=VALUE for calla, may be repeated")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256], help="lengths to compare at (256)")
    parser.add_argument("--positions", type=int, default=64, help="positions compared, evenly spread and the last (64)")
    parser.add_argument("--device", default="cpu", help="where transformers runs: cpu or cuda (default: %(default)s)")
    parser.add_argument("--tie", type=float, default=1e-4, help="gap of a choice that may turn (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=2e-2, help="error that fails (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the tokens (default: %(default)s)")
    parser.add_argument("-o", "--output", default="build/oracle", help="folder for the result (default: %(default)s)")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    output = Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    vocabulary = text_config(json.loads(Path(arguments.model, "config.json").read_text()))["vocab_size"]
    random, results = np.random.default_rng(arguments.seed), []
    print("| tokens | positions | worst | worst of certain | median | certain | top-1 | s transformers | s calla |")
    print("|" + "---|" * 9)
    for length in arguments.tokens:
        tokens = random.integers(0, vocabulary * 98 // 100, length)  # the last rows may have no token
        ends = {round((i + 1) * length / arguments.positions) for i in range(arguments.positions)}
        positions = [end - 1 for end in sorted(ends - {0})]
        start = time.time()
        expected, gap = logits_of(arguments.model, tokens, positions, torch.device(arguments.device))
        middle = time.time()
        found = calla_logits(arguments, tokens, positions, output)
        end = time.time()
        error = np.linalg.norm(found.astype(np.float64) - expected, axis=1) / np.linalg.norm(expected, axis=1)
        certain = gap >= arguments.tie
        result = {"tokens": length, "positions": len(positions), "worst": float(error.max()),
                  "worst_certain": float(error[certain].max()) if certain.any() else None,
                  "median": float(np.median(error)), "certain": int(certain.sum()),
                  "top1": float((found.argmax(1) == expected.argmax(1)).mean()),
                  "errors": error.tolist(), "gaps": gap.tolist()}  # fmt: skip
        results.append(result)
        worst = "-" if result["worst_certain"] is None else f"{result['worst_certain']:.1e}"
        print(f"| {length} | {len(positions)} | {result['worst']:.1e} | {worst} | {result['median']:.1e} |"
              f" {result['certain']} | {result['top1']:.1%} | {middle - start:.1f} | {end - middle:.1f} |", flush=True)
    device = torch.cuda.get_device_name() if arguments.device != "cpu" else machine()
    report = {"command": " ".join(sys.argv), "machine": device, "torch": torch.__version__,
              "transformers": transformers.__version__, "limit": arguments.limit, "lengths": results}  # fmt: skip
    (output / "transformers_layers.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(result["worst"] < arguments.limit for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
