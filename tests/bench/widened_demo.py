"""The demo model with experts of many megabytes: columns of zeros, which change no output, so that its real routing stays."""
import json
import shutil
from pathlib import Path

import report

HIDDEN, WIDTH = 192, 96


def ensure(cache, expert_bytes, log):
    """The checkpoint's folder, made once; experts of about that size."""
    width = max(WIDTH, expert_bytes // (3 * HIDDEN * 2) // 32 * 32)
    folder = Path(cache) / f"demo-{width}-wide"
    if not (folder / "model.safetensors.index.json").exists():
        log(f"making {folder} ...")
        write(folder, width)
    return folder


def write(folder, width):
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    demo = report.ROOT / "deploy/demo-model"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder / name)
    config = json.loads((demo / "config.json").read_text())
    config["moe_intermediate_size"] = width
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shards, weight_map = {}, {}
    with safe_open(demo / "model.safetensors", framework="pt") as weights:
        for name in sorted(weights.keys()):
            parts = name.split(".")
            shard = f"model-{parts[2]}.safetensors" if parts[1] == "layers" else "model-rest.safetensors"
            shards.setdefault(shard, []).append(name)
            weight_map[name] = shard
        for shard, names in shards.items():
            tensors = {}
            for name in names:
                tensor = weights.get_tensor(name)
                if ".experts." in name:
                    rows, columns = (tensor.shape[0], width) if "down_proj" in name else (width, tensor.shape[1])
                    wide = torch.zeros(rows, columns, dtype=tensor.dtype)
                    wide[:tensor.shape[0], :tensor.shape[1]] = tensor
                    tensor = wide
                tensors[name] = tensor
            save_file(tensors, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
