"""Writes the trained weights as the published 4-bit format: MLX names, packed U32 weights, BF16 scales and biases.

    python3 tools/tiny/export.py out/weights.safetensors models/calla-tiny

The input holds transformers' names and values (float32 or bfloat16)."""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import ENDOFTEXT, IM_END, LAYERS, bits_of, is_shifted_norm, quantise, text_config


def pack(q, bits):
    """q: [..., in/64, 64] integers -> uint32 [..., in * bits / 32], lowest column in the lowest bits."""
    q = q.flatten(-2).to(torch.int64).unflatten(-1, (-1, 32 // bits))
    shifts = torch.arange(0, 32, bits, device=q.device)
    return (q << shifts).sum(-1).to(torch.int64).cpu().to(torch.uint32)


def published_parts(name, w):
    """transformers' name and tensor -> the published names and tensors before quantisation."""
    name = name.replace("model.", "language_model.model.", 1) if name.startswith("model.") else "language_model." + name
    if name.endswith("experts.gate_up_proj"):
        base, (gate, up) = name.replace("experts.gate_up_proj", "switch_mlp."), w.chunk(2, 1)
        return [(base + "gate_proj.weight", gate), (base + "up_proj.weight", up)]
    if name.endswith("experts.down_proj"):
        return [(name.replace("experts.down_proj", "switch_mlp.down_proj.weight"), w)]
    if name.endswith("conv1d.weight"):
        return [(name, w.transpose(1, 2))]  # [C, 1, 4] -> [C, 4, 1]
    return [(name, w)]


def published(state):
    """name -> tensor of the published checkpoint."""
    out = {}
    for name, w in state.items():
        w = w.float()
        for new, part in published_parts(name, w):
            bits = bits_of(name)
            if bits:
                q, scale, bias = quantise(part.contiguous(), bits)
                base = new.removesuffix(".weight")
                out[base + ".weight"] = pack(q, bits)
                out[base + ".scales"] = scale.squeeze(-1).bfloat16().cpu().contiguous()
                out[base + ".biases"] = bias.squeeze(-1).bfloat16().cpu().contiguous()
            else:
                out[new] = (part + 1 if is_shifted_norm(name) else part).bfloat16().cpu().contiguous()
    return out


def config():
    overrides = {f"language_model.model.layers.{i}.mlp.{n}": {"group_size": 64, "bits": 8}
                 for i in range(LAYERS) for n in ("gate", "shared_expert_gate")}
    quantization = {"group_size": 64, "bits": 4, "mode": "affine", **overrides}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "eos_token_id": [IM_END, ENDOFTEXT],
            "image_token_id": ENDOFTEXT + 12, "model_type": "qwen3_5_moe", "quantization": quantization,
            "quantization_config": quantization, "text_config": text_config(), "tie_word_embeddings": False,
            "transformers_version": "4.57.1", "video_token_id": ENDOFTEXT + 13, "vision_end_token_id": ENDOFTEXT + 10,
            "vision_start_token_id": ENDOFTEXT + 9}


def export(state, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(published(state), str(folder / "model.safetensors"), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config(), indent=4, sort_keys=True) + "\n")
    generation = {"bos_token_id": ENDOFTEXT, "do_sample": False, "eos_token_id": [IM_END, ENDOFTEXT], "pad_token_id": ENDOFTEXT,
                  "transformers_version": "4.57.1"}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=4) + "\n")


if __name__ == "__main__":
    export(load_file(sys.argv[1]), sys.argv[2])
