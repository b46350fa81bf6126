#!/usr/bin/env python3
"""Makes goldens.json: what others read of checkpoints that `switchyard quantize` has written.

    python3 make.py --bin=build/release/bin

needs torch, transformers 5.24 and compressed-tensors 0.20.  Of each case, a model of tests/golden/models in a format:
`values` has for each matrix the SHA-256 of its fp32 values as compressed-tensors decodes them, `logits` those that
transformers, which loads the directory, has for the last of `tokens`.

text.bin: 260 texts of deploy/demo-model/generate_data.py (--scale=0.06 --seed=7, all domains, mixed), packed by
`switchyard data pack` with the demo model's tokenizer.
"""
import argparse
import glob
import hashlib
import json
import os
import subprocess
import tempfile

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from safetensors import safe_open
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [("mixtral-gqa", "int4"), ("mixtral-fused", "int8"), ("qwen2-shared", "int8"), ("qwen3-qknorm", "int4"), ("olmoe-clip", "int4")]
TOKENS = [7, 61, 200, 13, 99, 140, 3, 250, 31, 77]


def tensors_of(folder):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


def decode(folder):
    config = QuantizationConfig.model_validate(json.load(open(os.path.join(folder, "config.json")))["quantization_config"])
    scheme = QuantizationScheme(targets=["Linear"], weights=config.config_groups["group_0"].weights)
    tensors = tensors_of(folder)
    values = {}
    for name in sorted(name.removesuffix("_packed") for name in tensors if name.endswith("_packed")):
        parts = {"weight_packed": tensors[name + "_packed"], "weight_scale": tensors[name + "_scale"].float(), "weight_shape": tensors[name + "_shape"]}
        value = PackedQuantizationCompressor.decompress(parts, scheme)["weight"].float().contiguous()
        values[name] = hashlib.sha256(value.numpy().tobytes()).hexdigest()
    return values


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # routers stay in the file's dtype
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
        return [float(f"{value:.7g}") for value in model(torch.tensor([TOKENS])).logits[0, -1].tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    args = parser.parse_args()
    goldens = []
    for model, format in CASES:
        with tempfile.TemporaryDirectory() as work:
            folder = os.path.join(work, "out")
            subprocess.run([os.path.join(args.bin, "switchyard-quantize"), f"--model={HERE}/../../models/{model}", f"--output={folder}",
                            f"--format={format}", "--group_size=8"], check=True)
            goldens.append({"model": model, "format": format, "tokens": TOKENS, "values": decode(folder), "logits": logits(folder)})
    with open(os.path.join(HERE, "goldens.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(golden) for golden in goldens) + "\n]\n")


if __name__ == "__main__":
    main()
